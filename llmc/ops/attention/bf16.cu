// Attention in bf16: which kernels take a call, and those for any GPU since Ampere, with tiles of rows in shared memory, products
// by mma.sync, scores in registers.
//   forward   a block takes a tile of one head's queries and walks over the keys up to the diagonal, with the largest score and
//             the sum of exponentials of each row kept up to date (online softmax: Milakov and Gimelshein 2018,
//             arXiv:1805.02867). The next keys and values come in meanwhile.
//   backward  Probabilities are computed again from the scores and forward's lse. Two kernels, so that every element has one
//             writer and no atomics are needed: one walks over the queries of a tile of keys (dk, dv), one over the keys of a
//             tile of queries (dq). Formulas: reference.h; D_i = dout_i . out_i.
#include "llmc/cuda/mma.cuh"
#include "llmc/ops/attention/attention.cuh"
#include "llmc/ops/attention/attention.h"

namespace llmc {
namespace {

// ---- tiles of rows, products of tiles

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
constexpr int kRows = 64;  // of a tile: keys in forward and dq, queries in dk and dv

using Rows = HeadRows<bf16>;

// A tile in shared memory: rows of kD elements; 8 more keep ldmatrix free of bank conflicts.
template <int kD>
constexpr int kStride = kD + 8;
template <int kD>
constexpr int kRowBytes = kStride<kD>*(int)sizeof(bf16);

// tile[r][c] = rows[first + r][c] for r < count, zero where the row or the column does not exist. 16 bytes at
// a time in the background where HS allows it; the caller commits and waits either way.
template <int kD>
__device__ void load_rows(bf16* tile, const Rows& rows, int first, int count) {
    constexpr int kChunks = kD / 8;
    bool aligned = rows.HS % 8 == 0;
    for (int i = threadIdx.x; i < count * kChunks; i += kThreads) {
        int r = i / kChunks, c = i % kChunks * 8, t = first + r;
        bf16* to = tile + r * kStride<kD> + c;
        bool valid = t < rows.seq_len && c < rows.HS;
        const bf16* from = rows.base + (valid ? (int64_t)t * rows.stride + c : 0);
        if (aligned) {
            copy_async(to, from, valid);
        } else {
            for (int k = 0; k < 8; k++) { to[k] = valid && c + k < rows.HS ? from[k] : bf16(0.0f); }
        }
    }
}

// A warp's results are m tiles of 16 rows by n tiles of 8 columns, c[m][n][4].

// c (16 m x 8 n) += a (16 m x kD) b^T, where a and b are tiles of rows: c_ij is the dot product of rows i and
// j
template <int kD, int m, int n>
__device__ void multiply_rows(float (&c)[m][n][4], const bf16* a, const bf16* b) {
#pragma unroll
    for (int k = 0; k < kD; k += 16) {
        FragmentA fa[m];
        unrolled<m>([&](int i) { fa[i] = load_a(a + i * 16 * kStride<kD> + k, kStride<kD>); });
#pragma unroll
        for (int j = 0; j < n; j += 2) {
            FragmentB fb = load_b_columns(b + j * 8 * kStride<kD> + k, kStride<kD>);
            unrolled<m>([&](int i) {
                multiply_add(c[i][j], fa[i], fb, 0);
                multiply_add(c[i][j + 1], fa[i], fb, 1);
            });
        }
    }
}

// c (16 m x kD) += p (16 m x 8 n, rounded to bf16) b, where b is a tile of 8 n rows
template <int kD, int m, int n>
__device__ void multiply_weighted(float (&c)[m][kD / 8][4], const float (&p)[m][n][4], const bf16* b) {
#pragma unroll
    for (int k = 0; k < n; k += 2) {
        FragmentA fa[m];
        unrolled<m>([&](int i) { fa[i] = as_a(p[i][k], p[i][k + 1]); });
#pragma unroll
        for (int j = 0; j < kD / 8; j += 2) {
            FragmentB fb = load_b_rows(b + k * 8 * kStride<kD> + j * 8, kStride<kD>);
            unrolled<m>([&](int i) {
                multiply_add(c[i][j], fa[i], fb, 0);
                multiply_add(c[i][j + 1], fa[i], fb, 1);
            });
        }
    }
}

template <int m, int n>
__device__ void set_zero(float (&c)[m][n][4]) {
    unrolled<m, n>([&](int i, int j) { c[i][j][0] = c[i][j][1] = c[i][j][2] = c[i][j][3] = 0; });
}

// Rows [first, first + 16 m) of a head = c * factor; factor[i][0] is of the lane's row in the upper half of
// tile i, factor[i][1] of that in the lower half.
template <int kD, int m>
__device__ void store_rows(bf16* base, int64_t stride, int T, int HS, int first,
                           const float (&c)[m][kD / 8][4], const float (&factor)[m][2]) {
    int lane = threadIdx.x % kWarp;
    bool paired = HS % 2 == 0;  // then a pair of elements lies on 4 bytes
#pragma unroll
    for (int i = 0; i < m; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = first + i * 16 + half * 8 + lane / 4;
            bf16* to = base + row * stride + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < kD / 8; j++) {
                int d = j * 8 + lane % 4 * 2;
                float low = c[i][j][2 * half] * factor[i][half],
                      high = c[i][j][2 * half + 1] * factor[i][half];
                if (row >= T || d >= HS) { continue; }
                if (paired) {
                    *reinterpret_cast<uint32_t*>(to + j * 8) = pack(low, high);
                } else {
                    to[j * 8] = bf16(low);
                    if (d + 1 < HS) { to[j * 8 + 1] = bf16(high); }
                }
            }
        }
    }
}

