// Sampling: one token from a row of logits, with temperature and top-k.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

namespace llmc {

// Token ids compete by exp(logit / temperature); temperature 0 takes the most probable; top_k > 0 keeps the k
// most probable (and their ties). coin is uniform in [0, 1). The largest logit is subtracted, so nothing
// overflows.
inline int sample_token(std::span<const float> logits, double temperature, int top_k, double coin) {
    auto largest = std::max_element(logits.begin(), logits.end());
    if (temperature <= 0) { return (int)(largest - logits.begin()); }
    float threshold = -INFINITY;
    if (top_k > 0 && (size_t)top_k < logits.size()) {
        std::vector<float> sorted(logits.begin(), logits.end());
        std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<float>());
        threshold = sorted[top_k - 1];
    }
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
