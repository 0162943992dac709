// v7: teams of a few warps share rows, several teams a block, in a layout that the compiler knows. Hopper.
// Why:    v6's block waits as one, row by row; its loops do not unroll; of short rows little is on its way.
// Moves:  as v6; each team's rows come into a ring of its own; a sum a column and block.
// Result: 96.5 us, 73 % of the roof at 65536x768 bf16; 63 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/ladder/backward/v6.cuh"

namespace llmc::v7 {

// How rows are shared out: to teams of `warps` warps, with `columns` columns a lane (two sums of each must fit the
// registers); `teams` teams a block, each with a ring of `stages` pairs of rows (of fp32 half as many, rounded up, at
// least two).
template <typename T, int warps, int columns, int teams, int stages>
struct Layout {
    static constexpr int kWarps = warps, kTeams = teams, kVector = Vec<T>::size, kVectors = columns / kVector;
    static constexpr int kStages = sizeof(T) == 2 ? stages : std::max(2, (stages + 1) / 2);
    static constexpr int kTeamThreads = warps * kWarp, kThreads = teams * kTeamThreads;
    static constexpr int kStep = kTeamThreads * kVector;  // columns between two vectors of a lane
    static constexpr int kColumns = kStep * kVectors;     // of a row, at most
    static constexpr int kShared = kTeams * kStages * 2 * kColumns * (int)sizeof(T);  // bytes of all rings
    static_assert(kStages * sizeof(T) >= sizeof(float), "the sums by column end there");
};

// A lane's columns, `count` in all: the row it is at, and the columns' sums over the rows.
template <typename T, typename L>
struct Columns {
    static constexpr int K = L::kVectors, V = L::kVector;
    int first, count;  // the lane's first column; columns from count on are nobody's
    Elements<T, V> w[K] = {}, dy[K];
    float xhat[K][V], wdy[K][V], dw[K][V] = {}, db[K][V] = {};

    // at(vector k, column c)
    template <typename At>
    __device__ void each(At at) const {
#pragma unroll
        for (int k = 0; k < K; k++) { at(k, first + k * L::kStep); }
    }
    __device__ void load_weight(const T* weight) {
        each([&](int k, int c) {
            if (c < count) { w[k] = llmc::load<V>(weight + c); }
        });
    }
    // a row, from its stage; this lane's share of c1 and c2. Nobody's columns are 0, and add nothing.
    __device__ float2 load(const T* x_row, const T* dy_row, float m, float s) {
        float2 sums{};
        each([&](int k, int c) {
            Elements<T, V> x{};
            dy[k] = {};
            if (c < count) {
                x = llmc::load<V>(x_row + c);
                dy[k] = llmc::load<V>(dy_row + c);
            }
            float shift = c < count ? m : 0;
#pragma unroll
            for (int i = 0; i < V; i++) {
                xhat[k][i] = (as_float(x, i) - shift) * s;
                wdy[k][i] = as_float(w[k], i) * as_float(dy[k], i);
                sums.x += wdy[k][i];
                sums.y += wdy[k][i] * xhat[k][i];
            }
        });
        return sums;
    }
    __device__ void add_row() {
        each([&](int k, int) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                dw[k][i] += as_float(dy[k], i) * xhat[k][i];
                db[k][i] += as_float(dy[k], i);
            }
        });
    }
    __device__ void store_dinp(T* dx, float s, float c1, float c2) const {
        each([&](int k, int c) {
            float result[V];
#pragma unroll
            for (int i = 0; i < V; i++) { result[i] = (wdy[k][i] - c1 - xhat[k][i] * c2) * s; }
            if (c < count) { store(dx + c, rounded<T>(result)); }
        });
    }
    // Teams leave their sums in `shared`, where the rings were, and are added one after the other.
    __device__ void store_sums(float* dw_sum, float* db_sum, float* shared, int team) const {
        __syncthreads();  // nobody reads the rings any more
        each([&](int k, int c) {
            float* to = shared + 2 * team * L::kColumns + c;
#pragma unroll
            for (int i = 0; i < V; i++) {
                to[i] = dw[k][i];
                to[i + L::kColumns] = db[k][i];
            }
        });
        __syncthreads();
        for (int c = threadIdx.x; c < count; c += L::kThreads) {
            float2 sum{};
            for (int t = 0; t < L::kTeams; t++) {
                sum.x += shared[2 * t * L::kColumns + c];
                sum.y += shared[(2 * t + 1) * L::kColumns + c];
            }
            dw_sum[c] = sum.x;
            db_sum[c] = sum.y;
        }
    }
};

