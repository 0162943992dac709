// general: a warp per row for dinp; columns in tiles, summed by groups of rows. Any C, alignment, stride,
// GPU. Why:    v2's idea with what training asks for: += into dinp, nulls, strides, gradients in a type of
// their own. Moves:  inp, dout from memory for the columns, once more for dinp, and again from L1 or L2.
#include "llmc/check.cuh"
#include "llmc/column_sums.cuh"
#include "llmc/device.cuh"
#include "llmc/layernorm_backward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_general {

constexpr int kBackwardBlock = kColumnBlock, kBackwardWarps = kColumnWarps;

template <int kV, typename T, typename W>
__global__ void layernorm_backward_dinp_kernel(LayerNormBackwardRows<T, W> call) {
    using Acc = acc_t<T>;
    int lane = threadIdx.x % kWarp, C = call.C;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= call.N) { return; }
    const T* x = call.inp + row * call.inp_stride;
    const T* dy = call.dout + row * call.dout_stride;
    T* dx = call.dinp + row * call.dinp_stride;
    Acc m = call.mean[row], s = call.rstd[row];

    Acc c1 = 0, c2 = 0;
    for (int c = lane * kV; c < C; c += kWarp * kV) {
        auto a = load<kV>(x + c), d = load<kV>(dy + c);
        auto w = load_or<kV, Acc>(call.weight, c, Acc(1));
#pragma unroll
        for (int i = 0; i < kV; i++) {
            Acc xhat = ((Acc)a.at[i] - m) * s, wdy = w.at[i] * (Acc)d.at[i];
            c1 += wdy;
            c2 += wdy * xhat;
        }
    }
    c1 = warp_sum(c1) / C;
    c2 = warp_sum(c2) / C;

    for (int c = lane * kV; c < C; c += kWarp * kV) {
        auto a = load<kV>(x + c), d = load<kV>(dy + c);
        auto w = load_or<kV, Acc>(call.weight, c, Acc(1));
        Elements<T, kV> result{};
        if (call.accumulate_dinp) { result = load<kV>(dx + c); }
#pragma unroll
        for (int i = 0; i < kV; i++) {
            Acc xhat = ((Acc)a.at[i] - m) * s, wdy = w.at[i] * (Acc)d.at[i];
            Acc before = call.accumulate_dinp ? (Acc)result.at[i] : Acc(0);
            result.at[i] = (T)(before + (wdy - c1 - xhat * c2) * s);
        }
        store(dx + c, result);
    }
}

// A block sums one group's rows in a tile of 32 kV columns, its warps taking rows in turn.
// partial: (kColumnGroups,C) of dweight, then the same of dbias
template <int kV, typename T, typename W>
__global__ void layernorm_backward_partial_kernel(LayerNormBackwardRows<T, W> call) {
    using Acc = acc_t<T>;
    __shared__ Acc dw_warp[kBackwardWarps][kWarp * kV], db_warp[kBackwardWarps][kWarp * kV];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, C = call.C;
    int tiles = ceil_div(C, kWarp * kV), group = blockIdx.x / tiles;  // neighbouring blocks share rows
    int tile = (int)(blockIdx.x % tiles) * kWarp * kV, c = tile + lane * kV;
    int64_t rows = ceil_div(call.N, (int64_t)kColumnGroups), end = min(call.N, (group + 1) * rows);

    Acc dw[kV] = {}, db[kV] = {};
    for (int64_t row = group * rows + warp; row < end && c < C; row += kBackwardWarps) {
        auto a = load<kV>(call.inp + row * call.inp_stride + c);
        auto d = load<kV>(call.dout + row * call.dout_stride + c);
        Acc m = call.mean[row], s = call.rstd[row];
#pragma unroll
        for (int i = 0; i < kV; i++) {
            dw[i] += (Acc)d.at[i] * (((Acc)a.at[i] - m) * s);
            db[i] += (Acc)d.at[i];
        }
    }
#pragma unroll
    for (int i = 0; i < kV; i++) {
        dw_warp[warp][i * kWarp + lane] = dw[i];
        db_warp[warp][i * kWarp + lane] = db[i];
    }
    __syncthreads();
    Acc* dw_partial = (Acc*)call.scratch + (int64_t)group * C;
    Acc* db_partial = dw_partial + (int64_t)kColumnGroups * C;
    for (int k = threadIdx.x; k < min(kWarp * kV, C - tile); k += kBackwardBlock) {
        int at = k % kV * kWarp + k / kV;  // where column tile + k was left above
        Acc sum_w = 0, sum_b = 0;
        for (int w = 0; w < kBackwardWarps; w++) {
            sum_w += dw_warp[w][at];
            sum_b += db_warp[w][at];
        }
        dw_partial[tile + k] = sum_w;
        db_partial[tile + k] = sum_b;
    }
}

// The columns first: dinp may take dout's place.
template <int kV, typename T, typename W>
void launch(const LayerNormBackwardRows<T, W>& call, bool columns, cudaStream_t stream) {
    if (columns) {
        unsigned grid = grid_x((int64_t)ceil_div(call.C, kWarp * kV) * kColumnGroups);
        layernorm_backward_partial_kernel<kV><<<grid, kBackwardBlock, 0, stream>>>(call);
        check_launch();
    }
    if (call.dinp != nullptr) {
        unsigned grid = grid_x(ceil_div(call.N, (int64_t)kBackwardWarps));
        layernorm_backward_dinp_kernel<kV><<<grid, kBackwardBlock, 0, stream>>>(call);
        check_launch();
    }
}

}  // namespace llmc::layernorm_general

namespace llmc {

template <typename T, typename W>
ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<T, W>& call, bool columns,
                                        cudaStream_t stream) {
    using namespace layernorm_general;
    rows_are_vectors(call) ? launch<Vec<T>::size>(call, columns, stream) : launch<1>(call, columns, stream);
    return {kColumnGroups};
}

using bf16 = __nv_bfloat16;
template ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<float, float>&, bool,
                                                 cudaStream_t);
template ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<bf16, bf16>&, bool,
                                                 cudaStream_t);
template ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<bf16, float>&, bool,
                                                 cudaStream_t);
template ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<__half, __half>&, bool,
                                                 cudaStream_t);
template ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<__half, float>&, bool,
                                                 cudaStream_t);
template ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<double, double>&, bool,
                                                 cudaStream_t);

}  // namespace llmc
