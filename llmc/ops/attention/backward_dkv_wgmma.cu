// Attention backward for Hopper, head size 64, second kernel: dk and dv. A block owns 128 keys of a head, a warpgroup 64
// of them, and walks over the queries from the diagonal to the last, 64 at a time. Scores are transposed, keys down and
// queries across, so that p and ds are left operands as they come:
//   x = k q^T and y = v dout^T, p = exp(scale x - lse), ds = p (y - dot), dv += p dout, dk += scale ds q
// The exponentials are computed while y is, ds while dv's product is, and dk's is under way during the next scores. The
// keys and values of a warpgroup stay in registers.
#include "llmc/ops/attention/kernels.h"
#include "llmc/ops/attention/wgmma.cuh"

namespace llmc {
namespace attention_wgmma {
namespace {

constexpr int kGroups = 2, kKeys = kGroups * kTileRows, kStages = 6;
constexpr int kThreads = kWarpgroup * (kGroups + 1);
constexpr int kConsumerRegisters = 224, kProducerRegisters = 56;  // 65536 / 384 = 168 before

struct __align__(kAtomBytes) Shared {
    bf16 keys[2][kGroups * kTileElements], values[2][kGroups * kTileElements];
    bf16 queries[kStages][kTileElements], douts[kStages][kTileElements];
    float lse_log2[kStages][kTileRows], dot[kStages][kTileRows];
    uint64_t full[kStages], empty[kStages];
    TileRing tiles;
};
using Place = Ring<kStages>;

__device__ __forceinline__ void produce(Shared& s, const CUtensorMap& qkv, const CUtensorMap& dout,
                                        const AttentionRows& rows, const TilePlan& plan, unsigned* counter) {
    constexpr int kRowBytes = kTileRows * sizeof(float);
    Place at;
    TilePlace tile_at;
    TileQueue queue{counter, plan.tiles()};
    for (; queue.begin(s.tiles, tile_at); queue.next()) {
        queue.ask();
        Tile tile = key_tile(queue.number, plan);
        uint64_t* full = &s.tiles.full[tile_at.stage];
        mbarrier_arrive_expect(full, 2 * kGroups * kTileBytes);
        for (int w = 0; w < kGroups; w++) {
            int to = w * kTileElements, row = tile.first + w * kTileRows;
            load_box(s.keys[tile_at.stage] + to, qkv, plan.NH + tile.h, row, tile.b, full);
            load_box(s.values[tile_at.stage] + to, qkv, 2 * plan.NH + tile.h, row, tile.b, full);
        }
        tile_at.next();
        int64_t first = (int64_t)tile.head * rows.padded;
        for (int row = tile.first; row < plan.T; row += kTileRows) {
            int i = at.stage;
            mbarrier_wait(&s.empty[i], at.phase ^ 1);
            mbarrier_arrive_expect(&s.full[i], 2 * kTileBytes + 2 * kRowBytes);
            load_box(s.queries[i], qkv, tile.h, row, tile.b, &s.full[i]);
            bulk_copy(s.lse_log2[i], rows.lse_log2 + first + row, kRowBytes, &s.full[i]);
            load_box(s.douts[i], dout, tile.h, row, tile.b, &s.full[i]);
            bulk_copy(s.dot[i], rows.dot + first + row, kRowBytes, &s.full[i]);
            at.next();
        }
    }
}

// the numbers of this thread's two queries in columns 8 j to 8 j + 7
__device__ __forceinline__ float2 of_queries(const float* rows, int j, int lane) {
    return *reinterpret_cast<const float2*>(rows + result_column(lane, 4 * j));
}

// x, scores, becomes the probabilities; kDiagonal: 0 for keys after the query
template <bool kDiagonal>
__device__ __forceinline__ void probabilities(Result& x, const float* lse_log2, const Consumer& me) {
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 lse = of_queries(lse_log2, j, me.lane);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++) {
            x[i] = exp2_approx(fmaf(x[i], kScaleLog2, i % 2 ? -lse.y : -lse.x));
            if (kDiagonal && past_diagonal(i) < me.diagonal) { x[i] = 0; }
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

// A warpgroup's 64 keys and values, and their gradients.
struct Keys {
    Left k, v;
    Result dk, dv;
};

// Of one tile of queries: dv += p dout, and starts dk += ds q, which the next step or the end of walk() waits for.
template <bool kDiagonal>
__device__ __forceinline__ void step(Keys& mine, Shared& s, Place& at, const Consumer& me,
                                     DeferredRelease& stored) {
    Result x, y;
    Left p, ds;
    int i = at.stage;
    mbarrier_wait(&s.full[i], at.phase);
    start_product(x, mine.k, descriptor(s.queries[i]));
    start_product(y, mine.v, descriptor(s.douts[i]));
    if constexpr (kDiagonal) { stored.finish(me, s.tiles); }  // while the products are under way
    wgmma_wait<1>();                                          // for x, and the products of the step before
    hold(x);
    if constexpr (!kDiagonal) { me.release(&s.empty[at.before()]); }
    probabilities<kDiagonal>(x, s.lse_log2[i], me);
    as_left(p, x);
    start_sum(mine.dv, p, descriptor(s.douts[i]));
    wgmma_wait<1>();  // for y
    hold(y);
    score_gradients(ds, x, y, s.dot[i], me.lane);
    start_sum(mine.dk, ds, descriptor(s.queries[i]));
    at.next();
}

// the walk over n tiles of queries, of which the first lies on the diagonal
__device__ __forceinline__ void walk(Keys& mine, Shared& s, Place& at, const Consumer& me, int n,
                                     DeferredRelease& stored) {
    set_zero(mine.dk);
    set_zero(mine.dv);
    step<true>(mine, s, at, me, stored);
#pragma unroll 1
    while (--n > 0) { step<false>(mine, s, at, me, stored); }
    wgmma_wait<0>();
    hold(mine.dk);
    hold(mine.dv);
    me.release(&s.empty[at.before()]);
}

__device__ __forceinline__ void consume(Shared& s, const CUtensorMap& dqkv, const AttentionRows& to,
                                        const TilePlan& plan, int warp) {
    const Consumer me(warp);
    Place at;
    TilePlace tile_at;
    DeferredRelease stored;
    for (;; tile_at.next()) {
        int number = wait_for_tile(s.tiles, tile_at);
        if (number >= plan.tiles()) { break; }
        Tile tile = key_tile(number, plan);
        int n = (plan.T - tile.first + kTileRows - 1) / kTileRows;
        for (int i = 0; i < me.group && i < n; i++) {  // queries before all of this warpgroup's keys
            mbarrier_wait(&s.full[at.stage], at.phase);
            me.release(&s.empty[at.stage]);
            at.next();
        }
        n -= me.group;
        if (n <= 0) {  // keys after the last
            stored.finish(me, s.tiles);
            me.release(&s.tiles.empty[tile_at.stage]);
            continue;
        }
        int at_warp = me.group * kTileElements + me.warp * kWarpElements;
        // a warp reads and overwrites its own 16 rows alone
        bf16 *keys = s.keys[tile_at.stage] + at_warp, *values = s.values[tile_at.stage] + at_warp;
        Keys mine;
        load_left(mine.k, keys, me.lane);
        load_left(mine.v, values, me.lane);
        walk(mine, s, at, me, n, stored);
        int row = tile.first + me.group * kTileRows + me.warp * kWarpRows;
        store_rows(dqkv, keys, mine.dk, kScale, kScale, tile, plan.NH + tile.h, row, plan.T, me.lane);
        store_rows(dqkv, values, mine.dv, 1, 1, tile, 2 * plan.NH + tile.h, row, plan.T, me.lane);
        stored.begin(me, tile_at.stage);
        if (to.sums != nullptr) {
            warpgroup_sync(1 + me.group);
            int first = tile.first + me.group * kTileRows, behind = me.warp * kWarpElements;
            sum_columns(to, keys - behind, tile, plan.NH + tile.h, first, plan.NH, me);
            sum_columns(to, values - behind, tile, 2 * plan.NH + tile.h, first, plan.NH, me);
        }
    }
    if (me.lane == 0) { bulk_wait_read<0>(); }
}

__global__ __launch_bounds__(kThreads, 1) void attention_backward_dkv_wgmma_kernel(
    const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
    const __grid_constant__ CUtensorMap dqkv, AttentionRows rows, TilePlan plan, unsigned* counter) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<Shared>();
        int warp = uniform_warp();
        if (threadIdx.x == 0) {
            prefetch_map(qkv);
            prefetch_map(dout);
            init_barriers(s.full, s.empty, kGroups);
            init_barriers(s.tiles.full, s.tiles.empty, kGroups);
            mbarrier_init_fence();
        }
        __syncthreads();
        if (warp >= kGroups * kGroupWarps) {
            fewer_registers<kProducerRegisters>();
            if (threadIdx.x == kGroups * kWarpgroup) { produce(s, qkv, dout, rows, plan, counter); }
        } else {
            more_registers<kConsumerRegisters>();
            consume(s, dqkv, rows, plan, warp);
        }
    }
}

}  // namespace
}  // namespace attention_wgmma

void attention_backward_dkv_wgmma(bf16* dqkv, const AttentionRows& rows, unsigned* counter, const bf16* dout,
                                  const bf16* qkv, int B, int T, int NH, cudaStream_t stream) {
    using namespace attention_wgmma;
    TilePlan plan = checked_plan(B, T, NH, kKeys);
    launch<attention_backward_dkv_wgmma_kernel, Shared>(
        kGroups, plan, stream, head_map(qkv, 3 * NH, T, B, kTileRows), head_map(dout, NH, T, B, kTileRows),
        head_map(dqkv, 3 * NH, T, B, kWarpRows), rows, plan, counter);
}

}  // namespace llmc
