// v0: the loop on paper: one CPU thread, every sum in single precision.
// Why:    the mathematics (derived in doc/layernorm.md, section 1) and nothing else; the rungs above spread it over
//         threads.
// Moves:  each row of inp and dout is read twice, again from the CPU's cache; dweight, dbias stay in cache.
// Result: 3224 us at 2048x768 fp32, one core of the CPU beside the H200, 2026-11-20
#pragma once
#include <algorithm>
#include <cstdint>

namespace llmc::v0 {

// dinp, dout, inp (B,T,C); dweight, dbias, weight (C); mean, rstd (B,T); all results written (=)
inline void layernorm_backward_cpu(float* dinp, float* dweight, float* dbias, const float* dout,
                                   const float* inp, const float* weight, const float* mean,
                                   const float* rstd, int B, int T, int C) {
    std::fill_n(dweight, C, 0.0f);
    std::fill_n(dbias, C, 0.0f);
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            int64_t row = (int64_t)b * T + t;
            const float* x = inp + row * C;
            const float* dy = dout + row * C;
            float* dx = dinp + row * C;
            float m = mean[row], s = rstd[row];

            float c1 = 0, c2 = 0;
            for (int c = 0; c < C; c++) {
                float xhat = (x[c] - m) * s;
                float wdy = weight[c] * dy[c];
                c1 += wdy;
                c2 += wdy * xhat;
            }
            c1 /= C;
            c2 /= C;

            for (int c = 0; c < C; c++) {
                float xhat = (x[c] - m) * s;
                float wdy = weight[c] * dy[c];
                dx[c] = s * (wdy - c1 - xhat * c2);
                dweight[c] += dy[c] * xhat;
                dbias[c] += dy[c];
            }
        }
    }
}

}  // namespace llmc::v0
