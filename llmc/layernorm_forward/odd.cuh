// odd: rows at any address, of any length; a row lives in registers of some lanes, of a warp or of a block.
// Why:    bulk copies of such rows into a ring came to 81 % of the roof at 65536x769 bf16; their start and
//         end to 64 % at 16384x769. As in registers.cuh, whoever waits lets another block on the SM work.
//         What a warp does once costs as much as three vectors a lane: short rows share a warp.
// Moves:  a row once in, once out: 2 N C elements; 4 N C with a residual.
// Result: 52.4 us, 93 % of the roof of launches that overlap at 65536x769 bf16; 85 % at 16384x769; 97 % at 16384x8191;
//         H200, 2026-11-22
#pragma once
#include <algorithm>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/launch.cuh"
#include "llmc/layernorm_forward/moments.cuh"
#include "llmc/layernorm_forward/parameters.cuh"
#include "llmc/layernorm_forward/prefetch.cuh"
#include "llmc/layernorm_forward/realign.cuh"
#include "llmc/layernorm_forward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_odd_forward {

using layernorm_realign::kept;
using layernorm_realign::past_boundary;
using layernorm_realign::Stretch;
using namespace layernorm_moments;
using namespace layernorm_parameters;

// A row is shared by `lanes` lanes of each of `warps` warps. A lane holds k vectors, the first `all` of which
// are there in every lane, and one column more. Groups of lanes of a warp have a row each, as far past
// 16-byte boundaries as the others'. early: weight (1), or weight and bias (2), are asked for together with
// the row. blocks: so many are to fit an SM, which limits registers. together: so many warps, with rows of
// their own, make a block: more for short rows, since blocks begin no faster than 0.8 a ns.
template <int warps_, int lanes_, int k_, int all_, int early_, int blocks_, int together_ = 1>
struct Layout {
    static constexpr int warps = warps_, lanes = lanes_, k = k_, all = all_, early = early_, blocks = blocks_;
    static constexpr int together = together_, threads = warps * together * kWarp;
    static constexpr int of_warp = kWarp / lanes, rows = of_warp * together;  // rows of a warp; of a block
    static_assert(warps == 1 || rows == 1, "a block's barrier is that of one row");

    // of rows with vectors of n columns
    static constexpr int columns(int n) { return warps * lanes * (k * n + 1); }
    static constexpr int fewest(int n) { return warps * (all * lanes + 1) * n; }
};

// How C columns are dealt out: vectors to the warps, in stretches, as many as there are or as there is room
// for; the columns after these one to each lane.
struct Deal {
    int vectors, each, more;  // each warp has `each` of them, the first `more` warps one more
    float per_column;         // 1 / C
    layernorm_prefetch::Prefetch prefetch;
};

// What a thread has of a row, by C alone.
template <typename L, int n>
struct Share {
    int lane, count, first;  // of the group; vectors of the warp, and its first column
    int single, columns;     // this lane's column after all vectors, if it is < C; columns of the warp

    __device__ Share(const Deal& deal, int C) : lane(threadIdx.x % L::lanes) {
        int warp = L::warps == 1 ? 0 : threadIdx.x / kWarp;
        count = L::warps == 1 ? deal.vectors : deal.each + (warp < deal.more);
        first = L::warps == 1 ? 0 : (deal.each * warp + min(warp, deal.more)) * n;
        single = n * deal.vectors + warp * L::lanes + lane;
        columns = L::warps == 1 ? C : n * count + min(max(C - (single - lane), 0), L::lanes);
    }
    __device__ bool inside(int i) const { return i < L::all || i * L::lanes + lane < count; }
};

// A row in memory: the address of the block's first row, known to be the same in all of it, and this group's.
template <typename T>
struct Row {
    T* p;
    int shift;  // elements past a 16-byte boundary