// The statistics of a team's rows, `step` apart: those of 32 rows at a time, one a lane; half-way the next 32
// are asked for. A row ahead, as in v6, is too late where rows are short.
struct Statistics {
    const float *mean, *rstd;
    int64_t row, step, N;  // the row the lane asks for next
    float2 next = ask(), now{};

    __device__ float2 ask() {
        float2 of_row = row < N ? float2{mean[row], rstd[row]} : float2{};
        row += kWarp * step;
        return of_row;
    }
    __device__ float2 of(int turn) {
        int from = turn % kWarp;
        if (from == 0) { now = next; }
        if (from == kWarp / 2) { next = ask(); }
        return {__shfl_sync(kAllLanes, now.x, from), __shfl_sync(kAllLanes, now.y, from)};
    }
};

// Team t of block b takes the rows b + t gridDim.x, and so on, kTeams gridDim.x apart. C is a multiple of
// Vec<T>::size. partial (2,gridDim.x,C): dweight's sums over the block's rows, then dbias's
template <typename T, typename L>
__global__ void __launch_bounds__(L::kThreads)
    layernorm_backward_rows_kernel(T* dinp, float* partial, const T* dout, const T* inp, const T* weight,
                                   const float* mean, const float* rstd, int64_t N, int C) {
    if constexpr (kSm90) {
        extern __shared__ __align__(16) unsigned char shared[];  // a team: kStages times rows of inp, dout
        __shared__ uint64_t filled[L::kTeams][L::kStages], arrived[L::kTeams][2];
        __shared__ float2 of_warps[L::kTeams][2][L::kWarps];  // of each warp, c1 and c2; rows take turns
        int team = threadIdx.x / L::kTeamThreads, thread = threadIdx.x % L::kTeamThreads;
        int lane = thread % kWarp, warp = thread / kWarp;
        T* stages = (T*)shared + team * L::kStages * 2 * L::kColumns;
        uint64_t *full = filled[team], *summed = arrived[team];

        auto fetch = [=](int64_t row, int stage) {  // thread 0
            if (row >= N) { return; }
            uint32_t bytes = C * sizeof(T);
            mbarrier_arrive_expect(&full[stage], 2 * bytes);
            bulk_copy(stages + 2 * stage * L::kColumns, inp + row * C, bytes, &full[stage]);
            bulk_copy(stages + (2 * stage + 1) * L::kColumns, dout + row * C, bytes, &full[stage]);
        };
        int64_t step = (int64_t)gridDim.x * L::kTeams, row = blockIdx.x + (int64_t)team * gridDim.x;
        if (thread == 0) {
            for (int stage = 0; stage < L::kStages; stage++) { mbarrier_init(&full[stage], 1); }
            for (int turn = 0; turn < 2; turn++) { mbarrier_init(&summed[turn], L::kWarps); }
            mbarrier_init_fence();
            for (int stage = 0; stage < L::kStages; stage++) { fetch(row + stage * step, stage); }
        }
        __syncthreads();

        Columns<T, L> mine{.first = thread * L::kVector, .count = C};
        mine.load_weight(weight);
        Statistics statistics{mean, rstd, row + lane * step, step, N};
        float per_column = 1.0f / C;
        int stage = 0;
        unsigned full_parity = 0;
        for (int turn = 0; row < N; row += step, turn++) {
            auto [m, s] = statistics.of(turn);
            mbarrier_wait(&full[stage], full_parity);
            const T* x = stages + 2 * stage * L::kColumns;
            float2 share = mine.load(x, x + L::kColumns, m, s);
            share = both_sums(warp_sum_pair(share));
            // Arriving says both: the sums are there, and the stage has been read. TMA needs the
            // fence.
            fence_proxy_async();
            __syncwarp();
            float2* sums = of_warps[team][turn % 2];
            if (lane == 0) {
                sums[warp] = share;
                mbarrier_arrive(&summed[turn % 2]);
            }

            mine.add_row();  // meanwhile

            mbarrier_wait(&summed[turn % 2], turn / 2 % 2);
            if (thread == 0) { fetch(row + L::kStages * step, stage); }
            // This turn's sums are written again two rows on: by then all warps have arrived for the row
            // between, so have read these.
            float c1 = 0, c2 = 0;
#pragma unroll
            for (int w = 0; w < L::kWarps; w++) {
                c1 += sums[w].x;
                c2 += sums[w].y;
            }
            mine.store_dinp(dinp + row * C, s, c1 * per_column, c2 * per_column);
            stage = stage + 1 < L::kStages ? stage + 1 : 0;
            full_parity ^= stage == 0;
        }
        dependency_launch();  // v9's second kernel may get ready; without one, nothing
        float* dw_sum = partial + (int64_t)blockIdx.x * C;
        mine.store_sums(dw_sum, dw_sum + (int64_t)gridDim.x * C, (float*)shared, team);
    }
}

