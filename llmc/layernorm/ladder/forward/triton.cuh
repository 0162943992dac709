// triton: as in Triton's tutorial: a program per row, masks at its end, three passes of which each loads
//         the row.
// Why:    how far plain code goes if the row fits one tile: the passes after the first find it in L1.
// Moves:  a row once in from memory, twice more from L1 or L2, once out.
// Result: 79.9 us, 61 % of the roof at 65536x768 bf16; 80 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc::triton {

constexpr int kMaxRowBytes = 65536;
constexpr int kMaxWarps = 32;

// The tutorial's launch rule: the tile is a row's columns rounded up to a power of two.
template <typename T>
int tile_columns(int C) {
    int tile = 1;
    while (tile < C && tile < kMaxRowBytes / (int)sizeof(T)) { tile *= 2; }
    return tile;
}
inline int default_warps(int tile) { return std::clamp(tile / 256, 1, 8); }

// The 16 bytes at p + c, masked: 0 beyond C. kWhole: rows are made of whole, aligned 16 bytes.
template <bool kWhole, typename T>
__device__ inline Vec<T> load_masked(const T* p, int c, int C) {
    Vec<T> x{};
    if constexpr (kWhole) {
        if (c < C) { x = Vec<T>::load(p + c); }
    } else {
#pragma unroll
        for (int i = 0; i < Vec<T>::size; i++) {
            if (c + i < C) { x.at[i] = p[c + i]; }
        }
    }
    return x;
}
template <bool kWhole, typename T>
__device__ inline void store_masked(T* p, int c, int C, const Vec<T>& x) {
    if constexpr (kWhole) {
        if (c < C) { x.store(p + c); }
    } else {
#pragma unroll
        for (int i = 0; i < Vec<T>::size; i++) {
            if (c + i < C) { p[c + i] = x.at[i]; }
        }
    }
}

// the sum over the block, in every thread
template <typename Acc>
__device__ inline Acc block_sum(Acc x) {
    __shared__ Acc of_warp[kMaxWarps];
    int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    x = warp_sum(x);
    __syncthreads();  // the sum before this one has been read
    if (lane == 0) { of_warp[threadIdx.x / kWarp] = x; }
    __syncthreads();
    return warp_sum(lane < warps ? of_warp[lane] : Acc(0));
}

// One tile wide; a thread's vectors are blockDim.x apart.
template <typename T, bool kWhole>
__global__ void layernorm_forward_kernel(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp,
                                         const T* weight, const T* bias, int C, float eps) {
    using Acc = acc_t<T>;
    constexpr int V = Vec<T>::size;
    int64_t row = blockIdx.x;
    const T* x = inp + row * C;
    T* y = out + row * C;
    int first = threadIdx.x * V, step = blockDim.x * V;

    Acc sum = 0;
    for (int c = first; c < C; c += step) {
        Vec<T> a = load_masked<kWhole>(x, c, C);
#pragma unroll
        for (int i = 0; i < V; i++) { sum += (Acc)a.at[i]; }
    }
    Acc m = block_sum(sum) / C;

    Acc squares = 0;
    for (int c = first; c < C; c += step) {
        Vec<T> a = load_masked<kWhole>(x, c, C);
#pragma unroll
        for (int i = 0; i < V; i++) {
            Acc d = c + i < C ? (Acc)a.at[i] - m : Acc(0);
            squares += d * d;
        }
    }
    Acc s = 1 / sqrt(block_sum(squares) / C + eps);

    for (int c = first; c < C; c += step) {
        Vec<T> a = load_masked<kWhole>(x, c, C);
        Vec<T> w = load_masked<kWhole>(weight, c, C), b = load_masked<kWhole>(bias, c, C);
#pragma unroll
        for (int i = 0; i < V; i++) {
            Acc xhat = ((Acc)a.at[i] - m) * s;
            a.at[i] = (T)(xhat * (Acc)w.at[i] + (Acc)b.at[i]);
        }
        store_masked<kWhole>(y, c, C, a);
    }
    if (threadIdx.x == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

// out, inp (N,C); mean, rstd (N); weight, bias (C); all written (=). Nothing may alias. block: 32 x warps, 0
// = the tutorial's rule. Rows of more than 64 KB are refused, as there.
template <typename T>
void layernorm_forward(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int block = 0) {
    if (N == 0) { return; }
    int tile = tile_columns<T>(C);
    require(C <= tile,
            "layernorm_forward triton: a row of more than 64 KB is refused, as in the tutorial; v8 takes it");
    if (block == 0) { block = default_warps(tile) * kWarp; }
    require(block % kWarp == 0 && block <= kMaxWarps * kWarp,
            "layernorm_forward triton: block must be a multiple of 32, at most 1024, or 0 for the tutorial's "
            "rule");
    bool whole = C % Vec<T>::size == 0 && aligned(out, inp, weight, bias);
    auto* kernel = whole ? layernorm_forward_kernel<T, true> : layernorm_forward_kernel<T, false>;
    kernel<<<grid_x(N), block, 0, stream>>>(out, mean, rstd, inp, weight, bias, C, eps);
    check_launch();
}

}  // namespace llmc::triton
