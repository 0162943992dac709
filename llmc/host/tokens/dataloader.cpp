// Data: see dataloader.h.
#include "llmc/host/tokens/dataloader.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
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
    const int32_t words[] = {(int32_t)set_id, (int32_t)(set_id >> 32), set_shards};
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    bool done = fd >= 0 &&
                pwrite(fd, words, sizeof(words), kSetIdWord * sizeof(int32_t)) == (ssize_t)sizeof(words) &&
                fsync(fd) == 0;
    const int error = errno;
    done = (fd < 0 || close(fd) == 0) && done;
    throw_if(!done, kExitSaveFailed, "{}: cannot note in it which set it is of: {}", path,
             std::strerror(error));
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
    throw_if(empty, kExitBadInput, "{}: found an empty context or ending, expected some text", where);
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

namespace {

constexpr int64_t kPiece = 1 << 20;  // tokens read at a time

// ---- finding the shards ------------------------------------------------------------------------

std::string how_to_make(const std::string& pattern) {
    const std::string path = "/" + std::filesystem::path(pattern).lexically_normal().string();
    return path.find("/data/sample/") != path.npos
               ? "Run `make data/sample`, which makes it."
               : "Make token shards of your text with data/make_shards (data/README.md shows how).";
}

// the names that match, in byte order: the order must not depend on the locale of who trains
std::vector<std::string> matching_files(const std::string& pattern) {
    if (is_folder(pattern)) {
        const std::filesystem::path example = std::filesystem::path(pattern) / "*_train_*.bin";
        throw Error(kExitBadInput, "{}: a folder; name the token shards in it, as in '{}'", pattern,
                    example.string());
    }
    // a name is also a pattern, but one such as run[1].bin does not match itself
    if (is_there(pattern)) { return {pattern}; }

    auto is_fatal = [](const char*, int error) { return (int)(error != ENOENT && error != ENOTDIR); };
    glob_t found = {};
    int status = glob(pattern.c_str(), GLOB_NOSORT | GLOB_TILDE, is_fatal, &found);
    std::vector<std::string> names(found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0));
    globfree(&found);
    throw_if(status != 0 && status != GLOB_NOMATCH, kExitBadInput,
             "{}: a folder of this pattern cannot be read", pattern);
    if (names.empty()) { throw Error(kExitBadInput, pattern + ": no file matches. " + how_to_make(pattern)); }
    std::sort(names.begin(), names.end());
    return names;
}

// "x/a_train_000001.bin" -> "x/a_train"
std::string series_of(const std::string& path) { return path.substr(0, path.rfind('_')); }

// ---- rows --------------------------------------------------------------------------------------

// spreads every bit of x over the whole result: the finalizer of splitmix64 (Steele, Lea, Flood, 2014)
uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// The tokens of a window but the last are the row, those but the first its targets; the rest stays as it is.
void fill_row(const ShardSet& set, int64_t position, int targets, int row, Batch* batch) {
    std::vector<uint16_t> window((size_t)targets + 1);
    set.read(position, window);
    const int64_t begin = (int64_t)row * batch->T;
    std::copy(window.begin(), window.end() - 1, batch->tokens.begin() + begin);
    std::copy(window.begin() + 1, window.end(), batch->targets.begin() + begin);
}

// calls visit(position, targets) for each document (see ValidationData) until it returns false
template <typename Visit>
void for_each_document(const ShardSet& set, int end_of_text, Visit visit) {
    std::vector<uint16_t> piece;
    for (size_t s = 0; s < set.shards().size(); s++) {
        const TokenShard& shard = set.shards()[s];
        const int64_t last = shard.num_tokens() - 1;
        int64_t begin = 0;  // of the document
        for (int64_t i = 0; i <= last; i++) {
            if (i % kPiece == 0) {
                piece.resize((size_t)std::min(kPiece, shard.num_tokens() - i));
                shard.read(i, piece);
            }
            const bool ends = i == last || (i > begin && piece[(size_t)(i % kPiece)] == end_of_text);
            if (!ends || begin == last) { continue; }
            if (!visit(set.begin(s) + begin, i - begin)) { return; }
            begin = i;
        }
    }
}

}  // namespace

