// Learning-rate schedules: a linear warm-up, then constant, cosine, linear or wsd (warm-up, stable, decay).
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

namespace llmc {

struct Schedule {
    std::string kind = "cosine";  // constant, cosine, linear, wsd
    double peak = 3e-4;
    double final_fraction = 0;  // of the peak, where the schedule would be one step after the last
    int64_t warmup = 0;         // steps
    int64_t steps = 1;          // of the whole run

    // the learning rate of a step, 0-based
    double operator()(int64_t step) const {
        if (step < warmup) { return peak * (double)(step + 1) / (double)warmup; }
        double lowest = peak * final_fraction;
        double done = std::min(1.0, (double)(step - warmup) / (double)std::max<int64_t>(1, steps - warmup));
        if (kind == "cosine") {
            return lowest + (peak - lowest) * 0.5 * (1 + std::cos(3.141592653589793 * done));
        }
        if (kind == "linear") { return peak + (lowest - peak) * done; }
        if (kind == "wsd") {  // stable for 80 % of all steps, then down by 1 - sqrt, arXiv:2405.18392
            // in a run of few steps its last one falls, too
            double begin = std::max(std::min(0.8 * (double)steps, (double)steps - 1.5), (double)warmup);
            double decayed = ((double)step - begin) / std::max(1.0, (double)steps - begin);
            return decayed <= 0 ? peak : lowest + (peak - lowest) * (1 - std::sqrt(std::min(1.0, decayed)));
        }
        return peak;  // constant
    }
};

}  // namespace llmc
