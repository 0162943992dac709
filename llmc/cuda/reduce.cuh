// What the threads of a warp or a block reduce to, in an order that depends on the block's size alone.
#pragma once
#include "llmc/cuda/device.cuh"

namespace llmc {

// the sum over groups of `lanes` neighbouring lanes, the same in each
template <int lanes>
__device__ inline float group_sum(float x) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(kAllLanes, x, distance);
    }
    return x;
}

// Two sums over a warp for the shuffles of one and a bit: of v.x in lanes 0 to 15, of v.y in the others.
__device__ inline float warp_sum_pair(float2 v) {
    bool upper = threadIdx.x % kWarp >= kWarp / 2;
    float sum = (upper ? v.y : v.x) + __shfl_xor_sync(kAllLanes, upper ? v.x : v.y, kWarp / 2);
    return group_sum<kWarp / 2>(sum);
}
// both of them in each lane
__device__ inline float2 both_sums(float pair) {
    return {__shfl_sync(kAllLanes, pair, 0), __shfl_sync(kAllLanes, pair, kWarp / 2)};
}

// Both sums over a group, for the shuffles of one and a bit: half of the lanes add v.x, half v.y.
template <int lanes>
__device__ inline float2 group_sums(float2 v) {
    if constexpr (lanes == 1) { return v; }
    bool upper = threadIdx.x & (lanes / 2);
    float sum = (upper ? v.y : v.x) + __shfl_xor_sync(kAllLanes, upper ? v.x : v.y, lanes / 2);
    sum = group_sum<lanes / 2>(sum);
    return {__shfl_sync(kAllLanes, sum, 0, lanes), __shfl_sync(kAllLanes, sum, lanes / 2, lanes)};
}

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
