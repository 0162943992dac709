// v0: softmax, cross-entropy and its gradient on one CPU thread
// Why:    the loop on paper
// Moves:  4 N V elements through the caches: the maximum, the sum, the gradient read the row, which is written once
// Result: doc/measured/classifier.json
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace llmc::v0 {

// logits (N,Vp), the first V columns of which count, become their gradient; losses (N); targets (N)
inline void classifier_forward_backward_cpu(float* logits, float* losses, const int32_t* targets, float dloss,
                                            int64_t N, int V, int Vp) {
    for (int64_t row = 0; row < N; row++) {
        float* x = logits + row * Vp;
        int target = targets[row];
        float largest = *std::max_element(x, x + V), sum = 0, logit = x[target];
        for (int v = 0; v < V; v++) { sum += std::exp(x[v] - largest); }
        losses[row] = std::log(sum) + (largest - logit);
        for (int v = 0; v < V; v++) {
            x[v] = std::exp(x[v] - largest) * (dloss / sum) - (v == target ? dloss : 0);
        }
        std::fill(x + V, x + Vp, 0.0f);
    }
}

}  // namespace llmc::v0
