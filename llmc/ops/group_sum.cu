// Sums over groups: a thread adds a vector's worth of elements of all parts, so that each element's order is
// that of the ranks.
#include "llmc/ops/group_sum.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/reduce.cuh"

namespace llmc {

namespace {

constexpr int kBlock = 256;
constexpr int kSumBlock = 1024;

// blocks for a chunk
template <typename Grad>
constexpr int kChunkBlocks = (int)kNormChunk / Vec<Grad>::size / kBlock;

template <typename Grad>
__global__ void add_parts_kernel(float* sums, bool whole, GroupParts<Grad> parts, bool start) {
    constexpr int kSize = Vec<Grad>::size, kSums = Vec<float>::size;
    const NormChunk chunk = parts.chunks[blockIdx.x / kChunkBlocks<Grad>];
    const int in = (int)(blockIdx.x % kChunkBlocks<Grad> * kBlock + threadIdx.x) * kSize;
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
#pragma unroll
        for (int j = 0; j < kSize; j += kSums) {
            const auto x = Vec<float>::load(sums + j);
            for (int k = 0; k < kSums; k++) { sum[j + k] = x.at[k]; }
        }
    }
    add(0, start);
    for (int rank = 1; rank < parts.ranks; rank++) { add(rank, false); }
#pragma unroll
    for (int j = 0; j < kSize; j += kSums) {
        Vec<float> x;
        for (int k = 0; k < kSums; k++) { x.at[k] = sum[j + k]; }
        x.store(sums + j);
    }
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

template <typename Grad>
void add_parts(float* sums, bool whole, const GroupParts<Grad>& parts, bool start, cudaStream_t stream) {
    require(parts.stride % 8 == 0, "add_parts: the parts' stride must be a multiple of 8");
    if (parts.count == 0) { return; }
    const unsigned blocks = grid_x(parts.count * kChunkBlocks<Grad>);
    add_parts_kernel<<<blocks, kBlock, 0, stream>>>(sums, whole, parts, start);
    check_launch();
}

void sum_groups(double* squares, double* loss, const double* chunks, const int32_t* places, int64_t n,
                const double* losses, int groups, int ranks, cudaStream_t stream) {
    sum_groups_kernel<<<1, kSumBlock, 0, stream>>>(squares, loss, chunks, places, n, losses, groups, ranks);
    check_launch();
}

template void add_parts(float*, bool, const GroupParts<float>&, bool, cudaStream_t);
template void add_parts(float*, bool, const GroupParts<__nv_bfloat16>&, bool, cudaStream_t);

}  // namespace llmc
