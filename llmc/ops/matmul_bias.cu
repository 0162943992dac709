// A bias where cuBLASLt has no good epilogue for it, and its gradient: column sums of dout.
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/column_sums.cuh"
#include "llmc/ops/matmul.h"

namespace llmc {
namespace {

template <typename T>
__global__ void bias_forward_kernel(T* out, const T* bias, int64_t n, int OC) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = bias[i % OC]; }
}

}  // namespace

template <typename T>
void bias_forward(T* out, const T* bias, int64_t N, int OC, cudaStream_t stream) {
    unsigned grid = grid_x(ceil_div(N * OC, (int64_t)kColumnBlock));
    bias_forward_kernel<<<grid, kColumnBlock, 0, stream>>>(out, bias, N * OC, OC);
    check_launch();
}

size_t bias_backward_scratch(int OC) { return sum_columns_scratch<float>(OC); }

template <typename T, typename Grad>
void bias_backward(Grad* dbias, void* scratch, const T* dout, int64_t N, int OC, bool accumulate,
                   cudaStream_t stream) {
    sum_columns(dbias, scratch, dout, OC, N, OC, accumulate, stream);
}

using bf16 = __nv_bfloat16;
template void bias_forward(float*, const float*, int64_t, int, cudaStream_t);
template void bias_forward(bf16*, const bf16*, int64_t, int, cudaStream_t);
template void bias_backward(float*, void*, const float*, int64_t, int, bool, cudaStream_t);
template void bias_backward(float*, void*, const bf16*, int64_t, int, bool, cudaStream_t);
template void bias_backward(bf16*, void*, const bf16*, int64_t, int, bool, cudaStream_t);

}  // namespace llmc
