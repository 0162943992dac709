// What the bf16 attention kernels share: tiles of rows in shared memory, products of tiles.
#pragma once
#include <cmath>

#include "llmc/cuda/device.cuh"
#include "llmc/cuda/mma.cuh"
#include "llmc/ops/attention/attention.cuh"

namespace llmc::attention_bf16 {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = 64;  // of a tile: keys in forward and dq, queries in dk and dv

// rows of one head: row t starts at base + t * stride and has HS elements
struct Rows {
    const bf16* base;
    int64_t stride;
    int T, HS;
};

// A tile in shared memory: rows of kD elements; 8 more keep ldmatrix free of bank conflicts.
template <int kD>
constexpr int kStride = kD + 8;

// tile[r][c] = rows[first + r][c] for r < count, zero where the row or the column does not exist. 16 bytes at
// a time in the background where HS allows it; the caller commits and waits either way.
template <int kD>
__device__ void load_rows(bf16* tile, const Rows& rows, int first, int count) {
    constexpr int kChunks = kD / 8;
    bool aligned = rows.HS % 8 == 0;
    for (int i = threadIdx.x; i < count * kChunks; i += kThreads) {
        int r = i / kChunks, c = i % kChunks * 8, t = first + r;
        bf16* to = tile + r * kStride<kD> + c;
        bool valid = t < rows.T && c < rows.HS;
        const bf16* from = rows.base + (valid ? (int64_t)t * rows.stride + c : 0);
        if (aligned) {
            copy_async(to, from, valid);
        } else {
            for (int k = 0; k < 8; k++) { to[k] = valid && c + k < rows.HS ? from[k] : bf16(0.0f); }
        }
    }
}

// A warp's results are m tiles of 16 rows by n tiles of 8 columns, c[m][n][4].

// c (16 m x 8 n) += a (16 m x kD) b^T, where a and b are tiles of rows: c_ij is the dot product of rows i and
// j
template <int kD, int m, int n>
__device__ void multiply_rows(float (&c)[m][n][4], const bf16* a, const bf16* b) {
#pragma unroll
    for (int k = 0; k < kD; k += 16) {
        FragmentA fa[m];
#pragma unroll
        for (int i = 0; i < m; i++) { fa[i] = load_a(a + i * 16 * kStride<kD> + k, kStride<kD>); }
#pragma unroll
        for (int j = 0; j < n; j += 2) {
            FragmentB fb = load_b_columns(b + j * 8 * kStride<kD> + k, kStride<kD>);
#pragma unroll
            for (int i = 0; i < m; i++) {
                multiply_add(c[i][j], fa[i], fb, 0);
                multiply_add(c[i][j + 1], fa[i], fb, 1);
            }
        }
    }
}

// c (16 m x kD) += p (16 m x 8 n, rounded to bf16) b, where b is a tile of 8 n rows
template <int kD, int m, int n>
__device__ void multiply_weighted(float (&c)[m][kD / 8][4], const float (&p)[m][n][4], const bf16* b) {
#pragma unroll
    for (int k = 0; k < n; k += 2) {
        FragmentA fa[m];
#pragma unroll
        for (int i = 0; i < m; i++) { fa[i] = as_a(p[i][k], p[i][k + 1]); }
#pragma unroll
        for (int j = 0; j < kD / 8; j += 2) {
            FragmentB fb = load_b_rows(b + k * 8 * kStride<kD> + j * 8, kStride<kD>);
#pragma unroll
            for (int i = 0; i < m; i++) {
                multiply_add(c[i][j], fa[i], fb, 0);
                multiply_add(c[i][j + 1], fa[i], fb, 1);
            }
        }
    }
}

template <int m, int n>
__device__ void set_zero(float (&c)[m][n][4]) {
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int j = 0; j < n; j++) { c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0; }
    }
}

// Rows [first, first + 16 m) of a head = c * factor; factor[i][0] is of the lane's row in the upper half of
// tile i, factor[i][1] of that in the lower half.
template <int kD, int m>
__device__ void store_rows(bf16* base, int64_t stride, int T, int HS, int first,
                           const float (&c)[m][kD / 8][4], const float (&factor)[m][2]) {
    int lane = threadIdx.x % kWarp;
    bool paired = HS % 2 == 0;  // then a pair of elements lies on 4 bytes
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + i * 16 + half * 8 + lane / 4;
            bf16* to = base + row * stride + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < kD / 8; j++) {
                int d = j * 8 + lane % 4 * 2;
                float low = c[i][j][2 * half] * factor[i][half],
                      high = c[i][j][2 * half + 1] * factor[i][half];
                if (row >= T || d >= HS) { continue; }
                if (paired) {
                    *reinterpret_cast<uint32_t*>(to + j * 8) = pack(low, high);
                } else {
                    to[j * 8] = bf16(low);
                    if (d + 1 < HS) { to[j * 8 + 1] = bf16(high); }
                }
            }
        }
    }
}

}  // namespace llmc::attention_bf16
