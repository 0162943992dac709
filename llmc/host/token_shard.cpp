// Token shards: see token_shard.h.
#include "llmc/host/token_shard.h"

#include <limits>

#include "llmc/host/error.h"

namespace llmc {

constexpr int kMaxVocabSize = 1 << 16;  // what fits in a uint16 token

TokenShard::TokenShard(const std::string& path) : file_(path) {
    HeaderReader header(file_, "token shard", kTokenShardMagic,
                        "Make token shards of your text with data/make_shards.");
    header.field(1, "version", kTokenShardVersion, kTokenShardVersion);
    int64_t count = header.field(2, "token count", 1, std::numeric_limits<int32_t>::max());
    int vocab = header.field(3, "vocabulary size", 0, kMaxVocabSize);
    header.require_size(kHeaderBytes + (uint64_t)count * sizeof(uint16_t),
                        strf("%zu header + 2 x %lld tokens", kHeaderBytes, (long long)count));
    tokens_ = {reinterpret_cast<const uint16_t*>(file_.data() + kHeaderBytes), (size_t)count};
    vocab_size_ = vocab == 0 ? kGpt2VocabSize : vocab;
}

void write_token_shard(const std::string& path, std::span<const uint16_t> tokens, int vocab_size) {
    require(!tokens.empty() && tokens.size() <= (size_t)std::numeric_limits<int32_t>::max(),
            "write_token_shard: a shard holds 1 to 2^31 - 1 tokens");
    require(vocab_size > 0 && vocab_size <= kMaxVocabSize,
            "write_token_shard: vocab_size must be 1 to 65,536");
    for (uint16_t token : tokens) {
        require(token < vocab_size, "write_token_shard: token id >= vocab_size");
    }
    int32_t header[kHeaderWords] = {kTokenShardMagic, kTokenShardVersion, (int32_t)tokens.size(), vocab_size};
    FileWriter out(path);
    out.write(header, sizeof(header));
    out.write(tokens.data(), tokens.size_bytes());
    out.commit();
}

}  // namespace llmc
