// Files of tokens: see data_files.h.
#include "llmc/host/tokens/data_files.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/files/json.h"

namespace llmc {

// ---- token shards -------------------------------------------------------------------------------

constexpr int kMaxVocabSize = 1 << 16;  // what fits in a uint16 token
constexpr int kSetIdWord = 4;           // and 5, the upper half; then the number of shards

TokenShard::TokenShard(const std::string& path, int raw_vocab) : file_(path) {
    if (raw_vocab > 0) {
        open_raw(raw_vocab);
        return;
    }
    HeaderReader header(file_, "token shard", kTokenShardMagic,
                        "Make token shards of your text with data/make_shards. (Files of tokens alone, as "
                        "nanoGPT's, are read with --raw-tokens.)");
    header.field(1, "version", 1, 1);
    const int64_t count = header.field(2, "token count", 1, std::numeric_limits<int32_t>::max());
    const int vocab = header.field(3, "vocabulary size", 0, kMaxVocabSize);
    header.require_size(kHeaderBytes + (uint64_t)count * sizeof(uint16_t),
                        fmt::format("{} header + 2 x {} tokens", kHeaderBytes, count));
    num_tokens_ = count;
    vocab_size_ = vocab == 0 ? kGpt2VocabSize : vocab;
    file_.read(kSetIdWord * sizeof(int32_t), &set_id_, sizeof(set_id_));
    set_shards_ = header.field(kSetIdWord + 2, "shards in the set", 0, std::numeric_limits<int32_t>::max());
}

void TokenShard::open_raw(int vocab) {
    const auto fail = [&](const std::string& what) {
        throw Error(kExitBadInput, path() + ": not a file of 16-bit tokens without a header: " + what);
    };
    int32_t first = 0;
    if (file_.size() >= sizeof(first)) { file_.read(0, &first, sizeof(first)); }
    if (first == kTokenShardMagic) { fail("it has the header of a token shard. Leave --raw-tokens out."); }
    if (file_.size() % sizeof(uint16_t) != 0) {
        fail(fmt::format("found {} bytes, expected a multiple of 2", file_.size()));
    }
    num_tokens_ = (int64_t)(file_.size() / sizeof(uint16_t));
    vocab_size_ = vocab;
    begin_ = 0;
}

void TokenShard::read(int64_t first, std::span<uint16_t> tokens) const {
    require(first >= 0 && first <= num_tokens_ - (int64_t)tokens.size(),
            "TokenShard: the range must lie in the shard");
    file_.read(begin_ + (uint64_t)first * sizeof(uint16_t), tokens.data(), tokens.size_bytes());
}

std::vector<uint16_t> TokenShard::read_all() const {
    std::vector<uint16_t> tokens((size_t)num_tokens_);
    read(0, tokens);
    return tokens;
}

void TokenShard::will_need(int64_t first, int64_t count) const {
    file_.will_need(begin_ + (uint64_t)first * sizeof(uint16_t), (size_t)count * sizeof(uint16_t));
}

void write_token_shard(const std::string& path, std::span<const uint16_t> tokens, int vocab_size,
                       const std::function<void()>& before) {
    require(!tokens.empty() && tokens.size() <= (size_t)std::numeric_limits<int32_t>::max(),
            "write_token_shard: a shard holds 1 to 2^31 - 1 tokens");
    require(vocab_size > 0 && vocab_size <= kMaxVocabSize,
            "write_token_shard: vocab_size must be 1 to 65,536");
    for (uint16_t token : tokens) {
        require(token < vocab_size, "write_token_shard: token id >= vocab_size");
    }
    int32_t header[kHeaderWords] = {kTokenShardMagic, 1, (int32_t)tokens.size(), vocab_size};
    FileWriter out(path);
    out.write(header, sizeof(header));
    out.write(tokens.data(), tokens.size_bytes());
    out.commit(before);
}

void mark_token_shard(const std::string& path, uint64_t set_id, int set_shards) {
    char words[sizeof(set_id) + sizeof(set_shards)];
    std::memcpy(words, &set_id, sizeof(set_id));
    std::memcpy(words + sizeof(set_id), &set_shards, sizeof(set_shards));
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    bool done = fd >= 0 &&
                pwrite(fd, words, sizeof(words), kSetIdWord * sizeof(int32_t)) == (ssize_t)sizeof(words) &&
                fsync(fd) == 0;
    const int error = errno;
    done = (fd < 0 || close(fd) == 0) && done;
    if (!done) {
        throw Error(kExitSaveFailed, "{}: cannot note in it which set it is of: {}", path,
                    std::strerror(error));
    }
}

// ---- what is known about a validation shard -----------------------------------------------------

namespace {

// what stands where a number should, or a list of them
const char* kind_of(const JsonValue& value) {
    return value.is_object()    ? "an object outside 'probes'"
           : value.is_array()   ? "a list outside 'probes'"
           : value.is_null()    ? "null"
           : value.is_string()  ? "a string"
           : value.is_boolean() ? "a boolean"
                                : "a number that is not in a [position, length]";
}

// Reads a file's members; throws where they are not what they must be.
struct ValInfoReader {
    const std::string& path;
    int64_t num_tokens;

