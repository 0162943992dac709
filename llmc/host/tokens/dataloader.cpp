// Data: see dataloader.h.
#include "llmc/host/tokens/dataloader.h"

#include <glob.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "llmc/host/base/error.h"

namespace llmc {

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
    std::error_code ignored;
    if (std::filesystem::is_directory(pattern, ignored)) {
        const std::filesystem::path example = std::filesystem::path(pattern) / "*_train_*.bin";
        throw Error(kExitBadInput, "{}: a folder; name the token shards in it, as in '{}'", pattern,
                    example.string());
    }
    // a name is also a pattern, but one such as run[1].bin does not match itself
    if (std::filesystem::exists(pattern, ignored)) { return {pattern}; }

    auto is_fatal = [](const char*, int error) { return (int)(error != ENOENT && error != ENOTDIR); };
    glob_t found = {};
    int status = glob(pattern.c_str(), GLOB_NOSORT | GLOB_TILDE, is_fatal, &found);
    std::vector<std::string> names(found.gl_pathv, found.gl_pathv + (status == 0 ? found.gl_pathc : 0));
    globfree(&found);
    if (status != 0 && status != GLOB_NOMATCH) {
        throw Error(kExitBadInput, pattern + ": a folder of this pattern cannot be read");
    }
    if (names.empty()) { throw Error(kExitBadInput, pattern + ": no file matches. " + how_to_make(pattern)); }
    std::sort(names.begin(), names.end());
    return names;
}

// "x/a_train_000001.bin" -> "x/a_train"
std::string series_of(const std::string& path) { return path.substr(0, path.rfind('_')); }

// ---- rows --------------------------------------------------------------------------------------

// spreads every bit of x over the whole result: the finalizer of the splitmix64 generator (Steele, Lea,
// Flood, 2014)
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

// calls visit(position, targets) for each document until it returns false; see ValidationData for what a
// document is
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
        if (shard.vocab_size() != first.vocab_size()) {
            throw Error(kExitBadInput,
                        "{}: the vocabularies of the shards disagree: {} here, but {} in {}. Use shards made "
                        "with one tokenizer.",
                        shard.path(), shard.vocab_size(), first.vocab_size(), first.path());
        }
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
    if (windows_.back() == 0) {
        throw Error(kExitBadInput,
                    "{}: too short to train on: sequences of {} tokens need a shard of at least {}, but the "
                    "longest of {} holds {}. Use {}more text.",
                    pattern, T, (int64_t)T + 1, set_.shards().size(), longest,
                    longest > 1 ? fmt::format("--seq-len {} or less, or ", longest - 1) : "");
    }
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
                               int64_t max_tokens, int raw_vocab)
    : set_(pattern, raw_vocab), T_(T), align_(align == Align::kAuto ? Align::kDocument : align) {
    require(T > 0, "ValidationData: T must be positive");
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
    if (rows_.empty()) {
        throw Error(kExitBadInput,
                    "{}: too short to validate on: no shard has two tokens, so there is nothing to predict. "
                    "Use more text.",
                    pattern);
    }
}

// a run of tokens, cut into rows, as far as max_tokens allows
void ValidationData::add_rows(int64_t position, int64_t targets, int64_t max_tokens) {
    targets = std::min(targets, max_tokens - num_targets_);
    for (int64_t done = 0; done < targets; done += T_) {
        rows_.push_back({position + done, (int32_t)std::min<int64_t>(T_, targets - done)});
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
    }
}

}  // namespace llmc
