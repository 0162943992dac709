// v0: the loop on paper: one CPU thread, first the sum of two rows, then LayerNorm of the sum.
// Why:    a transformer block adds its input to what attention made of it, and normalises the sum.
// Moves:  two rows in, the sum out and read three times from the CPU's cache, the result out.
// Result: the measure of what is right; not timed
#pragma once
#include <cmath>
#include <cstdint>

namespace llmc::v0 {

// residual, out, inp1, inp2 (B,T,C); mean, rstd (B,T); weight, bias (C)
inline void residual_layernorm_forward_cpu(float* residual, float* out, float* mean, float* rstd,
                                           const float* inp1, const float* inp2, const float* weight,
                                           const float* bias, int B, int T, int C, float eps) {
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            int64_t row = (int64_t)b * T + t;
            float* r = residual + row * C;
            float* y = out + row * C;

            float sum = 0;
            for (int c = 0; c < C; c++) {
                r[c] = inp1[row * C + c] + inp2[row * C + c];
                sum += r[c];
            }
            float m = sum / C;

            float squares = 0;
            for (int c = 0; c < C; c++) {
                float d = r[c] - m;
                squares += d * d;
            }
            float s = 1 / std::sqrt(squares / C + eps);

            for (int c = 0; c < C; c++) {
                float xhat = (r[c] - m) * s;
                y[c] = xhat * weight[c] + bias[c];
            }
            mean[row] = m;
            rstd[row] = s;
        }
    }
}

}  // namespace llmc::v0
