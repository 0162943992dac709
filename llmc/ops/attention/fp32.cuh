// Attention on the CUDA cores, computed in fp32, forward and backward: the same walk over tiles as in bf16,
// with the tiles of scores passed through shared memory. Made to be right and plain; bf16 is the fast path. A
// block is 16 x 16 threads; thread (ty, tx) holds of a tile of kR x kR scores the elements (ty + 16 i, tx +
// 16 j).
//   T: of the tensors; float trains, bf16 is a rung of the ladder
#pragma once
#include "llmc/cuda/device.cuh"
#include "llmc/ops/attention/attention.cuh"

namespace llmc {
namespace attention_fp32 {

using Sizes = AttentionSizes;

constexpr int kSide = 16, kThreads = kSide * kSide;

// kR rows of kD (at least HS) elements in shared memory, one more to spread the banks; s: scores likewise
template <int kR, int kD>
struct Tile {
    float at[kR][kD + 1];
};

// zero where the row or the column does not exist
template <int kR, int kD, typename T>
__device__ void load_rows(Tile<kR, kD>& tile, const HeadRows<T>& rows, int first) {
    for (int i = threadIdx.x; i < kR * kD; i += kThreads) {
        int r = i / kD, c = i % kD;
        bool valid = first + r < rows.seq_len && c < rows.HS;
        tile.at[r][c] = valid ? (float)rows.base[(first + r) * rows.stride + c] : 0.0f;
    }
}

// s_ij = the dot product of row i of a and row j of b
template <int kR, int kD, int e = kR / kSide>
__device__ void multiply_rows(float (&s)[e][e], const Tile<kR, kD>& a, const Tile<kR, kD>& b) {
    int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
    unrolled<e * e>([&](int i) { s[i / e][i % e] = 0; });
#pragma unroll 8
    for (int d = 0; d < kD; d++) {
        unrolled<e, e>([&](int i, int j) { s[i][j] += a.at[ty + kSide * i][d] * b.at[tx + kSide * j][d]; });
    }
}

// out (kR x kD, thread: rows ty + 16 i, columns tx + 16 j) += p b, or p^T b
template <bool kTransposed, int kR, int kD, int e = kR / kSide>
__device__ void multiply_weighted(float (&out)[e][kD / kSide], const Tile<kR, kR>& p, const Tile<kR, kD>& b) {
    int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
#pragma unroll 4
    for (int k = 0; k < kR; k++) {
        unrolled<e>([&](int i) {
            float weight = kTransposed ? p.at[k][ty + kSide * i] : p.at[ty + kSide * i][k];
            unrolled<kD / kSide>([&](int j) { out[i][j] += weight * b.at[k][tx + kSide * j]; });
        });
    }
}

template <int kR, int e = kR / kSide>
__device__ void store_scores(Tile<kR, kR>& p, const float (&s)[e][e]) {
    int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
    unrolled<e * e>([&](int i) { p.at[ty + kSide * (i / e)][tx + kSide * (i % e)] = s[i / e][i % e]; });
}

// a head's rows from first on (see rows_of) = out * factor
template <int e, int columns, typename T>
__device__ void store_rows(T* tensor, const Sizes& s, int head, int count, int which, int first,
                           const float (&out)[e][columns], float factor) {
    int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide;
    T* base = tensor + head_offset(s, head, count, which);
    int64_t stride = (int64_t)count * s.NH * s.HS;
    unrolled<e, columns>([&](int i, int j) {
        int row = first + ty + kSide * i, d = tx + kSide * j;
        if (row < s.T && d < s.HS) { base[row * stride + d] = (T)(out[i][j] * factor); }
    });
}

// over the 16 threads that share a row
template <typename Combine>
__device__ float row_reduce(float x, Combine combine) {
    for (int distance = kSide / 2; distance > 0; distance /= 2) {
        x = combine(x, __shfl_xor_sync(kAllLanes, x, distance));
    }
    return x;
}

// of one head of a (B,T,count,NH,HS) tensor: q, k or v (count 3, which 0, 1, 2), or out, dout (count 1)
template <typename T>
__device__ HeadRows<T> rows_of(const T* tensor, const Sizes& s, int head, int count, int which) {
    return {tensor + head_offset(s, head, count, which), (int64_t)count * s.NH * s.HS, s.T, s.HS};
}

template <int kR, int kD>
struct ForwardTiles {
    Tile<kR, kD> q, k, v;
    Tile<kR, kR> p;
};

template <int kR, int kD, typename T>
__global__ __launch_bounds__(kThreads, 2) void attention_forward_kernel(T* out, float* lse, const T* qkv,
                                                                        Sizes sizes) {
    constexpr int e = kR / kSide;
    extern __shared__ __align__(16) unsigned char shared[];
    auto& tile = *reinterpret_cast<ForwardTiles<kR, kD>*>(shared);
    int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide, seq_len = sizes.T;
    int tiles = ceil_div(seq_len, kR), first = (tiles - 1 - (int)(blockIdx.x % tiles)) * kR,
        head = blockIdx.x / tiles;
    float o[e][kD / kSide] = {}, largest[e], total[e];
    unrolled<e>([&](int i) {
        largest[i] = -INFINITY;
        total[i] = 0;
    });
    load_rows(tile.q, rows_of(qkv, sizes, head, 3, 0), first);
    for (int from = 0; from < min(seq_len, first + kR); from += kR) {
        load_rows(tile.k, rows_of(qkv, sizes, head, 3, 1), from);
        load_rows(tile.v, rows_of(qkv, sizes, head, 3, 2), from);
        __syncthreads();
        float s[e][e];
        multiply_rows(s, tile.q, tile.k);
#pragma unroll
        for (int i = 0; i < e; i++) {
            float top = largest[i], sum = 0;
            unrolled<e>([&](int j) {
                bool seen = from + tx + kSide * j <= first + ty + kSide * i;
                s[i][j] = seen ? s[i][j] * sizes.scale : -INFINITY;
                top = fmaxf(top, s[i][j]);
            });
            top = row_reduce(top, [](float a, float b) { return fmaxf(a, b); });
            float keep = expf(largest[i] - top);
            unrolled<e>([&](int j) { sum += s[i][j] = expf(s[i][j] - top); });
            total[i] = total[i] * keep + row_reduce(sum, [](float a, float b) { return a + b; });
            largest[i] = top;
            unrolled<kD / kSide>([&](int j) { o[i][j] *= keep; });
        }
        store_scores(tile.p, s);
        __syncthreads();
        multiply_weighted<false>(o, tile.p, tile.v);
        __syncthreads();
    }
    unrolled<e>([&](int i) {
        int row = first + ty + kSide * i;
        unrolled<kD / kSide>([&](int j) { o[i][j] /= total[i]; });
        if (tx == 0 && row < seq_len) { lse[(int64_t)head * seq_len + row] = largest[i] + logf(total[i]); }
    });
    store_rows(out, sizes, head, 1, 0, first, o, 1.0f);
}

template <int kR, int kD>
struct BackwardTiles {
    Tile<kR, kD> q, k, v, dout;
    Tile<kR, kR> p;
};

// This thread's elements of a tile: probabilities p, and dp = ds / scale. query, key: of its first element.
template <int kR, int kD, int e = kR / kSide>
__device__ void backward_scores(float (&p)[e][e], float (&dp)[e][e], const BackwardTiles<kR, kD>& tile,
                                const float* lse, const float* dot, int query, int key, const Sizes& sizes) {
    multiply_rows(p, tile.q, tile.k);
    multiply_rows(dp, tile.dout, tile.v);
    unrolled<e>([&](int i) {
        int row = query + kSide * i;
        bool exists = row < sizes.T;
        float row_lse = exists ? lse[row] : INFINITY, row_dot = exists ? dot[row] : 0.0f;
        unrolled<e>([&](int j) {
            bool seen = key + kSide * j <= row;
            p[i][j] = seen ? expf(p[i][j] * sizes.scale - row_lse) : 0.0f;
            dp[i][j] = p[i][j] * (dp[i][j] - row_dot);
        });
    });
}

template <int kR, int kD, typename T>
__global__ __launch_bounds__(kThreads, 2) void attention_backward_dkv_kernel(T* dqkv, const T* dout,
                                                                             const T* qkv, const float* lse,
                                                                             const float* dot, Sizes sizes) {
    constexpr int e = kR / kSide;
    extern __shared__ __align__(16) unsigned char shared[];
    auto& tile = *reinterpret_cast<BackwardTiles<kR, kD>*>(shared);
    int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide, seq_len = sizes.T, tiles = ceil_div(seq_len, kR),
        first = (int)(blockIdx.x % tiles) * kR, head = blockIdx.x / tiles;
    int64_t at = (int64_t)head * seq_len;
    float dk[e][kD / kSide] = {}, dv[e][kD / kSide] = {};
    load_rows(tile.k, rows_of(qkv, sizes, head, 3, 1), first);
    load_rows(tile.v, rows_of(qkv, sizes, head, 3, 2), first);
    for (int from = first; from < seq_len; from += kR) {
        load_rows(tile.q, rows_of(qkv, sizes, head, 3, 0), from);
        load_rows(tile.dout, rows_of(dout, sizes, head, 1, 0), from);
        __syncthreads();
        float p[e][e], dp[e][e];
        backward_scores(p, dp, tile, lse + at, dot + at, from + ty, first + tx, sizes);
        store_scores(tile.p, p);
        __syncthreads();
        multiply_weighted<true>(dv, tile.p, tile.dout);
        __syncthreads();
        store_scores(tile.p, dp);
        __syncthreads();
        multiply_weighted<true>(dk, tile.p, tile.q);
        __syncthreads();
    }
    store_rows(dqkv, sizes, head, 3, 1, first, dk, sizes.scale);
    store_rows(dqkv, sizes, head, 3, 2, first, dv, 1.0f);
}

template <int kR, int kD, typename T>
__global__ __launch_bounds__(kThreads, 2) void attention_backward_dq_kernel(T* dqkv, const T* dout,
                                                                            const T* qkv, const float* lse,
                                                                            const float* dot, Sizes sizes) {
    constexpr int e = kR / kSide;
    extern __shared__ __align__(16) unsigned char shared[];
    auto& tile = *reinterpret_cast<BackwardTiles<kR, kD>*>(shared);
    int ty = threadIdx.x / kSide, tx = threadIdx.x % kSide, seq_len = sizes.T, tiles = ceil_div(seq_len, kR),
        first = (tiles - 1 - (int)(blockIdx.x % tiles)) * kR, head = blockIdx.x / tiles;
    int64_t at = (int64_t)head * seq_len;
    float dq[e][kD / kSide] = {};
    load_rows(tile.q, rows_of(qkv, sizes, head, 3, 0), first);
    load_rows(tile.dout, rows_of(dout, sizes, head, 1, 0), first);
    for (int from = 0; from < min(seq_len, first + kR); from += kR) {
        load_rows(tile.k, rows_of(qkv, sizes, head, 3, 1), from);
        load_rows(tile.v, rows_of(qkv, sizes, head, 3, 2), from);
        __syncthreads();
        float p[e][e], dp[e][e];
        backward_scores(p, dp, tile, lse + at, dot + at, first + ty, from + tx, sizes);
        store_scores(tile.p, dp);
        __syncthreads();
        multiply_weighted<false>(dq, tile.p, tile.k);
        __syncthreads();
    }
    store_rows(dqkv, sizes, head, 3, 0, first, dq, sizes.scale);
}

template <int kR, int kD, typename T>
void forward(T* out, float* lse, const T* qkv, int B, const Sizes& sizes, cudaStream_t stream) {
    launch_heads(attention_forward_kernel<kR, kD, T>, kR, kThreads, sizeof(ForwardTiles<kR, kD>), B, sizes,
                 stream, out, lse, qkv, sizes);
}

template <int kR, int kD, typename T>
void backward(T* dqkv, const T* dout, const T* qkv, const float* lse, const float* dot, int B,
              const Sizes& sizes, cudaStream_t stream) {
    for (auto* kernel : {attention_backward_dkv_kernel<kR, kD, T>, attention_backward_dq_kernel<kR, kD, T>}) {
        launch_heads(kernel, kR, kThreads, sizeof(BackwardTiles<kR, kD>), B, sizes, stream, dqkv, dout, qkv,
                     lse, dot, sizes);
    }
}

}  // namespace attention_fp32
}  // namespace llmc
