// row_in_registers: a row lives in the registers of a warp, a block or a cluster, in the type it has in memory.
// Why:    v6 to v8 stay behind v3: without a ring, whoever waits lets another block on the SM work. A warp's weight
//         and bias come while its row does. More than 64 KB of a row are shared by 2 to 16 blocks, so that two blocks
//         fit an SM whatever the row. When rows are few, a row's warps are spread over several SMs: the same numbers,
//         sooner. As soon as a block's rows are on their way, blocks of the next launch may come and wait.
// Moves:  a row once in, once out: 2 N C elements; 4 N C with a residual.
// Result: 49.8 us, 97 % of the roof of launches that overlap at 65536x768 bf16; 98 % at 4096x8192 fp16; 97 % at
//         8192x32768 bf16; 94 % at 1024x65536 fp32; H200, 2026-11-22
#pragma once
#include "llmc/layernorm/forward/rows.cuh"

namespace llmc::row_in_registers_forward {

using namespace layernorm;

// A layout of layouts.h's. A lane has k vectors of n columns, all but the last unguarded; of a long row, half of them.
template <const auto& table, int index, int n_>
struct Layout {
    static constexpr layouts::RowInRegisters row = table[index];
    static constexpr int warps = row.warps, n = n_, k = row.vectors, teams = row.teams, early = row.early;
    static constexpr int blocks_per_sm = row.blocks_per_sm, cluster = row.cluster,
                         threads = teams * warps * kWarp;
    static constexpr bool unpack_each_pass = row.unpack_each_pass, alone = false, drops = false;
    static constexpr int parts = cluster;  // of a row, whose moments meet in the cluster
    static constexpr int step = cluster * warps * kWarp * n, columns = step * k;
    static constexpr int unguarded = row.unguarded();
    static constexpr bool is_long = row.is_long();
    static constexpr bool by_cluster = is_long;  // a cluster, or block, a row; a barrier behind its loads
    static constexpr bool with_row = !is_long;   // weight and bias may be asked for before the row is summed
    static_assert(warps == 1 || teams == 1, "a block's barrier is that of one row");
    static_assert(is_long ? warps > 1 && unguarded > 0 : cluster == 1);
};

// L for rows so few that each block has an SM to itself: the row's warps are spread over a cluster's blocks,
// and all of weight and bias is asked for with the row, since there are registers for it. Each warp has the
// columns it has in L and does with them what it does there, and they are merged in the same order: so a
// row's result is L's, bit for bit.
template <typename L>
struct Alone : L {
    static_assert(L::cluster == 1 && L::teams == 1);
    static constexpr int warps = spread_warps(L::warps), cluster = L::warps / warps, parts = L::warps;
    static constexpr int threads = warps * kWarp, early = L::k, blocks_per_sm = 1;
    static constexpr bool unpack_each_pass = false, alone = true, by_cluster = true, with_row = true;
};

// How two elements of 16 bits become floats, in numbers that only the host knows: so the compiler unpacks a row
// in each pass over it, where it would keep it unpacked, in twice as many registers. bf16 has the words'
// halves shifted and masked anyway; fp16 pays an exclusive or with nothing.
struct Unpacking {
    uint32_t shift = 16, mask = 0xffff0000u, nothing = 0;
};
// what the host adds to a call
struct Extra {
    float per_column;
    Prefetch prefetch;
    Unpacking second{}, third{};
};
template <typename L, typename T, int n>
__device__ inline float unpacked(const Elements<T, n>& x, int j, const Unpacking& how) {
    if constexpr (L::unpack_each_pass && sizeof(T) == 2) {
        uint32_t word = reinterpret_cast<const uint32_t*>(&x)[j / 2];
        if constexpr (std::is_same_v<T, __nv_bfloat16>) {
            return __uint_as_float(j % 2 == 0 ? word << how.shift : word & how.mask);
        } else {
            word ^= how.nothing;
            return llmc::as_float(reinterpret_cast<const Elements<T, 2>&>(word), j % 2);
        }
    } else {
        return llmc::as_float(x, j);
    }
}

// A thread's part of a row: vectors from column `first` on. Many vectors of a long row's weight and bias do
// not fit in registers: has() makes the compiler take one at a time.
template <typename L, typename T>
struct Part {
    Elements<T, L::n> x[L::k];
    int first, C;

