// v3: a warp per row in 16-byte vectors; the row stays in registers, as it came.
// Why:    v2 asked for its row three times, 2 or 4 bytes a lane; a request of 16 bytes costs the same.
// Moves:  a row once in, once out: 2 N C elements, the least there is.
// Result: 52.6 us, 93 % of the roof at 65536x768 bf16; H200, 2026-11-21
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc::v3 {

constexpr int kMaxVectors = 16;  // of a lane: 2048 columns of float, 4096 of 16-bit types
constexpr int kMaxBlock = 256;   // larger ones, with long rows, have more registers than there are

// K: vectors of a lane, of which the last ones may lie beyond the row. C is a multiple of Vec<T>::size.
template <typename T, int K>
__global__ void layernorm_forward_kernel(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp,
                                         const T* weight, const T* bias, int64_t N, int C, float eps) {
    using Acc = acc_t<T>;
    constexpr int V = Vec<T>::size;
    int lane = threadIdx.x % kWarp;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= N) { return; }
    const T* x = inp + row * C;
    T* y = out + row * C;

    // The exercise begins here.
    Vec<T> held[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (k * kWarp + lane) * V;
        if (c < C) { held[k] = Vec<T>::load(x + c); }
    }
    Acc shift = (Acc)x[0];

    Acc sum = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if ((k * kWarp + lane) * V >= C) { continue; }
#pragma unroll
        for (int i = 0; i < V; i++) { sum += (Acc)held[k].at[i] - shift; }
    }
    Acc m = warp_sum(sum) / C;  // the mean, less shift

    Acc squares = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if ((k * kWarp + lane) * V >= C) { continue; }
#pragma unroll
        for (int i = 0; i < V; i++) {
            Acc d = ((Acc)held[k].at[i] - shift) - m;
            squares += d * d;
        }
    }
    Acc s = rsqrt(warp_sum(squares) / C + eps);
    // The exercise ends here.

#pragma unroll
    for (int k = 0; k < K; k++) {
        int c = (k * kWarp + lane) * V;
        if (c >= C) { continue; }
        Vec<T> w = Vec<T>::load(weight + c), b = Vec<T>::load(bias + c);
#pragma unroll
        for (int i = 0; i < V; i++) {
            Acc xhat = (((Acc)held[k].at[i] - shift) - m) * s;
            held[k].at[i] = (T)(xhat * (Acc)w.at[i] + (Acc)b.at[i]);
        }
        held[k].store(y + c);
    }
    if (lane == 0) {
        mean[row] = shift + m;
        rstd[row] = s;
    }
}

// the kernel with the fewest vectors a lane that hold a row of C
template <typename T, int K = 1>
auto kernel_for(int C) -> decltype(&layernorm_forward_kernel<T, 1>) {
    constexpr int next = K < 8 ? K + 1 : K + 4;
    if constexpr (next <= kMaxVectors) {
        if (C > K * kWarp * Vec<T>::size) { return kernel_for<T, next>(C); }
    }
    return layernorm_forward_kernel<T, K>;
}

// out, inp (N,C); mean, rstd (N); weight, bias (C); all written (=). Nothing may alias. T's pointers 16-byte
// aligned.
template <typename T>
void layernorm_forward(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int block = 128) {
    if (N == 0) { return; }
    require(block >= kWarp && block <= kMaxBlock && block % kWarp == 0,
            "layernorm_forward v3: block must be a multiple of 32, at most 256");
    require(C % Vec<T>::size == 0 && aligned(out, inp, weight, bias),
            "layernorm_forward v3: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(C <= kMaxVectors * kWarp * Vec<T>::size,
            "layernorm_forward v3: a row of more than 8 KB does not fit a warp's registers; v4 takes it");
    unsigned grid = grid_x(ceil_div(N, block / kWarp));
    kernel_for<T>(C)<<<grid, block, 0, stream>>>(out, mean, rstd, inp, weight, bias, N, C, eps);
    check_launch();
}

}  // namespace llmc::v3
