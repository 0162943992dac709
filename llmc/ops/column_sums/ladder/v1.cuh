// v1: a thread per column
// Why:    neighbouring threads read neighbouring elements, and no sum crosses threads
// Moves:  N C elements, once; but C threads do not fill the GPU, and each waits for one element after the other
// Result: doc/measured/column_sums.json
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc::v1 {

template <typename T>
__global__ void column_sums_kernel(float* sums, const T* x, int64_t N, int C) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) { return; }
    float sum = 0;
    for (int64_t row = 0; row < N; row++) { sum += (float)x[row * C + c]; }
    sums[c] = sum;
}

template <typename T>
void column_sums(float* sums, void*, const T* x, int64_t N, int C, cudaStream_t stream, int block) {
    column_sums_kernel<<<grid_x(ceil_div(C, block)), block, 0, stream>>>(sums, x, N, C);
    check_launch();
}

}  // namespace llmc::v1
