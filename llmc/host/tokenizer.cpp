// Tokenizer: see tokenizer.h.
#include "llmc/host/tokenizer.h"

#include <cstdint>

#include "llmc/host/binary_file.h"
#include "llmc/host/error.h"

namespace llmc {

namespace {

constexpr int32_t kTokenizerMagic = 20240328;
constexpr int kMaxVocab = 1 << 20;
constexpr int kGpt2EndOfText = 50256;

// The length in bytes of the UTF-8 character that text starts with; 0 if it does not start with one (overlong
// forms, surrogates and numbers above 0x10FFFF are none: RFC 3629).
size_t utf8_length(std::string_view text) {
    const auto byte = [&](size_t i) { return i < text.size() ? (uint8_t)text[i] : 0; };
    const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
    const int first = byte(0), second = byte(1);
    if (first < 0x80) { return text.empty() ? 0 : 1; }
    if (first >= 0xc2 && first <= 0xdf) { return follows(1) ? 2 : 0; }
    if (first >= 0xe0 && first <= 0xef) {
        const bool overlong = first == 0xe0 && second < 0xa0, surrogate = first == 0xed && second > 0x9f;
        return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        const bool overlong = first == 0xf0 && second < 0x90, too_large = first == 0xf4 && second > 0x8f;
        return follows(1) && follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
    }
    return 0;
}

// control characters: 0x00 to 0x1f, 0x7f and, of two bytes, U+0080 to U+009F, which terminals obey too
bool is_control(std::string_view character) {
    const uint8_t first = (uint8_t)character[0];
    if (first == '\n' || first == '\t') { return false; }
    return first < 0x20 || first == 0x7f || (first == 0xc2 && (uint8_t)character[1] < 0xa0);
}

bool occurs_in_utf8(uint8_t byte) { return byte != 0xc0 && byte != 0xc1 && byte < 0xf5; }

// keep_pieces: bytes that are no whole character, but may be a part of one, pass
std::string escape(std::string_view text, bool keep_pieces) {
    std::string out;
    while (!text.empty()) {
        size_t length = utf8_length(text);
        const bool whole = length > 0 && !is_control(text);
        const bool piece = length == 0 && keep_pieces && occurs_in_utf8((uint8_t)text[0]);
        if (length == 0) { length = 1; }
        if (whole || piece) {
            out += text.substr(0, length);
        } else {
            for (char c : text.substr(0, length)) { out += strf("\\x%02x", (unsigned)(uint8_t)c); }
        }
        text.remove_prefix(length);
    }
    return out;
}

}  // namespace

Tokenizer Tokenizer::bytes() {
    Tokenizer t;
    for (int byte = 0; byte < 256; byte++) { t.tokens_.emplace_back(1, (char)byte); }
    t.tokens_.emplace_back("<|endoftext|>");
    t.end_of_text_ = kByteEndOfText;
    t.bytes_ = true;
    return t;
}

Tokenizer Tokenizer::load(const std::string& path) {
    MappedFile file(path);
    HeaderReader header(file, "tokenizer", kTokenizerMagic,
                        "Get the file again, or leave --tokenizer out if the token shards are byte-level.");
    const int version = header.field(1, "version", 1, 2);
    const int vocab = header.field(2, "vocabulary size", 1, kMaxVocab);
    Tokenizer t;
    if (version >= 2) {
        t.end_of_text_ = header.field(3, "end-of-text token", 0, vocab - 1);
    } else if (vocab > kGpt2EndOfText) {
        t.end_of_text_ = kGpt2EndOfText;
    }
    std::string_view rest(reinterpret_cast<const char*>(file.data()), file.size());
    rest.remove_prefix(kHeaderBytes);
    if (rest.size() < 2 * (size_t)vocab) {  // before anything is allocated
        header.fail("file size", strf("%zu bytes", file.size()),
                    strf("at least %zu bytes = %zu header + 2 x %d tokens", kHeaderBytes + 2 * (size_t)vocab,
                         kHeaderBytes, vocab));
    }
    t.tokens_.reserve((size_t)vocab);
    for (int id = 0; id < vocab; id++) {
        const size_t length = rest.empty() ? 0 : (uint8_t)rest[0];
        if (rest.empty()) { header.fail(strf("token %d, length", id), "the end of the file", "1 to 255"); }
        if (length == 0) { header.fail(strf("token %d, length", id), "0", "1 to 255"); }
        if (rest.size() < 1 + length) {
            header.fail(strf("token %d, bytes", id),
                        strf("%zu bytes before the end of the file", rest.size() - 1), strf("%zu", length));
        }
        t.tokens_.emplace_back(rest.substr(1, length));
        rest.remove_prefix(1 + length);
    }
    header.require_size(file.size() - rest.size(), strf("header and %d tokens", vocab));
    return t;
}

const std::string& Tokenizer::decode(int id) const {
    require(id >= 0 && id < vocab_size(), "Tokenizer: the token id must be in [0, vocab_size)");
    return tokens_[(size_t)id];
}

std::vector<int> Tokenizer::encode(const std::string& text) const {
    if (!bytes_) {
        throw Error(kExitUsage,
                    "a prompt needs the byte-level tokenizer for now: a tokenizer file says what "
                    "the ids mean, not how to cut a text into them. Leave the prompt out, or "
                    "train on byte-level shards (data/make_shards).");
    }
    std::vector<int> ids;
    for (char c : text) { ids.push_back((uint8_t)c); }
    return ids;
}

std::string Tokenizer::printable(int id) const { return escape(decode(id), true); }

std::string Tokenizer::printable(const std::vector<int>& ids) const {
    std::string text;
    for (int id : ids) { text += decode(id); }
    return escape(text, false);
}

}  // namespace llmc