    __device__ bool inside(int i) const { return i < L::unguarded || C - first > i * L::step; }
    // the same, but of a long row as a branch for each vector, across which instructions do not move
    __device__ bool has(int i) const {
        constexpr bool unpacked = sizeof(T) == 4;  // then one branch for all unguarded vectors does
        int surely = unpacked && i < L::unguarded ? L::unguarded - 1 : i;
        return L::is_long ? C - first > surely * L::step : inside(i);
    }
    // as if vector i had changed: the compiler does not know that zero is 0
    __device__ void renew(int i, uint32_t zero) {
        uint32_t* words = reinterpret_cast<uint32_t*>(&x[i]);
        unrolled<(int)sizeof(x[0]) / 4>([&](int w) { words[w] ^= zero; });
    }
    // of `width` columns from `begin` on, and again every L::step: how many the row has
    __device__ int columns(int begin, int width) const {
        int count = L::unguarded * width;
#pragma unroll
        for (int i = L::unguarded; i < L::k; i++) { count += min(max(C - begin - i * L::step, 0), width); }
        return count;
    }
};

// Only a cluster's rows, which would push its weight and bias out of the L1, are marked as not needed again.
template <typename L>
constexpr bool kStreams = L::cluster > 2;

// With dropout a lane of four vectors has no registers for the bias before the row is summed.
template <typename L>
struct Dropping : layernorm::Dropping<L> {
    static constexpr int early = L::k > 3 && L::early > 1 ? 1 : L::early;
};

template <typename L, typename T>
__device__ Elements<T, L::n> load_row(const T* p) {
    return kStreams<L> ? load_streaming<L::n>(p) : load<L::n>(p);
}
template <typename L, typename T>
__device__ void store_row(T* p, const Elements<T, L::n>& x) {
    kStreams<L> ? store_streaming(p, x) : store(p, x);
}

constexpr int kResidualVectors = 3;  // of a long row's second input that are asked for ahead; alone, all are

// of inp, or of inp + inp2 rounded, which is written to residual
template <typename L, bool kResidual, typename T, typename Call>
__device__ void load_part(Part<L, T>& part, const Call& call, int64_t row) {
    const T* inp = call.inp + row * call.inp_stride + part.first;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        part.x[i] = {};
        if (part.inside(i)) { part.x[i] = load_row<L>(inp + i * L::step); }
    }
    if constexpr (kResidual) {
        const T* inp2 = call.inp2 + row * call.inp2_stride + part.first;
        T* residual = call.residual + row * call.residual_stride + part.first;
        constexpr int at_once = L::is_long && !L::alone ? kResidualVectors : L::k;
        static_assert(at_once <= L::k);
        [[maybe_unused]] const auto mask = mask_of<L>(call, row);
        Elements<T, L::n> x2[at_once];
        auto load_x2 = [&](int i) {
            x2[i % at_once] = {};
            if (part.inside(i)) { x2[i % at_once] = load_row<L>(inp2 + i * L::step); }
        };
#pragma unroll
        for (int i = 0; i < at_once; i++) { load_x2(i); }
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            if (L::is_long && !part.has(i)) { continue; }
            if constexpr (L::drops) {
                part.x[i] = dropped_sum(part.x[i], x2[i % at_once], mask, part.first + i * L::step);
            } else {
                float sum[L::n];
#pragma unroll
                for (int j = 0; j < L::n; j++) {
                    sum[j] = as_float(part.x[i], j) + as_float(x2[i % at_once], j);
                }
                part.x[i] = rounded<T>(sum);
            }
            if (i + at_once < L::k) { load_x2(i + at_once); }
            if (part.inside(i)) { store_row<L>(residual + i * L::step, part.x[i]); }
        }
    }
}

template <typename L>
constexpr bool kOneWarp = L::step / L::n == kWarp;  // has a row

