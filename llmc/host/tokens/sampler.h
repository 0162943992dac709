// Sampling: one token from a row of logits, with temperature, top-k and top-p.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "llmc/host/base/exp.h"

namespace llmc {

// What draws among tokens by exp(logit / temperature), relative to the largest logit, so that nothing
// overflows; 0 for those below a threshold, and for what is less likely than the largest by e^80.
class TokenWeights {
public:
    // temperature > 0
    TokenWeights(std::span<const float> logits, float largest, double temperature)
        : logits_(logits), largest_(largest), scale_((float)std::min(1 / temperature, 1e30)) {}
    float operator[](size_t v) const {
        const float z = logits_[v] >= threshold ? (logits_[v] - largest_) * scale_ : -INFINITY;
        const float weight = exp_simd(z > -80.0f ? z : -80.0f);
        return z > -80.0f ? weight : 0.0f;
    }
    // the sum of those from `first` to before `end`
    double sum(size_t first, size_t end) const {
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (size_t v = first; v < end; v++) { total += (*this)[v]; }
        return total;
    }

    float threshold = -INFINITY;

private:
    std::span<const float> logits_;
    float largest_, scale_;
};

// The logit of the last of the most probable tokens that together have the share top_p. Those whose weight is
// below (1 - top_p) of the mean are not among them: all of them together have less than 1 - top_p.
inline float top_p_threshold(std::span<const float> logits, const TokenWeights& weights, double top_p) {
    const double total = weights.sum(0, logits.size()), least = (1 - top_p) * total / (double)logits.size();
    std::vector<std::pair<float, float>> sorted;  // logit, weight
    for (size_t v = 0; v < logits.size(); v++) {
        const float weight = weights[v];
        if (weight > 0 && weight >= least) { sorted.emplace_back(logits[v], weight); }
    }
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    double sum = 0;
    for (auto [logit, weight] : sorted) {
        sum += weight;
        if (sum >= top_p * total) { return logit; }
    }
    return weights.threshold;
}

// Token ids compete by exp(logit / temperature); temperature 0 takes the most probable; top_k > 0 keeps the
// k most probable (and their ties); top_p < 1 keeps of those the most probable that together have this
// share (and ties; Holtzman et al. 2019, arXiv:1904.09751). coin is uniform in [0, 1). never: a token that is
// not drawn; -1: any may be.
inline int sample_token(std::span<const float> logits, double temperature, int top_k, double coin,
                        double top_p = 1, int never = -1) {
    if (never >= 0) {
        std::vector<float> others(logits.begin(), logits.end());
        others[(size_t)never] = -INFINITY;
        return sample_token(others, temperature, top_k, coin, top_p);
    }
    constexpr size_t kBlock = 512;  // tokens whose sum is found at once, before one of them is chosen
    const size_t V = logits.size();
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (size_t v = 0; v < V; v++) { largest = logits[v] > largest ? logits[v] : largest; }
    if (temperature <= 0) {
        const auto at = std::find(logits.begin(), logits.end(), largest);
        return (int)(std::min(at, logits.end() - 1) - logits.begin());  // all NaN: any
    }
    TokenWeights weights(logits, largest, temperature);
    if (top_k > 0 && (size_t)top_k < V) {
        std::vector<float> sorted(logits.begin(), logits.end());
        std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<float>());
        weights.threshold = sorted[(size_t)top_k - 1];
    }
    if (top_p < 1) { weights.threshold = top_p_threshold(logits, weights, top_p); }
    std::vector<double> cumulative;  // of whole blocks
    double total = 0;
    for (size_t first = 0; first < V; first += kBlock) {
        cumulative.push_back(total += weights.sum(first, std::min(V, first + kBlock)));
    }
    const auto block = std::upper_bound(cumulative.begin(), cumulative.end() - 1, coin * total);
    const size_t first = (size_t)(block - cumulative.begin()) * kBlock;
    double sum = block == cumulative.begin() ? 0 : block[-1];
    size_t chosen = first;
    for (size_t v = first; v < std::min(V, first + kBlock); v++) {
        const float weight = weights[v];
        if (weight == 0) { continue; }
        chosen = v;  // the last with a weight, should roundings leave the coin beyond it
        sum += weight;
        if (sum > coin * total) { break; }
    }
    return (int)chosen;
}

}  // namespace llmc
