// torch: as in PyTorch: a kernel for dinp that reads each row twice, a kernel for the columns in tiles of 32.
// Why:    each result by itself, any C; at C = 768 the second kernel has 24 blocks for 132 multiprocessors.
// Moves:  inp, dout twice by rows, the second time from L1 or L2, and once more by columns; dinp once out.
// Result: 1129.2 us, 6 % of the roof at 65536x768 bf16; 24 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc::torch {

constexpr int kRowBlock = 128;
constexpr int kTile = 32;  // columns of a block, and rows it takes at a time: a warp each

template <typename T>
__global__ void layernorm_backward_dinp_kernel(T* dinp, const T* dout, const T* inp, const T* weight,
                                               const acc_t<T>* mean, const acc_t<T>* rstd, int C) {
    using Acc = acc_t<T>;
    constexpr int kWarps = kRowBlock / kWarp;
    __shared__ Acc c1_warp[kWarps], c2_warp[kWarps];
    int64_t row = blockIdx.x;
    const T* x = inp + row * C;
    const T* dy = dout + row * C;
    Acc m = mean[row], s = rstd[row];

    Acc c1 = 0, c2 = 0;
    for (int64_t c = threadIdx.x; c < C; c += kRowBlock) {
        Acc xhat = ((Acc)x[c] - m) * s, wdy = (Acc)weight[c] * (Acc)dy[c];
        c1 += wdy;
        c2 += wdy * xhat;
    }
    c1 = warp_sum(c1);
    c2 = warp_sum(c2);
    if (threadIdx.x % kWarp == 0) {
        c1_warp[threadIdx.x / kWarp] = c1;
        c2_warp[threadIdx.x / kWarp] = c2;
    }
    __syncthreads();
    c1 = c2 = 0;
    for (int w = 0; w < kWarps; w++) {
        c1 += c1_warp[w];
        c2 += c2_warp[w];
    }
    c1 /= C;
    c2 /= C;

    for (int64_t c = threadIdx.x; c < C; c += kRowBlock) {
        Acc xhat = ((Acc)x[c] - m) * s, wdy = (Acc)weight[c] * (Acc)dy[c];
        dinp[row * C + c] = (T)((wdy - c1 - xhat * c2) * s);
    }
}

// A block has kTile columns: warp w sums rows w, w + kTile, ...; then warp w adds up column w, a lane for
// each warp.
template <typename T>
__global__ void layernorm_backward_dweight_kernel(T* dweight, T* dbias, const T* dout, const T* inp,
                                                  const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N,
                                                  int C) {
    using Acc = acc_t<T>;
    __shared__ Acc dw_warp[kTile][kTile + 1], db_warp[kTile][kTile + 1];  // + 1: columns in different banks
    int lane = threadIdx.x, warp = threadIdx.y;
    int64_t first = (int64_t)blockIdx.x * kTile, c = first + lane;

    Acc dw = 0, db = 0;
    for (int64_t row = warp; row < N && c < C; row += kTile) {
        Acc dy = (Acc)dout[row * C + c], xhat = ((Acc)inp[row * C + c] - mean[row]) * rstd[row];
        dw += dy * xhat;
        db += dy;
    }
    dw_warp[warp][lane] = dw;
    db_warp[warp][lane] = db;
    __syncthreads();
    dw = warp_sum(dw_warp[lane][warp]);
    db = warp_sum(db_warp[lane][warp]);
    if (lane > 0 || first + warp >= C) { return; }
    dweight[first + warp] = (T)dw;
    dbias[first + warp] = (T)db;
}

// bytes of scratch that layernorm_backward needs
template <typename T>
size_t layernorm_backward_scratch(int64_t, int) {
    return 0;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// Block sizes are PyTorch's: block is only there for the same signature.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void*, const T* dout, const T* inp, const T* weight,
                        const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C, cudaStream_t stream,
                        int = kRowBlock) {
    if (N > 0) {
        layernorm_backward_dinp_kernel<<<grid_x(N), kRowBlock, 0, stream>>>(dinp, dout, inp, weight, mean,
                                                                            rstd, C);
        check_launch();
    }
    unsigned grid = grid_x(ceil_div(C, kTile));
    layernorm_backward_dweight_kernel<<<grid, dim3(kTile, kTile), 0, stream>>>(dweight, dbias, dout, inp,
                                                                               mean, rstd, N, C);
    check_launch();
}

}  // namespace llmc::torch
