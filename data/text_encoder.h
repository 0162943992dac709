// From the bytes of documents to tokens: data/make_shards with a tokenizer. Bytes come in any portions; the
// tokens are those of each document as a whole, but that a word of more than 1 MiB is cut. Work is done in
// batches, by all cores, so that memory stays bounded.
#pragma once
#include <omp.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_pieces.h"
#include "llmc/host/tokens/bpe.h"
#include "llmc/host/tokens/tokenizer.h"

namespace llmc {

class TextEncoder {
public:
    TextEncoder(const Tokenizer& tokenizer, Pieces* out)
        : bpe_(tokenizer.bpe()), out_(out), caches_(bpe_ == nullptr ? 0 : (size_t)omp_get_max_threads()) {
        jobs_.emplace_back();
    }

    void add(const uint8_t* bytes, size_t count) {
        if (bpe_ == nullptr) {
            out_->add(bytes, count);
            return;
        }
        jobs_.back().text.append(reinterpret_cast<const char*>(bytes), count);
        if (jobs_.back().text.size() >= kJobBytes) { cut_job(); }
    }
    void add_end_of_text() {
        if (bpe_ == nullptr) {
            out_->add_end_of_text();
            return;
        }
        jobs_.back().documents.push_back(jobs_.back().text.size());
    }
    // call it after the last byte
    void finish() {
        if (bpe_ != nullptr) { encode(jobs_.size()); }
        out_->finish();
    }

private:
    static constexpr size_t kJobBytes = 1 << 20, kMaxUncut = 16 << 20;
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

}  // namespace llmc
