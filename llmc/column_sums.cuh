// The last step of sums over rows: a kernel before it left, for each of several groups of rows, a partial sum
// of every column; here the groups are added up, always in the same order.
#pragma once
#include <cstdint>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"

namespace llmc {

constexpr int kColumnGroups = 128;  // where sizes alone are to fix the order of the additions
constexpr int kColumnBlock = 256, kColumnWarps = kColumnBlock / kWarp;

// A lane a column, the warps of a block taking groups in turn; then the warps are added up. blockIdx.y
// chooses between two results. partial (2,groups,C)
template <typename Grad, typename Acc>
__global__ void finish_columns_kernel(Grad* first, Grad* second, const Acc* partial, int groups, int64_t C,
                                      bool accumulate) {
    __shared__ Acc warp_sums[kColumnWarps][kWarp];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int64_t c = (int64_t)blockIdx.x * kWarp + lane;
    partial += blockIdx.y * groups * C;
    Grad* out = blockIdx.y == 0 ? first : second;
    if (out == nullptr) { return; }
    if constexpr (kSm90) {
        dependency_wait();
    }  // nothing, unless launched ahead of the end of the kernel before
    Acc sum = 0;
#pragma unroll 4
    for (int group = warp; group < groups && c < C; group += kColumnWarps) { sum += partial[group * C + c]; }
    warp_sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= C) { return; }
    for (int w = 1; w < kColumnWarps; w++) { sum += warp_sums[w][lane]; }
    out[c] = (Grad)(accumulate ? (Acc)out[c] + sum : sum);
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
    cudaLaunchConfig_t config{grid, kColumnBlock, 0, stream, &dependent, early ? 1u : 0u};
    check(cudaLaunchKernelEx(&config, finish_columns_kernel<Grad, Acc>, first, second, partial, groups,
                             (int64_t)C, accumulate));
}

}  // namespace llmc
