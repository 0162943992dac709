// LayerNorm backward, any C: a warp a row for dinp; dweight and dbias by tiles of columns, which groups of
// rows sum up separately, then over the groups. Every order of addition is fixed by N and C alone. The steps
// are those of v2 (layernorm_backward/v2.cuh), in 16-byte vectors where C and the pointers allow it, with
// what training adds: += into dinp, and gradients of weight and bias in a type of their own.
#include "llmc/check.cuh"
#include "llmc/column_sums.cuh"
#include "llmc/device.cuh"
#include "llmc/layernorm.h"
#include "llmc/vectors.cuh"

namespace llmc {
namespace {

constexpr int kBlock = 256, kWarps = kBlock / kWarp;
constexpr int kGroups = kColumnGroups;  // of rows = partial sums per column

template <typename T, typename Grad, int kV>
__global__ void layernorm_backward_dinp_kernel(LayerNormBackward<T, Grad> call) {
    int lane = threadIdx.x % kWarp, C = call.C;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= call.N) { return; }
    const T* x = call.inp + row * C;
    const T* dy = call.dout + row * C;
    T* dx = call.dinp + row * C;
    float m = call.mean[row], s = call.rstd[row];

    float c1 = 0, c2 = 0;
    for (int c = lane * kV; c < C; c += kWarp * kV) {
        auto a = load<kV>(x + c), d = load<kV>(dy + c), w = load<kV>(call.weight + c);
#pragma unroll
        for (int i = 0; i < kV; i++) {
            float xhat = ((float)a.at[i] - m) * s, wdy = (float)w.at[i] * (float)d.at[i];
            c1 += wdy;
            c2 += wdy * xhat;
        }
    }
    c1 = warp_sum(c1) / C;
    c2 = warp_sum(c2) / C;

    for (int c = lane * kV; c < C; c += kWarp * kV) {
        auto a = load<kV>(x + c), d = load<kV>(dy + c), w = load<kV>(call.weight + c);
        Elements<T, kV> result{};
        if (call.accumulate_dinp) { result = load<kV>(dx + c); }
#pragma unroll
        for (int i = 0; i < kV; i++) {
            float xhat = ((float)a.at[i] - m) * s, wdy = (float)w.at[i] * (float)d.at[i];
            float before = call.accumulate_dinp ? (float)result.at[i] : 0.0f;
            result.at[i] = (T)(before + (wdy - c1 - xhat * c2) * s);
        }
        store(dx + c, result);
    }
}

// A block sums one group's rows in a tile of 32 kV columns, its warps taking rows in turn.
// partial: (kGroups, C) of dweight, then the same of dbias
template <typename T, typename Grad, int kV>
__global__ void layernorm_backward_partial_kernel(LayerNormBackward<T, Grad> call) {
    __shared__ float dw_warp[kWarps][kWarp * kV], db_warp[kWarps][kWarp * kV];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, C = call.C;
    int tiles = ceil_div(C, kWarp * kV), group = blockIdx.x / tiles;  // neighbouring blocks share rows
    int tile = (int)(blockIdx.x % tiles) * kWarp * kV, c = tile + lane * kV;
    int64_t rows = ceil_div(call.N, (int64_t)kGroups), end = min(call.N, (group + 1) * rows);

    float dw[kV] = {}, db[kV] = {};
    for (int64_t row = group * rows + warp; row < end && c < C; row += kWarps) {
        auto a = load<kV>(call.inp + row * C + c), d = load<kV>(call.dout + row * C + c);
        float m = call.mean[row], s = call.rstd[row];
#pragma unroll
        for (int i = 0; i < kV; i++) {
            dw[i] += (float)d.at[i] * (((float)a.at[i] - m) * s);
            db[i] += (float)d.at[i];
        }
    }
#pragma unroll
    for (int i = 0; i < kV; i++) {
        dw_warp[warp][i * kWarp + lane] = dw[i];
        db_warp[warp][i * kWarp + lane] = db[i];
    }
    __syncthreads();
    float* dw_partial = (float*)call.scratch + (int64_t)group * C;
    float* db_partial = dw_partial + (int64_t)kGroups * C;
    for (int k = threadIdx.x; k < min(kWarp * kV, C - tile); k += kBlock) {
        int at = k % kV * kWarp + k / kV;  // where column tile + k was left above
        float sum_w = 0, sum_b = 0;
        for (int w = 0; w < kWarps; w++) {
            sum_w += dw_warp[w][at];
            sum_b += db_warp[w][at];
        }
        dw_partial[tile + k] = sum_w;
        db_partial[tile + k] = sum_b;
    }
}

}  // namespace

size_t layernorm_backward_scratch(int C) { return 2 * sizeof(float) * kGroups * (size_t)C; }

template <typename T, typename Grad>
void layernorm_backward(const LayerNormBackward<T, Grad>& call, cudaStream_t stream) {
    require(call.C > 0, "layernorm_backward: C must be positive");
    constexpr int kV = Vec<T>::size;
    bool vectors = call.C % kV == 0 && aligned(call.dinp, call.dout, call.inp, call.weight);
    if (call.N > 0) {
        auto* dinp = vectors ? layernorm_backward_dinp_kernel<T, Grad, kV>
                             : layernorm_backward_dinp_kernel<T, Grad, 1>;
        dinp<<<grid_x(ceil_div(call.N, (int64_t)kWarps)), kBlock, 0, stream>>>(call);
        check_launch();
    }
    auto* partial = vectors ? layernorm_backward_partial_kernel<T, Grad, kV>
                            : layernorm_backward_partial_kernel<T, Grad, 1>;
    int tiles = ceil_div(call.C, kWarp * (vectors ? kV : 1));
    partial<<<grid_x((int64_t)tiles * kGroups), kBlock, 0, stream>>>(call);
    check_launch();
    finish_columns(call.dweight, call.dbias, (const float*)call.scratch, call.C, call.accumulate, stream);
}

using bf16 = __nv_bfloat16;
template void layernorm_backward(const LayerNormBackward<float, float>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<bf16, float>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<bf16, bf16>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<__half, float>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<__half, __half>&, cudaStream_t);

}  // namespace llmc
