// Data: the files of tokens that there are, token shards and HellaSwag's questions in llm.c's formats, and the rows that a model
// is fed: for training, in a shuffled order without end, and for validation, in file order.
// What a row holds depends on the shards, T and the seed; never on the batch size, the number of GPUs or on
// where a run was resumed, so that whoever knows a row's number can read it at any time. Nothing has state.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "llmc/host/files/file_io.h"

namespace llmc {

// ---- token shards -------------------------------------------------------------------------------

// Token shards: a header (magic 20240520, version 1, token count, vocabulary size) and then that many uint16
// tokens. The format of llm.c and of the public pre-tokenised data sets; ours are the vocabulary size in word
// 3 (0, as in everyone else's files, means GPT-2's 50,257), and in words 4 to 6 which set a shard is of.

constexpr int32_t kTokenShardMagic = 20240520;
constexpr int kGpt2VocabSize = 50257;

// A shard, open for reading. Throws Error(kExitBadInput) naming the field unless every field and the size are
// right. Token ids are not scanned here: whoever uses them checks them against the vocabulary.
class TokenShard {
public:
    // raw_vocab > 0: the file is nothing but tokens, of a vocabulary of this size, as nanoGPT writes them
    explicit TokenShard(const std::string& path, int raw_vocab = 0);
    const std::string& path() const { return file_.path(); }
    int64_t num_tokens() const { return num_tokens_; }
    // tokens [first, first + tokens.size()) of the shard; throws Error(kExitBadInput) if they cannot be read
    void read(int64_t first, std::span<uint16_t> tokens) const;
    std::vector<uint16_t> read_all() const;
    void will_need(int64_t first, int64_t count) const;  // soon
    int vocab_size() const { return vocab_size_; }
    uint64_t tokens_begin() const { return begin_; }  // in the file, in bytes
    // One for all that a run of data/make_shards made, and how many shards its split has; 0 and 0: made elsewhere.
    uint64_t set_id() const { return set_id_; }
    int set_shards() const { return set_shards_; }

private:
    void open_raw(int vocab);
    RegularFile file_;
    int64_t num_tokens_ = 0;
    int vocab_size_ = 0, set_shards_ = 0;
    uint64_t set_id_ = 0, begin_ = kHeaderBytes;
};

// Replaces path atomically by a shard of 1 to 2^31 - 1 tokens, each < vocab_size <= 65,536. before: FileWriter::commit()'s.
void write_token_shard(const std::string& path, std::span<const uint16_t> tokens, int vocab_size,
                       const std::function<void()>& before = nullptr);

// Notes in a shard, in place and on the disk, which set it is of. Throws Error(kExitSaveFailed).
void mark_token_shard(const std::string& path, uint64_t set_id, int set_shards);

// ---- validation ---------------------------------------------------------------------------------

// What is known about a validation shard beyond its tokens: data/make_corpus writes it beside the shard, as
// NAME.json.
//   {"entropy_nats_per_token": Y, "tokens": N, "probes": {"sums": [[position, length], ...], ...}}
// N is the number of tokens to predict, all of the shard's but the first; N and probes may be left out.
// A probe is a span of tokens that the text before it determines: who has understood predicts each of them.
struct ValInfo {
    double entropy = 0;  // of the source, nats per predicted token
    struct Probe {
        std::string name;
        std::vector<std::pair<int64_t, int64_t>> spans;  // position of the first token in the shard, length
    };
    std::vector<Probe> probes;
};

// The file beside the shard, or nothing if there is none. Throws Error(kExitBadInput) if it is not as above.
std::optional<ValInfo> read_val_info(const std::string& shard_path, int64_t num_tokens);

// ---- HellaSwag ----------------------------------------------------------------------------------

// Multiple-choice questions as token ids: the format of llm.c's HellaSwag file (20240522 version 1). A
// header, then for each example uint16 words: 65535, the bytes of the example from this word on, its number,
// the right ending's number, the count of endings (4), the length of the context, the context, and for each
// ending its length and itself. Header word 2: examples; 3: bytes of the longest; 4: the vocabulary size,
// which is ours (0, as in everyone else's files, means GPT-2's 50,257).

constexpr int32_t kEvalFileMagic = 20240522;
constexpr int kEvalEndings = 4;
constexpr size_t kMostEvalExamples = 65535, kMostEvalBytes = 65534;  // of all, of one: what a uint16 can say

struct EvalExample {
    int label = 0;  // the right ending
    std::span<const uint16_t> context;
    std::array<std::span<const uint16_t>, kEvalEndings> endings;  // none of the five is empty
};

// The examples of a file. Throws Error(kExitBadInput) naming example and field unless all is right, each token too.
class EvalFile {
public:
    explicit EvalFile(const std::string& path);
    const std::string& path() const { return file_.path(); }
    int vocab_size() const { return vocab_size_; }
    const std::vector<EvalExample>& examples() const { return examples_; }

private:
    RegularFile file_;
    int vocab_size_ = 0;
    std::vector<uint16_t> words_;  // after the header: what the examples point into
    std::vector<EvalExample> examples_;
};

// Collects examples and writes them.
class EvalFileWriter {
public:
    static constexpr int kMostTokens = 1 << 16;  // an id takes 16 bits
    explicit EvalFileWriter(int vocab_size) : vocab_size_(vocab_size) {
        require(vocab_size <= kMostTokens, "EvalFileWriter: the vocabulary is too large");
    }
    // Throws Error(kExitBadInput) that begins with `where` if the format has no room, or a part is empty.
    void add(int label, const std::vector<int>& context,
             const std::array<std::vector<int>, kEvalEndings>& endings, const std::string& where);
    size_t examples() const { return examples_; }
    // replaces path atomically; at least one example
    void write(const std::string& path) const;

private:
    int vocab_size_;
    size_t examples_ = 0, longest_ = 0;  // bytes
    std::vector<uint16_t> words_;
};

// ---- rows ---------------------------------------------------------------------------------------

// What a model is fed: rows of tokens and what follows each of them.

constexpr int32_t kIgnoreTarget = -1;  // a target that is not predicted: no loss, no gradient

struct Batch {
    int B = 0, T = 0;
    std::vector<int32_t> tokens, targets;  // (B,T) each; targets may be kIgnoreTarget
    // to tokens 0 and nothing that is predicted
    void reset(int rows, int columns) {
        B = rows;
        T = columns;
        tokens.assign((size_t)B * (size_t)T, 0);
        targets.assign(tokens.size(), kIgnoreTarget);
    }
};

// The shards that a pattern of glob(3) matches, in the byte order of their names, all of one vocabulary.
// Throws Error(kExitBadInput) if none matches, if one is damaged, or if two vocabularies differ (both are
// named), or if of one series (NAME_000000.bin, NAME_000001.bin ...) two are of different sets: a run of
// data/make_shards that replaced the one by the other has not ended. raw_vocab, here and below: see TokenShard.
class ShardSet {
public:
    explicit ShardSet(const std::string& pattern, int raw_vocab = 0);
    const std::string& pattern() const { return pattern_; }
    const std::vector<TokenShard>& shards() const { return shards_; }
    int vocab_size() const { return shards_.front().vocab_size(); }
    int64_t num_tokens() const { return begins_.back(); }
    int64_t num_missing() const { return missing_; }  // shards of the same sets that are not among these
    // the place of a shard's first token among all tokens of the set; begin(number of shards) = num_tokens()
    int64_t begin(size_t shard) const { return begins_[shard]; }
    // the shard that holds a position of [0, num_tokens)
    size_t shard_of(int64_t position) const;
    // tokens [position, position + tokens.size()), which lie in one shard; throws Error(kExitBadInput) naming
    // the file and the token unless every id is inside the vocabulary
    void read(int64_t position, std::span<uint16_t> tokens) const;

private:
    std::string pattern_;
    std::vector<TokenShard> shards_;
    std::vector<int64_t> begins_;
    int64_t missing_ = 0;
};

// Where a permutation of [0, n) has i. It is computed, not stored: a function of n, seed and epoch alone.
// A Feistel network permutes the smallest 2^(2k) >= n; numbers that leave [0, n) are sent through it again
// until they come back (cycle walking: Black, Rogaway, Ciphers with Arbitrary Finite Domains, 2002), under 4 times on average.
int64_t permuted(int64_t i, int64_t n, uint64_t seed, uint64_t epoch);

// Training data. A window is T + 1 tokens of one shard, and consecutive windows share one token, so that
// every token but a shard's first is predicted once an epoch (fewer than T at the end of a shard are not used).
class DataLoader {
public:
    // throws what ShardSet throws, and Error(kExitBadInput) if no shard holds a window
    DataLoader(const std::string& pattern, int T, uint64_t seed, int raw_vocab = 0);
    int vocab_size() const { return set_.vocab_size(); }
    const ShardSet& set() const { return set_; }
    int64_t num_shards() const { return (int64_t)set_.shards().size(); }
    int64_t num_tokens() const { return set_.num_tokens(); }
    int64_t windows_per_epoch() const { return windows_.back(); }

