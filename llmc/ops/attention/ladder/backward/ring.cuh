// The blocks of v5 and v6: warpgroups that compute, and a producer that keeps a ring filled, of keys and
// values for dQ, of queries and douts for dK and dV.
#pragma once
#include "llmc/ops/attention/ladder/backward/gradients.cuh"

namespace llmc::attention_wgmma {

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
