// The search of --tune-gemm: which of cuBLASLt's algorithms computes a kind of product fastest, within the steps of a model,
// as only there operands, caches and clocks are those of training. Of the algorithms that cuBLASLt does not propose it takes
// those alone that give the bits of its first proposal.
#pragma once
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <ranges>
#include <set>
#include <span>

#include "llmc/cuda/checksum.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/measuring.cuh"
#include "llmc/cuda/resources.cuh"
#include "llmc/ops/matmul/plan.cuh"

namespace llmc::matmul {

// ---- Algorithms that cuBLASLt takes but does not propose. Its proposals for a product are a handful; the kernels behind them
// come in hundreds of tiles, and a tile that fits a model's sizes leaves fewer multiprocessors idle at the end.

// What of an algorithm is varied: cuBLASLt's numbers.
struct Settings {
    uint32_t tile;
    uint16_t cluster;
    uint32_t option;
    auto operator<=>(const Settings&) const = default;
};

template <typename Value>
Value configured(const Candidate& c, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    Value value{};
    size_t written = 0;
    check(cublasLtMatmulAlgoConfigGetAttribute(&c.result.algo, attribute, &value, sizeof(value), &written));
    return value;
}

inline Candidate with_settings(Candidate c, const Settings& settings) {
    auto set = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
        check(cublasLtMatmulAlgoConfigSetAttribute(&c.result.algo, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_ALGO_CONFIG_TILE_ID, settings.tile);
    set(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, settings.cluster);
    set(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, settings.option);
    return c;
}

// Variants of a product's first proposal, the fastest first. proposals: of plan, not empty. time(): ms of one call of what
// plan has chosen.
class Variants {
public:
    Variants(cublasLtHandle_t handle, Plan& plan, std::span<const Candidate> proposals,
             std::function<double()> time)
        : handle_(handle), plan_(plan), first_(proposals.front()), time_(std::move(time)) {
        std::vector<Settings> usual = attempt_proposals(proposals);
        std::set<uint16_t> pairs = {usual.front().cluster}, clusters = pairs;
        if (device_facts().capability >= 90) {  // before, there are no clusters
            pairs.insert({CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1});
            for (int k = CUBLASLT_CLUSTER_SHAPE_1x1x1; k <= CUBLASLT_CLUSTER_SHAPE_2x4x1; k++) {
                clusters.insert((uint16_t)k);
            }
        }
        const uint32_t options = options_of_family();
        for (uint32_t option = 0; option < options; option++) {
            for (uint16_t cluster : pairs) { usual.push_back({0, cluster, option}); }
        }
        for (const Settings& settings : usual) {
            for (uint32_t tile = 1; tile < CUBLASLT_MATMUL_TILE_END; tile++) {
                auto best = best_of_tile_.find(tile);
                if (best != best_of_tile_.end() && best->second > kHopeless * best_) { continue; }
                attempt({tile, settings.cluster, settings.option});
            }
        }
        for (uint32_t tile : best_tiles()) {
            for (uint16_t cluster : clusters) {
                for (uint32_t option = 0; option < options; option++) { attempt({tile, cluster, option}); }
            }
        }
        std::ranges::sort(timed_);
    }

    std::vector<Candidate> fastest(size_t most) const {
        std::vector<Candidate> found;
        for (const auto& [ms, settings] : timed_ | std::views::take(most)) {
            found.push_back(with_settings(first_, settings));
        }
        return found;
    }
    size_t timed() const { return timed_.size(); }

private:
    static constexpr double kSeconds =
        4;  // for all variants of a product; of a long one some are never tried
    // A tile is given up where its shortest time is over kHopeless times that of all. A time below kClose times the shortest
    // is measured again.
    static constexpr double kHopeless = 1.4, kClose = 1.15;
    static constexpr size_t kTiles = 8;  // that are tried with all clusters and options
    static constexpr int32_t kMostOptions = 16;

    // the settings of those that are of the first one's family
    std::vector<Settings> attempt_proposals(std::span<const Candidate> proposals) {
        auto family = [](const Candidate& c) { return configured<int32_t>(c, CUBLASLT_ALGO_CONFIG_ID); };
        std::vector<Settings> usual;
        for (const Candidate& c : proposals) {
            if (family(c) != family(first_)) { continue; }
            usual.push_back({configured<uint32_t>(c, CUBLASLT_ALGO_CONFIG_TILE_ID),
                             configured<uint16_t>(c, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
                             configured<uint32_t>(c, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)});
            const Candidate like = with_settings(first_, usual.back());
            const bool is_it = std::memcmp(&like.result.algo, &c.result.algo, sizeof(c.result.algo)) == 0;
            attempt(usual.back(), is_it);
        }
        return usual;
    }
    uint32_t options_of_family() const {
        int32_t last = 0;
        size_t written = 0;
        auto status = cublasLtMatmulAlgoCapGetAttribute(
            &first_.result.algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &last, sizeof(last), &written);
        return status == CUBLAS_STATUS_SUCCESS ? (uint32_t)std::clamp(last, 0, kMostOptions - 1) + 1 : 1;
    }
    std::vector<uint32_t> best_tiles() const {
        std::vector<std::pair<double, uint32_t>> order;
        for (auto [tile, ms] : best_of_tile_) { order.push_back({ms, tile}); }
        std::ranges::sort(order);
        order.resize(std::min(kTiles, order.size()));
        auto tiles = std::views::values(order);
        return {tiles.begin(), tiles.end()};
    }
    void attempt(const Settings& settings, bool proposed = false) {
        const bool late = std::chrono::duration<double>(Clock::now() - start_).count() > kSeconds;
        if (late || tried_.contains(settings)) { return; }
        try {
            if (!plan_.choose(handle_, with_settings(first_, settings))) { return; }
            tried_.insert(settings);
            time_();  // this call loads the code
            double ms = time_();
            if (ms < kClose * best_) { ms = std::min({ms, time_(), time_()}); }
            if (!proposed) { timed_.push_back({ms, settings}); }
            best_ = std::min(best_, ms);
            double& best = best_of_tile_.try_emplace(settings.tile, ms).first->second;
            best = std::min(best, ms);
        } catch (const Error&) {                   // cuBLASLt refuses at the launch what its check took
            llmc::check(cudaDeviceSynchronize());  // but a kernel that failed would fail all that follows
        }
    }

    using Clock = std::chrono::steady_clock;
    cublasLtHandle_t handle_;
    Plan& plan_;
    Candidate first_;
    std::function<double()> time_;
    Clock::time_point start_ = Clock::now();
    double best_ = INFINITY;
    std::set<Settings> tried_;
    std::map<uint32_t, double> best_of_tile_;
    std::vector<std::pair<double, Settings>> timed_;
};

// ---- the search

// A pass is a forward and a backward pass of the model. At the first call of a kind of product variants of its first
// proposal are tried. In the first passes each proposal, and each of the best variants, has its turn, for all calls of its
// kind; then the fastest few have theirs again, some times.
class Search {
public:
    // Computes the product by the candidate whose turn it is, and times it. plan: of this kind; workspace, d, a, b as there
    void run(cublasLtHandle_t handle, const Product& kind, Plan& plan, void* d, const void* a, const void* b,
             void* workspace, cudaStream_t stream) {
        auto at = kinds_.find(kind);
        if (at == kinds_.end()) {
            at = kinds_.emplace(kind, meet(handle, kind, plan, d, a, b, workspace, stream)).first;
        }
        std::vector<Contender>& turns = at->second.contenders;
        Contender& now = turns[pass_ % turns.size()];
        plan.choose(now.candidate);
        Timed& timed = timed_.emplace_back(&now.ms);
        timed.begin.record(stream);
        plan.run(handle, d, a, b, kind.accumulate, workspace, stream);
        timed.end.record(stream);
    }

    // Ends a pass, whose work is done; false when it was the last.
    bool next_pass() {
        for (Timed& timed : timed_) { timed.ms->push_back(timed.end.since(timed.begin).count()); }
        timed_.clear();
        pass_++;
        if (finals_) { return pass_ < kFinalists * kFinalTurns; }
        if (pass_ < most_contenders_) { return true; }
        for (auto& [kind, k] : kinds_) { keep_finalists(&k.contenders); }
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
            for (const Contender& c : k.contenders) {
                same[ms.size()] = c.bits == k.contenders[0].bits;
                ms.push_back(median(c.ms));
            }
            const size_t best = fastest_proposal(ms, {same, ms.size()});
            const cublasLtMatmulAlgo_t& algorithm = k.contenders[best].candidate.result.algo;
            all.push_back({.kind = kind,
                           .algorithm = std::bit_cast<decltype(MatmulChoice::algorithm)>(algorithm),
                           .first_ms = ms[0],
                           .ms = ms[best],
                           .proposals = k.timed,
                           .same_bits = same[best]});
        }
        return all;
    }

private:
    static constexpr int kProposals = 64, kLaunchMicroseconds = 15;
    static constexpr size_t kVariants = 16, kFinalists = 8, kFinalTurns = 6;

    struct Contender {
        Candidate candidate;
        uint64_t bits;          // a checksum of its result
        std::vector<float> ms;  // of its calls
    };
    struct Kind {
        std::vector<Contender>
            contenders;  // the proposals, and variants; in the end those that are left; the first one first
        int64_t timed = 0;  // how many algorithms: also variants that are no contenders
    };
    struct Timed {
        std::vector<float>* ms;
        Event begin{cudaEventDefault}, end{cudaEventDefault};
    };

    static double median(std::vector<float> ms) {
        std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
        return ms[ms.size() / 2];
    }
    // Each proposal, and the fastest variants, on the operands of the first call: their bits are noted, and their code is
    // loaded. What d held is lost.
    Kind meet(cublasLtHandle_t handle, const Product& kind, Plan& plan, void* d, const void* a, const void* b,
              void* workspace, cudaStream_t stream) {
        Kind k;
        const int64_t words = kind.m * kind.n * (kind.output == CUDA_R_32F ? 4 : 2) / 4;
        auto call = [&] { plan.run(handle, d, a, b, false, workspace, stream); };
        auto take = [&](const Candidate& candidate, bool needs_first_bits) {
            plan.choose(candidate);
            call();
            // the bits of += count
            if (kind.accumulate) { plan.run(handle, d, a, b, true, workspace, stream); }
            const uint64_t bits = checksum((const uint32_t*)d, words, stream);
            if (needs_first_bits && bits != k.contenders[0].bits) { return; }
            k.contenders.push_back({candidate, bits, {}});
        };
        auto time = [&] {
            Event begin(cudaEventDefault), end(cudaEventDefault);
            hold(kLaunchMicroseconds, stream);  // else a small product's time is that of its launch
            begin.record(stream);
            call();
            end.record(stream);
            llmc::check(cudaStreamSynchronize(stream));
            return end.since(begin).count();
        };
        const std::vector<Candidate> proposals = plan.candidates(handle, kProposals);
        require(!proposals.empty(), "--tune-gemm: cuBLASLt has no algorithm for a product of this model");
        for (const Candidate& proposal : proposals) { take(proposal, false); }
        const Variants variants(handle, plan, proposals, time);
        for (const Candidate& variant : variants.fastest(3 * kVariants)) {
            if (k.contenders.size() < proposals.size() + kVariants) { take(variant, true); }
        }
        k.timed = (int64_t)(proposals.size() + variants.timed());
        most_contenders_ = std::max(most_contenders_, k.contenders.size());
        return k;
    }
    // the first one and the fastest, by the times of the first passes, which are forgotten
    static void keep_finalists(std::vector<Contender>* all) {
        auto not_called = [](const Contender& c) { return c.ms.empty(); };
        all->erase(std::remove_if(all->begin() + 1, all->end(), not_called), all->end());
        auto faster = [](const Contender& a, const Contender& b) { return median(a.ms) < median(b.ms); };
        std::stable_sort(all->begin() + 1, all->end(), faster);
        all->resize(std::min(kFinalists, all->size()));
        for (Contender& c : *all) { c.ms.clear(); }
    }

    std::map<Product, Kind> kinds_;
    std::deque<Timed> timed_;
    size_t pass_ = 0, most_contenders_ = 0;
    bool finals_ = false;
};

}  // namespace llmc::matmul
