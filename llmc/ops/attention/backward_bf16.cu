// Attention backward in bf16. Probabilities are computed again from the scores and forward's lse. Two
// kernels, so that every element has one writer and no atomics are needed: one walks over the queries of a
// tile of keys (dk, dv), one over the keys of a tile of queries (dq). Formulas: reference.h; D_i = dout_i .
// out_i.
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/attention/bf16.cuh"
#include "llmc/ops/attention/kernels.h"

namespace llmc {
namespace attention_bf16 {

constexpr int kDotLanes = 8, kDotBlock = 256;  // lanes for a row, threads of a block

// What both kernels know of one head.
struct Head {
    Rows q, k, v, dout;
    const float *lse, *dot;  // (T)
    bf16* dqkv;              // at t = 0, of q; k and v follow NH * HS and 2 NH * HS elements later
    int64_t stride;          // of qkv and dqkv
};

__device__ inline Head find_head(bf16* dqkv, const bf16* dout, const bf16* qkv, const float* lse,
                                 const float* dot, int head, int T, int NH, int HS) {
    int64_t stride = (int64_t)3 * NH * HS, at = head_offset({T, NH, HS}, head, 3, 0), next = (int64_t)NH * HS;
    return {{qkv + at, stride, T, HS},
            {qkv + at + next, stride, T, HS},
            {qkv + at + 2 * next, stride, T, HS},
            {dout + head_offset({T, NH, HS}, head, 1, 0), next, T, HS},
            lse + (int64_t)head * T,
            dot + (int64_t)head * T,
            dqkv + at,
            stride};
}

// p = q . k and dp = dout . v of 16 m rows and 8 n columns: queries down and keys across, or the other way.
template <int kD, int m, int n>
__device__ void backward_products(float (&p)[m][n][4], float (&dp)[m][n][4], const bf16* p_down,
                                  const bf16* p_across, const bf16* dp_down, const bf16* dp_across) {
    set_zero(p);
    set_zero(dp);
    multiply_rows<kD>(p, p_down, p_across);
    multiply_rows<kD>(dp, dp_down, dp_across);
}

// Of one query and one key they become the probability, and ds / scale. lse: the query's, times log2(e)
__device__ inline void backward_score(float& p, float& dp, bool seen, float scale, float lse, float dot) {
    float x = exp2_approx(fmaf(p, scale * kLog2e, -lse));
    p = seen ? x : 0.0f;
    dp = p * (dp - dot);
}

// A block owns 64 m keys, a warp 16 m of them; scores are transposed, keys down and queries across.
template <int kD, int m, int kQueries>
__global__ __launch_bounds__(kThreads, kD <= 64 ? 3 : 2) void attention_backward_dkv_kernel(
    bf16* dqkv, const bf16* dout, const bf16* qkv, const float* lse, const float* dot, int T, int NH, int HS,
    float scale) {
    constexpr int kKeys = kWarps * 16 * m, n = kQueries / 8, kTile = kQueries * kStride<kD>;
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ float row_lse[2][kQueries], row_dot[2][kQueries];
    bf16* keys = reinterpret_cast<bf16*>(shared);
    bf16* values = keys + kKeys * kStride<kD>;
    bf16* queries = values + kKeys * kStride<kD>;  // two stages, as for douts
    bf16* douts = queries + 2 * kTile;

    int tiles = ceil_div(T, kKeys), first = (int)(blockIdx.x % tiles) * kKeys;  // the longest first
    Head head = find_head(dqkv, dout, qkv, lse, dot, blockIdx.x / tiles, T, NH, HS);
    int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warp_first = first + warp * 16 * m;
    int mine = warp * 16 * m * kStride<kD>;  // where the warp's rows begin among the block's
    auto load_queries = [&](int stage, int from) {
        load_rows<kD>(queries + stage * kTile, head.q, from, kQueries);
        load_rows<kD>(douts + stage * kTile, head.dout, from, kQueries);
        for (int i = threadIdx.x; i < kQueries; i += kThreads) {
            bool exists = from + i < T;
            row_lse[stage][i] = exists ? head.lse[from + i] * kLog2e : INFINITY;  // else probability 0
            row_dot[stage][i] = exists ? head.dot[from + i] : 0.0f;
        }
    };
    load_rows<kD>(keys, head.k, first, kKeys);
    load_rows<kD>(values, head.v, first, kKeys);
    load_queries(0, first);
    copy_commit();

    float dk[m][kD / 8][4], dv[m][kD / 8][4];
    set_zero(dk);
    set_zero(dv);
    for (int from = first, stage = 0; from < T; from += kQueries, stage ^= 1) {
        if (from + kQueries < T) { load_queries(stage ^ 1, from + kQueries); }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (from + kQueries > warp_first) {  // else all of these queries come before all of the warp's keys
            float p[m][n][4], dp[m][n][4];
            backward_products<kD>(p, dp, keys + mine, queries + stage * kTile, values + mine,
                                  douts + stage * kTile);
#pragma unroll
            for (int i = 0; i < m; i++) {
#pragma unroll
                for (int j = 0; j < n; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int query = j * 8 + lane % 4 * 2 + e % 2;
                        int key = warp_first + i * 16 + e / 2 * 8 + lane / 4;
                        backward_score(p[i][j][e], dp[i][j][e], key <= from + query, scale,
                                       row_lse[stage][query], row_dot[stage][query]);
                    }
                }
            }
            multiply_weighted<kD>(dv, p, douts + stage * kTile);
            multiply_weighted<kD>(dk, dp, queries + stage * kTile);
        }
        __syncthreads();
    }
    float one[m][2], scales[m][2];
#pragma unroll
    for (int i = 0; i < m; i++) {
        one[i][0] = one[i][1] = 1;
        scales[i][0] = scales[i][1] = scale;
    }
    store_rows<kD>(head.dqkv + (int64_t)NH * HS, head.stride, T, HS, warp_first, dk, scales);
    store_rows<kD>(head.dqkv + (int64_t)2 * NH * HS, head.stride, T, HS, warp_first, dv, one);
}

// A block owns 64 m queries, a warp 16 m of them, and walks over the keys up to the diagonal.
template <int kD, int m>
__global__ __launch_bounds__(kThreads, kD <= 64 ? 3 : 2) void attention_backward_dq_kernel(
    bf16* dqkv, const bf16* dout, const bf16* qkv, const float* lse, const float* dot, int T, int NH, int HS,
    float scale) {
    constexpr int kQueries = kWarps * 16 * m, n = kRows / 8, kTile = kRows * kStride<kD>;
    extern __shared__ __align__(16) unsigned char shared[];
    bf16* queries = reinterpret_cast<bf16*>(shared);
    bf16* douts = queries + kQueries * kStride<kD>;
    bf16* keys = douts + kQueries * kStride<kD>;  // two stages, as for values
    bf16* values = keys + 2 * kTile;

    int tiles = ceil_div(T, kQueries), first = (tiles - 1 - (int)(blockIdx.x % tiles)) * kQueries;
    Head head = find_head(dqkv, dout, qkv, lse, dot, blockIdx.x / tiles, T, NH, HS);
    int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warp_first = first + warp * 16 * m;
    int mine = warp * 16 * m * kStride<kD>;  // where the warp's rows begin among the block's
    auto load_keys = [&](int stage, int from) {
        load_rows<kD>(keys + stage * kTile, head.k, from, kRows);
        load_rows<kD>(values + stage * kTile, head.v, from, kRows);
    };
    load_rows<kD>(queries, head.q, first, kQueries);
    load_rows<kD>(douts, head.dout, first, kQueries);
    load_keys(0, 0);
    copy_commit();

    float row_lse[m][2], row_dot[m][2], scales[m][2], dq[m][kD / 8][4];
    set_zero(dq);
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = warp_first + i * 16 + half * 8 + lane / 4;
            row_lse[i][half] = query < T ? head.lse[query] * kLog2e : INFINITY;
            row_dot[i][half] = query < T ? head.dot[query] : 0.0f;
            scales[i][half] = scale;
        }
    }
    int end = min(T, first + kQueries);
    for (int from = 0, stage = 0; from < end; from += kRows, stage ^= 1) {
        if (from + kRows < end) { load_keys(stage ^ 1, from + kRows); }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        if (from <= warp_first + 16 * m - 1) {
            float p[m][n][4], dp[m][n][4];
            backward_products<kD>(p, dp, queries + mine, keys + stage * kTile, douts + mine,
                                  values + stage * kTile);
#pragma unroll
            for (int i = 0; i < m; i++) {
#pragma unroll
                for (int j = 0; j < n; j++) {
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int query = warp_first + i * 16 + e / 2 * 8 + lane / 4;
                        int key = from + j * 8 + lane % 4 * 2 + e % 2;
                        backward_score(p[i][j][e], dp[i][j][e], key <= query, scale, row_lse[i][e / 2],
                                       row_dot[i][e / 2]);
                    }
                }
            }
            multiply_weighted<kD>(dq, dp, keys + stage * kTile);
        }
        __syncthreads();
    }
    store_rows<kD>(head.dqkv, head.stride, T, HS, warp_first, dq, scales);
}

