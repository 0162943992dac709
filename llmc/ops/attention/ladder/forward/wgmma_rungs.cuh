// What v4, v5 and v6 share: the online softmax, and the block of v5 and v6.
#pragma once
#include "llmc/ops/attention/ladder/wgmma_rungs.cuh"

namespace llmc::attention_wgmma {

// ---- the online softmax of v4, v5 and v6, on a warpgroup's 64 x 64 scores where wgmma leaves them: two rows a
// thread, of which three other lanes hold the rest.

constexpr int kGroups = 4, kQueries = kGroups * kTileRows;

// the last tile of 64 keys that a tile of queries needs
__device__ __forceinline__ int last_keys(const Tile& tile) { return tile.first / kTileRows + kGroups - 1; }

// Of a thread's two rows: the largest score so far, its sum of exponentials, and by what earlier sums must be
// multiplied.
struct Softmax {
    float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, keep[2];
    bool grew = true;  // in one row of the warp at least
};

// this thread's largest score of a row
__device__ __forceinline__ float largest_of(const Result& x, int half) {
    float m = fmaxf(x[2 * half], x[2 * half + 1]);
#pragma unroll
    for (int i = 4 + 2 * half; i < 32; i += 4) { m = fmaxf(m, fmaxf(x[i], x[i + 1])); }
    return m;
}

__device__ __forceinline__ void move_largest(Softmax& s, int half, float to) {
    s.keep[half] = exp2_approx((s.largest[half] - to) * kScaleLog2);
    s.largest[half] = to;
    s.sum[half] *= s.keep[half];
}

// x, scores, becomes exp(scale (x - largest)), and the sums follow
__device__ __forceinline__ void exponentials(Result& x, Softmax& s) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float subtract = s.largest[half] * kScaleLog2, add = 0;
#pragma unroll
        for (int i = 2 * half; i < 32; i += 4) {
            x[i] = exp2_approx(fmaf(x[i], kScaleLog2, -subtract));
            x[i + 1] = exp2_approx(fmaf(x[i + 1], kScaleLog2, -subtract));
            add += x[i] + x[i + 1];
        }
        s.sum[half] += add;
    }
}

// keys after the query get 0: those whose past_diagonal() is above the limit, the lane's diagonal or
// kNoneAbove
__device__ __forceinline__ void mask_scores(Result& x, int limit) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        if (past_diagonal(i) > limit) { x[i] = -INFINITY; }
    }
}

__device__ __forceinline__ void softmax(Result& x, Softmax& s, int limit) {
    mask_scores(x, limit);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        move_largest(s, half, fmaxf(s.largest[half], row_max(largest_of(x, half))));
    }
    exponentials(x, s);
}

__device__ __forceinline__ void follow_largest(Result& out, const Softmax& s) {
#pragma unroll
    for (int i = 0; i < 32; i++) { out[i] *= s.keep[i % 4 / 2]; }
}

// One tile of keys, one product after the other. n: the tile; base: the warpgroup's first query.
__device__ __forceinline__ void attend_tile(Result& out, Softmax& state, const Consumer& me, uint64_t queries,
                                            uint64_t keys, uint64_t values, int n, int base) {
    Result x;
    Left p;
    start_product(x, queries, keys);
    wgmma_wait<0>();
    hold(x);
    softmax(x, state, n * kTileRows == base ? me.diagonal : kNoneAbove);
    as_left(p, x);
    follow_largest(out, state);
    start_sum(out, p, values);
    wgmma_wait<0>();
    hold(out);
}

// out /= the sum of exponentials, and lse; out leaves through the shared memory of the queries
__device__ __forceinline__ void finish_rows(const Result& out, const Softmax& state,
                                            const CUtensorMap& out_map, float* lse, bf16* queries,
                                            const Tile& tile, int base, int T, const Consumer& me) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = row_sum(state.sum[half]);
        factor[half] = __fdividef(1.0f, sum);
        int row = base + me.row + half * 8;
        if (me.lane % 4 == 0 && row < T) {
            lse[(int64_t)tile.head * T + row] = state.largest[half] * kScale + __logf(sum);
        }
    }
    warpgroup_sync(1 + me.group);  // the products of all four warps have read the queries
    store_rows(out_map, queries + me.warp * kWarpElements, out, factor[0], factor[1], tile, tile.h,
               base + me.warp * kWarpRows, T, me.lane);
    wait_for_stores(me);
}

