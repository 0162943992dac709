// What v4, v5 and v6 share: the numbers of the rows, and how a warpgroup turns 64 x 64 scores into
// probabilities and their gradients, in the kernel of dQ (queries down, keys across) and in that of dK and dV
// (keys down, queries across).
#pragma once
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/attention/kernels.h"
#include "llmc/ops/attention/ladder/wgmma_rungs.cuh"

namespace llmc::attention_wgmma {

constexpr int kQueryGroups = 3, kQueries = kQueryGroups * kTileRows;  // of a block of dQ's kernel
constexpr int kKeyGroups = 2, kKeys = kKeyGroups * kTileRows;         // of one of dK's and dV's

// ---- the numbers of the rows ---------------------------------------------------------------------------------------

// eight lanes a row of 64: lse log2(e), and dot = the sum of dout * out; for rows past T infinity and 0
static __global__ void rows_kernel(AttentionRows rows, const bf16* dout, const bf16* out, const float* lse,
                                   int T, int NH, int heads) {
    constexpr int kLanes = 8;
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kLanes;  // head rows.padded + t
    int64_t head = i / rows.padded, t = i % rows.padded;
    bool exists = head < heads && t < T;
    float sum = 0;
    if (exists) {
        int64_t from = ((head / NH * T + t) * NH + head % NH) * kHeadSize + threadIdx.x % kLanes * 8;
        auto a = load<8>(dout + from), b = load<8>(out + from);
#pragma unroll
        for (int c = 0; c < 8; c++) { sum += (float)a.at[c] * (float)b.at[c]; }
    }
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    if (head < heads && threadIdx.x % kLanes == 0) {
        rows.lse_log2[i] = exists ? lse[head * T + t] * kLog2e : INFINITY;
        rows.dot[i] = sum;
    }
}

// in the scratch of attention.h
inline AttentionRows find_rows(void* scratch, const bf16* dout, const bf16* out, const float* lse, int B,
                               int T, int NH, cudaStream_t stream) {
    constexpr int kThreads = 256;
    int padded = ceil_div(T, kTileRows) * kTileRows;
    int64_t rows = (int64_t)B * NH * padded;
    float* numbers = (float*)scratch;
    AttentionRows found{numbers, numbers + rows, padded};
    rows_kernel<<<grid_x(ceil_div(rows * 8, kThreads)), kThreads, 0, stream>>>(found, dout, out, lse, T, NH,
                                                                               B * NH);
    check_launch();
    return found;
}

// ---- dQ -----------------------------------------------------------------------------------------------------------

// the last tile of 64 keys that a tile of queries needs
__device__ __forceinline__ int last_keys(const Tile& tile) {
    return tile.first / kTileRows + kQueryGroups - 1;
}

// What a thread knows of its two queries.
struct QueryNumbers {
    float lse_log2[2], dot[2];

    __device__ __forceinline__ QueryNumbers(const AttentionRows& rows, const Tile& tile, int base,
                                            const Consumer& me) {
        int64_t at = (int64_t)tile.head * rows.padded + base + me.row;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            lse_log2[half] = base >= 0 ? rows.lse_log2[at + 8 * half] : INFINITY;
            dot[half] = base >= 0 ? rows.dot[at + 8 * half] : 0.0f;
        }
    }
};

// x, scores, becomes the probabilities; 0 for keys whose past_diagonal() is above the limit
__device__ __forceinline__ void probabilities(Result& x, const QueryNumbers& rows, int limit) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        x[i] = exp2_approx(fmaf(x[i], kScaleLog2, -rows.lse_log2[i % 4 / 2]));
        if (past_diagonal(i) > limit) { x[i] = 0; }
    }
}

// ds / scale, rounded to bf16
__device__ __forceinline__ void score_gradients(Left& ds, const Result& p, const Result& y,
                                                const QueryNumbers& rows) {
    Result g;
#pragma unroll
    for (int i = 0; i < 32; i++) { g[i] = p[i] * (y[i] - rows.dot[i % 4 / 2]); }
    as_left(ds, g);
}

// where a warpgroup's 64 queries lie in shared memory
struct Queries {
    bf16 *q, *dout;
};

// of one tile of keys, one product after the other
__device__ __forceinline__ void add_to_dq(Result& dq, const Queries& mine, uint64_t keys, uint64_t values,
                                          const QueryNumbers& rows, int limit) {
    Result x, y;
    Left ds;
    start_product(x, descriptor(mine.q), keys);
    wgmma_wait<0>();
    hold(x);
    probabilities(x, rows, limit);
    start_product(y, descriptor(mine.dout), values);
    wgmma_wait<0>();
    hold(y);
    score_gradients(ds, x, y, rows);
    start_sum(dq, ds, keys);
    wgmma_wait<0>();
    hold(dq);
}

