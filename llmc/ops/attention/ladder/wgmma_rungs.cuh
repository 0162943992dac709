// What the rungs by wgmma share: a block for each tile, started longest first, and how it leaves.
#pragma once
#include "llmc/ops/attention/wgmma.cuh"

namespace llmc::attention_wgmma {

// Limits that mask nothing: past_diagonal() is never above the first, nor below the second.
constexpr int kNoneAbove = kTileColumns, kNoneBelow = -kTileColumns;

// tiles of 64 rows for each warpgroup of `threads`
template <auto* kernel, typename Shared, typename... Args>
void launch_tiles(int threads, const TilePlan& plan, cudaStream_t stream, const Args&... args) {
    constexpr int kBytes = sizeof(Shared) + kAtomBytes;  // with room to align it
    static_assert(kBytes <= 227 << 10, "more than a block may have");
    allow_shared_bytes<kernel>(kBytes);
    kernel<<<plan.tiles(), threads, kBytes, stream>>>(args...);
    check_launch();
}

// TMA has read what this thread gave it to store: the block may end
__device__ __forceinline__ void wait_for_stores(const Consumer& me) {
    if (me.lane == 0) {
        bulk_commit();
        bulk_wait_read<0>();
    }
}

}  // namespace llmc::attention_wgmma
