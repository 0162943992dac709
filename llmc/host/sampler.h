// Sampling: one token from a row of logits, with temperature, top-k and top-p.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

namespace llmc {

// The logit of the last of the most probable tokens that together have the share top_p among those whose
// logits are at least `lowest`.
inline float top_p_threshold(std::span<const float> logits, double temperature, float lowest, double top_p) {
    std::vector<float> sorted;
    for (float x : logits) {
        if (x >= lowest) { sorted.push_back(x); }
    }
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    double total = 0, sum = 0;
    for (float x : sorted) { total += std::exp((x - sorted[0]) / temperature); }
    for (float x : sorted) {
        sum += std::exp((x - sorted[0]) / temperature);
        if (sum >= top_p * total) { return x; }
    }
    return lowest;
}

// Token ids compete by exp(logit / temperature); temperature 0 takes the most probable; top_k > 0 keeps the
// k most probable (and their ties); top_p < 1 keeps of those the most probable that together have this
// share (and ties; Holtzman et al. 2019, arXiv:1904.09751). coin is uniform in [0, 1). The largest logit is
// subtracted, so nothing overflows.
inline int sample_token(std::span<const float> logits, double temperature, int top_k, double coin,
                        double top_p = 1) {
    auto largest = std::max_element(logits.begin(), logits.end());
    if (temperature <= 0) { return (int)(largest - logits.begin()); }
    float threshold = -INFINITY;
    if (top_k > 0 && (size_t)top_k < logits.size()) {
        std::vector<float> sorted(logits.begin(), logits.end());
        std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<float>());
        threshold = sorted[top_k - 1];
    }
    if (top_p < 1) { threshold = top_p_threshold(logits, temperature, threshold, top_p); }
    std::vector<double> cumulative(logits.size());
    double total = 0;
    for (size_t v = 0; v < logits.size(); v++) {
        total += logits[v] >= threshold ? std::exp((logits[v] - *largest) / temperature) : 0.0;
        cumulative[v] = total;
    }
    auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), coin * total);
    return (int)(std::min(chosen, cumulative.end() - 1) - cumulative.begin());
}

}  // namespace llmc