// ---- forward

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
    unrolled<m, 2>([&](int i, int half) {
        float before = state.largest[i][half], largest = -INFINITY;
        unrolled<kRows / 8>(
            [&](int j) { largest = fmaxf(largest, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1])); });
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));  // the row's four lanes
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
        largest = fmaxf(before, largest * scale_log2);
        float keep = exp2_approx(before - largest), sum = 0;
        unrolled<kRows / 8>([&](int j) {
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                s[i][j][e] = exp2_approx(fmaf(s[i][j][e], scale_log2, -largest));
                sum += s[i][j][e];
            }
        });
        state.largest[i][half] = largest;
        state.total[i][half] = state.total[i][half] * keep + sum;
        unrolled<kD / 8>([&](int j) {
            out[i][j][2 * half] *= keep;
            out[i][j][2 * half + 1] *= keep;
        });
    });
}

// scores of keys after their query, and of keys that do not exist, become -infinity
template <int m>
__device__ void mask_scores(float (&s)[m][kRows / 8][4], int first_query, int first_key) {
    int lane = threadIdx.x % kWarp;
    unrolled<m, kRows / 8, 4>([&](int i, int j, int e) {
        int query = first_query + i * 16 + e / 2 * 8 + lane / 4;
        int key = first_key + j * 8 + lane % 4 * 2 + e % 2;
        if (key > query) { s[i][j][e] = -INFINITY; }
    });
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
    unrolled<m>([&](int i) {
        state.largest[i][0] = state.largest[i][1] = -INFINITY;
        state.total[i][0] = state.total[i][1] = 0;
    });
    for (int step = 0; step < steps; step++) {
        int stage = step % 2, first_key = step * kRows;
        if (step + 1 < steps) {
            load_rows<kD>(keys + (stage ^ 1) * kTile, k, first_key + kRows, kRows);
            load_rows<kD>(values + (stage ^ 1) * kTile, v, first_key + kRows, kRows);
        }
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        // else all of these keys come after all of the warp's queries
        if (first_key <= warp_first + 16 * m - 1) {
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
    unrolled<m, 2>([&](int i, int half) {
        float total = state.total[i][half];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        factor[i][half] = 1 / total;
        int row = warp_first + i * 16 + half * 8 + threadIdx.x % kWarp / 4;
        if (threadIdx.x % 4 == 0 && row < T) {
            lse[(int64_t)head * T + row] = state.largest[i][half] / kLog2e + logf(total);
        }
    });
    store_rows<kD>(out + head_offset({T, NH, HS}, head, 1, 0), (int64_t)NH * HS, T, HS, warp_first, o,
                   factor);
}

// ---- backward

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
            unrolled<m, n, 4>([&](int i, int j, int e) {
                int query = j * 8 + lane % 4 * 2 + e % 2;
                int key = warp_first + i * 16 + e / 2 * 8 + lane / 4;
                backward_score(p[i][j][e], dp[i][j][e], key <= from + query, scale, row_lse[stage][query],
                               row_dot[stage][query]);
            });
            multiply_weighted<kD>(dv, p, douts + stage * kTile);
            multiply_weighted<kD>(dk, dp, queries + stage * kTile);
        }
        __syncthreads();
    }
    float one[m][2], scales[m][2];
    unrolled<m>([&](int i) {
        one[i][0] = one[i][1] = 1;
        scales[i][0] = scales[i][1] = scale;
    });
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
    unrolled<m, 2>([&](int i, int half) {
        int query = warp_first + i * 16 + half * 8 + lane / 4;
        row_lse[i][half] = query < T ? head.lse[query] * kLog2e : INFINITY;
        row_dot[i][half] = query < T ? head.dot[query] : 0.0f;
        scales[i][half] = scale;
    });
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
            unrolled<m, n, 4>([&](int i, int j, int e) {
                int query = warp_first + i * 16 + e / 2 * 8 + lane / 4;
                int key = from + j * 8 + lane % 4 * 2 + e % 2;
                backward_score(p[i][j][e], dp[i][j][e], key <= query, scale, row_lse[i][e / 2],
                               row_dot[i][e / 2]);
            });
            multiply_weighted<kD>(dq, dp, keys + stage * kTile);
        }
        __syncthreads();
    }
    store_rows<kD>(head.dqkv, head.stride, T, HS, warp_first, dq, scales);
}