// Of a warp's part of a row, over the registers. Of a long row the first pass takes a quarter: its mean is at most
// sqrt(3) standard deviations off, and costs two bits of the squares at most.
template <typename L, typename T>
__device__ Moments moments_of_warp(Part<L, T>& part, float per_column, uint32_t zero, const Unpacking& second,
                                   bool rms) {
    constexpr int sample = L::is_long ? (L::k + 3) / 4 : L::k;
    // by a zero that there is only after the loads: else the first pass would come before half of them, or the weight's
    constexpr int renewed = L::alone ? L::k : L::is_long ? sample : 0;
#pragma unroll
    for (int i = 0; i < renewed; i++) { part.renew(i, zero); }
    auto some = [&](auto add) {  // beyond the row x is 0
        unrolled<sample, L::n>([&](int i, int j) { add(as_float(part.x[i], j), j % 2); });
    };
    auto all = [&](auto add) {
        unrolled<L::k>([&](int i) {
            if (!part.has(i)) { return; }
            unrolled<L::n>([&](int j) { add(unpacked<L>(part.x[i], j, second), j % 2); });
        });
    };
    int begin = part.first - threadIdx.x % kWarp * L::n;  // of the warp's first vectors
    float n = kOneWarp<L> ? part.C : part.columns(begin, kWarp * L::n);
    float per_n = kOneWarp<L> ? per_column : __fdividef(1.0f, fmaxf(n, 1));
    constexpr float per_sample = 1.0f / (sample * kWarp * L::n);
    return moments_of<kWarp>(some, L::is_long ? per_sample : per_n, all, n, per_n, rms);
}

// The row's, the same in every thread: a block's warps meet first, then the cluster's blocks; of a row alone
// all the cluster's warps at once.
template <typename L, typename T>
__device__ Moments moments_of_row(const Part<L, T>& held, const Moments& of_warp, float per_column) {
    if constexpr (L::cluster == 1) { return merge<L::warps>(of_warp, per_column); }
    Moments mine = of_warp;
    int part = cluster_rank(), to = threadIdx.x;
    if constexpr (L::alone) {
        part = part * L::warps + threadIdx.x / kWarp;
        to = threadIdx.x % kWarp;
    } else {
        float n = held.columns(held.first - threadIdx.x * L::n, L::threads * L::n);
        mine = merge<L::warps>(of_warp, __fdividef(1.0f, n));
        mine.n = n;
    }
    return joined<L::parts>(Meeting<L::cluster, L::parts>::place().exchange(mine, part, to), per_column);
}

// A thread's part of the weight or the bias, `given` or `otherwise`; where that is shorter than a row, a lane
// reads the same vector of it again and again.
template <typename L, typename W>
struct Parameter {
    // as whole words: halves of words that wait would be kept in a register each
    using Vector = Elements<uint32_t, L::n * sizeof(W) / 4>;
    const W* at;
    int step;
    // the arrays of ones and zeros are a row's length, or the lane's own
    static constexpr bool filled = !L::is_long || (L::alone && L::columns <= kMostColumns);

    __device__ Parameter(const W* given, const W* otherwise, int first)
        : at(given != nullptr ? given + first
             : filled         ? otherwise + first
                              : otherwise + threadIdx.x % kWarp * L::n),
          step(!filled && given == nullptr ? 0 : L::step) {}
    __device__ Vector vector(int i) const {
        constexpr int words = sizeof(Vector) / 4;
        auto* from = reinterpret_cast<const uint32_t*>(at + i * step);
        if constexpr (L::alone) { return load<words>(from); }  // it does not move across the barrier
        return load_constant<words>(from);
    }
    __device__ static float as_float(const Vector& x, int j) {
        return llmc::as_float(reinterpret_cast<const Elements<W, L::n>&>(x), j);
    }
};

// Is weight (1), or weight and bias (2), to be asked for with the row? As the layout says, if there is room.
template <typename L, typename T, typename W>
constexpr int early_of(int wish = L::early) {
    return wish > 0 && L::k * L::n * (sizeof(T) + wish * sizeof(W)) > 60 * 4 ? early_of<L, T, W>(wish - 1)
                                                                             : wish;
}

