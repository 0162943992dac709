// The sum of squares: kBlocks blocks, each a fixed share of x, then one block over their sums. kBlocks is a
// constant, so that n alone fixes the order.
#include "llmc/ops/global_norm.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/edges.cuh"
#include "llmc/cuda/reduce.cuh"

namespace llmc {

namespace {

constexpr int kBlocks = 1024;
constexpr int kBlock = 512;
constexpr int kAtOnce = 4;  // vectors a thread has on their way from memory

template <typename Grad>
__device__ double squares(const Vec<Grad>& x) {
    float sum = 0;
    for (Grad g : x.at) { sum += (float)g * (float)g; }
    return sum;
}

// partial (kBlocks): a thread adds the squares of a vector in float, everything from there on in double
template <typename Grad>
__global__ void __launch_bounds__(kBlock, 3)
    sum_of_squares_kernel(double* partial, const Grad* x, int64_t n) {
    constexpr int kSize = Vec<Grad>::size;
    constexpr int64_t kStride = (int64_t)kBlocks * kBlock * kSize;
    int64_t i = ((int64_t)blockIdx.x * kBlock + threadIdx.x) * kSize;
    double sum = 0;
    for (; i + (kAtOnce - 1) * kStride + kSize <= n; i += kAtOnce * kStride) {
        Vec<Grad> piece[kAtOnce];
        for (int k = 0; k < kAtOnce; k++) { piece[k] = Vec<Grad>::load(x + i + k * kStride); }
        for (int k = 0; k < kAtOnce; k++) { sum += squares(piece[k]); }
    }
    for (; i < n; i += kStride) { sum += squares(load_within<Vec<Grad>>(x, i, n)); }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { partial[blockIdx.x] = sum; }
}

// a block for each chunk
__global__ void __launch_bounds__(kBlock)
    squares_of_chunks_kernel(double* sums, const float* x, bool whole, const NormChunk* chunks) {
    constexpr int kSize = Vec<float>::size;
    const NormChunk chunk = chunks[blockIdx.x];
    const int64_t begin = whole ? chunk.begin : chunk.kept, end = begin + chunk.size;
    double sum = 0;
    for (int64_t i = begin + (int64_t)threadIdx.x * kSize; i < end; i += kBlock * kSize) {
        sum += squares(load_within<Vec<float>>(x, i, end));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { sums[blockIdx.x] = sum; }
}

__global__ void sum_of_partials_kernel(double* sum, const double* partial) {
    double total = block_sum(partial[threadIdx.x]);
    if (threadIdx.x == 0) { *sum = total; }
}

}  // namespace

size_t sum_of_squares_scratch() { return kBlocks * sizeof(double); }

template <typename Grad>
void sum_of_squares(double* sum, void* scratch, const Grad* x, int64_t n, cudaStream_t stream) {
    double* partial = (double*)scratch;
    sum_of_squares_kernel<<<kBlocks, kBlock, 0, stream>>>(partial, x, n);
    check_launch();
    static_assert(kBlocks <= 1024, "a thread for each block's sum");
    sum_of_partials_kernel<<<1, kBlocks, 0, stream>>>(sum, partial);
    check_launch();
}

void squares_of_chunks(double* sums, const float* x, bool whole, const NormChunk* chunks, int64_t count,
                       cudaStream_t stream) {
    if (count == 0) { return; }
    squares_of_chunks_kernel<<<grid_x(count), kBlock, 0, stream>>>(sums, x, whole, chunks);
    check_launch();
}

template void sum_of_squares(double*, void*, const float*, int64_t, cudaStream_t);
template void sum_of_squares(double*, void*, const __nv_bfloat16*, int64_t, cudaStream_t);

}  // namespace llmc
