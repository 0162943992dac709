// narrow: several short rows a warp. A lane has a vector of each of its rows, and keeps their sums by column; two rows
//         are under way at a time.
// Why:    ring.cuh gives a row a warp: of 64 columns of 16 bits 24 lanes of 32 have nothing.
// Moves:  inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 8 bytes a column and block.
// Result: 52.7 us, 90 % of the roof at 524288x64 bf16 (a warp a row: 169.8); H200, 2026-11-22
#pragma once
#include <algorithm>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/launch.cuh"
#include "llmc/layernorm_backward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/reduce.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_narrow_backward {

constexpr int kThreads = 768, kWarps = kThreads / kWarp;
constexpr int kTogether = 2;  // rows of a lane under way

// a lane's vector of a row
template <typename T, bool kAccumulate>
struct Piece {
    static constexpr int n = Vec<T>::size;
    Elements<T, n> x{}, dy{}, before{};  // before: what += adds to
    float m = 0, s = 0;  // all 0 where there is no such vector: then nothing is added to any sum

    template <typename Call>
    __device__ void load(const Call& call, int64_t row, int column) {
        x = llmc::load<n>(call.inp + row * call.inp_stride + column);
        dy = llmc::load<n>(call.dout + row * call.dout_stride + column);
        if constexpr (kAccumulate) { before = llmc::load<n>(call.dinp + row * call.dinp_stride + column); }
        m = call.mean[row];
        s = call.rstd[row];
    }
};

// the sums by column that a lane keeps
template <int n>
struct Sums {
    float dweight[n] = {}, dbias[n] = {};
};

// dinp of a lane's vector, and its part of the sums by column. All lanes of a warp.
template <int lanes, bool kAccumulate, typename T, typename W>
__device__ Elements<T, Vec<T>::size> backward_piece(const Piece<T, kAccumulate>& piece,
                                                    const Elements<W, Vec<T>::size>& weight,
                                                    Sums<Vec<T>::size>& sums, float per_column) {
    constexpr int n = Vec<T>::size;
    float xhat[n], wdy[n];
    float2 row{0, 0};
#pragma unroll
    for (int j = 0; j < n; j++) {
        float dy = as_float(piece.dy, j);
        xhat[j] = (as_float(piece.x, j) - piece.m) * piece.s;
        wdy[j] = dy * as_float(weight, j);
        sums.dweight[j] = fmaf(dy, xhat[j], sums.dweight[j]);
        sums.dbias[j] += dy;
        row.x += wdy[j];
        row.y = fmaf(wdy[j], xhat[j], row.y);
    }
    row = group_sums<lanes>(row);
    float c1 = row.x * per_column, c2 = row.y * per_column;
#pragma unroll
    for (int j = 0; j < n; j++) {
        wdy[j] = fmaf(fmaf(xhat[j], -c2, wdy[j]), piece.s, -c1 * piece.s);
        if constexpr (kAccumulate) { wdy[j] += as_float(piece.before, j); }
    }
    return rounded<T>(wdy);
}

// The sums of lanes with the same columns meet, in each warp and then over the warps, always in the same order, and go
// to this block's part of scratch, (2,blocks,C).
template <int lanes, int n>
__device__ void write_sums(float* scratch, const Sums<n>& mine, int C) {
    __shared__ float of_warps[kWarps][2][lanes * n];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int j = 0; j < n; j++) {
        float both[] = {mine.dweight[j], mine.dbias[j]};
#pragma unroll
        for (int set = 0; set < 2; set++) {
#pragma unroll
            for (int distance = lanes; distance < kWarp; distance *= 2) {
                both[set] += __shfl_xor_sync(kAllLanes, both[set], distance);
            }
            if (lane < lanes) { of_warps[warp][set][lane * n + j] = both[set]; }
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < 2 * lanes * n; at += kThreads) {
        int set = at / (lanes * n), c = at % (lanes * n);
        float sum = 0;
        for (int w = 0; w < kWarps; w++) { sum += of_warps[w][set][c]; }
        if (c < C) { scratch[((int64_t)set * gridDim.x + blockIdx.x) * C + c] = sum; }
    }
}

