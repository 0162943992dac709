// The kernels of global_norm.h.
#include "llmc/ops/global_norm.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc {

namespace {

// ---- squares: kBlocks blocks, each a fixed share of x, then one block over their sums. kBlocks is a
// constant, so that n alone fixes the order.

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

// ---- groups: a thread adds a vector's worth of elements of all parts, so that each element's order is
// that of the ranks.

constexpr int kPartsBlock = 256;
constexpr int kSumBlock = 1024;

// blocks for a chunk
template <typename Grad>
constexpr int kChunkBlocks = (int)kNormChunk / Vec<Grad>::size / kPartsBlock;

template <typename Grad>
__global__ void add_parts_kernel(float* sums, bool whole, GroupParts<Grad> parts, bool start) {
    constexpr int kSize = Vec<Grad>::size;
    const NormChunk chunk = parts.chunks[blockIdx.x / kChunkBlocks<Grad>];
    const int in = (int)(blockIdx.x % kChunkBlocks<Grad> * kPartsBlock + threadIdx.x) * kSize;
    if (in >= chunk.size) { return; }
    const int64_t at = chunk.begin + in, i = chunk.kept + in;
    sums += whole ? at : i;
    float sum[kSize];
    auto add = [&](int rank, bool copy) {
        const int place = rank < parts.rank ? rank : rank - 1;
        const Grad* part = rank == parts.rank ? parts.own + at : parts.arrived + place * parts.stride + i;
        const auto x = Vec<Grad>::load(part);
#pragma unroll
        for (int j = 0; j < kSize; j++) { sum[j] = copy ? (float)x.at[j] : sum[j] + (float)x.at[j]; }
    };
    if (!start) {
        const auto before = load<kSize>(sums);
        unrolled<kSize>([&](int j) { sum[j] = before.at[j]; });
    }
    add(0, start);
    for (int rank = 1; rank < parts.ranks; rank++) { add(rank, false); }
    Elements<float, kSize> result;
    unrolled<kSize>([&](int j) { result.at[j] = sum[j]; });
    store(sums, result);
}

__global__ void sum_groups_kernel(double* squares, double* loss, const double* chunks, const int32_t* places,
                                  int64_t n, const double* losses, int groups, int ranks) {
    double sum = 0;
    for (int64_t k = threadIdx.x; k < n; k += kSumBlock) { sum += chunks[places[k]]; }
    sum = block_sum(sum);
    if (threadIdx.x != 0) { return; }
    *squares = sum;
    const int each = groups / ranks;
    double losses_sum = 0;
    for (int group = 0; group < groups; group++) {
        losses_sum += losses[group % ranks * each + group / ranks];
    }
    *loss = losses_sum;
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

template <typename Grad>
void add_parts(float* sums, bool whole, const GroupParts<Grad>& parts, bool start, cudaStream_t stream) {
    require(parts.stride % 8 == 0, "add_parts: the parts' stride must be a multiple of 8");
    if (parts.count == 0) { return; }
    const unsigned blocks = grid_x(parts.count * kChunkBlocks<Grad>);
    add_parts_kernel<<<blocks, kPartsBlock, 0, stream>>>(sums, whole, parts, start);
    check_launch();
}

void sum_groups(double* squares, double* loss, const double* chunks, const int32_t* places, int64_t n,
                const double* losses, int groups, int ranks, cudaStream_t stream) {
    sum_groups_kernel<<<1, kSumBlock, 0, stream>>>(squares, loss, chunks, places, n, losses, groups, ranks);
    check_launch();
}

using bf16 = __nv_bfloat16;
template decltype(sum_of_squares<float>) sum_of_squares<float>;
template decltype(sum_of_squares<bf16>) sum_of_squares<bf16>;
template decltype(add_parts<float>) add_parts<float>;
template decltype(add_parts<bf16>) add_parts<bf16>;

}  // namespace llmc
