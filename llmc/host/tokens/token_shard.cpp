// Token shards: see token_shard.h.
#include "llmc/host/tokens/token_shard.h"

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <limits>

#include "llmc/host/base/error.h"

namespace llmc {

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
    header.field(1, "version", kTokenShardVersion, kTokenShardVersion);
    int64_t count = header.field(2, "token count", 1, std::numeric_limits<int32_t>::max());
    int vocab = header.field(3, "vocabulary size", 0, kMaxVocabSize);
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
    int32_t header[kHeaderWords] = {kTokenShardMagic, kTokenShardVersion, (int32_t)tokens.size(), vocab_size};
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
        throw Error(kExitSaveFailed,
                    fmt::format("{}: cannot note in it which set it is of: {}", path, std::strerror(error)));
    }
}

}  // namespace llmc
