// v1: one thread per row for dinp, one thread per column for dweight and dbias.
// Why:    v0 spread over threads so that nobody adds to another's sum: no atomics, the same bits each time.
// Moves:  inp, dout twice by rows, not coalesced, once more by columns, coalesced, but only C threads wide.
// Result: 27200 us, 0.3 % of the roof at 65536x768 bf16, H200, 2026-11-20
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc::v1 {

template <typename T>
__global__ void layernorm_backward_dinp_kernel(T* dinp, const T* dout, const T* inp, const T* weight,
                                               const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C) {
    using Acc = acc_t<T>;
    int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= N) { return; }
    const T* x = inp + row * C;
    const T* dy = dout + row * C;
    T* dx = dinp + row * C;
    Acc m = mean[row], s = rstd[row];

    // The exercise begins here.
    Acc c1 = 0, c2 = 0;
    for (int c = 0; c < C; c++) {
        Acc xhat = ((Acc)x[c] - m) * s;
        Acc wdy = (Acc)weight[c] * (Acc)dy[c];
        c1 += wdy;
        c2 += wdy * xhat;
    }
    c1 /= C;
    c2 /= C;

    for (int c = 0; c < C; c++) {
        Acc xhat = ((Acc)x[c] - m) * s;
        Acc wdy = (Acc)weight[c] * (Acc)dy[c];
        dx[c] = (T)((wdy - c1 - xhat * c2) * s);
    }
    // The exercise ends here.
}

template <typename T>
__global__ void layernorm_backward_dweight_kernel(T* dweight, T* dbias, const T* dout, const T* inp,
                                                  const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N,
                                                  int C) {
    using Acc = acc_t<T>;
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) { return; }

    Acc dw = 0, db = 0;
    for (int64_t row = 0; row < N; row++) {
        Acc dy = (Acc)dout[row * C + c];
        Acc xhat = ((Acc)inp[row * C + c] - mean[row]) * rstd[row];
        dw += dy * xhat;
        db += dy;
    }
    dweight[c] = (T)dw;
    dbias[c] = (T)db;
}

// bytes of scratch that layernorm_backward needs
template <typename T>
size_t layernorm_backward_scratch(int64_t, int) {
    return 0;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void*, const T* dout, const T* inp, const T* weight,
                        const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C, cudaStream_t stream,
                        int block = 256) {
    if (N > 0) {
        unsigned grid = grid_x(ceil_div(N, block));
        layernorm_backward_dinp_kernel<<<grid, block, 0, stream>>>(dinp, dout, inp, weight, mean, rstd, N, C);
        check_launch();
    }
    unsigned grid = grid_x(ceil_div(C, block));
    layernorm_backward_dweight_kernel<<<grid, block, 0, stream>>>(dweight, dbias, dout, inp, mean, rstd, N,
                                                                  C);
    check_launch();
}

}  // namespace llmc::v1