// ---- launches

// launch<kD>() for the least width that heads fit in
template <typename Launch>
void for_width(int HS, const Launch& launch) {
    if (HS <= 32) { return launch.template operator()<32>(); }
    if (HS <= 64) { return launch.template operator()<64>(); }
    if (HS <= 80) { return launch.template operator()<80>(); }
    launch.template operator()<128>();
}

}  // namespace

void attention_forward_mma_sync(const AttentionForward<bf16>& c, cudaStream_t stream) {
    const AttentionSizes s = sizes_of(c.T, c.NH, c.HS);
    for_width(c.HS, [&]<int kD>() {
        constexpr int m = kD <= 64 ? 2 : 1, kQueries = kWarps * 16 * m;
        launch_heads(attention_forward_kernel<kD, m>, kQueries, kThreads,
                     (kQueries + 4 * kRows) * kRowBytes<kD>, c.B, s, stream, c.out, c.lse, c.qkv, s.T, s.NH,
                     s.HS, s.scale);
    });
}

void attention_backward_mma_sync(const AttentionBackward<bf16>& c, cudaStream_t stream) {
    const AttentionSizes s = sizes_of(c.T, c.NH, c.HS);
    float* dot = (float*)c.scratch;
    auto* find = c.HS % 8 == 0 ? find_dots<8, 8, bf16> : find_dots<8, 1, bf16>;
    find(dot, c.dout, c.out, c.B, s, stream);
    for_width(c.HS, [&]<int kD>() {
        constexpr int kBlock = kWarps * 16, kQueries = kD <= 32 ? 64 : 32;
        auto run = [&](auto* kernel, int rows_across) {
            launch_heads(kernel, kBlock, kThreads, (2 * kBlock + 4 * rows_across) * kRowBytes<kD>, c.B, s,
                         stream, c.dqkv, c.dout, c.qkv, c.lse, dot, s.T, s.NH, s.HS, s.scale);
        };
        run(attention_backward_dkv_kernel<kD, 1, kQueries>, kQueries);
        run(attention_backward_dq_kernel<kD, 1>, kRows);
    });
}

template <>
void attention_forward(const AttentionForward<bf16>& c, cudaStream_t stream) {
    if (c.B == 0 || c.T == 0) { return; }
    auto* run = attention_by_wgmma(c.T, c.HS) ? attention_forward_wgmma : attention_forward_mma_sync;
    run(c, stream);
}

template <>
void attention_backward(const AttentionBackward<bf16>& c, cudaStream_t stream) {
    if (c.B == 0 || c.T == 0) { return; }
    if (attention_by_wgmma(c.T, c.HS)) { return attention_backward_wgmma(c, stream); }
    attention_backward_mma_sync(c, stream);
}

}  // namespace llmc
