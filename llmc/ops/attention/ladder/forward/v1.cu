// v1: the formula, a kernel a line: all scores; their softmax, a warp a row; the weighted sums of values.
// Why:    what one writes first. A thread for every score, for every output element; nothing is shared but by
//         caches.
// Costs:  2 T^2 bytes a head, up to the diagonal, written by the first kernel, read three times and written
//         twice by the second, read by the third: at T=1024 14 MB a head, where q, k, v and out have 0.5 MB.
//         2 x 64 operations of fp32 a pair, twice.
// Result: 27.9 ms, 0.5 % of the roof at 64x12x1024; H100, 2026-11-25
#include "llmc/cuda/reduce.cuh"
#include "llmc/ops/attention/ladder/pairs.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {
namespace v1 {
namespace {

// s (B NH,T,T): of keys up to the query
__global__ void scores_kernel(float* s, const bf16* qkv, AttentionSizes sizes) {
    int key = blockIdx.x * blockDim.x + threadIdx.x, query = blockIdx.y, head = blockIdx.z;
    if (key > query) { return; }
    float score = dot_product(row_of(qkv, sizes, head, 3, 0, query), row_of(qkv, sizes, head, 3, 1, key));
    s[((int64_t)head * sizes.T + query) * sizes.T + key] = sizes.scale * score;
}

// s becomes the probabilities
__global__ void softmax_kernel(float* s, float* lse, int T, int64_t rows) {
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= rows) { return; }
    int n = (int)(row % T) + 1, lane = threadIdx.x % kWarp;
    float* x = s + row * T;
    // The exercise begins here.
    float largest = -INFINITY, sum = 0;
    for (int j = lane; j < n; j += kWarp) { largest = fmaxf(largest, x[j]); }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    for (int j = lane; j < n; j += kWarp) { sum += x[j] = expf(x[j] - largest); }
    sum = warp_sum(sum);
    for (int j = lane; j < n; j += kWarp) { x[j] /= sum; }
    if (lane == 0) { lse[row] = largest + logf(sum); }
}

__global__ void weighted_sums_kernel(bf16* out, const float* p, const bf16* qkv, AttentionSizes sizes) {
    int c = threadIdx.x, query = blockIdx.x * blockDim.y + threadIdx.y, head = blockIdx.y;
    if (query >= sizes.T) { return; }
    const float* row = p + ((int64_t)head * sizes.T + query) * sizes.T;
    const bf16* v = row_of(qkv, sizes, head, 3, 2, 0) + c;
    float sum = 0;
    for (int j = 0; j <= query; j++) { sum += row[j] * (float)v[(int64_t)j * 3 * sizes.NH * kHeadSize]; }
    const_cast<bf16*>(row_of(out, sizes, head, 1, 0, query))[c] = (bf16)sum;
    // The exercise ends here.
}

}  // namespace

size_t attention_forward_scratch(int B, int T, int NH) { return scores_bytes(B, T, NH); }

void attention_forward(bf16* out, float* lse, void* scratch, const bf16* qkv, int B, int T, int NH,
                       cudaStream_t stream) {
    float* scores = (float*)scratch;
    AttentionSizes sizes = sizes_of(T, NH);
    int64_t rows = (int64_t)B * NH * T;
    scores_kernel<<<grid_of_pairs(B, T, NH), kThreads, 0, stream>>>(scores, qkv, sizes);
    check_launch();
    softmax_kernel<<<grid_x(ceil_div(rows, kThreads / kWarp)), kThreads, 0, stream>>>(scores, lse, T, rows);
    check_launch();
    weighted_sums_kernel<<<grid_of_rows(B, T, NH), block_of_rows(), 0, stream>>>(out, scores, qkv, sizes);
    check_launch();
}

}  // namespace v1
}  // namespace llmc
