// What v4, v5 and v6 share: the numbers of the rows, probabilities and their gradients, and the blocks of v5 and v6.
#pragma once
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/attention/ladder/wgmma_rungs.cuh"

namespace llmc::attention_wgmma {

// ---- what v4, v5 and v6 share: the numbers of the rows, and how a warpgroup turns 64 x 64 scores into
// probabilities and their gradients, in the kernel of dQ (queries down, keys across) and in that of dK and dV
// (keys down, queries across).

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

// ---- the blocks of v5 and v6: warpgroups that compute, and a producer that keeps a ring filled, of keys and
// values for dQ, of queries and douts for dK and dV.

// ---- dQ -----------------------------------------------------------------------------------------------------------

constexpr int kKeyStages = 4, kQueryThreads = kWarpgroup * (kQueryGroups + 1);

struct __align__(kAtomBytes) RingQ {
    bf16 queries[kQueryGroups * kTileElements], douts[kQueryGroups * kTileElements];
    bf16 keys[kKeyStages][kTileElements], values[kKeyStages][kTileElements];
    uint64_t tile_full, full[kKeyStages], empty[kKeyStages];
};
using KeyPlace = Ring<kKeyStages>;

__device__ __forceinline__ void produce(RingQ& s, const CUtensorMap& qkv, const CUtensorMap& dout,
                                        const Tile& tile, int NH) {
    mbarrier_arrive_expect(&s.tile_full, 2 * kQueryGroups * kTileBytes);
    for (int w = 0; w < kQueryGroups; w++) {
        int to = w * kTileElements, row = tile.first + w * kTileRows;
        load_box(s.queries + to, qkv, tile.h, row, tile.b, &s.tile_full);
        load_box(s.douts + to, dout, tile.h, row, tile.b, &s.tile_full);
    }
    KeyPlace at;
    for (int n = last_keys(tile); n >= 0; n--) {
        int i = at.stage;
        mbarrier_wait(&s.empty[i], at.phase ^ 1);
        mbarrier_arrive_expect(&s.full[i], 2 * kTileBytes);
        load_box(s.keys[i], qkv, NH + tile.h, n * kTileRows, tile.b, &s.full[i]);
        load_box(s.values[i], qkv, 2 * NH + tile.h, n * kTileRows, tile.b, &s.full[i]);
        at.next();
    }
}

// Walk::dq(dq, s, at, me, mine, rows, n) is what the rungs differ in: n + 1 tiles of keys, of which number n
// lies on the warpgroup's diagonal; at: the first one's place.
template <typename Walk>
__global__ void __launch_bounds__(kQueryThreads, 1)
    dq_ring_kernel(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
                   const __grid_constant__ CUtensorMap dqkv, AttentionRows rows, TilePlan plan) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<RingQ>();
        int warp = uniform_warp();
        Tile tile = query_tile(blockIdx.x, plan);
        if (threadIdx.x == 0) {
            mbarrier_init(&s.tile_full, 1);
            init_barriers(s.full, s.empty, kQueryGroups);
            mbarrier_init_fence();
        }
        __syncthreads();
        if (warp >= kQueryGroups * kGroupWarps) {
            fewer_registers<32>();  // of 128; the others get 160
            if (threadIdx.x == kQueryGroups * kWarpgroup) { produce(s, qkv, dout, tile, plan.NH); }
        } else {
            more_registers<160>();
            const Consumer me(warp);
            int base = tile.first + me.group * kTileRows, n = last_keys(tile);
            const QueryNumbers numbers(rows, tile, base, me);
            KeyPlace at;
            for (; n >= 0 && n * kTileRows > base; n--) {  // keys after all of this warpgroup's queries
                mbarrier_wait(&s.full[at.stage], at.phase);
                me.release(&s.empty[at.stage]);
                at.next();
            }
            if (base >= 0) {
                const Queries mine{s.queries + me.group * kTileElements, s.douts + me.group * kTileElements};
                Result dq;
                set_zero(dq);
                mbarrier_wait(&s.tile_full, 0);
                Walk::dq(dq, s, at, me, mine, numbers, n);
                finish_dq(dq, dqkv, mine, tile, base, plan.T, me);
            }
        }
    }
}

// ---- dK and dV ----------------------------------------------------------------------------------------------------

constexpr int kQueryStages = 6, kKeyThreads = kWarpgroup * (kKeyGroups + 1);

