// v5: several short rows per warp: a row gets only as many lanes as it has 16-byte vectors.
// Why:    v3 gives a row a whole warp: at C = 64 in 16 bits 24 of 32 lanes idle, in every instruction.
// Moves:  a row once in, once out; the rows of a warp lie side by side, so its loads are still one piece.
// Result: 41.6 us, 80 % of the roof at 524288x64 bf16; 70.4 us, 92 % fp32; H200, 2026-11-22
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc::v5 {

// the sum over each run of `lanes` lanes, the same bits in each of them
template <int lanes, typename Acc>
__device__ inline Acc team_sum(Acc x) {
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(kAllLanes, x, distance);
    }
    return x;
}

// kLanes: of a row, a power of two; a lane has one vector, the last lanes none. C is a multiple of
// Vec<T>::size.
template <typename T, int kLanes>
__global__ void layernorm_forward_kernel(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp,
                                         const T* weight, const T* bias, int64_t N, int C, float eps) {
    using Acc = acc_t<T>;
    constexpr int V = Vec<T>::size;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kLanes;
    int c = threadIdx.x % kLanes * V;
    bool mine = row < N && c < C;  // lanes without elements stay for the sums

    Vec<T> held{};
    Acc shift = 0;
    if (mine) {
        held = Vec<T>::load(inp + row * C + c);
        shift = (Acc)inp[row * C];
    }

    // The exercise begins here.
    Acc sum = 0;
#pragma unroll
    for (int i = 0; i < V; i++) { sum += (Acc)held.at[i] - shift; }
    Acc m = team_sum<kLanes>(mine ? sum : Acc(0)) / C;  // the mean, less shift

    Acc squares = 0;
#pragma unroll
    for (int i = 0; i < V; i++) {
        Acc d = ((Acc)held.at[i] - shift) - m;
        squares += d * d;
    }
    Acc s = rsqrt(team_sum<kLanes>(mine ? squares : Acc(0)) / C + eps);

    if (!mine) { return; }
    Vec<T> w = Vec<T>::load(weight + c), b = Vec<T>::load(bias + c);
#pragma unroll
    for (int i = 0; i < V; i++) {
        Acc xhat = (((Acc)held.at[i] - shift) - m) * s;
        held.at[i] = (T)(xhat * (Acc)w.at[i] + (Acc)b.at[i]);
    }
    held.store(out + row * C + c);
    if (c == 0) {
        mean[row] = shift + m;
        rstd[row] = s;
    }
    // The exercise ends here.
}

// the lanes a row of C needs, and their kernel
template <typename T, int kLanes = 1>
auto kernel_for(int C, int* lanes) -> decltype(&layernorm_forward_kernel<T, 1>) {
    if constexpr (kLanes < kWarp) {
        if (C > kLanes * Vec<T>::size) { return kernel_for<T, 2 * kLanes>(C, lanes); }
    }
    *lanes = kLanes;
    return layernorm_forward_kernel<T, kLanes>;
}

// out, inp (N,C); mean, rstd (N); weight, bias (C); all written (=). Nothing may alias. T's pointers 16-byte
// aligned.
template <typename T>
void layernorm_forward(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int block = 256) {
    if (N == 0) { return; }
    require(block >= kWarp && block % kWarp == 0, "layernorm_forward: block must be a multiple of 32");
    require(C % Vec<T>::size == 0 && aligned(out, inp, weight, bias),
            "layernorm_forward v5: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(
        C <= kWarp * Vec<T>::size,
        "layernorm_forward v5: a row of more than 512 bytes needs more than one vector a lane; v3 takes it");
    int lanes = 0;
    auto kernel = kernel_for<T>(C, &lanes);
    unsigned grid = grid_x(ceil_div(N, block / lanes));
    kernel<<<grid, block, 0, stream>>>(out, mean, rstd, inp, weight, bias, N, C, eps);
    check_launch();
}

}  // namespace llmc::v5
