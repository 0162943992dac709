// Attention forward in bf16: a block takes a tile of one head's queries and walks over the keys up to the
// diagonal, with the largest score and the sum of exponentials of each row kept up to date (online softmax:
// Milakov and Gimelshein 2018, arXiv:1805.02867). Scores stay in registers; the next keys and values come in
// meanwhile.
#include "llmc/cuda/check.cuh"
#include "llmc/ops/attention/bf16.cuh"
#include "llmc/ops/attention/kernels.h"

namespace llmc {
namespace attention_bf16 {

// Two threads' worth of state per row: the largest score so far (times scale log2 e) and the sum of
// exponentials.
template <int m>
struct RowState {
    float largest[m][2], total[m][2];
};

// s (scores of 16 m queries and 64 keys) becomes exp(s - largest); out and the totals follow the largest
template <int kD, int m>
__device__ void softmax_step(float (&s)[m][kRows / 8][4], float (&out)[m][kD / 8][4], RowState<m>& state,
                             float scale_log2) {
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float before = state.largest[i][half], largest = -INFINITY;
#pragma unroll
            for (int j = 0; j < kRows / 8; j++) {
                largest = fmaxf(largest, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));  // the row's four lanes
            largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
            largest = fmaxf(before, largest * scale_log2);
            float keep = exp2_approx(before - largest), sum = 0;
#pragma unroll
            for (int j = 0; j < kRows / 8; j++) {
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    s[i][j][e] = exp2_approx(fmaf(s[i][j][e], scale_log2, -largest));
                    sum += s[i][j][e];
                }
            }
            state.largest[i][half] = largest;
            state.total[i][half] = state.total[i][half] * keep + sum;
#pragma unroll
            for (int j = 0; j < kD / 8; j++) {
                out[i][j][2 * half] *= keep;
                out[i][j][2 * half + 1] *= keep;
            }
        }
    }
}

// scores of keys after their query, and of keys that do not exist, become -infinity
template <int m>
__device__ void mask_scores(float (&s)[m][kRows / 8][4], int first_query, int first_key) {
    int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int j = 0; j < kRows / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int query = first_query + i * 16 + e / 2 * 8 + lane / 4;
                int key = first_key + j * 8 + lane % 4 * 2 + e % 2;
                if (key > query) { s[i][j][e] = -INFINITY; }
            }
        }
    }
}

// kD: HS rounded up to what the kernel was made for; m: 16-query tiles a warp holds
template <int kD, int m>
__global__ __launch_bounds__(kThreads) void attention_forward_kernel(bf16* out, float* lse, const bf16* qkv,
                                                                     int T, int NH, int HS, float scale) {
    constexpr int kQueries = kWarps * 16 * m, kTile = kRows * kStride<kD>;
    extern __shared__ __align__(16) unsigned char shared[];
    bf16* queries = reinterpret_cast<bf16*>(shared);  // kQueries rows, then two stages of keys and of values
    bf16* keys = queries + kQueries * kStride<kD>;
    bf16* values = keys + 2 * kTile;

    int tiles = ceil_div(T, kQueries), tile = tiles - 1 - (int)(blockIdx.x % tiles);  // the longest first
    int head = blockIdx.x / tiles;
    int64_t stride = (int64_t)3 * NH * HS;
    const bf16* at = qkv + head_offset({T, NH, HS}, head, 3, 0);
    Rows q{at, stride, T, HS}, k{at + (int64_t)NH * HS, stride, T, HS},
        v{at + (int64_t)2 * NH * HS, stride, T, HS};

    int first = tile * kQueries, warp = threadIdx.x / kWarp, warp_first = first + warp * 16 * m;
    int steps = ceil_div(min(T, first + kQueries), kRows);  // tiles of keys up to the diagonal
    load_rows<kD>(queries, q, first, kQueries);
    load_rows<kD>(keys, k, 0, kRows);
    load_rows<kD>(values, v, 0, kRows);
    copy_commit();

    float o[m][kD / 8][4];
    set_zero(o);
    RowState<m> state;
#pragma unroll
    for (int i = 0; i < m; i++) {
        state.largest[i][0] = state.largest[i][1] = -INFINITY;
        state.total[i][0] = state.total[i][1] = 0;
    }
    for (int step = 0; step < steps; step++) {
        int stage = step % 2, first_key = step * kRows;
        if (step + 1 < steps) {
            load_rows<kD>(keys + (stage ^ 1) * kTile, k, first_key + kRows, kRows);
            load_rows<kD>(values + (stage ^ 1) * kTile, v, first_key + kRows, kRows);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (first_key <=
            warp_first + 16 * m - 1) {  // else all of these keys come after all of the warp's queries
            float s[m][kRows / 8][4];
            set_zero(s);
            multiply_rows<kD>(s, queries + warp * 16 * m * kStride<kD>, keys + stage * kTile);
            if (first_key + kRows > warp_first) { mask_scores(s, warp_first, first_key); }
            softmax_step<kD>(s, o, state, scale * kLog2e);
            multiply_weighted<kD>(o, s, values + stage * kTile);
        }
        __syncthreads();
    }

    float factor[m][2];
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = state.total[i][half];
            total += __shfl_xor_sync(kAllLanes, total, 1);
            total += __shfl_xor_sync(kAllLanes, total, 2);
            factor[i][half] = 1 / total;
            int row = warp_first + i * 16 + half * 8 + threadIdx.x % kWarp / 4;
            if (threadIdx.x % 4 == 0 && row < T) {
                lse[(int64_t)head * T + row] = state.largest[i][half] / kLog2e + logf(total);
            }
        }
    }
    store_rows<kD>(out + head_offset({T, NH, HS}, head, 1, 0), (int64_t)NH * HS, T, HS, warp_first, o,
                   factor);
}

template <int kD, int m>
void launch_forward(bf16* out, float* lse, const bf16* qkv, int B, int T, int NH, int HS,
                    cudaStream_t stream) {
    constexpr int kQueries = kWarps * 16 * m;
    constexpr int kBytes = (kQueries + 4 * kRows) * kStride<kD> * (int)sizeof(bf16);
    auto* kernel = attention_forward_kernel<kD, m>;
    static const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    check(allowed);
    unsigned grid = grid_x((int64_t)ceil_div(T, kQueries) * B * NH);
    kernel<<<grid, kThreads, kBytes, stream>>>(out, lse, qkv, T, NH, HS, 1 / std::sqrt((float)HS));
    check_launch();
}

}  // namespace attention_bf16

void attention_forward_mma_sync(bf16* out, float* lse, const bf16* qkv, int B, int T, int NH, int HS,
                                cudaStream_t stream) {
    using namespace attention_bf16;
    if (HS <= 32) { return launch_forward<32, 2>(out, lse, qkv, B, T, NH, HS, stream); }
    if (HS <= 64) { return launch_forward<64, 2>(out, lse, qkv, B, T, NH, HS, stream); }
    if (HS <= 80) { return launch_forward<80, 1>(out, lse, qkv, B, T, NH, HS, stream); }
    launch_forward<128, 1>(out, lse, qkv, B, T, NH, HS, stream);
}

}  // namespace llmc