    __device__ Row(T* tensor, int64_t stride, int64_t block_row, int64_t beyond)
        : p(tensor + block_row * stride), shift(past_boundary(p)) {
        p = kept(p + beyond * stride);
    }
};

// A thread's part of a row.
template <typename L, typename T>
struct Part {
    static constexpr int n = Vec<T>::size;
    Stretch<T, L::lanes, L::k, L::all> stretch;
    Elements<T, 1> single;

    __device__ void load(const Row<const T>& row, const Share<L, n>& at, int C) {
        stretch.load(row.p + at.first, row.shift, at.count);
        single = {};
        if (at.single < C) { single = llmc::load<1>(row.p + at.single); }
    }
    __device__ void store(const Row<T>& row, const Share<L, n>& at, int C) const {
        stretch.store(row.p + at.first, row.shift, at.count);
        if (at.single < C) { llmc::store(row.p + at.single, single); }
    }
    // act(x, chain) for each element, and which of two chains of operations it belongs to
    template <typename Act>
    __device__ void each(const Share<L, n>& at, int C, const Act& act) const {
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            if (!at.inside(i)) { continue; }
#pragma unroll
            for (int j = 0; j < n; j++) { act(as_float(stretch.x[i], j), j % 2); }
        }
        if (at.single < C) { act(as_float(single, 0), 0); }
    }
};

// of a row and another, rounded
template <typename L, typename T>
__device__ void add(Part<L, T>& part, const Part<L, T>& other) {
    constexpr int n = Vec<T>::size;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        float sum[n];
#pragma unroll
        for (int j = 0; j < n; j++) {
            sum[j] = as_float(part.stretch.x[i], j) + as_float(other.stretch.x[i], j);
        }
        part.stretch.x[i] = rounded<T>(sum);
    }
    float sum[1] = {as_float(part.single, 0) + as_float(other.single, 0)};
    part.single = rounded<T>(sum);
}

// of a group's part of a row
template <typename L, typename T>
__device__ Moments moments_of_part(const Part<L, T>& part, const Share<L, Vec<T>::size>& at, int C,
                                   float per_column) {
    float columns = at.columns, per_n = L::warps == 1 ? per_column : __fdividef(1.0f, columns);
    auto all = [&](auto add) { part.each(at, C, add); };
    return moments_of<L::lanes>(all, per_n, all, columns, per_n);
}

// The weights, or biases, of a thread's columns: asked for with the row if `early`, else when they are
// needed; as vectors, or one by one where they are not aligned. Where registers lack, in Ampere's code and for
// wide lanes, by loads that the compiler cannot move before the row's barrier.
template <typename L, int n, bool kAligned, bool early, typename W>
struct Columns {
    const W* from;  // of the lane's first vector
    Elements<W, n> held[early ? L::k : 1];
    Elements<W, 1> single;

    __device__ Columns(const W* columns, const Share<L, n>& at, int C)
        : from(columns + at.first + n * at.lane), single{} {
#pragma unroll
        for (int i = 0; i < L::k && early; i++) {
            if (at.inside(i)) { held[i] = load(i); }
        }
        if (at.single < C) { single = load_constant<1>(columns + at.single); }
    }
    __device__ Elements<W, n> load(int i) const {
        const W* p = from + i * L::lanes * n;
        if constexpr (kAligned) {
            if constexpr (L::k > 8 || (!kSm90 && L::warps > 1)) { return llmc::load<n>(p); }
            return load_constant<n>(p);
        } else {
            Elements<W, n> x;
#pragma unroll
            for (int j = 0; j < n; j++) { x.at[j] = load_constant<1>(p + j).at[0]; }
            return x;
        }
    }
    __device__ Elements<W, n> of(int i) const {
        if constexpr (early) { return held[i]; }
        return load(i);
    }
};

