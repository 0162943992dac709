// Algorithms that cuBLASLt takes but does not propose. Its proposals for a product are a handful; the kernels behind them
// come in hundreds of tiles, and a tile that fits a model's sizes leaves fewer multiprocessors idle at the end.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "llmc/ops/matmul_plan.cuh"

namespace llmc::matmul {

// What of an algorithm is varied: cuBLASLt's numbers.
struct Shape {
    uint32_t tile;
    uint16_t cluster;
    uint32_t option;
    auto operator<=>(const Shape&) const = default;
};

template <typename Value>
Value configured(const Candidate& c, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    Value value{};
    size_t written = 0;
    check(cublasLtMatmulAlgoConfigGetAttribute(&c.result.algo, attribute, &value, sizeof(value), &written));
    return value;
}

inline Shape shape_of(const Candidate& c) {
    return {configured<uint32_t>(c, CUBLASLT_ALGO_CONFIG_TILE_ID),
            configured<uint16_t>(c, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
            configured<uint32_t>(c, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)};
}

inline Candidate with_shape(Candidate c, const Shape& shape) {
    auto set = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
        check(cublasLtMatmulAlgoConfigSetAttribute(&c.result.algo, attribute, &value, sizeof(value)));
    };
    set(CUBLASLT_ALGO_CONFIG_TILE_ID, shape.tile);
    set(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, shape.cluster);
    set(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, shape.option);
    return c;
}

// Variants of a product's first proposal, the fastest first. proposals: of plan, not empty. time(): ms of one call of what
// plan has chosen.
template <typename Time>
class Variants {
public:
    Variants(cublasLtHandle_t handle, Plan& plan, std::span<const Candidate> proposals, Time time)
        : handle_(handle), plan_(plan), first_(proposals.front()), time_(time) {
        const auto family = configured<uint32_t>(first_, CUBLASLT_ALGO_CONFIG_ID);
        std::vector<Shape> usual;
        for (const Candidate& c : proposals) {
            if (configured<uint32_t>(c, CUBLASLT_ALGO_CONFIG_ID) != family) { continue; }
            usual.push_back(shape_of(c));
            attempt(usual.back(), true);
        }
        const uint32_t options = options_of_family();
        for (uint32_t option = 0; option < options; option++) {
            for (uint16_t cluster : {CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1}) {
                usual.push_back({0, cluster, option});
            }
        }
        all_tiles(usual);
        all_shapes(best_tiles(), options);
        std::ranges::sort(timed_);
    }

    std::vector<Candidate> fastest(size_t most) const {
        std::vector<Candidate> found;
        for (size_t i = 0; i < std::min(most, timed_.size()); i++) {
            found.push_back(with_shape(first_, timed_[i].second));
        }
        return found;
    }
    size_t timed() const { return timed_.size(); }

private:
    static constexpr double kSeconds = 4;
    // of the shortest time so far: a tile is given up, a time is worth another look
    static constexpr double kHopeless = 1.4, kClose = 1.15;
    static constexpr size_t kTiles = 8;  // that are tried in all clusters and with all options
    static constexpr int32_t kMostOptions = 16;

    uint32_t options_of_family() const {
        int32_t last = 0;
        size_t written = 0;
        check(cublasLtMatmulAlgoCapGetAttribute(&first_.result.algo, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX,
                                                &last, sizeof(last), &written));
        return (uint32_t)std::clamp(last, 0, kMostOptions - 1) + 1;
    }
    // as these are, but for their tiles
    void all_tiles(const std::vector<Shape>& shapes) {
        for (const Shape& shape : shapes) {
            for (uint32_t tile = 1; tile < CUBLASLT_MATMUL_TILE_END; tile++) {
                auto best = best_of_tile_.find(tile);
                if (best != best_of_tile_.end() && best->second > kHopeless * best_) { continue; }
                attempt({tile, shape.cluster, shape.option});
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
    void all_shapes(const std::vector<uint32_t>& tiles, uint32_t options) {
        for (uint32_t tile : tiles) {
            for (int cluster = CUBLASLT_CLUSTER_SHAPE_1x1x1; cluster <= CUBLASLT_CLUSTER_SHAPE_2x4x1;
                 cluster++) {
                for (uint32_t option = 0; option < options; option++) {
                    attempt({tile, (uint16_t)cluster, option});
                }
            }
        }
    }
    void attempt(const Shape& shape, bool proposed = false) {
        const bool late = std::chrono::duration<double>(Clock::now() - start_).count() > kSeconds;
        if (late || tried_.contains(shape) || !plan_.choose(handle_, with_shape(first_, shape))) { return; }
        tried_.insert(shape);
        try {
            time_();  // loads the code
            double ms = time_();
            if (ms < kClose * best_) { ms = std::min({ms, time_(), time_()}); }
            if (!proposed) { timed_.push_back({ms, shape}); }
            best_ = std::min(best_, ms);
            auto [at, first] = best_of_tile_.try_emplace(shape.tile, ms);
            at->second = std::min(at->second, ms);
        } catch (const Error&) {}  // the check took it, the launch does not
    }

    using Clock = std::chrono::steady_clock;
    cublasLtHandle_t handle_;
    Plan& plan_;
    Candidate first_;
    Time time_;
    Clock::time_point start_ = Clock::now();
    double best_ = INFINITY;
    std::set<Shape> tried_;
    std::map<uint32_t, double> best_of_tile_;
    std::vector<std::pair<double, Shape>> timed_;
};

}  // namespace llmc::matmul
