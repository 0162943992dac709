// The search of --tune-gemm: which of cuBLASLt's algorithms computes a kind of product fastest, within the steps of a model,
// as only there operands, caches and clocks are those of training. Of the algorithms that cuBLASLt does not propose it takes
// those alone that give the bits of its first proposal.
#pragma once
#include <algorithm>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "llmc/cuda/checksum.cuh"
#include "llmc/cuda/device_memory.cuh"
#include "llmc/cuda/hold.cuh"
#include "llmc/ops/matmul/choices.h"
#include "llmc/ops/matmul/plan.cuh"
#include "llmc/ops/matmul/variants.cuh"

namespace llmc::matmul {

// A pass is a forward and a backward pass of the model. At the first call of a kind of product variants of its first
// proposal are tried. In the first passes each proposal, and each of the best variants, has its turn, for all calls of its
// kind; then the fastest few have theirs again, some times.
class Search {
public:
    static constexpr int kProposals = 64, kVariants = 16, kFinalists = 8, kFinalTurns = 6,
                         kLaunchMicroseconds = 15;

    // Computes the product by the candidate whose turn it is, and times it. plan: of this kind; workspace, d, a, b as there
    void run(cublasLtHandle_t handle, const MatmulKind& kind, Plan& plan, void* d, const void* a,
             const void* b, void* workspace, cudaStream_t stream) {
        auto at = kinds_.find(kind);
        if (at == kinds_.end()) {
            at = kinds_.emplace(kind, meet(handle, kind, plan, d, a, b, workspace, stream)).first;
        }
        Kind& k = at->second;
        size_t turn = k.finalists.empty() ? (size_t)pass_ % k.candidates.size()
                                          : k.finalists[(size_t)pass_ % k.finalists.size()];
        plan.choose(k.candidates[turn]);
        auto& timed = timed_.emplace_back(std::make_unique<Timed>());
        timed->ms = &k.ms[turn];
        timed->begin.record(stream);
        plan.run(handle, d, a, b, kind.accumulate, workspace, stream);
        timed->end.record(stream);
    }

    // Ends a pass, whose work is done; false when it was the last.
    bool next_pass() {
        for (auto& timed : timed_) { timed->ms->push_back(timed->end.since(timed->begin).count()); }
        timed_.clear();
        pass_++;
        if (finals_) { return pass_ < kFinalists * kFinalTurns; }
        if (pass_ < most_candidates_) { return true; }
        for (auto& [kind, k] : kinds_) { choose_finalists(&k); }
        finals_ = true;
        pass_ = 0;
        return !kinds_.empty();
    }

    // after the last pass
    std::vector<MatmulChoice> choices() const {
        std::vector<MatmulChoice> all;
        for (const auto& [kind, k] : kinds_) {
            std::vector<double> ms;
            bool same[kFinalists];
            for (size_t i = 0; i < k.finalists.size(); i++) {
                ms.push_back(median(k.ms[k.finalists[i]]));
                same[i] = k.bits[k.finalists[i]] == k.bits[0];
            }
            size_t best = fastest_proposal(ms, {same, ms.size()});
            MatmulChoice choice{.kind = kind,
                                .first_ms = ms[0],
                                .ms = ms[best],
                                .proposals = k.timed,
                                .same_bits = same[best]};
            static_assert(sizeof(choice.algorithm) == sizeof(cublasLtMatmulAlgo_t));
            std::memcpy(&choice.algorithm, &k.candidates[k.finalists[best]].result.algo,
                        sizeof(choice.algorithm));
            all.push_back(choice);
        }
        return all;
    }

private:
    struct Kind {
        std::vector<Candidate> candidates;   // the proposals, and variants
        int64_t timed = 0;                   // how many algorithms: also variants that are no candidates
        std::vector<uint64_t> bits;          // of each: a checksum of its result
        std::vector<std::vector<float>> ms;  // of each: of its calls
        std::vector<size_t> finalists;       // the first proposal comes first
    };
    struct Timed {
        std::vector<float>* ms = nullptr;
        Event begin{cudaEventDefault}, end{cudaEventDefault};
    };

    static double median(std::vector<float> ms) {
        std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
        return ms[ms.size() / 2];
    }
    // Each proposal, and the fastest variants, on the operands of the first call: their bits are noted, and their code is
    // loaded. What d held is lost.
    Kind meet(cublasLtHandle_t handle, const MatmulKind& kind, Plan& plan, void* d, const void* a,
              const void* b, void* workspace, cudaStream_t stream) {
        Kind k;
        const int64_t words = kind.m * kind.n * (kind.output == CUDA_R_32F ? 4 : 2) / 4;
        auto call = [&] { plan.run(handle, d, a, b, false, workspace, stream); };
        auto take = [&](const Candidate& candidate, bool needs_first_bits) {
            plan.choose(candidate);
            call();
            // the bits of += count
            if (kind.accumulate) { plan.run(handle, d, a, b, true, workspace, stream); }
            const uint64_t bits = checksum((const uint32_t*)d, words, stream);
            if (needs_first_bits && bits != k.bits[0]) { return; }
            k.candidates.push_back(candidate);
            k.bits.push_back(bits);
        };
        const std::vector<Candidate> proposals = plan.candidates(handle, kProposals);
        require(!proposals.empty(), "--tune-gemm: cuBLASLt has no algorithm for a product of this model");
        for (const Candidate& proposal : proposals) { take(proposal, false); }
        const Variants variants(handle, plan, proposals, [&] { return ms_of(call, stream); });
        for (const Candidate& variant : variants.fastest(3 * kVariants)) {
            if (k.candidates.size() < proposals.size() + kVariants) { take(variant, true); }
        }
        k.timed = (int64_t)(proposals.size() + variants.timed());
        k.ms.resize(k.candidates.size());
        most_candidates_ = std::max(most_candidates_, (int)k.candidates.size());
        return k;
    }
    template <typename Call>
    static double ms_of(const Call& call, cudaStream_t stream) {
        Event begin(cudaEventDefault), end(cudaEventDefault);
        hold(kLaunchMicroseconds, stream);  // else a small product's time is that of its launch
        begin.record(stream);
        call();
        end.record(stream);
        llmc::check(cudaStreamSynchronize(stream));
        return end.since(begin).count();
    }
    // by the times of the first passes, which are forgotten
    static void choose_finalists(Kind* k) {
        std::vector<std::pair<double, size_t>> order;
        for (size_t i = 1; i < k->candidates.size(); i++) {
            if (!k->ms[i].empty()) { order.push_back({median(k->ms[i]), i}); }
        }
        std::sort(order.begin(), order.end());
        k->finalists = {0};
        for (size_t i = 0; i < order.size() && k->finalists.size() < kFinalists; i++) {
            k->finalists.push_back(order[i].second);
        }
        for (auto& ms : k->ms) { ms.clear(); }
    }

    std::map<MatmulKind, Kind> kinds_;
    std::deque<std::unique_ptr<Timed>> timed_;
    int pass_ = 0, most_candidates_ = 0;
    bool finals_ = false;
};

}  // namespace llmc::matmul