// a row, and each thread's part of it, in place
struct Normaliser : Normal {
    template <int n, typename T, typename W>
    __device__ void apply(Elements<T, n>& x, const Elements<W, n>& w, const Elements<W, n>& b) const {
        float y[n];
#pragma unroll
        for (int j = 0; j < n; j++) { y[j] = fmaf(xhat(as_float(x, j)), as_float(w, j), as_float(b, j)); }
        x = rounded<T>(y);
    }
    template <typename L, typename T, typename Weights, typename Biases>
    __device__ void apply(Part<L, T>& part, const Share<L, Vec<T>::size>& at, const Weights& weights,
                          const Biases& biases) const {
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            if (at.inside(i)) { apply(part.stretch.x[i], weights.of(i), biases.of(i)); }
            // nor, for the widest, before the vectors so far
            if constexpr (L::k > 10) { __syncwarp(); }
        }
        apply(part.single, weights.single, biases.single);
    }
};

// Is a later row asked for ahead? As in registers.cuh; short ones share a warp.
template <typename L, bool kResidual>
constexpr bool kPrefetches = kSm90 && !kResidual && L::rows == 1;

template <typename L, bool kResidual, bool kAligned, typename T, typename W>
__device__ void normalise_row(const LayerNormForward<T, W>& call, const Deal& deal, int64_t row,
                              int64_t beyond) {
    constexpr int n = Vec<T>::size;
    Share<L, n> at(deal, call.C);
    Part<L, T> part;
    Row<const T> inp(call.inp, call.inp_stride, row, beyond);
    part.load(inp, at, call.C);
    Columns<L, n, kAligned, (L::early >= 1), W> weights(or_ones(call.weight), at, call.C);
    Columns<L, n, kAligned, (L::early >= 2), W> biases(or_zeros(call.bias), at, call.C);
    if constexpr (kPrefetches<L, kResidual>) {
        if (threadIdx.x == 0) { deal.prefetch.ask<false>(call, row, 0, call.C); }
    }
    if constexpr (kSm90) { dependency_launch(); }
    if constexpr (kResidual) {
        Part<L, T> part2;
        Row<const T> inp2(call.inp2, call.inp2_stride, row, beyond);
        part2.load(inp2, at, call.C);
        part.stretch.place(inp.shift, at.count);
        part2.stretch.place(inp2.shift, at.count);
        add(part, part2);
        part.store({call.residual, call.residual_stride, row, beyond}, at, call.C);
    } else {
        part.stretch.place(inp.shift, at.count);
    }
    Moments mine = moments_of_part(part, at, call.C, deal.per_column);
    Moments all = merge<L::warps>(mine, deal.per_column);
    Normaliser normaliser{normal_of(all, deal.per_column, (float)call.eps)};
    if (threadIdx.x % (L::warps * L::lanes) == 0) { write_statistics(call, row + beyond, normaliser); }
    normaliser.apply(part, at, weights, biases);
    part.store({call.out, call.out_stride, row, beyond}, at, call.C);
}

// That are to fit an SM: Ampere's code takes more registers. (On the host, for the row asked for ahead: Ampere's.)
template <typename L>
constexpr int blocks_of() {
    return kSm90 ? L::blocks : L::blocks - L::blocks / 5;
}

// A block's rows are n apart: then they are equally far past 16-byte boundaries, whatever the stride. A group
// that would have a row beyond the last does that of its warp's first group again: its loads come before all
// stores, its stores are the same.
template <typename L, bool kResidual, bool kAligned, typename T, typename W>
__global__ __launch_bounds__(L::threads,
                             (blocks_of<L>())) void layernorm_forward_kernel(LayerNormForward<T, W> call,
                                                                             Deal deal) {
    constexpr unsigned n = Vec<T>::size;
    prefetch_parameters(call);
    if constexpr (kSm90) { dependency_wait(); }
    int64_t row = (int64_t)(blockIdx.x / n) * (n * L::rows) + blockIdx.x % n;
    int first = L::together == 1 ? 0 : threadIdx.x / kWarp * (n * L::of_warp);
    if (row + first >= call.N) { return; }
    int beyond = L::rows == 1 ? 0 : threadIdx.x / L::lanes * n;
    normalise_row<L, kResidual, kAligned>(call, deal, row, row + beyond < call.N ? beyond : first);
}

