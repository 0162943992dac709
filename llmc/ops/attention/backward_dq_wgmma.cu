// Attention backward for Hopper, head size 64, first kernel: dq, and the rows that the second one needs. A block owns 192
// queries of a head, a warpgroup 64 of them, and walks over the keys from the diagonal down to the first, 64 at a time:
//   x = q k^T and y = dout v^T (64 queries x 64 keys), p = exp(scale x - lse), ds = p (y - dot), dq += scale ds k
// The exponentials are computed while y is, and dq's product is under way during the next scores.
#include "llmc/ops/attention/kernels.h"
#include "llmc/ops/attention/wgmma.cuh"

namespace llmc {
namespace attention_wgmma {
namespace {

constexpr int kGroups = 3, kQueries = kGroups * kTileRows, kStages = 4;
constexpr int kThreads = kWarpgroup * (kGroups + 1);
constexpr int kConsumerRegisters = 160, kProducerRegisters = 32;  // 65536 / 512 = 128 before

struct __align__(kAtomBytes) Shared {
    bf16 queries[2][kGroups * kTileElements], douts[2][kGroups * kTileElements],
        outs[2][kGroups * kTileElements];
    bf16 keys[kStages][kTileElements], values[kStages][kTileElements];
    uint64_t full[kStages], empty[kStages];
    TileRing tiles;
};
using Place = Ring<kStages>;

__device__ __forceinline__ int last_keys(const Tile& tile) { return tile.first / kTileRows + kGroups - 1; }

__device__ __forceinline__ void produce(Shared& s, const CUtensorMap& qkv, const CUtensorMap& dout,
                                        const CUtensorMap& out, const TilePlan& plan, unsigned* counter) {
    Place at;
    TilePlace tile_at;
    TileQueue queue{counter, plan.tiles()};
    for (; queue.begin(s.tiles, tile_at); queue.next()) {
        queue.ask();
        Tile tile = query_tile(queue.number, plan);
        uint64_t* full = &s.tiles.full[tile_at.stage];
        mbarrier_arrive_expect(full, 3 * kGroups * kTileBytes);
        for (int w = 0; w < kGroups; w++) {
            int to = w * kTileElements, row = tile.first + w * kTileRows;
            load_box(s.queries[tile_at.stage] + to, qkv, tile.h, row, tile.b, full);
            load_box(s.douts[tile_at.stage] + to, dout, tile.h, row, tile.b, full);
            load_box(s.outs[tile_at.stage] + to, out, tile.h, row, tile.b, full);
        }
        tile_at.next();
        for (int n = last_keys(tile); n >= 0; n--) {
            int i = at.stage;
            mbarrier_wait(&s.empty[i], at.phase ^ 1);
            mbarrier_arrive_expect(&s.full[i], 2 * kTileBytes);
            load_box(s.keys[i], qkv, plan.NH + tile.h, n * kTileRows, tile.b, &s.full[i]);
            load_box(s.values[i], qkv, 2 * plan.NH + tile.h, n * kTileRows, tile.b, &s.full[i]);
            at.next();
        }
    }
}

// What a thread knows of its two rows.
struct Rows {
    float lse_log2[2], dot[2];
};

// the sum of the products of two bf16 pairs, added to sum; bf16 is the upper half of a float
__device__ __forceinline__ float add_pair(float sum, uint32_t a, uint32_t b) {
    sum = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), sum);
    return fmaf(__uint_as_float(a & 0xffff0000u), __uint_as_float(b & 0xffff0000u), sum);
}

// A warpgroup's 64 queries: where their rows lie in shared memory, swizzled, and where the other kernel will look for the
// numbers of a row.
struct Queries {
    bf16 *q, *dout, *out;
    float *lse_log2, *dot;
};

// dot = the sum over a row of dout * out: of a row's eight chunks each of its four lanes adds two
__device__ __forceinline__ void find_dots(Rows& rows, const Queries& mine, const Consumer& me) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = me.row + 8 * half;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int place = swizzled(row, me.lane % 4 * 2 + j) / 2;
            uint4 a = *reinterpret_cast<const uint4*>(mine.dout + place);
            uint4 b = *reinterpret_cast<const uint4*>(mine.out + place);
            sum = add_pair(add_pair(add_pair(add_pair(sum, a.x, b.x), a.y, b.y), a.z, b.z), a.w, b.w);
        }
        rows.dot[half] = row_sum(sum);
        if (me.lane % 4 == 0) {
            mine.lse_log2[row] = rows.lse_log2[half];
            mine.dot[row] = rows.dot[half];
        }
    }
}

// x, scores, becomes the probabilities; kDiagonal: 0 for keys after the query
template <bool kDiagonal>
__device__ __forceinline__ void probabilities(Result& x, const Rows& rows, int diagonal) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        x[i] = exp2_approx(fmaf(x[i], kScaleLog2, -rows.lse_log2[i % 4 / 2]));
        if (kDiagonal && past_diagonal(i) > diagonal) { x[i] = 0; }
    }
}

// ds / scale, rounded to bf16
__device__ __forceinline__ void score_gradients(Left& ds, const Result& p, const Result& y,
                                                const Rows& rows) {
    Result g;
#pragma unroll
    for (int i = 0; i < 32; i++) { g[i] = p[i] * (y[i] - rows.dot[i % 4 / 2]); }
    as_left(ds, g);
}