struct __align__(kAtomBytes) RingKV {
    bf16 keys[kKeyGroups * kTileElements], values[kKeyGroups * kTileElements];
    bf16 queries[kQueryStages][kTileElements], douts[kQueryStages][kTileElements];
    float lse_log2[kQueryStages][kTileRows], dot[kQueryStages][kTileRows];
    uint64_t tile_full, full[kQueryStages], empty[kQueryStages];

    __device__ __forceinline__ QueryTile at(int i) const {
        return {queries[i], douts[i], lse_log2[i], dot[i]};
    }
};
using QueryPlace = Ring<kQueryStages>;

__device__ __forceinline__ void produce(RingKV& s, const CUtensorMap& qkv, const CUtensorMap& dout,
                                        const AttentionRows& rows, const Tile& tile, const TilePlan& plan) {
    constexpr int kRowBytes = kTileRows * sizeof(float);
    mbarrier_arrive_expect(&s.tile_full, 2 * kKeyGroups * kTileBytes);
    for (int w = 0; w < kKeyGroups; w++) {
        int to = w * kTileElements, row = tile.first + w * kTileRows;
        load_box(s.keys + to, qkv, plan.NH + tile.h, row, tile.b, &s.tile_full);
        load_box(s.values + to, qkv, 2 * plan.NH + tile.h, row, tile.b, &s.tile_full);
    }
    QueryPlace at;
    for (int row = tile.first; row < plan.T; row += kTileRows) {
        int i = at.stage;
        int64_t from = (int64_t)tile.head * rows.padded + row;
        mbarrier_wait(&s.empty[i], at.phase ^ 1);
        mbarrier_arrive_expect(&s.full[i], 2 * kTileBytes + 2 * kRowBytes);
        load_box(s.queries[i], qkv, tile.h, row, tile.b, &s.full[i]);
        load_box(s.douts[i], dout, tile.h, row, tile.b, &s.full[i]);
        bulk_copy(s.lse_log2[i], rows.lse_log2 + from, kRowBytes, &s.full[i]);
        bulk_copy(s.dot[i], rows.dot + from, kRowBytes, &s.full[i]);
        at.next();
    }
}

// Walk::dkv(mine, s, at, me, n): n tiles of queries, of which the first lies on the warpgroup's diagonal
template <typename Walk>
__global__ void __launch_bounds__(kKeyThreads, 1)
    dkv_ring_kernel(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
                    const __grid_constant__ CUtensorMap dqkv, AttentionRows rows, TilePlan plan) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<RingKV>();
        int warp = uniform_warp();
        Tile tile = key_tile(blockIdx.x, plan);
        if (threadIdx.x == 0) {
            mbarrier_init(&s.tile_full, 1);
            init_barriers(s.full, s.empty, kKeyGroups);
            mbarrier_init_fence();
        }
        __syncthreads();
        if (warp >= kKeyGroups * kGroupWarps) {
            fewer_registers<56>();  // of 168; the others get 224
            if (threadIdx.x == kKeyGroups * kWarpgroup) { produce(s, qkv, dout, rows, tile, plan); }
        } else {
            more_registers<224>();
            const Consumer me(warp);
            int base = tile.first + me.group * kTileRows, n = ceil_div(plan.T - tile.first, kTileRows);
            QueryPlace at;
            for (int i = 0; i < me.group && i < n; i++) {  // queries before all of this warpgroup's keys
                mbarrier_wait(&s.full[at.stage], at.phase);
                me.release(&s.empty[at.stage]);
                at.next();
            }
            if (base < plan.T) {
                Keys mine;
                mine.k = s.keys + me.group * kTileElements;
                mine.v = s.values + me.group * kTileElements;
                set_zero(mine.dk);
                set_zero(mine.dv);
                mbarrier_wait(&s.tile_full, 0);
                Walk::dkv(mine, s, at, me, n - me.group);
                finish_dkv(mine, dqkv, tile, base, plan, me);
            }
        }
    }
}

template <typename Walk>
void launch_ring(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                 const float* lse, int B, int T, int NH, cudaStream_t stream) {
    launch_backward<dq_ring_kernel<Walk>, RingQ, dkv_ring_kernel<Walk>, RingKV>(
        kQueryThreads, kKeyThreads, dqkv, scratch, dout, qkv, out, lse, B, T, NH, stream);
}

}  // namespace llmc::attention_wgmma