// ---- the choice ----------------------------------------------------------------------------------

template <typename L, bool kResidual, bool kAligned, typename T, typename W>
void launch(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    constexpr int n = Vec<T>::size;
    int vectors = std::min(call.C / n, L::warps * L::lanes * L::k);
    int under_way = device_facts().multiprocessors * blocks_of<L>() * L::rows;
    Deal deal{vectors, vectors / L::warps, vectors % L::warps, 1.0f / call.C, {call, under_way / 3}};
    int64_t blocks = L::rows == 1 ? call.N : n * ceil_div(call.N, (int64_t)n * L::rows);
    auto* kernel = layernorm_forward_kernel<L, kResidual, kAligned, T, W>;
    LaunchAttributes attributes;
    attributes.overlapping(runs_hopper_code(kernel));
    cudaLaunchConfig_t config = attributes.config(grid_x(blocks), L::threads, 0, stream);
    check(cudaLaunchKernelEx(&config, kernel, call, deal));
}

template <typename... Layouts>
struct Choice {};

// By the first that has room for a row; false if none has. Rows with fewer than `fewest` columns do not come
// here.
template <bool kResidual, bool kAligned, int fewest, typename L, typename... More, typename T, typename W>
bool launch_first(Choice<L, More...>, const LayerNormForward<T, W>& call, cudaStream_t stream) {
    constexpr int n = Vec<T>::size;
    static_assert(L::fewest(n) <= fewest);
    if (call.C <= L::columns(n)) {
        launch<L, kResidual, kAligned>(call, stream);
        return true;
    }
    if constexpr (sizeof...(More) > 0) {
        return launch_first<kResidual, kAligned, L::columns(n) + 1>(Choice<More...>{}, call, stream);
    }
    return false;
}

template <typename T>
constexpr int kFewestColumns = Vec<T>::size;  // a row with less has no vector

// Warps, lanes, k, all, early, blocks, together. Few lanes with many vectors each: what a warp does once costs as much
// as three vectors.
using Fine16 = Choice<Layout<1, 8, 1, 0, 2, 4, 8>, Layout<1, 8, 2, 1, 2, 8, 4>, Layout<1, 8, 3, 2, 2, 12, 2>,
                      Layout<1, 8, 4, 3, 2, 12, 2>, Layout<1, 8, 5, 4, 2, 20>, Layout<1, 8, 6, 5, 1, 20>,
                      Layout<1, 8, 7, 6, 1, 16>, Layout<1, 8, 8, 7, 1, 16>, Layout<1, 16, 5, 4, 1, 20>,
                      Layout<1, 16, 6, 5, 1, 20>, Layout<1, 16, 8, 6, 1, 16>, Layout<1, 32, 5, 4, 1, 20>,
                      Layout<1, 32, 6, 5, 1, 20>, Layout<1, 32, 7, 6, 0, 20>, Layout<1, 32, 8, 7, 1, 16>,
                      Layout<2, 32, 6, 4, 1, 10>, Layout<2, 32, 8, 6, 1, 8>, Layout<4, 32, 6, 4, 1, 5>,
                      Layout<4, 32, 8, 6, 1, 4>, Layout<4, 32, 9, 7, 0, 4>, Layout<5, 32, 8, 6, 1, 3>,
                      Layout<5, 32, 9, 7, 0, 3>, Layout<4, 32, 12, 10, 0, 3>, Layout<4, 32, 14, 12, 0, 3>,
                      Layout<4, 32, 15, 13, 0, 3>, Layout<8, 32, 8, 6, 1, 2>>;