// Of one tile of keys: starts dq += ds k, which the next step or the end of attend() waits for. kDiagonal: the first step,
// which also finds dot.
template <bool kDiagonal>
__device__ __forceinline__ void step(Result& dq, Shared& s, Place& at, const Consumer& me,
                                     const Queries& mine, Rows& rows, DeferredRelease& stored) {
    Result x, y;
    Left ds;
    mbarrier_wait(&s.full[at.stage], at.phase);
    start_product(x, descriptor(mine.q), descriptor(s.keys[at.stage]));
    start_product(y, descriptor(mine.dout), descriptor(s.values[at.stage]));
    if constexpr (kDiagonal) {  // while the products are under way
        stored.finish(me, s.tiles);
        find_dots(rows, mine, me);
    }
    wgmma_wait<1>();  // for x, and dq's product of the step before
    hold(x);
    if constexpr (!kDiagonal) { me.release(&s.empty[at.before()]); }
    probabilities<kDiagonal>(x, rows, me.diagonal);
    hold(x);
    // has ended long ago: a branch over which the assembler does not move the next wait
    mbarrier_wait(&s.full[at.stage], at.phase);
    wgmma_wait<0>();
    hold(y);
    score_gradients(ds, x, y, rows);
    start_sum(dq, ds, descriptor(s.keys[at.stage]));
    at.next();
}

// the walk over n + 1 tiles of keys, of which number n lies on the diagonal
__device__ __forceinline__ void walk(Result& dq, Shared& s, Place& at, const Consumer& me,
                                     const Queries& mine, Rows& rows, int n, DeferredRelease& stored) {
    set_zero(dq);
    step<true>(dq, s, at, me, mine, rows, stored);
#pragma unroll 1
    for (; n > 0; n--) { step<false>(dq, s, at, me, mine, rows, stored); }
    wgmma_wait<0>();
    hold(dq);
    me.release(&s.empty[at.before()]);
}

__device__ __forceinline__ void consume(Shared& s, const CUtensorMap& dqkv, const AttentionRows& to,
                                        const float* lse, const TilePlan& plan, int warp) {
    const Consumer me(warp);
    Place at;
    TilePlace tile_at;
    DeferredRelease stored;
    for (;; tile_at.next()) {
        int number = wait_for_tile(s.tiles, tile_at);
        if (number >= plan.tiles()) { break; }
        Tile tile = query_tile(number, plan);
        int base = tile.first + me.group * kTileRows, n = last_keys(tile);
        Rows rows;
#pragma unroll
        for (int half = 0; half < 2; half++) {  // asked for early
            int row = base + me.row + 8 * half;
            bool exists = row >= 0 && row < plan.T;
            rows.lse_log2[half] = exists ? lse[(int64_t)tile.head * plan.T + row] * kLog2e : INFINITY;
        }
        for (; n >= 0 && n * kTileRows > base; n--) {  // keys after all of this warpgroup's queries
            mbarrier_wait(&s.full[at.stage], at.phase);
            me.release(&s.empty[at.stage]);
            at.next();
        }
        if (base < 0) {  // rows before the first
            stored.finish(me, s.tiles);
            me.release(&s.tiles.empty[tile_at.stage]);
            continue;
        }
        int mine = me.group * kTileElements, i = tile_at.stage;
        int64_t first = (int64_t)tile.head * to.padded + base;
        Queries queries{s.queries[i] + mine, s.douts[i] + mine, s.outs[i] + mine, to.lse_log2 + first,
                        to.dot + first};
        Result dq;
        walk(dq, s, at, me, queries, rows, n, stored);
        warpgroup_sync(1 + me.group);  // the products of all four warps have read the queries
        store_rows(dqkv, queries.q + me.warp * kWarpElements, dq, kScale, kScale, tile, tile.h,
                   base + me.warp * kWarpRows, plan.T, me.lane);
        stored.begin(me, i);
        if (to.sums != nullptr) {
            warpgroup_sync(1 + me.group);
            sum_columns(to, queries.q, tile, tile.h, base, plan.NH, me);
        }
    }
    if (me.lane == 0) { bulk_wait_read<0>(); }
}

__global__ __launch_bounds__(kThreads, 1) void attention_backward_dq_wgmma_kernel(
    const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
    const __grid_constant__ CUtensorMap out, const __grid_constant__ CUtensorMap dqkv, const float* lse,
    AttentionRows rows, TilePlan plan, unsigned* counter) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<Shared>();
        int warp = uniform_warp();
        if (threadIdx.x == 0) {
            prefetch_map(qkv);
            prefetch_map(dout);
            prefetch_map(out);
            init_barriers(s.full, s.empty, kGroups);
            init_barriers(s.tiles.full, s.tiles.empty, kGroups);
            mbarrier_init_fence();
        }
        __syncthreads();
        if (warp >= kGroups * kGroupWarps) {
            fewer_registers<kProducerRegisters>();
            if (threadIdx.x == kGroups * kWarpgroup) { produce(s, qkv, dout, out, plan, counter); }
        } else {
            more_registers<kConsumerRegisters>();
            consume(s, dqkv, rows, lse, plan, warp);
        }
    }
}

}  // namespace
}  // namespace attention_wgmma

void attention_backward_dq_wgmma(bf16* dqkv, const AttentionRows& rows, unsigned* counter, const bf16* dout,
                                 const bf16* qkv, const bf16* out, const float* lse, int B, int T, int NH,
                                 cudaStream_t stream) {
    using namespace attention_wgmma;
    TilePlan plan = checked_plan(B, T, NH, kQueries);
    launch<attention_backward_dq_wgmma_kernel, Shared>(
        kGroups, plan, stream, head_map(qkv, 3 * NH, T, B, kTileRows), head_map(dout, NH, T, B, kTileRows),
        head_map(out, NH, T, B, kTileRows), head_map(dqkv, 3 * NH, T, B, kWarpRows), lse, rows, plan,
        counter);
}

}  // namespace llmc