// call(layout): the first that has room for the row. 48 to 96 KB of rings a block, of fp32 up to 128
template <typename T, typename Call>
auto with_layout(int C, Call call) {
    if (C <= 256) { return call(Layout<T, 1, 8, 12, 4>{}); }
    if (C <= 512) { return call(Layout<T, 2, 8, 8, 3>{}); }
    if (C <= 768) { return call(Layout<T, 3, 8, 4, 4>{}); }
    if (C <= 1024) { return call(Layout<T, 4, 8, 4, 3>{}); }
    if (C <= 2048) { return call(Layout<T, 8, 8, 2, 4>{}); }
    if (C <= 4096) { return call(Layout<T, 8, 16, 2, 2>{}); }
    return call(Layout<T, 16, 16, 1, 3>{});
}
constexpr int kMostColumns = 8192;

// partial sums of a column; a function of N and the GPU alone: it fixes the order of the additions
inline int partial_blocks(int64_t N) { return v6::partial_blocks(N, v6::kMaxBlock); }

// bytes of scratch that layernorm_backward needs
template <typename T>
size_t layernorm_backward_scratch(int64_t N, int C) {
    return 2 * sizeof(float) * partial_blocks(N) * C;
}

// the rows; returns how many partial sums a column has
template <typename T>
int layernorm_backward_rows(T* dinp, float* partial, const T* dout, const T* inp, const T* weight,
                            const float* mean, const float* rstd, int64_t N, int C, cudaStream_t stream) {
    require(C % Vec<T>::size == 0 && aligned(dinp, dout, inp, weight),
            "layernorm_backward v7: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(C <= kMostColumns,
            "layernorm_backward v7: more than 8192 columns do not fit a block's registers; v8 takes them");
    int blocks = partial_blocks(N);
    if (N == 0) { return 0; }
    with_layout<T>(C, [&](auto layout) {
        using L = decltype(layout);
        auto kernel = layernorm_backward_rows_kernel<T, L>;
        require(runs_hopper_code(kernel),
                "layernorm_backward v7: needs a GPU of compute capability 9.0 or later and code built for "
                "it; v4 does not");
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kShared));
        kernel<<<blocks, L::kThreads, L::kShared, stream>>>(dinp, partial, dout, inp, weight, mean, rstd, N,
                                                            C);
        check_launch();
    });
    return blocks;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// scratch: layernorm_backward_scratch bytes, aligned for float, need not be initialised. T's pointers 16-byte
// aligned. The layout follows from C: block is only there for the same signature.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                        const T* weight, const float* mean, const float* rstd, int64_t N, int C,
                        cudaStream_t stream, int = 0) {
    float* partial = (float*)scratch;
    int blocks = layernorm_backward_rows(dinp, partial, dout, inp, weight, mean, rstd, N, C, stream);
    constexpr int kColumnsBlock = 256;
    unsigned grid = grid_x(ceil_div(C, kColumnsBlock));
    v6::layernorm_backward_dweight_kernel<<<grid, kColumnsBlock, 0, stream>>>(
        dweight, dbias, (const float*)partial, blocks, C);
    check_launch();
}

}  // namespace llmc::v7