// vectors of the weight (1), of the bias (2), that are asked for before the row's moments are known
template <int which, typename L, typename T, typename W>
constexpr int kEarly = L::by_cluster ? L::early : (early_of<L, T, W>() >= which) * L::k;

// Is a later row asked for ahead? Short ones have enough under way, and feel one instruction more. Long ones with a
// residual fill L2 by themselves.
template <typename L, bool kResidual, typename T>
constexpr bool kPrefetches =
    kSm90 && !L::alone && !(L::is_long && kResidual) && L::columns * sizeof(T) > 3072;

template <typename L, bool kResidual, typename T, typename W, typename Out>
__device__ void normalise_row(const CallOf<L, T, W, Out>& call, const Extra& extra, int64_t row, int first) {
    constexpr int early_weights = kEarly<1, L, T, W>, early_biases = kEarly<2, L, T, W>;
    Part<L, T> part;
    part.first = first;
    part.C = call.C;
    if constexpr (kSm90) { dependency_wait(); }
    load_part<L, kResidual>(part, call, row);
    float per_column = extra.per_column;
    Parameter<L, W> weights(call.weight, or_ones(call.weight), first);
    Parameter<L, W> biases(call.bias, or_zeros(call.bias), first);
    typename Parameter<L, W>::Vector weight[early_weights + 1], bias[early_biases + 1];
    auto ask_for_parameters = [&] {
        unrolled<early_weights>([&](int i) {
            if (part.inside(i)) { weight[i] = weights.vector(i); }
        });
        unrolled<early_biases>([&](int i) {
            if (part.inside(i)) { bias[i] = biases.vector(i); }
        });
    };
    if constexpr (L::with_row) { ask_for_parameters(); }
    if constexpr (kSm90 && !L::by_cluster) { dependency_launch(); }
    if constexpr (kPrefetches<L, kResidual, T>) {
        int share = ceil_div(call.C, L::n * L::cluster) * L::n, begin = blockIdx.x % L::cluster * share;
        bool asks = threadIdx.x % (L::warps * kWarp) == 0;
        if (asks) { extra.prefetch.ask<kResidual>(call, row, begin, share); }
    }
    // the barrier: all loads so far are asked for before it
    uint32_t zero = L::by_cluster ? __syncthreads_or(0) : 0;
    Moments mine = moments_of_warp(part, per_column, zero, extra.second, call.rms);
    if constexpr (!L::with_row) { ask_for_parameters(); }
    Normal normal = normal_of(moments_of_row(part, mine, per_column), per_column, (float)call.eps);
    if (L::by_cluster ? first == 0 : threadIdx.x % (L::warps * kWarp) == 0) {
        write_statistics(call, row, normal);
    }
    Out* out = call.out + row * call.out_stride + first;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        if (!part.has(i)) { continue; }
        auto w = early_weights > 0 ? weight[i % (early_weights + 1)] : weights.vector(i);
        auto b = early_biases > 0 ? bias[i % (early_biases + 1)] : biases.vector(i);
        if constexpr (L::is_long && L::early > 0) {
            int next = i + L::early;
            if (next < L::k && part.inside(next)) {
                weight[next % (L::early + 1)] = weights.vector(next);
                bias[next % (L::early + 1)] = biases.vector(next);
            }
        }
        float y[L::n];
        unrolled<L::n>([&](int j) {
            float xhat = normal.xhat(unpacked<L>(part.x[i], j, extra.third));
            y[j] = fmaf(xhat, weights.as_float(w, j), biases.as_float(b, j));
        });
        store_row<L>(out + i * L::step, rounded<Out>(y));
    }
}

// that are to fit an SM: fewer where a thread holds more
template <typename L, bool kResidual, typename T, typename W>
constexpr int blocks_of() {
    constexpr int more = (kResidual && !L::is_long) + (sizeof(T) != sizeof(W));
    return L::blocks_per_sm * (4 - more) / 4 > 1 ? L::blocks_per_sm * (4 - more) / 4 : 1;
}

