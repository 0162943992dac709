// A bias where cuBLASLt has no good epilogue for it, and its gradient, the sums of dout's columns.
//   T: float or __nv_bfloat16;  Grad: float or T
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/types.h"

namespace llmc {

// every row of out (N,OC) = bias (OC)
template <typename T>
void bias_forward(T* out, const T* bias, int64_t N, int OC, cudaStream_t stream);

size_t bias_backward_scratch(int OC);  // bytes; no initialisation needed

// dbias (OC) = column sums of dout (N,OC) in fp32, in a fixed order; += with accumulate
template <typename T, typename Grad>
void bias_backward(Grad* dbias, void* scratch, const T* dout, int64_t N, int OC, bool accumulate,
                   cudaStream_t stream);

// How rows (N,OC) are shared out among blocks for the sums of their columns, by the sizes alone: so is the order of the
// additions. Plain functions; dev/test/ops/test_bounds.cpp checks them.
struct ColumnShares {
    // two blocks for each of an H100's or H200's multiprocessors; with fewer threads 1558M's 6400 columns
    // of bf16 would be three tiles, not two
    static constexpr int kMostThreads = 416, kMostBlocks = 264;
    static constexpr int kLeastRows = 4;  // of a thread, before more blocks share the rows

    int vectors, rows;  // of a block at once: neighbouring vectors of columns, rows side by side
    int tiles,
        groups;  // the grid: tiles of columns times groups of rows, which lie `groups` times `rows` apart

    // n: columns of a vector
    static constexpr ColumnShares of(int64_t N, int OC, int n) {
        int all = (OC + n - 1) / n, tiles = (all + kMostThreads - 1) / kMostThreads;
        int vectors = (all + tiles - 1) / tiles, rows = kMostThreads / vectors;
        int64_t each = (int64_t)kLeastRows * rows, groups = (N + each - 1) / each;
        return {vectors, rows, tiles, (int)std::clamp<int64_t>(groups, 1, std::max(1, kMostBlocks / tiles))};
    }
    constexpr int threads() const { return (vectors * rows + 31) / 32 * 32; }
};

}  // namespace llmc
