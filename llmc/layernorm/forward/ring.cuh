// ring: blocks of a cluster share a row, one row after the other, as bulk copies bring them into a ring. A row's
//         moments are on their way through the cluster while the row before it is normalised and written.
// Why:    with a cluster for each row (registers.cuh), half of a block's life was its start, the wait for the
//         others' moments, and weights from L2. Here weight and bias stay in registers from row to row.
// Moves:  a row once in, once out: 2 N C elements.
// Result: 271 us, 93 % of the roof at 2048x131072 bf16; 273 us, 93 % at 512x262144 fp32; H200, 2026-11-22
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/clusters.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/alignment.cuh"
#include "llmc/layernorm/forward/moments.cuh"
#include "llmc/layernorm/forward/regimes.h"

namespace llmc::layernorm_ring_forward {

using namespace layernorm_moments;

// A row is shared by `blocks` blocks of `warps` warps, whose lanes have k vectors of n columns, the first `whole` of
// which they have in any row it is used for. `stages` rows fit the ring: two are at work, the others on their way.
// A stage is refilled in `pieces`, each as soon as it is written. fit: so many blocks are to fit an SM, which limits
// registers. through: out goes through the stage, by a bulk store, and the stage is refilled a row later; 2 to 3 % faster
// where the row's warps, which write 512 bytes at a time, would begin and end inside of 32 bytes.
template <int blocks_, int warps_, int n_, int k_, int whole_, int stages_, int pieces_ = 1, int fit_ = 1,
          bool through_ = false>
struct Layout {
    static constexpr int blocks = blocks_, warps = warps_, n = n_, k = k_, whole = whole_, stages = stages_;
    static constexpr int pieces = pieces_, fit = fit_, threads = warps * kWarp, step = threads * n;
    static constexpr bool through = through_;
    static constexpr int columns = step * k, room = blocks * columns;  // of a block; of a row
    static constexpr int sample = ceil_div(k, 4);                      // of the first mean
    // Weight and bias are unpacked for each row, else they are once, into twice as many registers: 2 % faster. An SM's
    // warps have registers as if they came in fours.
    static constexpr bool anew = ceil_div(fit * warps, 4) * 4 * k > 80;
    static_assert(blocks > 1 && blocks <= kWarp && stages > 2 && sample <= whole && k % pieces == 0);
    static_assert(!through || pieces == 1);
};

// rows whose moments are under way or in use: a block may be two rows behind another
constexpr int kMeetings = 4;

template <typename L, typename T>
struct Shared {
    alignas(kLineBytes) T stage[L::stages][L::columns + kLine<T>];
    Moments of_warp[2][L::warps];            // by turn
    Moments of_block[kMeetings][L::blocks];  // likewise; each block sends its own to all
    uint64_t full[L::stages];                // a row has come
    uint64_t met[kMeetings];                 // all blocks' moments have come
};

// What blocks' columns are multiples of, 32 bytes: what memory moves at least. A sector shared by two blocks costs 5 %.
template <typename L>
constexpr int kUnit = 2 * L::n;

// The columns of a block, a warp, a lane, the same in all rows.
template <typename L>
struct Share {
    int begin, columns;  // of the block
    int first;           // of the lane's first vector, in the block's columns
    float of_warp;       // columns of the warp

    __device__ explicit Share(int C) : first(threadIdx.x * L::n) {
        int units = ceil_div(C, kUnit<L>), block = cluster_rank();
        begin = units * block / L::blocks * kUnit<L>;
        columns = min(units * (block + 1) / L::blocks * kUnit<L>, C) - begin;
        constexpr int width = kWarp * L::n;
        int count = 0, warp = threadIdx.x / kWarp * width;
#pragma unroll
        for (int i = 0; i < L::k; i++) { count += min(max(columns - warp - i * L::step, 0), width); }
        of_warp = count;
    }
    __device__ int column(int i) const { return first + i * L::step; }
    __device__ bool inside(int i) const { return i < L::whole || column(i) < columns; }
};

// Of a warp's part of a row. The first mean is of a quarter of it; why that is good enough: registers.cuh.
template <typename L, typename T>
__device__ Moments moments_of_warp(const T* stage, const Share<L>& share, float per_n) {
    auto each = [&](int i, auto add) {
        auto x = load<L::n>(stage + share.column(i));
#pragma unroll
        for (int j = 0; j < L::n; j++) { add(as_float(x, j), j % 2); }
    };
    auto some = [&](auto add) {
#pragma unroll
        for (int i = 0; i < L::sample; i++) { each(i, add); }
    };
    auto all = [&](auto add) {
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            if (share.inside(i)) { each(i, add); }
        }
    };
    return moments_of<kWarp>(some, 1.0f / (L::sample * kWarp * L::n), all, share.of_warp, per_n);
}

