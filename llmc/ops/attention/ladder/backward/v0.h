// v0: the formulas as loops: one CPU thread, every sum in single precision.
// Why:    what the rungs above compute. Probabilities come from forward's lse; dot = dout . out stands for
//         the sum of p dp.
// Costs:  a query and a key: five products, 10 x 64 operations, and an exponential.
// Result: 12.7 ms at 1x2x256 fp32, one thread; 2026-11-25
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

namespace llmc::v0 {

// dqkv, qkv (B,T,3,NH,HS); dout, out (B,T,NH,HS); lse (B,NH,T)
inline void attention_backward_cpu(float* dqkv, const float* dout, const float* qkv, const float* out,
                                   const float* lse, int B, int T, int NH, int HS) {
    const float scale = 1 / std::sqrt((float)HS);
    const int64_t row = (int64_t)NH * HS, stride = 3 * row;  // from a token to the next
    std::fill(dqkv, dqkv + B * T * stride, 0.0f);
    for (int head = 0; head < B * NH; head++) {
        int64_t b = head / NH, h = head % NH, at = b * T * stride + h * HS, there = b * T * row + h * HS;
        for (int i = 0; i < T; i++) {
            const float *q = qkv + at + i * stride, *d = dout + there + i * row, *o = out + there + i * row;
            float* dq = dqkv + at + i * stride;
            float dot = 0;
            for (int c = 0; c < HS; c++) { dot += d[c] * o[c]; }
            for (int j = 0; j <= i; j++) {
                const float *k = qkv + at + j * stride + row, *v = k + row;
                float *dk = dqkv + at + j * stride + row, *dv = dk + row;
                float s = 0, dp = 0;
                for (int c = 0; c < HS; c++) {
                    s += q[c] * k[c];
                    dp += d[c] * v[c];
                }
                float p = std::exp(scale * s - lse[(int64_t)head * T + i]), ds = p * (dp - dot) * scale;
                for (int c = 0; c < HS; c++) {
                    dv[c] += p * d[c];
                    dk[c] += ds * q[c];
                    dq[c] += ds * k[c];
                }
            }
        }
    }
}

}  // namespace llmc::v0
