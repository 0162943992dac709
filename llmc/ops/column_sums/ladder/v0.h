// v0: the sums over the rows of a matrix on one CPU thread
// Why:    the loop on paper
// Moves:  N C elements, once
// Result: doc/measured/column_sums.json
#pragma once
#include <algorithm>
#include <cstdint>

namespace llmc::v0 {

// sums (C), x (N,C)
inline void column_sums_cpu(float* sums, const float* x, int64_t N, int C) {
    std::fill(sums, sums + C, 0.0f);
    for (int64_t row = 0; row < N; row++) {
        for (int c = 0; c < C; c++) { sums[c] += x[row * C + c]; }
    }
}

}  // namespace llmc::v0