// ---- ShardSet ----------------------------------------------------------------------------------

ShardSet::ShardSet(const std::string& pattern, int raw_vocab) : pattern_(pattern), begins_{0} {
    for (const std::string& name : matching_files(pattern)) {
        shards_.emplace_back(name, raw_vocab);
        const TokenShard &first = shards_.front(), &shard = shards_.back();
        throw_if(shard.vocab_size() != first.vocab_size(), kExitBadInput,
                 "{}: the vocabularies of the shards disagree: {} here, but {} in {}. Use shards made with "
                 "one tokenizer.",
                 shard.path(), shard.vocab_size(), first.vocab_size(), first.path());
        begins_.push_back(begins_.back() + shard.num_tokens());
        const TokenShard* before = shards_.size() > 1 ? &shards_[shards_.size() - 2] : nullptr;
        const bool new_series = before == nullptr || series_of(before->path()) != series_of(name);
        if (!new_series && before->set_id() != shard.set_id()) {
            throw Error(
                kExitBadInput,
                "{} and {} are shards of different sets: data/make_shards was stopped while it replaced the "
                "one by the other: run it again; or two sets have one name: give each a name of its own.",
                before->path(), name);
        }
        missing_ += (new_series ? shard.set_shards() : 0) - (shard.set_shards() > 0);
    }
}

size_t ShardSet::shard_of(int64_t position) const {
    require(position >= 0 && position < num_tokens(), "ShardSet: position must be in [0, num_tokens)");
    return (size_t)(std::upper_bound(begins_.begin(), begins_.end(), position) - begins_.begin()) - 1;
}

void ShardSet::read(int64_t position, std::span<uint16_t> tokens) const {
    const size_t s = shard_of(position);
    const TokenShard& shard = shards_[s];
    require((int64_t)tokens.size() <= begins_[s + 1] - position, "ShardSet: the range must lie in one shard");
    const int64_t begin = position - begins_[s];
    shard.read(begin, tokens);
    auto bad = std::find_if(tokens.begin(), tokens.end(), [&](int id) { return id >= shard.vocab_size(); });
    if (bad != tokens.end()) {
        const int64_t at = begin + (bad - tokens.begin());
        throw Error(kExitBadInput,
                    "{}: token {}: found id {}, expected 0 to {} (vocabulary of {}). The shard is damaged or "
                    "states another vocabulary; make it again.",
                    shard.path(), at, *bad, shard.vocab_size() - 1, shard.vocab_size());
    }
}

// ---- DataLoader --------------------------------------------------------------------------------

