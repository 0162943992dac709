// v4: wgmma and TMA. Four warpgroups take 64 queries each; one thread asks for 64 keys and
//     values, all wait.
// Why:    mma.sync's operands pass through registers: v3 spends as many instructions on ldmatrix and copies
//         as on products, and reaches half of the tensor cores' rate. wgmma reads both tiles, or the right
//         one, from shared memory by itself, and a tile comes by a single instruction, swizzled as wgmma
//         wants it.
// Costs:  a tile of 64 x 64 and a warpgroup: 256 cycles of tensor core, as many of exponentials, one after
//         the other; 16 KB of keys and values for four warpgroups, and everyone waits until they have come.
// Result: 506 us, 27 % of the roof at 64x12x1024; 1401 us, 37 % at 4x12x8192; H100, 2026-11-25
#include "llmc/ops/attention/ladder/forward/wgmma_rungs.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {
namespace attention_wgmma {
namespace {

constexpr int kThreads = kWarpgroup * kGroups;

struct __align__(kAtomBytes) Shared {
    bf16 queries[kGroups * kTileElements], keys[kTileElements], values[kTileElements];
    uint64_t queries_full, full;
};

__device__ __forceinline__ void load_keys(Shared& s, const CUtensorMap& qkv, const Tile& tile, int n,
                                          int NH) {
    mbarrier_arrive_expect(&s.full, 2 * kTileBytes);
    load_box(s.keys, qkv, NH + tile.h, n * kTileRows, tile.b, &s.full);
    load_box(s.values, qkv, 2 * NH + tile.h, n * kTileRows, tile.b, &s.full);
}

__global__ void __launch_bounds__(kThreads, 1)
    forward_v4_kernel(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap out_map,
                      float* lse, TilePlan plan) {
    if constexpr (kSm90a) {
        auto& s = shared_memory<Shared>();
        const Consumer me(uniform_warp());
        Tile tile = query_tile(blockIdx.x, plan);
        if (threadIdx.x == 0) {
            mbarrier_init(&s.queries_full, 1);
            mbarrier_init(&s.full, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&s.queries_full, kGroups * kTileBytes);
            for (int w = 0; w < kGroups; w++) {
                bf16* to = s.queries + w * kTileElements;
                load_box(to, qkv, tile.h, tile.first + w * kTileRows, tile.b, &s.queries_full);
            }
        }
        __syncthreads();
        mbarrier_wait(&s.queries_full, 0);

        bf16* queries = s.queries + me.group * kTileElements;
        int base = tile.first + me.group * kTileRows;
        Result out;
        Softmax state;
        set_zero(out);
        unsigned phase = 0;
#pragma unroll 1
        for (int n = last_keys(tile); n >= 0; n--) {
            if (threadIdx.x == 0) { load_keys(s, qkv, tile, n, plan.NH); }
            mbarrier_wait(&s.full, phase);
            phase ^= 1;
            if (n * kTileRows <= base) {  // else these keys come after all of the warpgroup's queries
                attend_tile(out, state, me, descriptor(queries), descriptor(s.keys), descriptor(s.values), n,
                            base);
            }
            __syncthreads();  // nobody reads the stage any more
        }
        if (base >= 0) { finish_rows(out, state, out_map, lse, queries, tile, base, plan.T, me); }
    }
}

}  // namespace
}  // namespace attention_wgmma

void v4::attention_forward(bf16* out, float* lse, void*, const bf16* qkv, int B, int T, int NH,
                           cudaStream_t stream) {
    using namespace attention_wgmma;
    launch_forward<forward_v4_kernel, Shared>(kThreads, out, lse, qkv, B, T, NH, stream);
}

}  // namespace llmc
