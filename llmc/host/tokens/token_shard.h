// Token shards: a header (magic 20240520, version 1, token count, vocabulary size) and then that many uint16
// tokens. The format of llm.c and of the public pre-tokenised data sets; ours are the vocabulary size in word
// 3 (0, as in everyone else's files, means GPT-2's 50,257), and in words 4 to 6 which set a shard is of.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llmc/host/files/binary_file.h"

namespace llmc {

constexpr int32_t kTokenShardMagic = 20240520;
constexpr int32_t kTokenShardVersion = 1;
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

}  // namespace llmc
