// What a thread knows of its part of a row, for general.cu and there_and_back.cuh: the mean and the squares
// of each piece while it is in registers, merged with those before (Chan et al. 1983).
#pragma once
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/layernorm.h"

namespace llmc::layernorm_general {

// some elements: how many, their mean less the row's shift, the squares about it
template <typename Acc>
struct Moments {
    Acc n = 0, m = 0, squares = 0;
};

template <typename Acc>
__device__ Moments<Acc> merge(const Moments<Acc>& a, const Moments<Acc>& b) {
    Acc n = a.n + b.n, share = b.n / max(n, Acc(1)), d = b.m - a.m;
    return {n, a.m + d * share, a.squares + b.squares + d * d * (a.n * share)};
}

// of the first `count` elements of x; count: whole vectors, may be 0. kAll: it is all of them.
template <bool kAll = false, int n, int k, typename T>
__device__ Moments<acc_t<T>> moments_of(const Elements<T, n> (&x)[k], int count, acc_t<T> shift) {
    using Acc = acc_t<T>;
    Acc sums[2] = {}, squares[2] = {};  // two chains of additions, half as long
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (!kAll && i * n >= count) { continue; }
#pragma unroll
        for (int j = 0; j < n; j++) { sums[(i * n + j) % 2] += as_acc<Acc>(x[i], j) - shift; }
    }
    Acc m = (sums[0] + sums[1]) / max((Acc)count, Acc(1));
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (!kAll && i * n >= count) { continue; }
#pragma unroll
        for (int j = 0; j < n; j++) {
            Acc d = (as_acc<Acc>(x[i], j) - shift) - m;
            squares[(i * n + j) % 2] += d * d;
        }
    }
    return {(Acc)count, m, squares[0] + squares[1]};
}

// how a row is normalised: xhat = ((x - shift) - m) s
template <typename Acc>
struct Normal {
    Acc shift, m, s;
};

// from what each thread of a block has of the row, C elements in all; whole warps
template <typename Acc>
__device__ Normal<Acc> normal_of_block(const Moments<Acc>& mine, Acc shift, int C, double eps) {
    Acc m = block_sum(mine.n * mine.m) / C, d = mine.m - m;
    return {shift, m, rsqrt(block_sum(mine.squares + mine.n * d * d) / C + (Acc)eps)};
}

// by one thread
template <typename T, typename W>
__device__ void store_statistics(const LayerNormForward<T, W>& call, int64_t row,
                                 const Normal<acc_t<T>>& normal) {
    if (call.mean != nullptr) { call.mean[row] = normal.shift + normal.m; }
    if (call.rstd != nullptr) { call.rstd[row] = normal.s; }
}

// one vector of a row as it is normalised
template <typename T, typename W, int n>
__device__ Elements<T, n> normalised(const Elements<T, n>& x, const Elements<W, n>& weight,
                                     const Elements<W, n>& bias, const Normal<acc_t<T>>& normal) {
    using Acc = acc_t<T>;
    Acc y[n];
#pragma unroll
    for (int j = 0; j < n; j++) {
        Acc xhat = ((as_acc<Acc>(x, j) - normal.shift) - normal.m) * normal.s;
        y[j] = xhat * as_acc<Acc>(weight, j) + as_acc<Acc>(bias, j);
    }
    return as_stored<T>(y);
}

}  // namespace llmc::layernorm_general