// where a row lies in a stage: as far past a line as in memory
template <typename L, typename T>
__device__ T* place(Shared<L, T>& shared, int stage, const T* row) {
    return shared.stage[stage] + past_line(row);
}

// One thread asks for a piece of a row, the first before the others. A piece is cut where the stage is, not where the row
// begins in it: rows lie unequally far past their lines, and what still waits there of the row before, whose pieces up to
// this one have been written, must not be overwritten. row: at the block's columns, `bytes` of them
template <typename L, typename T>
__device__ void fetch(Shared<L, T>& shared, int stage, int piece, const T* row, uint32_t bytes) {
    if (piece == 0) { mbarrier_arrive_expect(&shared.full[stage], bytes); }
    if constexpr (L::pieces == 1) {
        bulk_copy(place(shared, stage, row), row, bytes, &shared.full[stage]);
    } else {
        constexpr int columns = L::columns / L::pieces, most = columns * (int)sizeof(T);
        int past = past_line(row), begin = piece == 0 ? past : 0;
        int end = past * (int)sizeof(T) + (int)bytes - piece * most;
        int size = (piece + 1 < L::pieces ? min(end, most) : end) - begin * (int)sizeof(T);
        T* to = shared.stage[stage] + piece * columns + begin;
        if (size > 0) { bulk_copy(to, row - past + piece * columns + begin, size, &shared.full[stage]); }
    }
}

// When row `turn` has come, to `stage`: its moments go to all blocks.
template <typename L, typename T>
__device__ void send_moments(Shared<L, T>& shared, const T* stage, const Share<L>& share, float per_n,
                             int turn) {
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    mbarrier_wait(&shared.full[turn % L::stages], turn / L::stages % 2);
    Moments mine = moments_of_warp(stage, share, per_n);
    if (lane == 0) { shared.of_warp[turn % 2][warp] = mine; }
    __syncthreads();
    if (warp == L::warps - 1) {
        Moments block = joined<L::warps>(shared.of_warp[turn % 2], 1.0f / share.columns);
        block.n = share.columns;
        Moments* to = &shared.of_block[turn % kMeetings][cluster_rank()];
        if (lane < L::blocks) { store4_async(to, block.packed(), &shared.met[turn % kMeetings], lane); }
    }
}

// One thread: the place of row `turn`'s moments is to expect those of all blocks.
template <typename L, typename T>
__device__ void expect_moments(Shared<L, T>& shared, int turn) {
    mbarrier_arrive_expect(&shared.met[turn % kMeetings], sizeof(shared.of_block[0]));
}

// The row's, once all blocks have sent theirs. The place is then for row turn + 4, of which nothing comes before
// this block has sent row turn + 2.
template <typename L, typename T>
__device__ Moments receive_moments(Shared<L, T>& shared, int turn, int rows, float per_column) {
    int meeting = turn % kMeetings;
    mbarrier_wait_cluster(&shared.met[meeting], turn / kMeetings % 2);
    if (threadIdx.x == 0 && turn + kMeetings < rows) { expect_moments(shared, turn + kMeetings); }
    return joined<L::blocks>(shared.of_block[meeting], per_column);
}

template <typename L, typename T, typename W>
struct Parameters {
    Elements<W, L::n> weight[L::k], bias[L::k];

    __device__ Parameters(const LayerNormForward<T, W>& call, const Share<L>& share) {
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            bool inside = share.inside(i);
            int column = share.begin + share.column(i);
            weight[i] = load_or<L::n, W>(inside ? call.weight : nullptr, column, (W)1.0f);
            bias[i] = load_or<L::n, W>(inside ? call.bias : nullptr, column, (W)0.0f);
        }
    }
};

// With plain stores: with a streaming hint, which registers.cuh gains by, 2 % slower. out: from the lane's first column on
template <typename L, typename T, typename W>
__device__ void write_piece(int piece, T* out, const T* stage, const Share<L>& share,
                            Parameters<L, T, W>& parameters, const Normal& normal) {
    constexpr int each = L::k / L::pieces;
#pragma unroll
    for (int i = piece * each; i < (piece + 1) * each; i++) {
        if (!share.inside(i)) { continue; }
        auto x = load<L::n>(stage + share.column(i));
        if constexpr (L::anew && sizeof(W) == 2) {
            forget(parameters.weight[i]);
            forget(parameters.bias[i]);
        }
        float y[L::n];
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            y[j] = fmaf(normal.xhat(as_float(x, j)), as_float(parameters.weight[i], j),
                        as_float(parameters.bias[i], j));
        }
        store(out + i * L::step, rounded<T>(y));
    }
}