    void expect(bool good, const std::string& found) const {
        if (good) { return; }
        throw Error(kExitBadInput,
                    "{}: found {}, expected {{\"entropy_nats_per_token\": Y, \"probes\": {{...}}}} as "
                    "data/make_corpus writes it. Make it again, or remove it.",
                    path, found);
    }
    // it goes to the terminal, which control characters could drive
    void check_name(const std::string& name) const {
        const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
        expect(std::ranges::none_of(name, control), "a name with control characters");
    }
    ValInfo info_of(const JsonValue& root) const {
        expect(root.is_object() || root.is_number(), kind_of(root));
        expect(root.is_object(), "no positive entropy_nats_per_token");
        ValInfo info;
        for (const auto& [name, value] : root.items()) {
            check_name(name);
            if (name == "probes") {
                expect(!value.is_number(), "a number for 'probes'");
                expect(value.is_object(), kind_of(value));
                for (const auto& [probe, spans] : value.items()) {
                    check_name(probe);
                    info.probes.push_back({probe, spans_of(spans)});
                }
                continue;
            }
            expect(value.is_number(), kind_of(value));
            if (name == "entropy_nats_per_token") { info.entropy = value.get<double>(); }
            const auto* whole = json_as<int64_t>(&value);
            expect(name != "tokens" || (whole != nullptr && *whole == num_tokens - 1),
                   fmt::format("tokens = {:.15g} for a shard that has {} to predict", value.get<double>(),
                               num_tokens - 1));
        }
        expect(std::isfinite(info.entropy) && info.entropy > 0, "no positive entropy_nats_per_token");
        return info;
    }
    std::vector<std::pair<int64_t, int64_t>> spans_of(const JsonValue& list) const {
        expect(list.is_array(), kind_of(list));
        std::vector<std::pair<int64_t, int64_t>> spans;
        for (const JsonValue& pair : list) {
            expect(pair.is_array(), kind_of(pair));
            for (size_t i = 0; i < pair.size(); i++) {
                expect(pair[i].is_number() && i < 2, kind_of(pair[i]));
            }
            const auto *position = json_as<int64_t>(pair.size() < 2 ? nullptr : &pair[0]),
                       *length = json_as<int64_t>(pair.size() < 2 ? nullptr : &pair[1]);
            expect(position != nullptr && length != nullptr && *position > 0 && *length > 0 &&
                       *position < num_tokens && *length <= num_tokens - *position,
                   "a probe that is not [position, length] inside the shard");
            spans.push_back({*position, *length});
        }
        return spans;
    }
};

}  // namespace

std::optional<ValInfo> read_val_info(const std::string& shard_path, int64_t num_tokens) {
    constexpr int64_t kMostBytes = 64 << 20;
    const std::string path = std::filesystem::path(shard_path).replace_extension(".json").string();
    const std::optional<std::string> text = read_whole(path, kMostBytes);
    if (!text) { return std::nullopt; }
    const ValInfoReader reader{path, num_tokens};
    JsonValue root;
    const std::string problem = read_json(*text, {.values = 4'000'000, .integer = UINT64_MAX}, &root);
    reader.expect(problem.empty(), problem);
    return reader.info_of(root);
}

// ---- HellaSwag's questions ----------------------------------------------------------------------

namespace {

constexpr uint16_t kStart = 65535;
constexpr size_t kLeastWords = 7 + 2 * kEvalEndings;  // of an example

// Reads words one after the other; throws where they are not what they must be.
struct WordReader {
    const HeaderReader& header;
    int vocab_size;
    std::span<const uint16_t> words;  // of the file, or up to the end of an example
    const char* what = "the end of the file";
    size_t at = 0, example = 0;