int64_t permuted(int64_t i, int64_t n, uint64_t seed, uint64_t epoch) {
    require(i >= 0 && i < n, "permuted: index must be in [0, n)");
    constexpr int kRounds = 8;
    const int half_bits = std::max(1, ((int)std::bit_width((uint64_t)n - 1) + 1) / 2);
    const uint64_t mask = (uint64_t{1} << half_bits) - 1;
    uint64_t x = (uint64_t)i;
    do {
        uint64_t left = x >> half_bits, right = x & mask, key = mix(mix(seed) ^ epoch);
        for (int round = 0; round < kRounds; round++) {
            key = mix(key);
            left = std::exchange(right, left ^ (mix(right ^ key) & mask));
        }
        x = left << half_bits | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

DataLoader::DataLoader(const std::string& pattern, int T, uint64_t seed, int raw_vocab)
    : set_(pattern, raw_vocab), T_(T), seed_(seed), windows_{0} {
    require(T > 0, "DataLoader: T must be positive");
    int64_t longest = 0;
    for (const TokenShard& shard : set_.shards()) {
        longest = std::max(longest, shard.num_tokens());
        windows_.push_back(windows_.back() + (shard.num_tokens() - 1) / T);
    }
    throw_if(windows_.back() == 0, kExitBadInput,
             "{}: too short to train on: sequences of {} tokens need a shard of at least {}, but the longest "
             "of {} holds {}. Use {}more text.",
             pattern, T, (int64_t)T + 1, set_.shards().size(), longest,
             longest > 1 ? fmt::format("--seq-len {} or less, or ", longest - 1) : "");
}

int64_t DataLoader::window_position(int64_t row) const {
    const int64_t n = windows_per_epoch();
    const int64_t window = permuted(row % n, n, seed_, (uint64_t)(row / n));
    // shards too short for a window repeat the number before them: upper_bound steps over those
    const auto next = std::upper_bound(windows_.begin(), windows_.end(), window);
    const size_t shard = (size_t)(next - windows_.begin()) - 1;
    return set_.begin(shard) + (window - windows_[shard]) * T_;
}

void DataLoader::read(int64_t first_row, int B, Batch* batch) const {
    require(first_row >= 0 && B > 0, "DataLoader::read: rows start at 0, and B must be positive");
    batch->reset(B, T_);
    for (int b = 0; b < B; b++) { fill_row(set_, window_position(first_row + b), T_, b, batch); }
}

void DataLoader::prefetch(int64_t first_row, int B) const {
    require(first_row >= 0 && B > 0, "DataLoader::prefetch: rows start at 0, and B must be positive");
    for (int b = 0; b < B; b++) {
        const int64_t position = window_position(first_row + b);
        const size_t shard = set_.shard_of(position);
        set_.shards()[shard].will_need(position - set_.begin(shard), (int64_t)T_ + 1);
    }
}

// ---- ValidationData ----------------------------------------------------------------------------

ValidationData::ValidationData(const std::string& pattern, int T, Align align, int end_of_text,
                               int64_t max_tokens, int raw_vocab, int stride)
    : set_(pattern, raw_vocab),
      T_(T),
      stride_(stride > 0 ? stride : T),
      align_(align == Align::kAuto ? Align::kDocument : align) {
    require(T > 0 && stride >= 0 && stride <= T, "ValidationData: T must be positive, the stride at most T");
    require(max_tokens == -1 || max_tokens > 0, "ValidationData: max_tokens must be positive, or -1 for all");
    if (max_tokens == -1) { max_tokens = set_.num_tokens(); }
    if (align_ == Align::kDocument) {
        for_each_document(set_, end_of_text, [&](int64_t position, int64_t targets) {
            if (align == Align::kAuto && targets > T) { align_ = Align::kWindow; }
            add_rows(position, targets, max_tokens);
            return align == Align::kAuto ? align_ == Align::kDocument : num_targets_ < max_tokens;
        });
    }
    if (align_ == Align::kWindow) {
        rows_.clear();
        num_targets_ = 0;
        for (size_t s = 0; s < set_.shards().size(); s++) {
            add_rows(set_.begin(s), set_.shards()[s].num_tokens() - 1, max_tokens);
        }
    }
    throw_if(rows_.empty(), kExitBadInput,
             "{}: too short to validate on: no shard has two tokens, so there is nothing to predict. Use "
             "more text.",
             pattern);
}

// a run of tokens, cut into rows, as far as max_tokens allows
void ValidationData::add_rows(int64_t position, int64_t targets, int64_t max_tokens) {
    targets = std::min(targets, max_tokens - num_targets_);
    for (int64_t done = 0, more; done < targets; done += more) {
        const int64_t seen = done > 0 ? T_ - stride_ : 0;
        more = std::min(T_ - seen, targets - done);
        rows_.push_back({position + done - seen, (int32_t)(seen + more), (int32_t)seen});
    }
    num_targets_ += targets;
}

int64_t ValidationData::row_position(int64_t row) const {
    require(row >= 0 && row < num_rows(), "ValidationData::row_position: row must be in [0, num_rows)");
    return rows_[(size_t)row].position;
}

void ValidationData::read(int64_t first_row, int B, Batch* batch) const {
    require(first_row >= 0 && B > 0, "ValidationData::read: rows start at 0, and B must be positive");
    batch->reset(B, T_);
    for (int b = 0; b < B && first_row + b < num_rows(); b++) {
        const Row& row = rows_[(size_t)(first_row + b)];
        fill_row(set_, row.position, row.targets, b, batch);
        std::fill_n(batch->targets.begin() + (int64_t)b * T_, row.seen, kIgnoreTarget);
    }
}

}  // namespace llmc
