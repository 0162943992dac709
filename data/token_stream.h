// From the bytes of text to tokens on disk, as data/make_shards makes them: documents, their tokens, pieces of shards. Bytes
// come in any portions, as they are read; nothing depends on how they are cut.
#pragma once
#include <omp.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/host/tokens/tokenizer.h"

namespace llmc {

// ---- pieces -------------------------------------------------------------------------------------

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

// A stream of tokens, kept on disk as it comes: shards of equal size under temporary names ("pieces"), so that memory holds
// one whatever the size of the input; the last one may be shorter.
class Pieces {
public:
    // tokens below vocab_size; end_of_text goes before documents (-1: nothing does), newline ends a line
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
        if (has_ends()) { add({end_of_text_}); }
    }
    // throws Error(kExitUsage) if so many tokens are too many files: a folder of millions is slow for every program
    void require_room(int64_t tokens) const {
        const int64_t files = (tokens + piece_tokens_ - 1) / piece_tokens_;
        if (files <= kMaxPieces) { return; }
        throw Error(kExitUsage,
                    "--shard-tokens {}: {} tokens or more would be {} files or more, expected at most {}. "
                    "Use a larger --shard-tokens; 100000000 is usual.",
                    piece_tokens_, tokens, files, kMaxPieces);
    }
    void finish() {
        if (!buffer_.empty()) { flush(); }
        buffer_ = {};
    }

    int vocab_size() const { return vocab_size_; }
    int end_of_text() const { return end_of_text_; }
    bool has_ends() const { return end_of_text_ >= 0; }
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

// ---- tokens -------------------------------------------------------------------------------------

// From the bytes of documents to tokens: those of each document as a whole, but that a word of more than 1 MiB is cut. Work is
// done in batches, by all cores, so that memory stays bounded.
class TextEncoder {
public:
    TextEncoder(const Tokenizer& tokenizer, Pieces* out)
        : bpe_(tokenizer.is_bytes() ? nullptr : tokenizer.bpe()),
          out_(out),
          caches_(bpe_ == nullptr ? 0 : (size_t)omp_get_max_threads()) {
        jobs_.emplace_back();
    }

    void add(const uint8_t* bytes, size_t count) {
        if (bpe_ == nullptr) { return out_->add(bytes, count); }
        jobs_.back().text.append(reinterpret_cast<const char*>(bytes), count);
        if (jobs_.back().text.size() >= kJobBytes) { cut_job(); }
    }
    void add_end_of_text() {
        if (bpe_ == nullptr || !out_->has_ends()) { return out_->add_end_of_text(); }
        jobs_.back().documents.push_back(jobs_.back().text.size());
    }
    // call it after the last byte
    void finish() {
        if (bpe_ != nullptr) { encode(jobs_.size()); }
        out_->finish();
    }

private:
    static constexpr size_t kJobBytes = 1 << 20, kMaxUncut = 4 << 20;
    static constexpr size_t kJobsPerThread = 8;
    static constexpr size_t kLongestSpace = 3, kLongestCharacter = 4;  // bytes

    struct Job {
        std::string text;
        std::vector<size_t> documents;  // where in the text one begins
        std::vector<int> ids;           // with the ends of text
    };

    // The job is large enough: what follows goes to another one. The cut must not change how the text is
    // cut into words; if there is no such place, the job grows.
    void cut_job() {
        Job& job = jobs_.back();
        const size_t document = job.documents.empty() ? 0 : job.documents.back();
        size_t at = job.text.size();
        const size_t lowest = std::max(document, job.text.size() - kJobBytes / 2);
        while (at > lowest && !bpe_can_cut(job.text, at)) { at--; }
        if (at == lowest && at > document) {
            if (job.text.size() < kMaxUncut) { return; }
            at = last_word(job.text, document);
        }
        Job next{job.text.substr(at), {}, {}};
        if (at == document) {  // where a document begins is a place to cut, too
            job.documents.pop_back();
            next.documents.push_back(0);
        }
        job.text.resize(at);
        if (jobs_.size() >= kJobsPerThread * caches_.size()) {
            encode(jobs_.size());
            jobs_.clear();
        }
        jobs_.push_back(std::move(next));
    }

