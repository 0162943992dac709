// v4: dQ apart from dK and dV, by wgmma and TMA; a thread asks for the next 64 rows, all wait for
//     them.
// Why:    the seven products of two kernels cost less than five whose dQ many blocks add to: that needs
//         atomics, or an order, and both go through L2. p and ds never leave the registers: as wgmma leaves
//         them is how the next product takes its left operand, in dQ as they are, in dK and dV because the
//         scores are computed transposed.
// Costs:  a tile of 64 x 64 and a warpgroup: dQ 384 cycles of tensor core, dK and dV 512, 256 of exponentials
//         each, one after the other; dot and lse by a kernel of their own, 256 bytes read a row.
// Result: 1466 us, 23 % of the roof at 64x12x1024; 3906 us, 33 % at 4x12x8192; H100, 2026-11-25
#include "llmc/ops/attention/ladder/backward/wgmma_rungs.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {
namespace attention_wgmma {
namespace {

struct __align__(kAtomBytes) SharedQ {
    bf16 queries[kQueryGroups * kTileElements], douts[kQueryGroups * kTileElements];
    bf16 keys[kTileElements], values[kTileElements];
    uint64_t tile_full, full;
};
struct __align__(kAtomBytes) SharedKV {
    bf16 keys[kKeyGroups * kTileElements], values[kKeyGroups * kTileElements];
    bf16 queries[kTileElements], douts[kTileElements];
    float lse_log2[kTileRows], dot[kTileRows];
    uint64_t tile_full, full;
};

__global__ void __launch_bounds__(kWarpgroup* kQueryGroups, 1)
    dq_v4_kernel(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
                 const __grid_constant__ CUtensorMap dqkv, AttentionRows rows, TilePlan plan) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<SharedQ>();
        const Consumer me(uniform_warp());
        Tile tile = query_tile(blockIdx.x, plan);
        if (threadIdx.x == 0) {
            mbarrier_init(&s.tile_full, 1);
            mbarrier_init(&s.full, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&s.tile_full, 2 * kQueryGroups * kTileBytes);
            for (int w = 0; w < kQueryGroups; w++) {
                int to = w * kTileElements, row = tile.first + w * kTileRows;
                load_box(s.queries + to, qkv, tile.h, row, tile.b, &s.tile_full);
                load_box(s.douts + to, dout, tile.h, row, tile.b, &s.tile_full);
            }
        }
        int base = tile.first + me.group * kTileRows;
        const QueryNumbers numbers(rows, tile, base, me);
        const Queries mine{s.queries + me.group * kTileElements, s.douts + me.group * kTileElements};
        Result dq;
        set_zero(dq);
        __syncthreads();
        mbarrier_wait(&s.tile_full, 0);
        unsigned phase = 0;
#pragma unroll 1
        for (int n = last_keys(tile); n >= 0; n--) {
            if (threadIdx.x == 0) {
                mbarrier_arrive_expect(&s.full, 2 * kTileBytes);
                load_box(s.keys, qkv, plan.NH + tile.h, n * kTileRows, tile.b, &s.full);
                load_box(s.values, qkv, 2 * plan.NH + tile.h, n * kTileRows, tile.b, &s.full);
            }
            mbarrier_wait(&s.full, phase);
            phase ^= 1;
            if (n * kTileRows <= base) {  // else these keys come after all of the warpgroup's queries
                add_to_dq(dq, mine, descriptor(s.keys), descriptor(s.values), numbers,
                          n * kTileRows == base ? me.diagonal : kNoneAbove);
            }
            __syncthreads();  // nobody reads the stage any more
        }
        if (base >= 0) { finish_dq(dq, dqkv, mine, tile, base, plan.T, me); }
    }
}

__device__ __forceinline__ void load_queries(SharedKV& s, const CUtensorMap& qkv, const CUtensorMap& dout,
                                             const AttentionRows& rows, const Tile& tile, int row) {
    constexpr int kRowBytes = kTileRows * sizeof(float);
    int64_t from = (int64_t)tile.head * rows.padded + row;
    mbarrier_arrive_expect(&s.full, 2 * kTileBytes + 2 * kRowBytes);
    load_box(s.queries, qkv, tile.h, row, tile.b, &s.full);
    load_box(s.douts, dout, tile.h, row, tile.b, &s.full);
    bulk_copy(s.lse_log2, rows.lse_log2 + from, kRowBytes, &s.full);
    bulk_copy(s.dot, rows.dot + from, kRowBytes, &s.full);
}

__global__ void __launch_bounds__(kWarpgroup* kKeyGroups, 1)
    dkv_v4_kernel(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap dout,
                  const __grid_constant__ CUtensorMap dqkv, AttentionRows rows, TilePlan plan) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<SharedKV>();
        const Consumer me(uniform_warp());
        Tile tile = key_tile(blockIdx.x, plan);
        if (threadIdx.x == 0) {
            mbarrier_init(&s.tile_full, 1);
            mbarrier_init(&s.full, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&s.tile_full, 2 * kKeyGroups * kTileBytes);
            for (int w = 0; w < kKeyGroups; w++) {
                int to = w * kTileElements, row = tile.first + w * kTileRows;
                load_box(s.keys + to, qkv, plan.NH + tile.h, row, tile.b, &s.tile_full);
                load_box(s.values + to, qkv, 2 * plan.NH + tile.h, row, tile.b, &s.tile_full);
            }
        }
        int base = tile.first + me.group * kTileRows;
        Keys mine;
        mine.k = s.keys + me.group * kTileElements;
        mine.v = s.values + me.group * kTileElements;
        set_zero(mine.dk);
        set_zero(mine.dv);
        __syncthreads();
        mbarrier_wait(&s.tile_full, 0);
        unsigned phase = 0;
#pragma unroll 1
        for (int row = tile.first; row < plan.T; row += kTileRows) {
            if (threadIdx.x == 0) { load_queries(s, qkv, dout, rows, tile, row); }
            mbarrier_wait(&s.full, phase);
            phase ^= 1;
            if (row >= base) {  // else these queries come before all of the warpgroup's keys
                add_to_dkv(mine, {s.queries, s.douts, s.lse_log2, s.dot},
                           row == base ? me.diagonal : kNoneBelow, me.lane);
            }
            __syncthreads();  // nobody reads the stage any more
        }
        if (base < plan.T) { finish_dkv(mine, dqkv, tile, base, plan, me); }
    }
}

}  // namespace
}  // namespace attention_wgmma

void v4::attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                            const float* lse, int B, int T, int NH, cudaStream_t stream) {
    using namespace attention_wgmma;
    launch_backward<dq_v4_kernel, SharedQ, dkv_v4_kernel, SharedKV>(kWarpgroup * kQueryGroups,
                                                                    kWarpgroup * kKeyGroups, dqkv, scratch,
                                                                    dout, qkv, out, lse, B, T, NH, stream);
}

}  // namespace llmc
