// --fp8 on the CPU: what a GPU holds in FP8 is rounded to it, and stays fp32. The same scales of the same maxima, a step late.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "llmc/host/base/fp8.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/fp8_tensors.h"

namespace llmc {

class Fp8Rounding {
public:
    Fp8Rounding(const GPT2Config& config, int64_t rows)
        : config_(config), maxima_(fp8_maxima(config)), amax_(fp8_tensors(config)), scales_(amax_.size()) {
        reset(rows);
    }

    // as before the first step, in micro-batches of up to `rows` rows
    void reset(int64_t rows) {
        std::ranges::fill(maxima_, 0.0f);
        std::ranges::fill(amax_, 0.0f);
        for (size_t i = 0; i < scales_.size(); i++) {
            scales_[i] = first_fp8_scale(is_gradient(i) ? Fp8Role::kGradient : Fp8Role::kInput, rows);
        }
    }
    std::span<float> maxima() { return maxima_; }
    std::span<const float> maxima() const { return maxima_; }
    // after maxima() was written
    void set_scales() {
        for (size_t i = 0; i < scales_.size(); i++) {
            const auto* known = &maxima_[i * kFp8History];
            const float largest = *std::max_element(known, known + kFp8History);
            if (largest > 0) { scales_[i] = fp8_scale(is_gradient(i) ? kMostE5m2 : kMostE4m3, largest); }
        }
    }

    // x rounded; with raise its largest magnitude counts for later steps' scales. Valid until the next call with this role.
    const float* rounded(Fp8Role role, int weight, int layer, std::span<const float> x, bool raise) {
        const auto place = (size_t)fp8_place(config_, role, weight, layer);
        const float scale = scales_[place], inverse = 1 / scale;
        const bool gradient = role == Fp8Role::kGradient;
        std::vector<float>& out = rounded_[(int)role];
        out.resize(std::max(out.size(), x.size()));
        float largest = 0;
#pragma omp parallel for reduction(max : largest)
        for (size_t i = 0; i < x.size(); i++) {
            largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;  // a NaN is not larger
            out[i] =
                inverse * (gradient ? from_e5m2(to_e5m2(x[i] * scale)) : from_e4m3(to_e4m3(x[i] * scale)));
        }
        if (raise) { amax_[place] = std::max(amax_[place], largest); }
        return out.data();
    }

    // comm: of the ranks, whose largest magnitudes count together; null: one rank
    Fp8Saturated end_step(Comm* comm) {
        const size_t n = amax_.size();
        if (comm != nullptr) {
            std::vector<float> all(n * (size_t)comm->size());
            std::ranges::copy(amax_, all.begin() + (int64_t)(n * (size_t)comm->rank()));
            comm->all_gather("largest magnitudes", all);
            for (size_t i = 0; i < all.size(); i++) { amax_[i % n] = std::max(amax_[i % n], all[i]); }
        }
        Fp8Saturated found{0, (int32_t)n};
        for (size_t i = 0; i < n; i++) {
            if (amax_[i] * scales_[i] > (is_gradient(i) ? kMostE5m2 : kMostE4m3)) {
                found = {found.tensors + 1, std::min(found.first, (int32_t)i)};
            }
            float* known = &maxima_[i * kFp8History];
            std::copy_backward(known, known + kFp8History - 1, known + kFp8History);
            if (std::isfinite(amax_[i])) { known[0] = amax_[i]; }
            amax_[i] = 0;
        }
        set_scales();
        return found;
    }

private:
    bool is_gradient(size_t i) const { return (int64_t)i >= fp8_gradients_from(config_); }

    GPT2Config config_;
    std::vector<float> maxima_, amax_, scales_, rounded_[3];  // rounded_: by role
};

}  // namespace llmc