    // where the last word begins that is sure to begin there, whatever follows the text
    static size_t last_word(std::string_view text, size_t begin) {
        size_t word = begin;
        for (size_t at = begin; at + kLongestSpace + kLongestCharacter < text.size();) {
            word = at;
            at += bpe_word(text.substr(at));
        }
        return word;
    }

    void encode(size_t count) {
#pragma omp parallel for schedule(dynamic)
        for (size_t j = 0; j < count; j++) { encode(&jobs_[j], &caches_[(size_t)omp_get_thread_num()]); }
        for (size_t j = 0; j < count; j++) { out_->add(jobs_[j].ids); }
    }
    void encode(Job* job, Bpe::Cache* cache) const {
        const std::string_view text = job->text;
        size_t at = 0;
        job->ids.reserve(text.size() / 3);
        for (size_t i = 0; i <= job->documents.size(); i++) {
            const size_t end = i < job->documents.size() ? job->documents[i] : text.size();
            bpe_->encode(text.substr(at, end - at), cache, &job->ids);
            if (i < job->documents.size()) { job->ids.push_back(out_->end_of_text()); }
            at = end;
        }
    }

    const Bpe* bpe_;  // null: bytes
    Pieces* out_;
    std::vector<Bpe::Cache> caches_;
    std::vector<Job> jobs_;
};

// ---- documents ----------------------------------------------------------------------------------

// Puts an end of text before each document and passes all bytes on.
class Splitter {
public:
    Splitter(const std::string& documents, TextEncoder* out)
        : lines_(documents == "line"), paragraphs_(documents == "paragraph"), out_(out) {}

    // what follows is another file
    void begin_file() {
        empty_ = blank_ = at_line_start_ = true;
        after_blank_line_ = false;
    }
    void add(const uint8_t* bytes, size_t count) {
        if (count == 0) { return; }
        if (empty_) { begin_document(); }
        empty_ = false;
        bytes_ += (int64_t)count;
        if (!lines_ && !paragraphs_) { return out_->add(bytes, count); }
        const uint8_t* end = bytes + count;
        while (bytes < end) { bytes = at_line_start_ ? indent(bytes, end) : text(bytes, end); }
    }
    // call it after the last byte of each file
    void end_file() { pass_indent(); }

    int64_t num_documents() const { return documents_; }
    int64_t num_bytes() const { return bytes_; }

private:
    static constexpr size_t kLongIndent = 4096;  // is taken for text, as memory is bounded

    void begin_document() {
        out_->add_end_of_text();
        documents_++;
        blank_ = true;
    }
    void pass_indent() {
        out_->add(indent_.data(), indent_.size());
        indent_.clear();
    }
    // At the start of a line. Its blanks are kept back: what follows tells to which document they belong.
    const uint8_t* indent(const uint8_t* at, const uint8_t* end) {
        const auto is_blank = [](uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r' && c != '\n'); };
        while (at < end && is_blank(*at) && indent_.size() < kLongIndent) { indent_.push_back(*at++); }
        if (at == end) { return at; }
        if (*at == '\n') {
            indent_.push_back(*at++);
            // of several blank lines the first ends the paragraph, as in llm.c's shards
            const bool first = !std::exchange(after_blank_line_, true);
            if (paragraphs_ && !first && indent_.size() < kLongIndent) { return at; }
        } else {
            if (!blank_ && (lines_ || after_blank_line_)) { begin_document(); }
            blank_ = after_blank_line_ = at_line_start_ = false;
        }
        pass_indent();
        return at;
    }
    // the rest of a line, or as much of it as there is
    const uint8_t* text(const uint8_t* at, const uint8_t* end) {
        const void* newline = std::memchr(at, '\n', (size_t)(end - at));
        const uint8_t* stop = newline == nullptr ? end : static_cast<const uint8_t*>(newline) + 1;
        out_->add(at, (size_t)(stop - at));
        at_line_start_ = newline != nullptr;
        return stop;
    }

    bool lines_, paragraphs_;
    TextEncoder* out_;
    bool empty_ = true, blank_ = true;  // the file, the document so far
    bool at_line_start_ = true, after_blank_line_ = false;
    std::vector<uint8_t> indent_;
    int64_t documents_ = 0, bytes_ = 0;
};

}  // namespace llmc