    [[noreturn]] void fail(const char* name, const std::string& found, size_t low, size_t high) const {
        header.fail(fmt::format("{} of example {}", name, example), found,
                    low == high ? fmt::format("{}", low) : fmt::format("{} to {}", low, high));
    }
    size_t word(const char* name, size_t low, size_t high) {
        if (at == words.size()) { fail(name, what, low, high); }
        const size_t value = words[at];
        if (value < low || value > high) { fail(name, std::to_string(value), low, high); }
        at++;
        return value;
    }
    std::span<const uint16_t> tokens(const char* length, const char* name) {
        const size_t count = word(length, 1, kMostEvalBytes);
        if (count > words.size() - at) { fail(name, fmt::format("{} tokens", count), 1, words.size() - at); }
        const auto part = words.subspan(at, count);
        for (uint16_t token : part) {
            if (token >= vocab_size) {
                fail(name, fmt::format("token {}", token), 0, (size_t)vocab_size - 1);
            }
        }
        at += count;
        return part;
    }
};

}  // namespace

EvalFile::EvalFile(const std::string& path) : file_(path) {
    const HeaderReader header(file_, "HellaSwag file", kEvalFileMagic, "Make it with data/make_hellaswag.");
    header.field(1, "version", 1, 1);
    const auto count = (size_t)header.field(2, "number of examples", 1, kMostEvalExamples);
    const auto longest = (size_t)header.field(3, "bytes of the longest example", 1, kMostEvalBytes);
    const int vocab = header.field(4, "vocabulary size", 0, EvalFileWriter::kMostTokens);
    vocab_size_ = vocab == 0 ? kGpt2VocabSize : vocab;
    const size_t bytes = file_.size() - kHeaderBytes;
    const size_t least = count * kLeastWords * sizeof(uint16_t);
    if (bytes % 2 != 0 || bytes < least) {
        header.fail("size", fmt::format("{} bytes", bytes),
                    fmt::format("an even number, {} or more for {} examples", least, count));
    }
    words_.resize(bytes / 2);
    file_.read(kHeaderBytes, words_.data(), 2 * words_.size());
    WordReader in{header, vocab_size_, words_};
    for (; in.example < count; in.example++) {
        const size_t begin = in.at;
        in.words = words_;
        in.what = "the end of the file";
        in.word("start", kStart, kStart);
        const size_t size = in.word("bytes", kLeastWords * sizeof(uint16_t), longest), end = begin + size / 2;
        if (size % 2 != 0 || end > words_.size()) {
            in.fail("bytes", std::to_string(size), 2, bytes - 2 * begin);
        }
        in.words = std::span(words_).first(end);
        in.what = "the end of the example";
        in.word("number", in.example, in.example);
        EvalExample example;
        example.label = (int)in.word("right ending", 0, kEvalEndings - 1);
        in.word("number of endings", kEvalEndings, kEvalEndings);
        example.context = in.tokens("length of the context", "context");
        for (auto& ending : example.endings) { ending = in.tokens("length of an ending", "an ending"); }
        if (in.at != end) {
            in.fail("bytes", std::to_string(size), 2 * (in.at - begin), 2 * (in.at - begin));
        }
        examples_.push_back(example);
    }
    if (in.at != words_.size()) {
        header.fail("size", fmt::format("{} bytes", bytes),
                    fmt::format("{} for {} examples", 2 * in.at, count));
    }
}

void EvalFileWriter::add(int label, const std::vector<int>& context,
                         const std::array<std::vector<int>, kEvalEndings>& endings,
                         const std::string& where) {
    require(label >= 0 && label < kEvalEndings, "EvalFileWriter: the label must name an ending");
    std::vector<uint16_t> words = {kStart, 0, (uint16_t)examples_, (uint16_t)label, kEvalEndings};
    bool empty = false;
    const auto append = [&](const std::vector<int>& ids) {
        empty |= ids.empty();
        words.push_back((uint16_t)ids.size());
        for (int id : ids) {
            require(id >= 0 && id < vocab_size_, "EvalFileWriter: a token id outside of the vocabulary");
            words.push_back((uint16_t)id);
        }
    };
    append(context);
    for (const std::vector<int>& ending : endings) { append(ending); }
    const size_t bytes = words.size() * sizeof(uint16_t);
    if (empty) {
        throw Error(kExitBadInput, where + ": found an empty context or ending, expected some text");
    }
    if (bytes > kMostEvalBytes || examples_ == kMostEvalExamples) {
        throw Error(kExitBadInput,
                    "{}: found example {} of {} bytes, but the format has room for {} examples of {} bytes",
                    where, examples_, bytes, kMostEvalExamples, kMostEvalBytes);
    }
    words[1] = (uint16_t)bytes;
    words_.insert(words_.end(), words.begin(), words.end());
    longest_ = std::max(longest_, bytes);
    examples_++;
}

void EvalFileWriter::write(const std::string& path) const {
    require(examples_ > 0, "EvalFileWriter: no example");
    const int32_t header[kHeaderWords] = {kEvalFileMagic, 1, (int32_t)examples_, (int32_t)longest_,
                                          vocab_size_};
    FileWriter out(path);
    out.write(header, sizeof(header));
    out.write(words_.data(), words_.size() * sizeof(uint16_t));
    out.commit();
}

}  // namespace llmc
