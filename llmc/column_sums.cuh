// The last step of sums over rows: a kernel before it left, for each of several groups of rows, a partial sum
// of every column; here the groups are added up, always in the same order.
#pragma once
#include <algorithm>
#include <cstdint>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/vectors.cuh"

namespace llmc {

constexpr int kColumnGroups = 128;  // where sizes alone are to fix the order of the additions
constexpr int kColumnBlock = 256, kColumnWarps = kColumnBlock / kWarp;

// A lane has n neighbouring columns, the warps of a block take groups in turn; then a thread adds up what the warps
// have of one column. blockIdx.y chooses between two results. partial (2,groups,C)
template <int n, int kMostWarps, typename Grad, typename Acc>
__global__ __launch_bounds__(kMostWarps* kWarp) void finish_columns_kernel(Grad* first, Grad* second,
                                                                           const Acc* partial, int groups,
                                                                           int64_t C, bool accumulate) {
    constexpr int kTile = kWarp * n;
    __shared__ alignas(16) Acc warp_sums[kMostWarps][kTile];
    int at = threadIdx.x % kWarp * n, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    int64_t tile = (int64_t)blockIdx.x * kTile;
    partial += blockIdx.y * groups * C + tile;
    Grad* out = blockIdx.y == 0 ? first : second;
    if (out == nullptr) { return; }
    if constexpr (kSm90) {
        dependency_launch();
        dependency_wait();  // nothing, unless launched ahead of the end of the kernel before
    }
    Elements<Acc, n> sum{};
#pragma unroll 4
    for (int group = warp; group < groups && tile + at < C; group += warps) {
        auto more = load<n>(partial + group * C + at);
#pragma unroll
        for (int j = 0; j < n; j++) { sum.at[j] += more.at[j]; }
    }
    store(&warp_sums[warp][at], sum);
    __syncthreads();
    for (int i = threadIdx.x; i < kTile && tile + i < C; i += blockDim.x) {
        Acc total = warp_sums[0][i];
#pragma unroll
        for (int w = 1; w < kMostWarps; w++) { total += w < warps ? warp_sums[w][i] : Acc(0); }
        Grad& result = out[tile + i];
        result = (Grad)(accumulate ? (Acc)result + total : total);
    }
}

// With many groups, many warps of narrow tiles; few groups of long rows are read 16 bytes at a time.
template <int n, int kMostWarps, typename Grad, typename Acc>
void launch_finish(Grad* first, Grad* second, const Acc* partial, int groups, int C, bool accumulate,
                   cudaStream_t stream, bool early) {
    cudaLaunchAttribute dependent{};
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    dim3 grid(grid_x(ceil_div(C, kWarp * n)), second != nullptr ? 2 : 1);
    int warps = std::clamp(ceil_div(groups, 4), 1, kMostWarps);  // about 4 loads a thread, all under way at once
    cudaLaunchConfig_t config{grid, (unsigned)(warps * kWarp), 0, stream, &dependent, early ? 1u : 0u};
    check(cudaLaunchKernelEx(&config, finish_columns_kernel<n, kMostWarps, Grad, Acc>, first, second, partial,
                             groups, (int64_t)C, accumulate));
}

// first (C) = or += the sums of partial's first (groups,C) numbers; second of the next ones. Either may be
// null. early: the kernel that leaves partial calls dependency_launch() where this one may start.
template <typename Grad, typename Acc>
void finish_columns(Grad* first, Grad* second, const Acc* partial, int groups, int C, bool accumulate,
                    cudaStream_t stream, bool early = false) {
    if constexpr (sizeof(Acc) == sizeof(float)) {
        if (groups <= 66 && C >= 4096 && C % 4 == 0) {
            return launch_finish<4, 8>(first, second, partial, groups, C, accumulate, stream, early);
        }
    }
    launch_finish<1, kWarp>(first, second, partial, groups, C, accumulate, stream, early);
}

}  // namespace llmc
