// Tokenizer: see tokenizer.h.
#include "llmc/host/tokenizer.h"

#include <cstdint>

#include "llmc/host/binary_file.h"
#include "llmc/host/error.h"
#include "llmc/host/utf8.h"

namespace llmc {

namespace {

constexpr int32_t kTokenizerMagic = 20240328;
constexpr int kMaxVocab = 1 << 20;
constexpr int kGpt2EndOfText = 50256;

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

std::string Tokenizer::printable(int id) const { return printable_text(decode(id), true); }

std::string Tokenizer::printable(const std::vector<int>& ids) const {
    std::string text;
    for (int id : ids) { text += decode(id); }
    return printable_text(text);
}

}  // namespace llmc