// of a call's only row
template <typename Grad, int n>
__device__ void write_outputs(const ColumnOutputs& outputs, const Sums<n>& mine, int column) {
    void* const to[] = {outputs.dweight, outputs.dbias};
#pragma unroll
    for (int set = 0; set < 2; set++) {
        if (to[set] == nullptr) { continue; }
        Grad* grad = static_cast<Grad*>(to[set]) + column;
        float sum[n];
#pragma unroll
        for (int j = 0; j < n; j++) {
            sum[j] = (set == 0 ? mine.dweight : mine.dbias)[j] + (outputs.accumulate ? (float)grad[j] : 0.0f);
        }
        store(grad, rounded<Grad>(sum));
    }
}

template <int lanes, bool kAccumulate, typename T, typename W>
__global__ __launch_bounds__(kThreads) void layernorm_backward_kernel(LayerNormBackwardRows<T, W> call,
                                                                      float per_column) {
    constexpr int n = Vec<T>::size, rows = kThreads / lanes;  // of a block at a time
    int column = threadIdx.x % lanes * n;
    bool inside = column < call.C;
    if constexpr (kSm90) { dependency_wait(); }
    auto weight = load_or<n, W>(inside ? call.weight : nullptr, column, (W)1.0f);
    Sums<n> sums;
    int64_t row = (int64_t)blockIdx.x * (kTogether * rows) + threadIdx.x / lanes;
    int64_t step = (int64_t)gridDim.x * (kTogether * rows);
    Piece<T, kAccumulate> pieces[kTogether];
    auto ask = [&](Piece<T, kAccumulate>& piece, int64_t row) {
        piece = {};
        if (inside && row < call.N) { piece.load(call, row, column); }
    };
#pragma unroll
    for (int r = 0; r < kTogether; r++) { ask(pieces[r], row + r * rows); }
    for (; __any_sync(kAllLanes, row < call.N); row += step) {  // a warp without rows stays out
#pragma unroll
        for (int r = 0; r < kTogether; r++) {
            auto dinp = backward_piece<lanes>(pieces[r], weight, sums, per_column);
            int64_t at = row + r * rows;
            ask(pieces[r], at + step);
            if (inside && at < call.N) { store(call.dinp + at * call.dinp_stride + column, dinp); }
        }
    }
    if constexpr (kSm90) { dependency_launch(); }
    if (const ColumnOutputs& outputs = call.of_one_row; !outputs.given) {
        write_sums<lanes>((float*)call.scratch, sums, call.C);
    } else if (threadIdx.x < lanes && inside) {
        outputs.floats ? write_outputs<float>(outputs, sums, column)
                       : write_outputs<T>(outputs, sums, column);
    }
}

// ---- the choice ----------------------------------------------------------------------------------

template <int lanes, bool kAccumulate, typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    auto* kernel = layernorm_backward_kernel<lanes, kAccumulate, T, W>;
    int64_t most = std::min(device_facts().multiprocessors, kMostGroups);
    int groups = (int)std::min(most, ceil_div(call.N, (int64_t)(kTogether * kThreads / lanes)));
    bool hopper = runs_hopper_code(kernel);
    LaunchAttributes attributes;
    attributes.overlapping(hopper);
    cudaLaunchConfig_t config = attributes.config(groups, kThreads, 0, stream);
    check(cudaLaunchKernelEx(&config, kernel, call, 1.0f / call.C));
    return {groups, hopper, false, call.of_one_row.given};
}

// with as few lanes to a row as have room for it
template <bool kAccumulate, int lanes, typename T, typename W>
ColumnGroups launch_first(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    constexpr int columns = lanes * Vec<T>::size;
    if (call.C <= columns) { return launch<lanes, kAccumulate>(call, stream); }
    if constexpr (columns < kNarrowBackwardRow<T>) {
        return launch_first<kAccumulate, 2 * lanes>(call, stream);
    }
    return {};
}

}  // namespace llmc::layernorm_narrow_backward

namespace llmc {

template <typename T, typename W>
ColumnGroups layernorm_backward_narrow(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    using layernorm_narrow_backward::launch_first;
    if (call.C > kNarrowBackwardRow<T> || call.dinp == nullptr || !rows_are_vectors(call)) { return {}; }
    return call.accumulate_dinp ? launch_first<true, 1>(call, stream) : launch_first<false, 1>(call, stream);
}

}  // namespace llmc