    // Rows [first_row, first_row + B) of the training order. With n windows in an epoch, row r is window
    // permuted(r % n, n, seed, r / n). Overwrites batch. Throws Error(kExitBadInput) at an id outside the vocabulary.
    void read(int64_t first_row, int B, Batch* batch) const;
    // asks the system to bring these rows into memory meanwhile: for data sets larger than that
    void prefetch(int64_t first_row, int B) const;

private:
    int64_t window_position(int64_t row) const;
    ShardSet set_;
    int T_;
    uint64_t seed_;
    std::vector<int64_t> windows_;  // windows_[s]: windows of the shards before s; the last: of all
};

// Validation data, in file order. Every token in range but a shard's first is predicted once, whatever T, B and alignment.
class ValidationData {
public:
    enum class Align {
        kWindow,    // rows back to back: T tokens each, the last of a shard padded
        kDocument,  // each document at the start of a row, alone in it; longer ones go on in further rows
        kAuto,      // documents, if each predicts at most T tokens, so that none is cut
    };
    // Takes the first max_tokens predicted tokens (-1: all). stride: of a row that goes on from another, how many tokens are
    // predicted; the T - stride others are those before them once more (0: T, no token is in two rows). A document goes from one
    // end_of_text up to the next, which is the last token it predicts; a shard that begins without one begins with a document
    // all the same. Throws what ShardSet throws, and Error(kExitBadInput) if nothing is to be predicted.
    ValidationData(const std::string& pattern, int T, Align align, int end_of_text, int64_t max_tokens,
                   int raw_vocab = 0, int stride = 0);
    const ShardSet& set() const { return set_; }
    Align align() const { return align_; }  // not kAuto
    int64_t num_rows() const { return (int64_t)rows_.size(); }
    int64_t num_targets() const { return num_targets_; }
    int vocab_size() const { return set_.vocab_size(); }
    // where a row's first token is among all tokens of the shards
    int64_t row_position(int64_t row) const;

    // Rows [first_row, first_row + B); batch is overwritten. What is predicted in a row before has kIgnoreTarget. Positions
    // after a row's end, and rows from num_rows() on, hold token 0 and kIgnoreTarget. Throws as DataLoader::read().
    void read(int64_t first_row, int B, Batch* batch) const;

private:
    struct Row {
        int64_t position;
        int32_t targets, seen;  // 1 to T, of which the first `seen` are predicted in rows before
    };
    void add_rows(int64_t position, int64_t targets, int64_t max_tokens);

    ShardSet set_;
    int T_, stride_;
    Align align_;
    std::vector<Row> rows_;
    int64_t num_targets_ = 0;
};

}  // namespace llmc