template <typename L, typename T>
__device__ void init_barriers(Shared<L, T>& shared) {
    for (uint64_t& full : shared.full) { mbarrier_init(&full, 1); }
    for (uint64_t& met : shared.met) { mbarrier_init(&met, 1); }
    mbarrier_init_fence();
}

template <typename L, typename T, typename W>
__device__ void forward_rows(const LayerNormForward<T, W>& call, float per_column) {
    extern __shared__ __align__(128) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared<L, T>*>(memory);
    Share<L> share(call.C);
    int64_t groups = gridDim.x / L::blocks, row = blockIdx.x / L::blocks;
    int rows = (int)((call.N - 1 - row) / groups + 1);  // of this cluster
    const T* inp = call.inp + row * call.inp_stride + share.begin;
    int64_t step = groups * call.inp_stride;
    uint32_t bytes = share.columns * (uint32_t)sizeof(T);
    // up to the wait: what needs nothing of the kernels before this one, while they end
    if (threadIdx.x == 0) {
        init_barriers(shared);
        for (int turn = 0; turn < min(kMeetings, rows); turn++) { expect_moments(shared, turn); }
    }
    cluster_sync();  // barriers are there, in every block
    dependency_wait();
    if (threadIdx.x == 0) {
        for (int s = 0; s < min(L::stages, rows); s++) {
            for (int piece = 0; piece < L::pieces; piece++) {
                fetch(shared, s, piece, inp + s * step, bytes);
            }
        }
    }
    Parameters<L, T, W> parameters(call, share);
    float per_n = 1.0f / share.of_warp;
    send_moments(shared, place(shared, 0, inp), share, per_n, 0);
    T* out = call.out + row * call.out_stride + share.begin + share.first;
    for (int turn = 0; turn < rows; turn++, row += groups, inp += step, out += groups * call.out_stride) {
        int stage = turn % L::stages;
        if (turn + 1 < rows) {
            const T* next = place(shared, (turn + 1) % L::stages, inp + step);
            send_moments(shared, next, share, per_n, turn + 1);
        }
        if (L::through && threadIdx.x == 0 && turn > 0 && turn - 1 + L::stages < rows) {
            bulk_wait_read<0>();  // the row before has left its stage
            fetch(shared, (turn - 1) % L::stages, 0, inp + (L::stages - 1) * step, bytes);
        }
        Normal normal =
            normal_of(receive_moments(shared, turn, rows, per_column), per_column, (float)call.eps);
        if (threadIdx.x == 0 && share.begin == 0) { write_statistics(call, row, normal); }
        T* here = place(shared, stage, inp);
#pragma unroll
        for (int piece = 0; piece < L::pieces; piece++) {
            write_piece(piece, L::through ? here + share.first : out, here, share, parameters, normal);
            fence_proxy_async();
            __syncthreads();
            if (threadIdx.x > 0) { continue; }
            if constexpr (L::through) {
                bulk_store(out, here, bytes);  // its first column is the block's
                bulk_commit();
            } else if (turn + L::stages < rows) {
                fetch(shared, stage, piece, inp + L::stages * step, bytes);
            }
        }
    }
    if (L::through && threadIdx.x == 0) { bulk_wait_read<0>(); }
    dependency_launch();
    cluster_sync();  // not for what is sent: a block has had it all. They end together, as they were timed
}

// that are to fit an SM: no more than one beside a weight in twice as many registers
template <typename L, typename T, typename W>
constexpr int fit_of() {
    return sizeof(W) > sizeof(T) ? 1 : L::fit;
}

template <typename L, typename T, typename W>
__global__ __launch_bounds__(L::threads,
                             (fit_of<L, T, W>())) void layernorm_forward_kernel(LayerNormForward<T, W> call,
                                                                                float per_column) {
    if constexpr (kSm90) { forward_rows<L>(call, per_column); }
}

// ---- the launch ----------------------------------------------------------------------------------

// false: this device has no such clusters; nothing was done
template <typename L, typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_forward_kernel<L, T, W>;
    LaunchAttributes attributes;
    attributes.overlapping(runs_hopper_code(kernel)).clusters(L::blocks);
    cudaLaunchConfig_t config = attributes.config(0, L::threads, sizeof(Shared<L, T>), stream);
    int groups = most_clusters<kernel>(config, L::blocks);
    if (groups == 0) { return false; }
    config.gridDim.x = (unsigned)std::min<int64_t>(groups, call.N) * L::blocks;
    check(cudaLaunchKernelEx(&config, kernel, call, 1.0f / call.C));
    return true;
}

// ---- the choice ----------------------------------------------------------------------------------

