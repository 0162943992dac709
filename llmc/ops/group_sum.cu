// Sums over groups: a thread adds a vector's worth of elements of all parts, so that each element's order is
// that of the ranks.
#include "llmc/ops/group_sum.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/ops/step_params.h"

namespace llmc {

namespace {

constexpr int kBlock = 256;
constexpr int kSumBlock = 1024;

template <typename Grad>
__global__ void add_parts_kernel(float* sums, bool whole, GroupParts<Grad> parts, int64_t n, bool start) {
    constexpr int kSize = Vec<Grad>::size, kSums = Vec<float>::size;
    const int64_t i = ((int64_t)blockIdx.x * kBlock + threadIdx.x) * kSize;
    if (i >= n) { return; }
    const int64_t at = parts.numbers[i / kNormChunk] * kNormChunk + i % kNormChunk;
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
void add_parts(float* sums, bool whole, const GroupParts<Grad>& parts, int64_t n, bool start,
               cudaStream_t stream) {
    require(n % 8 == 0 && parts.stride % 8 == 0, "add_parts: n and the parts' stride must be multiples of 8");
    if (n == 0) { return; }
    const int64_t vectors = n / Vec<Grad>::size;
    add_parts_kernel<<<grid_x(ceil_div(vectors, kBlock)), kBlock, 0, stream>>>(sums, whole, parts, n, start);
    check_launch();
}

void sum_groups(double* squares, double* loss, const double* chunks, const int32_t* places, int64_t n,
                const double* losses, int groups, int ranks, cudaStream_t stream) {
    sum_groups_kernel<<<1, kSumBlock, 0, stream>>>(squares, loss, chunks, places, n, losses, groups, ranks);
    check_launch();
}

template void add_parts(float*, bool, const GroupParts<float>&, int64_t, bool, cudaStream_t);
template void add_parts(float*, bool, const GroupParts<__nv_bfloat16>&, int64_t, bool, cudaStream_t);

}  // namespace llmc
