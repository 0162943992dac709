// v2: one warp per row for dinp; columns summed in tiles by many groups of rows, then over the groups.
// Why:    v1 read across rows and gave each of C threads all N rows; now loads coalesce, rows are shared.
// Moves:  inp, dout from memory and again from L1 or L2 for dinp, from memory once more for dweight, dbias.
// Result: 225.6 us, 31 % of the roof at 65536x768 bf16, H200, 2026-11-20
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc::v2 {

constexpr int kGroups =
    64;  // groups of rows = partial sums per column: a constant, so that N alone fixes the order
constexpr int kMaxWarps = 32;  // in a block

template <typename T>
__global__ void layernorm_backward_dinp_kernel(T* dinp, const T* dout, const T* inp, const T* weight,
                                               const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C) {
    using Acc = acc_t<T>;
    int lane = threadIdx.x % kWarp;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= N) { return; }
    const T* x = inp + row * C;
    const T* dy = dout + row * C;
    T* dx = dinp + row * C;
    Acc m = mean[row], s = rstd[row];

    Acc c1 = 0, c2 = 0;
    for (int c = lane; c < C; c += kWarp) {
        Acc xhat = ((Acc)x[c] - m) * s;
        Acc wdy = (Acc)weight[c] * (Acc)dy[c];
        c1 += wdy;
        c2 += wdy * xhat;
    }
    c1 = warp_sum(c1) / C;
    c2 = warp_sum(c2) / C;

    for (int c = lane; c < C; c += kWarp) {
        Acc xhat = ((Acc)x[c] - m) * s;
        Acc wdy = (Acc)weight[c] * (Acc)dy[c];
        dx[c] = (T)((wdy - c1 - xhat * c2) * s);
    }
}

// A block sums one group's rows of a tile of 32 columns: a lane per column, the warps taking rows in turn.
// dw_partial, db_partial (kGroups, C)
template <typename T>
__global__ void layernorm_backward_partial_kernel(acc_t<T>* dw_partial, acc_t<T>* db_partial, const T* dout,
                                                  const T* inp, const acc_t<T>* mean, const acc_t<T>* rstd,
                                                  int64_t N, int C) {
    using Acc = acc_t<T>;
    __shared__ Acc dw_warp[kMaxWarps][kWarp], db_warp[kMaxWarps][kWarp];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    int tiles = ceil_div(C, kWarp), group = blockIdx.x / tiles;  // neighbouring blocks share rows
    int64_t c = (int64_t)(blockIdx.x % tiles) * kWarp + lane;
    int64_t rows = ceil_div(N, kGroups);
    int64_t end = min(N, (group + 1) * rows);

    // The exercise begins here.
    Acc dw = 0, db = 0;
    if (c < C) {
        for (int64_t row = group * rows + warp; row < end; row += warps) {
            Acc dy = (Acc)dout[row * C + c];
            Acc xhat = ((Acc)inp[row * C + c] - mean[row]) * rstd[row];
            dw += dy * xhat;
            db += dy;
        }
    }
    dw_warp[warp][lane] = dw;
    db_warp[warp][lane] = db;
    __syncthreads();
    if (warp > 0 || c >= C) { return; }
    for (int w = 1; w < warps; w++) {
        dw += dw_warp[w][lane];
        db += db_warp[w][lane];
    }
    dw_partial[(int64_t)group * C + c] = dw;
    db_partial[(int64_t)group * C + c] = db;
    // The exercise ends here.
}

// one thread per column adds the groups in order
template <typename T>
__global__ void layernorm_backward_dweight_kernel(T* dweight, T* dbias, const acc_t<T>* dw_partial,
                                                  const acc_t<T>* db_partial, int C) {
    using Acc = acc_t<T>;
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) { return; }

    Acc dw = 0, db = 0;
    for (int group = 0; group < kGroups; group++) {
        dw += dw_partial[(int64_t)group * C + c];
        db += db_partial[(int64_t)group * C + c];
    }
    dweight[c] = (T)dw;
    dbias[c] = (T)db;
}

// bytes of scratch that layernorm_backward needs
template <typename T>
size_t layernorm_backward_scratch(int64_t, int C) {
    return 2 * sizeof(acc_t<T>) * kGroups * C;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// scratch: layernorm_backward_scratch bytes, aligned for acc_t<T>, need not be initialised.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                        const T* weight, const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C,
                        cudaStream_t stream, int block = 256) {
    require(block >= kWarp && block % kWarp == 0, "layernorm_backward: block must be a multiple of 32");
    if (N > 0) {
        unsigned grid = grid_x(ceil_div(N, block / kWarp));
        layernorm_backward_dinp_kernel<<<grid, block, 0, stream>>>(dinp, dout, inp, weight, mean, rstd, N, C);
        check_launch();
    }
    acc_t<T>* dw_partial = (acc_t<T>*)scratch;
    acc_t<T>* db_partial = dw_partial + (int64_t)kGroups * C;
    unsigned partials = grid_x((int64_t)ceil_div(C, kWarp) * kGroups);
    layernorm_backward_partial_kernel<<<partials, block, 0, stream>>>(dw_partial, db_partial, dout, inp, mean,
                                                                      rstd, N, C);
    check_launch();
    unsigned grid = grid_x(ceil_div(C, block));
    layernorm_backward_dweight_kernel<<<grid, block, 0, stream>>>(dweight, dbias, dw_partial, db_partial, C);
    check_launch();
}

}  // namespace llmc::v2