using Fine32 =
    Choice<Layout<1, 8, 1, 0, 2, 4, 8>, Layout<1, 8, 2, 1, 2, 8, 4>, Layout<1, 8, 3, 2, 2, 8, 4>,
           Layout<1, 8, 4, 3, 2, 12, 2>, Layout<1, 8, 5, 4, 2, 10, 2>, Layout<1, 8, 6, 5, 1, 10, 2>,
           Layout<1, 8, 8, 6, 1, 8, 2>, Layout<1, 16, 6, 3, 1, 8, 2>, Layout<1, 16, 7, 5, 1, 8, 2>,
           Layout<1, 32, 4, 3, 1, 10, 2>, Layout<1, 32, 6, 4, 1, 10, 2>, Layout<1, 32, 7, 5, 0, 10, 2>,
           Layout<1, 32, 8, 7, 1, 8, 2>, Layout<2, 32, 6, 4, 1, 8>, Layout<2, 32, 7, 5, 0, 10>,
           Layout<2, 32, 8, 6, 1, 8>, Layout<3, 32, 7, 5, 1, 5>, Layout<3, 32, 8, 6, 1, 5>,
           Layout<4, 32, 7, 5, 1, 4>, Layout<4, 32, 8, 6, 1, 4>, Layout<5, 32, 8, 6, 1, 3>,
           Layout<6, 32, 8, 6, 0, 3>, Layout<7, 32, 8, 6, 1, 2>, Layout<8, 32, 8, 6, 1, 2>,
           Layout<10, 32, 8, 6, 0, 2>, Layout<10, 32, 10, 8, 0, 2>, Layout<18, 32, 7, 5, 0, 1>>;
// fewer, for what is rare: residuals, weights of another type, or not aligned
using Coarse16 = Choice<Layout<1, 8, 1, 0, 0, 4, 8>, Layout<1, 8, 4, 1, 0, 10, 2>, Layout<1, 16, 5, 2, 0, 16>,
                        Layout<1, 16, 6, 5, 1, 15>, Layout<1, 32, 6, 3, 0, 16>, Layout<2, 32, 6, 3, 0, 8>,
                        Layout<4, 32, 6, 3, 0, 4>, Layout<8, 32, 6, 3, 0, 2>, Layout<16, 32, 4, 2, 0, 1>>;
using Coarse32 = Choice<Layout<1, 8, 1, 0, 0, 4, 8>, Layout<1, 8, 3, 1, 0, 4, 4>, Layout<1, 8, 8, 3, 0, 8, 2>,
                        Layout<1, 16, 8, 4, 0, 16>, Layout<1, 32, 8, 4, 0, 16>, Layout<2, 32, 8, 4, 0, 8>,
                        Layout<4, 32, 8, 4, 0, 4>, Layout<8, 32, 8, 4, 0, 2>, Layout<16, 32, 8, 4, 0, 1>>;

template <typename T, bool fine>
using Layouts = std::conditional_t<sizeof(T) == 2, std::conditional_t<fine, Fine16, Coarse16>,
                                   std::conditional_t<fine, Fine32, Coarse32>>;

template <bool kResidual, typename T, typename W>
bool launch_any(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    using Aligned = Layouts<T, !kResidual && std::is_same_v<T, W>>;
    return aligned(call.weight, call.bias)
               ? launch_first<kResidual, true, kFewestColumns<T>>(Aligned{}, call, stream)
               : launch_first<kResidual, false, kFewestColumns<T>>(Layouts<T, false>{}, call, stream);
}

}  // namespace llmc::layernorm_odd_forward

namespace llmc {

template <typename T, typename W>
bool layernorm_forward_odd(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_odd_forward;
    if (call.C < kFewestColumns<T> || call.C > kMostColumns || rows_are_vectors(call)) { return false; }
    return call.residual != nullptr ? launch_any<true>(call, stream) : launch_any<false>(call, stream);
}

}  // namespace llmc
