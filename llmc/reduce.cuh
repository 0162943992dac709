// What a block's threads reduce to, in an order that depends on the block's size alone.
#pragma once
#include "llmc/device.cuh"

namespace llmc {

// x of all threads joined by op (associative and commutative, but for rounding), the same bits in each
// thread; identity: op(identity, x) == x. Every thread of the block calls it; whole warps.
template <typename X, typename Op>
__device__ inline X block_reduce(X x, X identity, Op op) {
    __shared__ X of_warp[kWarp];
    auto join_lanes = [&](X a) {
        for (int distance = kWarp / 2; distance > 0; distance /= 2) {
            a = op(a, __shfl_xor_sync(kAllLanes, a, distance));
        }
        return a;
    };
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    x = join_lanes(x);
    __syncthreads();  // of_warp may still be read, by the call before this
    if (lane == 0) { of_warp[warp] = x; }
    __syncthreads();
    return join_lanes(lane < warps ? of_warp[lane] : identity);
}

template <typename X>
__device__ inline X block_sum(X x) {
    return block_reduce(x, X(0), [](X a, X b) { return a + b; });
}

}  // namespace llmc