// launches one of the kernels
template <auto* kernel, typename Shared>
void launch_forward(int threads, bf16* out, float* lse, const bf16* qkv, int B, int T, int NH,
                    cudaStream_t stream) {
    TilePlan plan = checked_plan(B, T, NH, kQueries);
    launch_tiles<kernel, Shared>(threads, plan, stream, head_map(qkv, 3 * NH, T, B, kTileRows),
                                 head_map(out, NH, T, B, kWarpRows), lse, plan);
}

// ---- the block of v5 and v6: four warpgroups that compute, and a producer that keeps a ring of keys and values
// filled.

constexpr int kStages = 6, kRingThreads = kWarpgroup * (kGroups + 1);
constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;  // 65536 / 640 = 96 before

struct __align__(kAtomBytes) RingShared {
    bf16 queries[kGroups * kTileElements], keys[kStages][kTileElements], values[kStages][kTileElements];
    uint64_t queries_full, full[kStages], empty[kStages];

    __device__ __forceinline__ void wait(const Ring<kStages>& at) {
        mbarrier_wait(&full[at.stage], at.phase);
    }
};
using Place = Ring<kStages>;

__device__ __forceinline__ void produce(RingShared& s, const CUtensorMap& qkv, const Tile& tile, int NH) {
    mbarrier_arrive_expect(&s.queries_full, kGroups * kTileBytes);
    for (int w = 0; w < kGroups; w++) {
        bf16* to = s.queries + w * kTileElements;
        load_box(to, qkv, tile.h, tile.first + w * kTileRows, tile.b, &s.queries_full);
    }
    Place at;
    for (int n = last_keys(tile); n >= 0; n--) {
        int i = at.stage;
        mbarrier_wait(&s.empty[i], at.phase ^ 1);
        mbarrier_arrive_expect(&s.full[i], 2 * kTileBytes);
        load_box(s.keys[i], qkv, NH + tile.h, n * kTileRows, tile.b, &s.full[i]);
        load_box(s.values[i], qkv, 2 * NH + tile.h, n * kTileRows, tile.b, &s.full[i]);
        at.next();
    }
}

// Walk::attend(out, state, s, at, me, queries, n) is what the two rungs differ in: n + 1 tiles of keys, of
// which number n lies on the warpgroup's diagonal; at: the first one's place.
template <typename Walk>
__global__ void __launch_bounds__(kRingThreads, 1)
    forward_ring_kernel(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap out_map,
                        float* lse, TilePlan plan) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<RingShared>();
        int warp = uniform_warp();
        Tile tile = query_tile(blockIdx.x, plan);
        if (threadIdx.x == 0) {
            mbarrier_init(&s.queries_full, 1);
            init_barriers(s.full, s.empty, kGroups);
            mbarrier_init_fence();
        }
        __syncthreads();
        if (warp >= kGroups * kGroupWarps) {
            fewer_registers<kProducerRegisters>();
            if (threadIdx.x == kGroups * kWarpgroup) { produce(s, qkv, tile, plan.NH); }
        } else {
            more_registers<kConsumerRegisters>();
            const Consumer me(warp);
            int base = tile.first + me.group * kTileRows, n = last_keys(tile);
            Place at;
            for (; n >= 0 && n * kTileRows > base; n--) {  // keys after all of this warpgroup's queries
                s.wait(at);
                me.release(&s.empty[at.stage]);
                at.next();
            }
            if (base >= 0) {
                bf16* queries = s.queries + me.group * kTileElements;
                Result out;
                Softmax state;
                set_zero(out);
                mbarrier_wait(&s.queries_full, 0);
                Walk::attend(out, state, s, at, me, descriptor(queries), n);
                finish_rows(out, state, out_map, lse, queries, tile, base, plan.T, me);
            }
        }
    }
}

}  // namespace llmc::attention_wgmma