// through the shared memory of the queries
__device__ __forceinline__ void finish_dq(const Result& dq, const CUtensorMap& dqkv, const Queries& mine,
                                          const Tile& tile, int base, int T, const Consumer& me) {
    warpgroup_sync(1 + me.group);  // the products of all four warps have read the queries
    store_rows(dqkv, mine.q + me.warp * kWarpElements, dq, kScale, kScale, tile, tile.h,
               base + me.warp * kWarpRows, T, me.lane);
    wait_for_stores(me);
}

// ---- dK and dV ----------------------------------------------------------------------------------------------------

// 64 queries in shared memory: their rows, and the numbers of the rows
struct QueryTile {
    const bf16 *q, *dout;
    const float *lse_log2, *dot;
};

// the numbers of this thread's two queries in columns 8 j to 8 j + 7
__device__ __forceinline__ float2 of_queries(const float* rows, int j, int lane) {
    return *reinterpret_cast<const float2*>(rows + result_column(lane, 4 * j));
}

// x, transposed scores, becomes the probabilities; 0 where past_diagonal() is below the limit
__device__ __forceinline__ void probabilities(Result& x, const float* lse_log2, int limit, int lane) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 lse = of_queries(lse_log2, j, lane);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++) {
            x[i] = exp2_approx(fmaf(x[i], kScaleLog2, i % 2 ? -lse.y : -lse.x));
            if (past_diagonal(i) < limit) { x[i] = 0; }
        }
    }
}

// ds / scale, rounded to bf16
__device__ __forceinline__ void score_gradients(Left& ds, const Result& p, const Result& y, const float* dots,
                                                int lane) {
    Result g;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 dot = of_queries(dots, j, lane);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++) { g[i] = p[i] * (y[i] - (i % 2 ? dot.y : dot.x)); }
    }
    as_left(ds, g);
}

// a warpgroup's 64 keys and values in shared memory, and their gradients
struct Keys {
    bf16 *k, *v;
    Result dk, dv;
};

// of one tile of queries, one product after the other
__device__ __forceinline__ void add_to_dkv(Keys& mine, const QueryTile& t, int limit, int lane) {
    Result x, y;
    Left p, ds;
    start_product(x, descriptor(mine.k), descriptor(t.q));
    wgmma_wait<0>();
    hold(x);
    probabilities(x, t.lse_log2, limit, lane);
    as_left(p, x);
    start_sum(mine.dv, p, descriptor(t.dout));
    wgmma_wait<0>();
    hold(mine.dv);
    hold(p);
    start_product(y, descriptor(mine.v), descriptor(t.dout));
    wgmma_wait<0>();
    hold(y);
    score_gradients(ds, x, y, t.dot, lane);
    start_sum(mine.dk, ds, descriptor(t.q));
    wgmma_wait<0>();
    hold(mine.dk);
}

// through the shared memory of the keys and values
__device__ __forceinline__ void finish_dkv(const Keys& mine, const CUtensorMap& dqkv, const Tile& tile,
                                           int base, const TilePlan& plan, const Consumer& me) {
    warpgroup_sync(1 + me.group);  // the products of all four warps have read the keys and values
    int row = base + me.warp * kWarpRows, at = me.warp * kWarpElements;
    store_rows(dqkv, mine.k + at, mine.dk, kScale, kScale, tile, plan.NH + tile.h, row, plan.T, me.lane);
    store_rows(dqkv, mine.v + at, mine.dv, 1, 1, tile, 2 * plan.NH + tile.h, row, plan.T, me.lane);
    wait_for_stores(me);
}

// ---- a whole backward pass from the two kernels --------------------------------------------------------------------

// Threads and Shared: of each kernel
template <auto* dq_kernel, typename SharedQ, auto* dkv_kernel, typename SharedKV>
void launch_backward(int dq_threads, int dkv_threads, bf16* dqkv, void* scratch, const bf16* dout,
                     const bf16* qkv, const bf16* out, const float* lse, int B, int T, int NH,
                     cudaStream_t stream) {
    AttentionRows rows = find_rows(scratch, dout, out, lse, B, T, NH, stream);
    auto qkv_map = head_map(qkv, 3 * NH, T, B, kTileRows), dout_map = head_map(dout, NH, T, B, kTileRows),
         dqkv_map = head_map(dqkv, 3 * NH, T, B, kWarpRows);
    TilePlan queries = checked_plan(B, T, NH, kQueries), keys = checked_plan(B, T, NH, kKeys);
    launch_tiles<dq_kernel, SharedQ>(dq_threads, queries, stream, qkv_map, dout_map, dqkv_map, rows, queries);
    launch_tiles<dkv_kernel, SharedKV>(dkv_threads, keys, stream, qkv_map, dout_map, dqkv_map, rows, keys);
}

}  // namespace llmc::attention_wgmma
