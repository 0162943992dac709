// The token stream that data/make_shards makes, kept on disk as it comes: pieces of equal size, each a token
// shard under a temporary name, so that memory holds one piece whatever the size of the input.
#pragma once
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/files/read_file.h"
#include "llmc/host/tokens/token_shard.h"

namespace llmc {

// The files made on the way, beside the result. Those that were not renamed go with this object.
class Temporaries {
public:
    // removes those that a killed run with this prefix has left; the folder exists
    explicit Temporaries(const std::string& prefix)
        : prefix_(fmt::format("{}.tmp-{}", prefix, (int)getpid())) {
        const std::filesystem::path path(prefix);
        const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
        const std::string start = path.filename().string() + ".tmp-";
        for (const std::string& name : folder_names(folder.string()).value_or(std::vector<std::string>())) {
            int pid = 0, end = 0;
            bool ours = name.starts_with(start) &&
                        std::sscanf(name.c_str() + start.size(), "%d-%*d.bin%n", &pid, &end) == 1 && end > 0;
            bool ended = ours && pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
            if (ended) { unlink((folder / name).c_str()); }
        }
    }
    ~Temporaries() {
        for (const std::string& path : paths_) { unlink(path.c_str()); }
    }
    Temporaries(const Temporaries&) = delete;
    const std::string& next() {
        paths_.push_back(fmt::format("{}-{:06}.bin", prefix_, paths_.size()));
        return paths_.back();
    }

private:
    std::string prefix_;
    std::vector<std::string> paths_;
};

// A stream of tokens, kept as shards of equal size ("pieces"); the last one may be shorter.
class Pieces {
public:
    // tokens below vocab_size; end_of_text goes before documents, newline ends a line
    Pieces(int64_t piece_tokens, int vocab_size, int end_of_text, int newline, Temporaries* files)
        : piece_tokens_(piece_tokens),
          vocab_size_(vocab_size),
          end_of_text_(end_of_text),
          newline_(newline),
          files_(files) {
        buffer_.reserve((size_t)piece_tokens);  // costs nothing until it is filled
    }

    void add(const uint8_t* bytes, size_t count) {
        while (count > 0) {
            const size_t part = std::min(count, room());
            buffer_.insert(buffer_.end(), bytes, bytes + part);
            bytes += part;
            count -= part;
        }
    }
    void add(const std::vector<int>& ids) {
        for (int id : ids) {
            room();
            buffer_.push_back((uint16_t)id);
        }
    }
    void add_end_of_text() {
        room();
        buffer_.push_back((uint16_t)end_of_text_);
    }
    // throws Error(kExitUsage) if so many tokens are too many files: a folder of millions is slow for every program
    void require_room(int64_t tokens) const {
        const int64_t files = (tokens + piece_tokens_ - 1) / piece_tokens_;
        if (files <= kMaxPieces) { return; }
        throw Error(
            kExitUsage,
            fmt::format("--shard-tokens {}: {} tokens or more would be {} files or more, expected at most "
                        "{}. Use a larger --shard-tokens; 100000000 is usual.",
                        piece_tokens_, tokens, files, kMaxPieces));
    }
    void finish() {
        if (!buffer_.empty()) { flush(); }
        buffer_ = {};
    }

    int vocab_size() const { return vocab_size_; }
    int end_of_text() const { return end_of_text_; }
    int newline() const { return newline_; }
    int64_t num_tokens() const { return num_tokens_; }
    const std::string& path(int64_t position) const { return paths_[(size_t)(position / piece_tokens_)]; }
    // where the piece of this position begins and ends
    int64_t piece_begin(int64_t position) const { return position / piece_tokens_ * piece_tokens_; }
    int64_t piece_end(int64_t position) const {
        return std::min(num_tokens_, piece_begin(position) + piece_tokens_);
    }
    // the place of the first such token in [begin, end), -1 if there is none
    int64_t find(uint16_t token, int64_t begin, int64_t end) const {
        while (begin < end) {
            const TokenShard shard(path(begin));
            const int64_t stop = std::min(end, piece_end(begin));
            std::vector<uint16_t> range((size_t)(stop - begin));
            shard.read(begin - piece_begin(begin), range);
            const auto at = std::find(range.begin(), range.end(), token);
            if (at != range.end()) { return begin + (at - range.begin()); }
            begin = stop;
        }
        return -1;
    }

private:
    static constexpr int64_t kMaxPieces = 10'000;

    // how many more tokens the buffer takes: at least one
    size_t room() {
        if ((int64_t)buffer_.size() == piece_tokens_) { flush(); }
        return (size_t)piece_tokens_ - buffer_.size();
    }
    void flush() {
        require_room(num_tokens_ + (int64_t)buffer_.size());
        paths_.push_back(files_->next());
        write_token_shard(paths_.back(), buffer_, vocab_size_);
        num_tokens_ += (int64_t)buffer_.size();
        buffer_.clear();
        if (paths_.size() > 1) { std::printf("%lld tokens so far\n", (long long)num_tokens_); }
        std::fflush(stdout);
    }

    int64_t piece_tokens_, num_tokens_ = 0;
    int vocab_size_, end_of_text_, newline_;
    Temporaries* files_;
    std::vector<std::string> paths_;
    std::vector<uint16_t> buffer_;
};

}  // namespace llmc