// launches a kernel of the two: blocks of `rows` rows of a head, `tile_rows` rows of kD elements in shared
// memory
template <int kD, typename Kernel>
void launch_tiles(Kernel* kernel, int rows, int tile_rows, bf16* dqkv, const bf16* dout, const bf16* qkv,
                  const float* lse, const float* dot, int B, int T, int NH, int HS, cudaStream_t stream) {
    int bytes = tile_rows * kStride<kD> * (int)sizeof(bf16);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    unsigned grid = grid_x((int64_t)ceil_div(T, rows) * B * NH);
    kernel<<<grid, kThreads, bytes, stream>>>(dqkv, dout, qkv, lse, dot, T, NH, HS, 1 / std::sqrt((float)HS));
    check_launch();
}

template <int kD, int m, int kQueries>
void launch_backward(bf16* dqkv, const bf16* dout, const bf16* qkv, const float* lse, const float* dot, int B,
                     int T, int NH, int HS, cudaStream_t stream) {
    constexpr int kBlock = kWarps * 16 * m;
    launch_tiles<kD>(attention_backward_dkv_kernel<kD, m, kQueries>, kBlock, 2 * kBlock + 4 * kQueries, dqkv,
                     dout, qkv, lse, dot, B, T, NH, HS, stream);
    launch_tiles<kD>(attention_backward_dq_kernel<kD, 1>, kWarps * 16, 2 * kWarps * 16 + 4 * kRows, dqkv,
                     dout, qkv, lse, dot, B, T, NH, HS, stream);
}

}  // namespace attention_bf16

void attention_backward_mma_sync(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv,
                                 const bf16* out, const float* lse, int B, int T, int NH, int HS,
                                 cudaStream_t stream) {
    using namespace attention_bf16;
    float* dot = (float*)scratch;
    int64_t rows = (int64_t)B * T * NH;
    unsigned grid = grid_x(ceil_div(rows, kDotBlock / kDotLanes));
    auto* dot_kernel = HS % 8 == 0 && aligned(dout, out) ? attention_dot_kernel<kDotLanes, 8, bf16>
                                                         : attention_dot_kernel<kDotLanes, 1, bf16>;
    dot_kernel<<<grid, kDotBlock, 0, stream>>>(dot, dout, out, rows, T, NH, HS);
    check_launch();
    auto run = [&](auto launch) { launch(dqkv, dout, qkv, lse, dot, B, T, NH, HS, stream); };
    if (HS <= 32) { return run(launch_backward<32, 1, 64>); }
    if (HS <= 64) { return run(launch_backward<64, 1, 32>); }
    if (HS <= 80) { return run(launch_backward<80, 1, 32>); }
    run(launch_backward<128, 1, 32>);
}

}  // namespace llmc