// for rows of up to so many columns: a layout, and one for weights wider than the rows' elements, which take twice the
// registers
template <int columns, typename L, typename Wide = L>
struct Upto {
    static_assert(columns <= L::room && columns <= Wide::room);
};
template <typename... Uptos>
struct Choice {};

// by the first that is for such rows; false if none is. held: columns of the rows before it
template <int held, int columns, typename Same, typename Wide, typename... More, typename T, typename W>
bool launch_first(Choice<Upto<columns, Same, Wide>, More...>, const LayerNormForward<T, W>& call,
                  cudaStream_t stream) {
    using L = std::conditional_t<(sizeof(W) > sizeof(T)), Wide, Same>;
    static_assert(L::whole * L::step * L::blocks <= held,
                  "a shorter row would not have all its whole vectors");
    if (call.C <= columns) { return launch<L>(call, stream); }
    if constexpr (sizeof...(More) > 0) { return launch_first<columns>(Choice<More...>{}, call, stream); }
    return false;
}

// Blocks, warps, n, k, whole, stages, pieces, fit, through, by measurement. What counts is that SMs stay together in the
// address range: without the wait for one another's moments the same kernel takes 3 to 6 % more. So clusters of 16, or of
// 8 with an SM for each block, of which an H200 holds 15; few warps with many vectors each, and few stages: two
// more, and it is 1 to 3 % slower. And that rows nearly fill it: a turn takes as long for a shorter row. So there are many.
using Layouts16 = Choice<Upto<72704, Layout<16, 3, 8, 6, 5, 3, 1, 4>>,                              //
                         Upto<81920, Layout<16, 4, 8, 5, 4, 4, 1, 3, true>>,                        //
                         Upto<98304, Layout<16, 4, 8, 6, 5, 3, 1, 3>>,                              //
                         Upto<102400, Layout<16, 5, 8, 5, 4, 3, 1, 3>>,                             //
                         Upto<114688, Layout<16, 4, 8, 7, 6, 4>>,                                   //
                         Upto<128000, Layout<8, 16, 8, 4, 3, 4>>,                                   //
                         Upto<131072, Layout<16, 4, 8, 8, 3, 4>>,                                   //
                         Upto<135168, Layout<8, 6, 8, 11, 10, 4>>,                                  //
                         Upto<139264, Layout<8, 9, 8, 8, 7, 4>, Layout<16, 4, 8, 9, 8, 3, 1, 2>>,   //
                         Upto<147456, Layout<16, 4, 8, 9, 8, 3, 1, 2>>,                             //
                         Upto<163840, Layout<8, 16, 8, 5, 4, 3>>,                                   //
                         Upto<172032, Layout<16, 6, 8, 7, 6, 3, 1, 2>>,                             //
                         Upto<196608, Layout<8, 16, 8, 6, 5, 3>, Layout<16, 6, 8, 8, 6, 3, 1, 2>>,  //
                         Upto<202752, Layout<8, 8, 8, 13, 12, 3>, Layout<16, 8, 8, 7, 6, 5>>,       //
                         Upto<229376, Layout<16, 8, 8, 7, 6, 5>>,                                   //
                         Upto<250880, Layout<16, 8, 8, 8, 7, 5, 1, 1, true>>,                       //
                         Upto<262144, Layout<16, 16, 8, 4, 1, 4>>>;
using Layouts32 = Choice<Upto<81920, Layout<8, 8, 4, 10, 7, 3>>,           //
                         Upto<83968, Layout<8, 12, 4, 8, 6, 3>>,           //
                         Upto<98304, Layout<16, 4, 4, 12, 10, 5>>,         //
                         Upto<114688, Layout<16, 4, 4, 14, 12, 4, 1, 2>>,  //
                         Upto<118784, Layout<16, 15, 4, 4, 3, 4>>,         //
                         Upto<131072, Layout<16, 4, 4, 16, 7, 4>>,         //
                         Upto<163840, Layout<16, 8, 4, 10, 8, 3>>,         //
                         Upto<196608, Layout<16, 8, 4, 12, 10, 3, 4>>,     //
                         Upto<229376, Layout<16, 16, 4, 7, 6, 3, 7>>,      //
                         Upto<262144, Layout<16, 16, 4, 8, 7, 3, 4>>>;

}  // namespace llmc::layernorm_ring_forward

namespace llmc {

template <typename T, typename W>
bool layernorm_forward_ring(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_ring_forward;
    using Layouts = std::conditional_t<sizeof(T) == 2, Layouts16, Layouts32>;
    if (call.C <= kLongRow || call.residual != nullptr || !rows_are_vectors(call)) { return false; }
    return launch_first<kLongRow>(Layouts{}, call, stream);
}

}  // namespace llmc
