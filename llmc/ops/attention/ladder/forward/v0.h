// v0: the formula as loops: one CPU thread, every sum in single precision.
// Why:    what the rungs above compute, in the order of the formula: scores, their softmax, the weighted sum
//         of values.
// Costs:  a query and a key: 4 x 64 operations and an exponential; a row of T scores is all that is kept.
// Result: 2.5 ms at 1x2x256 fp32, one thread; 2026-11-25
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace llmc::v0 {

// out (B,T,NH,HS), lse (B,NH,T), qkv (B,T,3,NH,HS)
inline void attention_forward_cpu(float* out, float* lse, const float* qkv, int B, int T, int NH, int HS) {
    const float scale = 1 / std::sqrt((float)HS);
    const int64_t stride = (int64_t)3 * NH * HS;  // from a token to the next
    std::vector<float> p(T);
    for (int head = 0; head < B * NH; head++) {
        int b = head / NH, h = head % NH;
        const float *q = qkv + b * T * stride + h * HS, *k = q + NH * HS, *v = k + NH * HS;
        for (int i = 0; i < T; i++) {
            float largest = -INFINITY, sum = 0;
            for (int j = 0; j <= i; j++) {
                float dot = 0;
                for (int c = 0; c < HS; c++) { dot += q[i * stride + c] * k[j * stride + c]; }
                p[j] = scale * dot;
                largest = std::max(largest, p[j]);
            }
            for (int j = 0; j <= i; j++) {
                p[j] = std::exp(p[j] - largest);
                sum += p[j];
            }
            lse[(int64_t)head * T + i] = largest + std::log(sum);
            float* o = out + (((int64_t)b * T + i) * NH + h) * HS;
            std::fill(o, o + HS, 0.0f);
            for (int j = 0; j <= i; j++) {
                for (int c = 0; c < HS; c++) { o[c] += p[j] / sum * v[j * stride + c]; }
            }
        }
    }
}

}  // namespace llmc::v0
