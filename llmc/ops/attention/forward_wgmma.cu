// Attention forward for Hopper, head size 64. A block owns 256 queries of a head, a warpgroup 64 of them, and walks over
// the keys from the diagonal down to the first, 64 at a time. The scores of the next keys are under way while the
// exponentials of these are computed, and so are the sums of values. Online softmax (Milakov and Gimelshein 2018,
// arXiv:1805.02867) with a lazy maximum: see softmax().
#include "llmc/ops/attention/wgmma.cuh"

namespace llmc {
namespace attention_wgmma {
namespace {

constexpr int kGroups = 4, kQueries = kGroups * kTileRows, kStages = 6;
constexpr int kThreads = kWarpgroup * (kGroups + 1);
constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;  // 65536 / 640 = 96 before

struct __align__(kAtomBytes) Shared {
    bf16 queries[2][kGroups * kTileElements], keys[kStages][kTileElements], values[kStages][kTileElements];
    uint64_t keys_full[kStages], values_full[kStages], empty[kStages];
    TileRing tiles;
};
using Place = Ring<kStages>;

// the last tile of 64 keys that a tile of queries needs
__device__ __forceinline__ int last_keys(const Tile& tile) { return tile.first / kTileRows + kGroups - 1; }

__device__ __forceinline__ void produce(Shared& s, const CUtensorMap& qkv, const TilePlan& plan,
                                        unsigned* counter) {
    Place at;
    TilePlace tile_at;
    TileQueue queue{counter, plan.tiles()};
    for (; queue.begin(s.tiles, tile_at); queue.next()) {
        queue.ask();
        Tile tile = query_tile(queue.number, plan);
        uint64_t* full = &s.tiles.full[tile_at.stage];
        mbarrier_arrive_expect(full, kGroups * kTileBytes);
        for (int w = 0; w < kGroups; w++) {
            bf16* to = s.queries[tile_at.stage] + w * kTileElements;
            load_box(to, qkv, tile.h, tile.first + w * kTileRows, tile.b, full);
        }
        tile_at.next();
        for (int n = last_keys(tile); n >= 0; n--) {
            int i = at.stage;
            mbarrier_wait(&s.empty[i], at.phase ^ 1);
            mbarrier_arrive_expect(&s.keys_full[i], kTileBytes);
            load_box(s.keys[i], qkv, plan.NH + tile.h, n * kTileRows, tile.b, &s.keys_full[i]);
            mbarrier_arrive_expect(&s.values_full[i], kTileBytes);
            load_box(s.values[i], qkv, 2 * plan.NH + tile.h, n * kTileRows, tile.b, &s.values_full[i]);
            at.next();
        }
    }
}

// Of a thread's two rows: what is subtracted from scores, this thread's sum of exponentials, and by what the sums of
// values must be multiplied if what is subtracted grew.
struct Softmax {
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep[2];
    bool grew;  // in one row of the warp at least
};

// Brings largest up to date. It grows only when a score passes it by more than 2^8 in the exponential: results are the
// same to the last bits, exponentials are at most 256 and do not overflow, and a rescaling of everything is rare. A row's
// result depends on its own scores only: rows that did not grow get keep = 1.
__device__ __forceinline__ void grow(Softmax& s, const Result& x, bool always) {
    constexpr float kSlack = 8 / kScaleLog2;
    float m[2];
    unrolled<2>([&](int half) {
        float a = x[2 * half], b = x[2 * half + 1];
#pragma unroll
        for (int i = 4 + 2 * half; i < 32; i += 4) {
            a = fmaxf(a, x[i]);
            b = fmaxf(b, x[i + 1]);
        }
        m[half] = fmaxf(a, b);
    });
    bool passed = m[0] > s.largest[0] + kSlack || m[1] > s.largest[1] + kSlack;
    s.grew = always || __any_sync(kAllLanes, passed);
    if (!s.grew) { return; }
    unrolled<2>([&](int half) {
        float row = row_max(m[half]), to = row > s.largest[half] + kSlack ? row : s.largest[half];
        s.keep[half] = exp2_approx((s.largest[half] - to) * kScaleLog2);
        s.largest[half] = to;
        s.sum[half] *= s.keep[half];
    });
}

// x, scores of 64 keys, becomes exp(scale (x - largest)), and the sums follow; kDiagonal: keys after the query get 0
template <bool kDiagonal>
__device__ __forceinline__ void softmax(Result& x, Softmax& s, int diagonal) {
    if constexpr (kDiagonal) {
        unrolled<32>([&](int i) {
            if (past_diagonal(i) > diagonal) { x[i] = -INFINITY; }
        });
    }
    grow(s, x, kDiagonal);
    unrolled<2>([&](int half) {
        float subtract = s.largest[half] * kScaleLog2, add = 0;
#pragma unroll
        for (int i = 2 * half; i < 32; i += 4) {
            float a = exp2_approx(fmaf(x[i], kScaleLog2, -subtract)),
                  b = exp2_approx(fmaf(x[i + 1], kScaleLog2, -subtract));
            add += a + b;
            x[i] = a;
            x[i + 1] = b;
        }
        s.sum[half] += add;
    });
}

// The walk of a warpgroup over n + 1 tiles of keys, of which number n lies on its diagonal: out = the sum of
// exponentials times values.
__device__ __forceinline__ void attend(Result& out, Softmax& state, Shared& s, Place& at, const Consumer& me,
                                       uint64_t queries, int n, DeferredRelease& stored) {
    Result x;
    Left p;
    set_zero(out);
    mbarrier_wait(&s.keys_full[at.stage], at.phase);
    start_product(x, queries, descriptor(s.keys[at.stage]));
    stored.finish(me, s.tiles);  // while the product is under way
    wgmma_wait<0>();
    hold(x);
    softmax<true>(x, state, me.diagonal);
    as_left(p, x);
#pragma unroll 1
    for (; n > 0; n--) {
        Place next = at;
        next.next();
        mbarrier_wait(&s.keys_full[next.stage], next.phase);
        start_product(x, queries, descriptor(s.keys[next.stage]));
        mbarrier_wait(&s.values_full[at.stage], at.phase);
        start_sum(out, p, descriptor(s.values[at.stage]));
        wgmma_wait<1>();  // for the scores; the sum of values, which reads p, goes on during the exponentials
        hold(x);
        softmax<false>(x, state, me.diagonal);
        hold(x);
        // has ended long ago: a branch over which the assembler does not move the next wait
        mbarrier_wait(&s.values_full[at.stage], at.phase);
        wgmma_wait<0>();
        hold(out);
        hold(p);
        me.release(&s.empty[at.stage]);
        as_left(p, x);
        if (state.grew) {
            unrolled<32>([&](int i) { out[i] *= state.keep[i % 4 / 2]; });
        }
        at = next;
    }
    mbarrier_wait(&s.values_full[at.stage], at.phase);
    start_sum(out, p, descriptor(s.values[at.stage]));
    wgmma_wait<0>();
    hold(out);
    me.release(&s.empty[at.stage]);
    at.next();
}

// out /= the sum of exponentials, and lse
__device__ __forceinline__ void finish(const Result& out, const Softmax& state, const CUtensorMap& out_map,
                                       float* lse, bf16* queries, const Tile& tile, int base, int T,
                                       const Consumer& me) {
    float factor[2];
    unrolled<2>([&](int half) {
        float sum = row_sum(state.sum[half]);
        factor[half] = __fdividef(1.0f, sum);
        int row = base + me.row + half * 8;
        if (me.lane % 4 == 0 && row < T) {
            lse[(int64_t)tile.head * T + row] = state.largest[half] * kScale + __logf(sum);
        }
    });
    warpgroup_sync(1 + me.group);  // the products of all four warps have read the queries
    store_rows(out_map, queries + me.warp * kWarpElements, out, factor[0], factor[1], tile, tile.h,
               base + me.warp * kWarpRows, T, me.lane);
}

__device__ __forceinline__ void consume(Shared& s, const CUtensorMap& out_map, float* lse,
                                        const TilePlan& plan, int warp) {
    const Consumer me(warp);
    Place at;
    TilePlace tile_at;
    DeferredRelease stored;
    for (;; tile_at.next()) {
        int number = wait_for_tile(s.tiles, tile_at);
        if (number >= plan.tiles()) { break; }
        Tile tile = query_tile(number, plan);
        int base = tile.first + me.group * kTileRows, n = last_keys(tile);
        for (; n >= 0 && n * kTileRows > base; n--) {  // keys after all of this warpgroup's queries
            mbarrier_wait(&s.keys_full[at.stage], at.phase);
            mbarrier_wait(&s.values_full[at.stage], at.phase);
            me.release(&s.empty[at.stage]);
            at.next();
        }
        if (base < 0) {  // rows before the first
            stored.finish(me, s.tiles);
            me.release(&s.tiles.empty[tile_at.stage]);
            continue;
        }
        bf16* queries = s.queries[tile_at.stage] + me.group * kTileElements;
        Result out;
        Softmax state;
        attend(out, state, s, at, me, descriptor(queries), n, stored);
        finish(out, state, out_map, lse, queries, tile, base, plan.T, me);
        stored.begin(me, tile_at.stage);
    }
    if (me.lane == 0) { bulk_wait_read<0>(); }
}

__global__ void __launch_bounds__(kThreads, 1)
    attention_forward_wgmma_kernel(const __grid_constant__ CUtensorMap qkv,
                                   const __grid_constant__ CUtensorMap out, float* lse, TilePlan plan,
                                   unsigned* counter) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<Shared>();
        int warp = uniform_warp();
        if (threadIdx.x == 0) {
            prefetch_map(qkv);
            init_barriers(s.keys_full, s.empty, kGroups);
            for (uint64_t& full : s.values_full) { mbarrier_init(&full, 1); }
            init_barriers(s.tiles.full, s.tiles.empty, kGroups);
            mbarrier_init_fence();
        }
        __syncthreads();
        if (warp >= kGroups * kGroupWarps) {
            fewer_registers<kProducerRegisters>();
            if (threadIdx.x == kGroups * kWarpgroup) { produce(s, qkv, plan, counter); }
        } else {
            more_registers<kConsumerRegisters>();
            consume(s, out, lse, plan, warp);
        }
    }
}

}  // namespace
}  // namespace attention_wgmma

bool has_attention_wgmma() { return runs_wgmma_code<attention_wgmma::attention_forward_wgmma_kernel>(); }

bool attention_by_wgmma(int T, int HS) {
    require(HS >= 1 && HS <= kMaxHeadSize, "attention: head size must be 1 to 128");
    return fits_wgmma(T, HS) && has_attention_wgmma();
}

void attention_forward_wgmma(const AttentionForward<bf16>& c, cudaStream_t stream) {
    using namespace attention_wgmma;
    const TilePlan plan = checked_plan(c.B, c.T, c.NH, kQueries);
    launch<attention_forward_wgmma_kernel, Shared>(
        kGroups, plan, stream, head_map(c.qkv, 3 * c.NH, c.T, c.B, kTileRows),
        head_map(c.out, c.NH, c.T, c.B, kWarpRows), c.lse, plan, c.counters);
}

}  // namespace llmc
