// torch_rowwise: as in PyTorch's fallback: a kernel for the rows' mean and rstd, one for the results.
// Why:    any C, alignment, type: one element at a time, 64-bit indices, a division for each element.
// Moves:  a row twice in from memory or L2, once out; mean and rstd out and in again.
// Result: 500.9 us, 10 % of the roof at 65536x768 bf16; 23 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc::torch_rowwise {

constexpr int kMomentsBlock = 512, kResultBlock = 256;

// count elements of this mean, and the sum of squares about it
template <typename Acc>
struct Welford {
    Acc mean = 0, squares = 0;
    int64_t count = 0;

    __device__ void add(Acc x) {
        Acc from_old = x - mean;
        count += 1;
        mean += from_old / (Acc)count;
        squares += from_old * (x - mean);
    }
    __device__ void add(const Welford& b) {  // Chan et al. 1983
        if (b.count == 0) { return; }
        Acc both = (Acc)(count + b.count), apart = b.mean - mean;
        mean += apart * ((Acc)b.count / both);
        squares += b.squares + apart * apart * (Acc)count * ((Acc)b.count / both);
        count += b.count;
    }
    // of the warp, in lane 0
    __device__ void add_lanes() {
        for (int distance = kWarp / 2; distance > 0; distance /= 2) {
            Welford other{__shfl_down_sync(kAllLanes, mean, distance),
                          __shfl_down_sync(kAllLanes, squares, distance),
                          __shfl_down_sync(kAllLanes, count, distance)};
            add(other);
        }
    }
};

template <typename T>
__global__ void layernorm_forward_moments_kernel(acc_t<T>* mean, acc_t<T>* rstd, const T* inp, int64_t C,
                                                 acc_t<T> eps) {
    using Acc = acc_t<T>;
    constexpr int kWarps = kMomentsBlock / kWarp;
    __shared__ Acc means[kWarps], squares[kWarps];
    __shared__ int64_t counts[kWarps];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int64_t row = blockIdx.x;

    Welford<Acc> mine;
    for (int64_t c = threadIdx.x; c < C; c += kMomentsBlock) { mine.add((Acc)inp[row * C + c]); }
    mine.add_lanes();
    if (lane == 0) {
        means[warp] = mine.mean;
        squares[warp] = mine.squares;
        counts[warp] = mine.count;
    }
    __syncthreads();
    if (warp > 0) { return; }
    mine = lane < kWarps ? Welford<Acc>{means[lane], squares[lane], counts[lane]} : Welford<Acc>{};
    mine.add_lanes();
    if (lane == 0) {
        mean[row] = mine.mean;
        rstd[row] = rsqrt(mine.squares / (Acc)C + eps);
    }
}

template <typename T>
__global__ void layernorm_forward_kernel(T* out, const acc_t<T>* mean, const acc_t<T>* rstd, const T* inp,
                                         const T* weight, const T* bias, int64_t C) {
    using Acc = acc_t<T>;
    int64_t row = blockIdx.x;
    Acc m = mean[row], s = rstd[row];
    for (int64_t c = threadIdx.x; c < C; c += kResultBlock) {
        Acc w = weight != nullptr ? (Acc)weight[c] : Acc(1), b = bias != nullptr ? (Acc)bias[c] : Acc(0);
        out[row * C + c] = (T)(((Acc)inp[row * C + c] - m) * s * w + b);
    }
}

// out, inp (N,C); mean, rstd (N); weight, bias (C) or null; all written (=). Nothing may alias. Block sizes
// are PyTorch's, so that block is only there for the same signature.
template <typename T>
void layernorm_forward(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int = kMomentsBlock) {
    if (N == 0) { return; }
    unsigned grid = grid_x(N);
    layernorm_forward_moments_kernel<<<grid, kMomentsBlock, 0, stream>>>(mean, rstd, inp, C, eps);
    check_launch();
    layernorm_forward_kernel<<<grid, kResultBlock, 0, stream>>>(out, mean, rstd, inp, weight, bias, C);
    check_launch();
}

}  // namespace llmc::torch_rowwise
