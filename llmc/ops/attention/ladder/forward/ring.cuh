// The block of v5 and v6: four warpgroups that compute, and a producer that keeps a ring of keys and values
// filled.
#pragma once
#include "llmc/ops/attention/ladder/forward/softmax.cuh"

namespace llmc::attention_wgmma {

constexpr int kStages = 6, kThreads = kWarpgroup * (kGroups + 1);
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
__global__ void __launch_bounds__(kThreads, 1)
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
