// v2: one kernel, one warp per row: the sum is made where its row is normalised.
// Why:    v1 wrote the sum to memory and fetched it back; now it is found in L1 or L2.
// Moves:  two rows in, their sum and the result out: 4 N C; the sum three times more, from the caches.
// Result: 180.1 us, 54 % of the roof at 65536x768 bf16; 23 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc::v2 {

template <typename T>
__global__ void residual_layernorm_forward_kernel(T* residual, T* out, acc_t<T>* mean, acc_t<T>* rstd,
                                                  const T* inp1, const T* inp2, const T* weight,
                                                  const T* bias, int64_t N, int C, float eps) {
    using Acc = acc_t<T>;
    int lane = threadIdx.x % kWarp;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= N) { return; }
    T* r = residual + row * C;
    T* y = out + row * C;

    // every lane reads back only what it wrote itself; element 0 it makes for itself, before lane 0 may write
    // it
    // The exercise begins here.
    Acc shift = (Acc)(T)((Acc)inp1[row * C] + (Acc)inp2[row * C]);
    __syncwarp();
    Acc sum = 0;
    for (int c = lane; c < C; c += kWarp) {
        T x = (T)((Acc)inp1[row * C + c] + (Acc)inp2[row * C + c]);
        r[c] = x;
        sum += (Acc)x - shift;
    }
    Acc m = warp_sum(sum) / C;  // the mean, less shift

    Acc squares = 0;
    for (int c = lane; c < C; c += kWarp) {
        Acc d = ((Acc)r[c] - shift) - m;
        squares += d * d;
    }
    Acc s = rsqrt(warp_sum(squares) / C + eps);

    for (int c = lane; c < C; c += kWarp) {
        Acc xhat = (((Acc)r[c] - shift) - m) * s;
        y[c] = (T)(xhat * (Acc)weight[c] + (Acc)bias[c]);
    }
    if (lane == 0) {
        mean[row] = shift + m;
        rstd[row] = s;
    }
    // The exercise ends here.
}

// residual = inp1 + inp2; out = layernorm(residual). residual, out, inp1, inp2 (N,C); mean, rstd (N); weight,
// bias (C); all written (=). residual may be inp1 or inp2, nothing else may alias.
template <typename T>
void residual_layernorm_forward(T* residual, T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp1,
                                const T* inp2, const T* weight, const T* bias, int64_t N, int C, float eps,
                                cudaStream_t stream, int block = 256) {
    if (N == 0) { return; }
    require(block >= kWarp && block % kWarp == 0,
            "residual_layernorm_forward: block must be a multiple of 32");
    unsigned grid = grid_x(ceil_div(N, block / kWarp));
    residual_layernorm_forward_kernel<<<grid, block, 0, stream>>>(residual, out, mean, rstd, inp1, inp2,
                                                                  weight, bias, N, C, eps);
    check_launch();
}

}  // namespace llmc::v2
