// v0: the loop on paper: one CPU thread, every sum in single precision.
// Why:    where most people meet LayerNorm; the rungs above are this loop, spread over ever more threads.
// Moves:  each row is read three times, the second and third time from the CPU's cache.
// Result: 2319 us at 2048x768 fp32, one core of the CPU beside the H200, 2026-11-20
#pragma once
#include <cmath>
#include <cstdint>

namespace llmc::v0 {

// out, inp (B,T,C); mean, rstd (B,T); weight, bias (C)
inline void layernorm_forward_cpu(float* out, float* mean, float* rstd, const float* inp, const float* weight,
                                  const float* bias, int B, int T, int C, float eps) {
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            int64_t row = (int64_t)b * T + t;
            const float* x = inp + row * C;
            float* y = out + row * C;

            float sum = 0;
            for (int c = 0; c < C; c++) { sum += x[c]; }
            float m = sum / C;

            float squares = 0;
            for (int c = 0; c < C; c++) {
                float d = x[c] - m;
                squares += d * d;
            }
            float s = 1 / std::sqrt(squares / C + eps);

            for (int c = 0; c < C; c++) {
                float xhat = (x[c] - m) * s;
                y[c] = xhat * weight[c] + bias[c];
            }
            mean[row] = m;
            rstd[row] = s;
        }
    }
}

}  // namespace llmc::v0