template <typename L, bool kResidual, typename T, typename W, typename Out>
__global__ void __launch_bounds__(L::threads, (blocks_of<L, kResidual, T, W>()))
    layernorm_forward_kernel(CallOf<L, T, W, Out> call, Extra extra) {
    if constexpr (!L::is_long) { prefetch_parameters(call); }
    if constexpr (!L::by_cluster) {
        int thread = threadIdx.x % (L::warps * kWarp);
        int64_t row = (int64_t)blockIdx.x * L::teams + threadIdx.x / (L::warps * kWarp);
        if (row < call.N) { normalise_row<L, kResidual, T, W, Out>(call, extra, row, thread * L::n); }
    } else if constexpr (L::cluster == 1 || kSm90) {
        if constexpr (L::cluster > 1) { Meeting<L::cluster, L::parts>::place().open(); }
        int first = (blockIdx.x % L::cluster * L::threads + threadIdx.x) * L::n;
        normalise_row<L, kResidual, T, W, Out>(call, extra, blockIdx.x / L::cluster, first);
    }
}

template <typename L, bool kResidual, typename T, typename W, typename Out>
bool launch(const LayerNormForwardRows<T, W, Out>& call, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_forward_kernel<L, kResidual, T, W, Out>;
    unsigned blocks = grid_x(ceil_div(call.N, (int64_t)L::teams) * L::cluster);
    const LaunchConfig config{blocks, L::threads, 0, stream, L::cluster, runs_hopper_code(kernel)};
    int under_way = rows_under_way<kernel>(config, blocks_of<L, kResidual, T, W>() * L::teams);
    if (under_way == 0) { return false; }
    config.launch(kernel, CallOf<L, T, W, Out>(call),
                  Extra{1.0f / call.C, {call, under_way / (kResidual ? 3 : 4)}});
    return true;
}

// L, but no vector is sure to be there: for any shorter row, where the layouts before it are not used
template <typename L>
struct Any : L {
    static constexpr int unguarded = 0;
};

template <const auto& table, bool kResidual, typename T, typename W, typename Out>
bool launch_layout(const LayerNormForwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream) {
    constexpr bool same = std::is_same_v<T, W>, rare = kResidual && !same;
    return with_constant<0, std::size(table)>(choice.layout, [&]<int i>() {
        constexpr int n = Vec<T>::size;
        using Usual = Layout<table, i, n>;
        using L = std::conditional_t<rare, Any<Usual>, Usual>;
        if constexpr (table[i].is_for(rare)) {
            constexpr int none = kThresholds.short_vectors * n;
            static_assert(L::unguarded * L::step <=
                          held_before<layouts::RowInRegisters>(table, i, n, rare, none));
            if constexpr (kResidual && kDrops<T, W> && !L::is_long) {
                if (call.dropout.rows != nullptr) { return launch<Dropping<L>, kResidual>(call, stream); }
            }
            require(call.dropout.rows == nullptr, "row_in_registers: no such layout has dropout");
            if constexpr (L::cluster == 1 && L::warps > kThresholds.schedulers && same &&
                          std::is_same_v<T, Out>) {
                if (choice.spread) { return launch<Alone<L>, kResidual>(call, stream); }
            }
            return launch<L, kResidual>(call, stream);
        }
        return false;
    });
}

template <typename T, typename W, typename Out>
bool launch(const LayerNormForwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream) {
    bool residual = call.residual != nullptr;
    if constexpr (!std::is_same_v<T, Out>) {  // a residual is added first
        return launch_layout<layouts::kRowInRegistersMixed, false>(call, choice, stream);
    } else if constexpr (sizeof(T) == 2) {
        return residual ? launch_layout<layouts::kRowInRegisters16, true>(call, choice, stream)
                        : launch_layout<layouts::kRowInRegisters16, false>(call, choice, stream);
    } else {
        return residual ? launch_layout<layouts::kRowInRegisters32, true>(call, choice, stream)
                        : launch_layout<layouts::kRowInRegisters32, false>(call, choice, stream);
    }
}

}  // namespace llmc::row_in_registers_forward
