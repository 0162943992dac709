// v6: blocks that stay: each warp copies its next row to shared memory (cp.async) while it works on one.
// Why:    v3 starts from nothing with every row; here a load is always on its way, and no register waits.
// Moves:  a row once in, into shared memory, read there three times; once out.
// Result: 85.0 us, 58 % of the roof at 65536x768 bf16; 29 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc::v6 {

constexpr int kStages = 2;                  // rows of a warp in shared memory
constexpr int kThreadsPerProcessor = 2048;  // at most

// A warp takes every (warps of the grid)-th row. C is a multiple of Vec<T>::size.
template <typename T>
__global__ void layernorm_forward_kernel(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp,
                                         const T* weight, const T* bias, int64_t N, int C, float eps) {
    using Acc = acc_t<T>;
    constexpr int V = Vec<T>::size;
    extern __shared__ __align__(16) unsigned char shared[];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    T* stages = (T*)shared + warp * kStages * C;

    // A lane copies what it will read itself, and overwrites only what it has read: waiting for its own is
    // enough.
    auto fetch = [=](int64_t row, int stage) {
        for (int c = lane * V; c < C && row < N; c += kWarp * V) {
            copy16_async(stages + stage * C + c, inp + row * C + c);
        }
        copy_commit();  // also where there is no row: the groups are counted
    };
    int64_t step = (int64_t)warps * gridDim.x, row = (int64_t)warp * gridDim.x + blockIdx.x;
    int stage = 0;
    fetch(row, stage);
    for (; row < N; row += step, stage = 1 - stage) {
        fetch(row + step, 1 - stage);
        copy_wait<1>();  // all but the latest group: this row is here
        const T* x = stages + stage * C;
        T* y = out + row * C;
        Acc shift = __shfl_sync(kAllLanes, lane == 0 ? (Acc)x[0] : Acc(0), 0);

        Acc sum = 0;
        for (int c = lane * V; c < C; c += kWarp * V) {
            Vec<T> a = Vec<T>::load(x + c);
#pragma unroll
            for (int i = 0; i < V; i++) { sum += (Acc)a.at[i] - shift; }
        }
        Acc m = warp_sum(sum) / C;  // the mean, less shift

        Acc squares = 0;
        for (int c = lane * V; c < C; c += kWarp * V) {
            Vec<T> a = Vec<T>::load(x + c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                Acc d = ((Acc)a.at[i] - shift) - m;
                squares += d * d;
            }
        }
        Acc s = rsqrt(warp_sum(squares) / C + eps);

        for (int c = lane * V; c < C; c += kWarp * V) {
            Vec<T> a = Vec<T>::load(x + c), w = Vec<T>::load(weight + c), b = Vec<T>::load(bias + c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                Acc xhat = (((Acc)a.at[i] - shift) - m) * s;
                a.at[i] = (T)(xhat * (Acc)w.at[i] + (Acc)b.at[i]);
            }
            a.store(y + c);
        }
        if (lane == 0) {
            mean[row] = shift + m;
            rstd[row] = s;
        }
    }
}

// out, inp (N,C); mean, rstd (N); weight, bias (C); all written (=). Nothing may alias. T's pointers 16-byte
// aligned.
template <typename T>
void layernorm_forward(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int block = 128) {
    if (N == 0) { return; }
    const DeviceFacts& facts = device_facts();
    int warps = block / kWarp;
    size_t shared = (size_t)warps * kStages * C * sizeof(T);
    require(block >= kWarp && block % kWarp == 0, "layernorm_forward: block must be a multiple of 32");
    require(C % Vec<T>::size == 0 && aligned(out, inp, weight, bias),
            "layernorm_forward v6: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(shared <= (size_t)facts.shared_bytes,
            "layernorm_forward v6: two rows a warp do not fit shared memory; use a smaller block, or v4");
    auto* kernel = layernorm_forward_kernel<T>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    int fit = std::clamp((int)(facts.shared_bytes / shared), 1, std::max(1, kThreadsPerProcessor / block));
    int64_t blocks = std::min<int64_t>(ceil_div(N, warps), (int64_t)fit * facts.multiprocessors);
    kernel<<<grid_x(blocks), block, shared, stream>>>(out, mean, rstd, inp, weight, bias, N, C, eps);
    check_launch();
}

}  // namespace llmc::v6
