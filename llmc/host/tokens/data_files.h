// Files of tokens: shards of text and HellaSwag's questions, in llm.c's formats, and what is known about a validation shard.
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
    // tokens [first, first + tokens.size()), which are in the shard; throws Error(kExitBadInput) if they cannot
    // be read
    void read(int64_t first, std::span<uint16_t> tokens) const;
    std::vector<uint16_t> read_all() const;
    void will_need(int64_t first, int64_t count) const;  // soon
    int vocab_size() const { return vocab_size_; }
    uint64_t tokens_begin() const { return begin_; }  // in the file, in bytes
    // The same for all that one run of data/make_shards made, and how many shards its split (training or
    // validation) has; 0 and 0: made elsewhere.
    uint64_t set_id() const { return set_id_; }
    int set_shards() const { return set_shards_; }

private:
    void open_raw(int vocab);
    RegularFile file_;
    int64_t num_tokens_ = 0;
    int vocab_size_ = 0, set_shards_ = 0;
    uint64_t set_id_ = 0, begin_ = kHeaderBytes;
};

// Replaces path atomically by a shard of these tokens, each < vocab_size <= 65,536; 1 to 2^31 - 1 tokens. before: as
// FileWriter::commit()'s.
void write_token_shard(const std::string& path, std::span<const uint16_t> tokens, int vocab_size,
                       const std::function<void()>& before = nullptr);

// Notes in a shard, in place and on the disk, which set it is of. Throws Error(kExitSaveFailed).
void mark_token_shard(const std::string& path, uint64_t set_id, int set_shards);

// ---- validation ---------------------------------------------------------------------------------

// What is known about a validation shard beyond its tokens: data/make_corpus writes it beside the shard, as
// NAME.json.
//   {"entropy_nats_per_token": Y, "tokens": N, "probes": {"sums": [[position, length], ...], ...}}
// N is the number of tokens to predict, all of the shard's but the first; N and probes may be left out.
// A probe is a span of tokens that the text before it determines: a model that has understood predicts each
// of them.
struct ValInfo {
    double entropy = 0;  // of the source, nats per predicted token
    struct Probe {
        std::string name;
        std::vector<std::pair<int64_t, int64_t>> spans;  // position of the first token in the shard, length
    };
    std::vector<Probe> probes;
};

// The file beside the shard, or nothing if there is none. Throws Error(kExitBadInput) if it is there and not
// as above.
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

// The examples of a file. Throws Error(kExitBadInput) naming example and field unless all of it is right:
// every token is checked against the vocabulary.
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
    // Throws Error(kExitBadInput) that begins with `where` if the format has no room for it, or a part is
    // empty.
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

}  // namespace llmc
