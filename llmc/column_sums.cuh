// The last step of sums over rows: a kernel before it left, for each of kColumnGroups groups of rows, a
// partial sum of every column; here the groups are added up, always in the same order.
#pragma once
#include <cstdint>

#include "llmc/check.cuh"
#include "llmc/device.cuh"

namespace llmc {

constexpr int kColumnGroups = 128;  // a constant, so that the sizes alone fix the order of the additions
constexpr int kColumnBlock = 256, kColumnWarps = kColumnBlock / kWarp;

// A lane a column, the warps of a block taking groups in turn; then the warps are added up. blockIdx.y
// chooses between two results. partial (2 or 1, kColumnGroups, C)
template <typename Grad>
__global__ void finish_columns_kernel(Grad* first, Grad* second, const float* partial, int64_t C,
                                      bool accumulate) {
    __shared__ float warp_sums[kColumnWarps][kWarp];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int64_t c = (int64_t)blockIdx.x * kWarp + lane;
    partial += blockIdx.y * kColumnGroups * C;
    Grad* out = blockIdx.y == 0 ? first : second;
    float sum = 0;
    for (int group = warp; group < kColumnGroups && c < C; group += kColumnWarps) {
        sum += partial[group * C + c];
    }
    warp_sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || c >= C) { return; }
    for (int w = 1; w < kColumnWarps; w++) { sum += warp_sums[w][lane]; }
    out[c] = (Grad)(accumulate ? (float)out[c] + sum : sum);
}

// first (C) = or += the sums of partial's first (kColumnGroups, C) numbers; second, or null, of the next ones
template <typename Grad>
void finish_columns(Grad* first, Grad* second, const float* partial, int C, bool accumulate,
                    cudaStream_t stream) {
    dim3 grid(grid_x(ceil_div(C, kWarp)), second != nullptr ? 2 : 1);
    finish_columns_kernel<<<grid, kColumnBlock, 0, stream>>>(first, second, partial, (int64_t)C, accumulate);
    check_launch();
}

}  // namespace llmc
