// Attention backward for Hopper, head size 64, in two kernels: each element of dqkv has one writer.
//   dq   A block owns 192 queries of a head, a warpgroup 64 of them, and walks over the keys from the diagonal down to the first,
//        64 at a time:
//          x = q k^T and y = dout v^T (64 queries x 64 keys), p = exp(scale x - lse), ds = p (y - dot), dq += scale ds k
//        The exponentials are computed while y is, and dq's product is under way during the next scores. It also leaves the
//        numbers of the rows that the other needs.
//   dkv  A block owns 128 keys of a head, a warpgroup 64 of them, and walks over the queries from the diagonal to the last, 64
//        at a time. Scores are transposed, keys down and queries across, so that p and ds are left operands as they come:
//          x = k q^T and y = v dout^T, p = exp(scale x - lse), ds = p (y - dot), dv += p dout, dk += scale ds q
//        The exponentials are computed while y is, ds while dv's product is, and dk's is under way during the next scores. The
//        keys and values of a warpgroup stay in registers.
#include "llmc/ops/attention/wgmma.cuh"

namespace llmc {
namespace attention_wgmma {
namespace {

namespace dq {

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
    unrolled<2>([&](int half) {
        int row = me.row + 8 * half;
        float sum = 0;
        unrolled<2>([&](int j) {
            int place = swizzled(row, me.lane % 4 * 2 + j) / 2;
            uint4 a = *reinterpret_cast<const uint4*>(mine.dout + place);
            uint4 b = *reinterpret_cast<const uint4*>(mine.out + place);
            sum = add_pair(add_pair(add_pair(add_pair(sum, a.x, b.x), a.y, b.y), a.z, b.z), a.w, b.w);
        });
        rows.dot[half] = row_sum(sum);
        if (me.lane % 4 == 0) {
            mine.lse_log2[row] = rows.lse_log2[half];
            mine.dot[row] = rows.dot[half];
        }
    });
}

// x, scores, becomes the probabilities; kDiagonal: 0 for keys after the query
template <bool kDiagonal>
__device__ __forceinline__ void probabilities(Result& x, const Rows& rows, int diagonal) {
    unrolled<32>([&](int i) {
        x[i] = exp2_approx(fmaf(x[i], kScaleLog2, -rows.lse_log2[i % 4 / 2]));
        if (kDiagonal && past_diagonal(i) > diagonal) { x[i] = 0; }
    });
}

// ds / scale, rounded to bf16
__device__ __forceinline__ void score_gradients(Left& ds, const Result& p, const Result& y,
                                                const Rows& rows) {
    Result g;
    unrolled<32>([&](int i) { g[i] = p[i] * (y[i] - rows.dot[i % 4 / 2]); });
    as_left(ds, g);
}

// Of one tile of keys: starts dq += ds k, which the next step or the end of walk() waits for. kDiagonal: the first step,
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

}  // namespace dq

namespace dkv {

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

template <bool kDiagonal>
__device__ __forceinline__ void probabilities(Result& x, const float* lse_log2, const Consumer& me) {
    unrolled<8>([&](int j) {
        float2 lse = of_queries(lse_log2, j, me.lane);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++) {
            x[i] = exp2_approx(fmaf(x[i], kScaleLog2, i % 2 ? -lse.y : -lse.x));
            if (kDiagonal && past_diagonal(i) < me.diagonal) { x[i] = 0; }
        }
    });
}

__device__ __forceinline__ void score_gradients(Left& ds, const Result& p, const Result& y, const float* dots,
                                                int lane) {
    Result g;
    unrolled<8>([&](int j) {
        float2 dot = of_queries(dots, j, lane);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++) { g[i] = p[i] * (y[i] - (i % 2 ? dot.y : dot.x)); }
    });
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

}  // namespace dkv

}  // namespace
}  // namespace attention_wgmma

void attention_backward_wgmma(const AttentionBackward<bf16>& c, cudaStream_t stream, float* sums) {
    using namespace attention_wgmma;
    const int padded = ceil_div(c.T, kTileRows) * kTileRows, NH = c.NH;
    float* numbers = (float*)c.scratch;
    const AttentionRows rows{numbers, numbers + (int64_t)c.B * NH * padded, padded, sums};
    auto map = [&](const bf16* tensor, int heads, int rows) {
        return head_map(tensor, heads, c.T, c.B, rows);
    };
    const auto qkv = map(c.qkv, 3 * NH, kTileRows), dout = map(c.dout, NH, kTileRows),
               out = map(c.out, NH, kTileRows), dqkv = map(c.dqkv, 3 * NH, kWarpRows);
    const TilePlan queries = checked_plan(c.B, c.T, NH, dq::kQueries),
                   keys = checked_plan(c.B, c.T, NH, dkv::kKeys);
    launch<dq::attention_backward_dq_wgmma_kernel, dq::Shared>(dq::kGroups, queries, stream, qkv, dout, out,
                                                               dqkv, c.lse, rows, queries, c.counters + 1);
    launch<dkv::attention_backward_dkv_wgmma_kernel, dkv::Shared>(dkv::kGroups, keys, stream, qkv, dout, dqkv,
                                                                  rows, keys, c.counters + 2);
}

}  // namespace llmc
