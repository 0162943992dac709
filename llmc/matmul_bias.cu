// A bias where cuBLASLt has no good epilogue for it, and its gradient: column sums of dout. A block sums a
// tile of columns over one group of rows; the groups are added up by column_sums.cuh.
#include "llmc/check.cuh"
#include "llmc/column_sums.cuh"
#include "llmc/matmul.h"
#include "llmc/vectors.cuh"

namespace llmc {
namespace {

template <typename T>
__global__ void bias_forward_kernel(T* out, const T* bias, int64_t n, int OC) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = bias[i % OC]; }
}

// tiles of 32 kV columns; partial (kColumnGroups, OC)
template <typename T, int kV>
__global__ void bias_partial_kernel(float* partial, const T* dout, int64_t N, int OC) {
    __shared__ float warp_sums[kColumnWarps][kWarp * kV];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int tiles = ceil_div(OC, kWarp * kV), group = blockIdx.x / tiles;
    int tile = (int)(blockIdx.x % tiles) * kWarp * kV, c = tile + lane * kV;
    int64_t rows = ceil_div(N, (int64_t)kColumnGroups), end = min(N, (group + 1) * rows);
    float sum[kV] = {};
#pragma unroll 4
    for (int64_t row = group * rows + warp; row < end && c < OC; row += kColumnWarps) {
        auto d = load<kV>(dout + row * OC + c);
#pragma unroll
        for (int i = 0; i < kV; i++) { sum[i] += (float)d.at[i]; }
    }
#pragma unroll
    for (int i = 0; i < kV; i++) { warp_sums[warp][i * kWarp + lane] = sum[i]; }
    __syncthreads();
    for (int k = threadIdx.x; k < min(kWarp * kV, OC - tile); k += kColumnBlock) {
        float total = 0;
        for (int w = 0; w < kColumnWarps; w++) { total += warp_sums[w][k % kV * kWarp + k / kV]; }
        partial[(int64_t)group * OC + tile + k] = total;
    }
}

}  // namespace

template <typename T>
void bias_forward(T* out, const T* bias, int64_t N, int OC, cudaStream_t stream) {
    unsigned grid = grid_x(ceil_div(N * OC, (int64_t)kColumnBlock));
    bias_forward_kernel<<<grid, kColumnBlock, 0, stream>>>(out, bias, N * OC, OC);
    check_launch();
}

size_t bias_backward_scratch(int OC) { return sizeof(float) * kColumnGroups * (size_t)OC; }

template <typename T, typename Grad>
void bias_backward(Grad* dbias, void* scratch, const T* dout, int64_t N, int OC, bool accumulate,
                   cudaStream_t stream) {
    constexpr int kV = Vec<T>::size;
    bool vectors = OC % kV == 0 && aligned(dout);
    int tiles = ceil_div(OC, kWarp * (vectors ? kV : 1));
    auto* kernel = vectors ? bias_partial_kernel<T, kV> : bias_partial_kernel<T, 1>;
    kernel<<<grid_x((int64_t)tiles * kColumnGroups), kColumnBlock, 0, stream>>>((float*)scratch, dout, N, OC);
    check_launch();
    finish_columns<Grad>(dbias, nullptr, (const float*)scratch, kColumnGroups, OC, accumulate, stream);
}

using bf16 = __nv_bfloat16;
template void bias_forward(float*, const float*, int64_t, int, cudaStream_t);
template void bias_forward(bf16*, const bf16*, int64_t, int, cudaStream_t);
template void bias_backward(float*, void*, const float*, int64_t, int, bool, cudaStream_t);
template void bias_backward(float*, void*, const bf16*, int64_t, int, bool, cudaStream_t);
template void bias_backward(bf16*, void*, const bf16*, int64_t, int, bool, cudaStream_t);

}  // namespace llmc
