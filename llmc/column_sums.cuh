// The last step of sums over rows: a kernel before it left, for each of several groups of rows, a partial sum
// of every column; here the groups are added up, always in the same order.
#pragma once
#include <algorithm>
#include <cstdint>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"

namespace llmc {

constexpr int kColumnGroups = 128;  // where sizes alone are to fix the order of the additions
constexpr int kColumnBlock = 256, kColumnWarps = kColumnBlock / kWarp;

// A lane a column, the warps of a block taking groups in turn; then the lanes of a warp add up what the warps have of
// one column. blockIdx.y chooses between two results. partial (2,groups,C)
template <typename Grad, typename Acc>
__global__ __launch_bounds__(kWarp* kWarp) void finish_columns_kernel(Grad* first, Grad* second,
                                                                      const Acc* partial, int groups,
                                                                      int64_t C, bool accumulate) {
    __shared__ Acc warp_sums[kWarp][kWarp + 1];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    int64_t tile = (int64_t)blockIdx.x * kWarp, c = tile + lane;
    partial += blockIdx.y * groups * C;
    Grad* out = blockIdx.y == 0 ? first : second;
    if (out == nullptr) { return; }
    if constexpr (kSm90) {
        dependency_launch();
        dependency_wait();  // nothing, unless launched ahead of the end of the kernel before
    }
    Acc sum = 0;
#pragma unroll 4
    for (int group = warp; group < groups && c < C; group += warps) { sum += partial[group * C + c]; }
    warp_sums[warp][lane] = sum;
    __syncthreads();
    for (int column = warp; column < kWarp; column += warps) {
        sum = warp_sum(lane < warps ? warp_sums[lane][column] : Acc(0));
        c = tile + column;
        if (lane == 0 && c < C) { out[c] = (Grad)(accumulate ? (Acc)out[c] + sum : sum); }
    }
}

// first (C) = or += the sums of partial's first (groups,C) numbers; second of the next ones. Either may be
// null. early: the kernel that leaves partial calls dependency_launch() where this one may start.
template <typename Grad, typename Acc>
void finish_columns(Grad* first, Grad* second, const Acc* partial, int groups, int C, bool accumulate,
                    cudaStream_t stream, bool early = false) {
    cudaLaunchAttribute dependent{};
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    dim3 grid(grid_x(ceil_div(C, kWarp)), second != nullptr ? 2 : 1);
    int warps = std::clamp(ceil_div(groups, 4), 1, kWarp);  // about 4 loads a thread, all under way together
    cudaLaunchConfig_t config{grid, (unsigned)(warps * kWarp), 0, stream, &dependent, early ? 1u : 0u};
    check(cudaLaunchKernelEx(&config, finish_columns_kernel<Grad, Acc>, first, second, partial, groups,
                             (int64_t)C, accumulate));
}

}  // namespace llmc
