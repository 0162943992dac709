// Algorithms that cuBLASLt takes but does not propose. Its proposals for a product are a handful; the kernels behind them
// come in hundreds of tiles, and a tile that fits a model's sizes leaves fewer multiprocessors idle at the end.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "llmc/cuda/device_facts.cuh"
#include "llmc/ops/matmul/plan.cuh"

namespace llmc::matmul {

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

inline Settings settings_of(const Candidate& c) {
    return {configured<uint32_t>(c, CUBLASLT_ALGO_CONFIG_TILE_ID),
            configured<uint16_t>(c, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
            configured<uint32_t>(c, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)};
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
template <typename Time>
class Variants {
public:
    Variants(cublasLtHandle_t handle, Plan& plan, std::span<const Candidate> proposals, Time time)
        : handle_(handle), plan_(plan), first_(proposals.front()), time_(time) {
        const auto family = configured<int32_t>(first_, CUBLASLT_ALGO_CONFIG_ID);
        std::vector<Settings> usual;
        for (const Candidate& c : proposals) {
            if (configured<int32_t>(c, CUBLASLT_ALGO_CONFIG_ID) != family) { continue; }
            usual.push_back(settings_of(c));
            const Candidate like = with_settings(first_, usual.back());
            const bool is_it = std::memcmp(&like.result.algo, &c.result.algo, sizeof(c.result.algo)) == 0;
            attempt(usual.back(), is_it);
        }
        const bool hopper = device_facts().capability >= 90;  // before, there are no clusters
        std::set<uint16_t> pairs = {usual.front().cluster}, clusters = pairs;
        if (hopper) { pairs.insert({CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1}); }
        for (int k = CUBLASLT_CLUSTER_SHAPE_1x1x1; hopper && k <= CUBLASLT_CLUSTER_SHAPE_2x4x1; k++) {
            clusters.insert((uint16_t)k);
        }
        const uint32_t options = options_of_family();
        for (uint32_t option = 0; option < options; option++) {
            for (uint16_t cluster : pairs) { usual.push_back({0, cluster, option}); }
        }
        all_tiles(usual);
        all_settings(best_tiles(), clusters, options);
        std::ranges::sort(timed_);
    }

    std::vector<Candidate> fastest(size_t most) const {
        std::vector<Candidate> found;
        for (size_t i = 0; i < std::min(most, timed_.size()); i++) {
            found.push_back(with_settings(first_, timed_[i].second));
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

    uint32_t options_of_family() const {
        int32_t last = 0;
        size_t written = 0;
        if (cublasLtMatmulAlgoCapGetAttribute(&first_.result.algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &last,
                                              sizeof(last), &written) != CUBLAS_STATUS_SUCCESS) {
            return 1;
        }
        return (uint32_t)std::clamp(last, 0, kMostOptions - 1) + 1;
    }
    // each of these with every tile
    void all_tiles(const std::vector<Settings>& usual) {
        for (const Settings& settings : usual) {
            for (uint32_t tile = 1; tile < CUBLASLT_MATMUL_TILE_END; tile++) {
                auto best = best_of_tile_.find(tile);
                if (best != best_of_tile_.end() && best->second > kHopeless * best_) { continue; }
                attempt({tile, settings.cluster, settings.option});
            }
        }
    }
    std::vector<uint32_t> best_tiles() const {
        std::vector<std::pair<double, uint32_t>> order;
        for (auto [tile, ms] : best_of_tile_) { order.push_back({ms, tile}); }
        std::ranges::sort(order);
        std::vector<uint32_t> tiles;
        for (size_t i = 0; i < std::min(kTiles, order.size()); i++) { tiles.push_back(order[i].second); }
        return tiles;
    }
    void all_settings(const std::vector<uint32_t>& tiles, const std::set<uint16_t>& clusters,
                      uint32_t options) {
        for (uint32_t tile : tiles) {
            for (uint16_t cluster : clusters) {
                for (uint32_t option = 0; option < options; option++) { attempt({tile, cluster, option}); }
            }
        }
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
            auto [at, first] = best_of_tile_.try_emplace(settings.tile, ms);
            at->second = std::min(at->second, ms);
        } catch (const Error&) {                   // cuBLASLt refuses at the launch what its check took
            llmc::check(cudaDeviceSynchronize());  // but a kernel that failed would fail all that follows
        }
    }

    using Clock = std::chrono::steady_clock;
    cublasLtHandle_t handle_;
    Plan& plan_;
    Candidate first_;
    Time time_;
    Clock::time_point start_ = Clock::now();
    double best_ = INFINITY;
    std::set<Settings> tried_;
    std::map<uint32_t, double> best_of_tile_;
    std::vector<std::pair<double, Settings>> timed_;
};

}  // namespace llmc::matmul
