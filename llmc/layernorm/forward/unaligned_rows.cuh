// unaligned_rows: rows at any address; a row lives in registers of some lanes, of a warp, of a block or, on Hopper, of a cluster.
// Why:    bulk copies of such rows into a ring came to 81 % of the roof at 65536x769 bf16; their start and
//         end to 64 % at 16384x769. As in row_in_registers.cuh, whoever waits lets another block on the SM work.
//         What a warp does once costs as much as three vectors a lane: short rows share a warp.
// Moves:  a row once in, once out: 2 N C elements.
// Result: 52.4 us, 93 % of the roof of launches that overlap at 65536x769 bf16; 85 % at 16384x769; 97 % at 16384x8191;
//         80 % at 4096x20001, fp32 90; H200, 2026-11-24
#pragma once
#include "llmc/layernorm/forward/rows.cuh"

namespace llmc::unaligned_rows_forward {

using namespace layernorm;

// ---- rotate: a warp's stretch of a row at any address, moved 16 bytes at a time. What a lane has does not
// depend on the address: shuffles and byte permutes turn the aligned vectors that memory gives into the
// lane's own; for a store, the lane's own into aligned ones. The elements of the stretch are read and
// written, and not one beside them.

// elements of this pointer past a 16-byte boundary
template <typename T>
__device__ inline int past_boundary(const T* p) {
    return (unsigned)(uintptr_t)p % 16 / sizeof(T);
}

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

// word j, a constant after unrolling
template <typename T, int n>
__device__ inline uint32_t& word_of(Elements<T, n>& x, int j) {
    return reinterpret_cast<uint32_t*>(&x)[j];
}

// Keeps an address in registers, where the compiler would work it out again for every access.
template <typename T>
__device__ inline T* kept(T* p) {
    asm volatile("" : "+l"(p));
    return p;
}

// A stretch of a row: `count` vectors of n neighbouring elements, vector lane + lanes * i in x[i] of a group
// of `lanes` lanes. The first `unguarded` of the k are there in every lane: lanes * unguarded < count <= lanes * k. The
// groups of a warp have stretches as long, and as far past a 16-byte boundary.
template <typename T, int lanes, int k, int unguarded>
struct Stretch {
    static constexpr int n = Vec<T>::size, words = 4;
    static_assert(n <= lanes && unguarded < k);

    Elements<T, n> x[k];
    Bits<T> edge;  // while the stretch is on its way

    __device__ static int lane() { return threadIdx.x % lanes; }
    // of this group's lanes
    __device__ static uint32_t from(uint32_t given, int lane) {
        return __shfl_sync(kAllLanes, given, lane, lanes);
    }

    // Asks for the stretch that begins at p, `shift` elements past a boundary: the vectors that lie in it
    // whole, and the parts at its begin and end, which make up one more.
    __device__ void load(const T* p, int shift, int count) {
        if (lane() < n) {
            const T* at = p + ((lane() < shift ? n * count : 0) + lane() - shift);
            edge = *reinterpret_cast<const Bits<T>*>(at);
        }
        const T* whole = kept(p - shift + n * lane());
        unrolled<k>([&](int i) {
            x[i] = {};
            bool inside = (i > 0 || lane() > 0) && (i < unguarded || i * lanes + lane() < count);
            if (inside) { x[i] = llmc::load<n>(whole + i * lanes * n); }
        });
    }

    // What was asked for becomes the lanes' vectors.
    __device__ void place(int shift, int count) {
        uint32_t part = edge;
        if constexpr (sizeof(T) == 2) { part = __byte_perm(part, from(part, lane() + 1), 0x5410); }
        unrolled<words>([&](int j) {
            uint32_t word = from(part, j * n / words);
            if (lane() == 0) { word_of(x[0], j) = word; }
        });
        turn(shift, count);
    }

    // Each vector becomes its elements from `shift` on, and then the first ones of the vector after it. After
    // the last vector comes the first.
    __device__ void turn(int shift, int count) {
        with_constant<0, n>(shift, [&]<int by>() { turn_by<by>(count); });
    }
    template <int shift>
    __device__ void turn_by(int count) {
        constexpr int bytes = shift * (int)sizeof(T), whole = bytes / 4, more = ceil_div(bytes, 4);
        uint32_t first[more + 1];
        unrolled<more>([&](int j) { first[j] = from(word_of(x[0], j), 0); });
#pragma unroll
        for (int i = 0; i < k && shift > 0; i++) {
            uint32_t both[2 * words];
            unrolled<words>([&](int j) { both[j] = word_of(x[i], j); });
            unrolled<more>([&](int j) {
                // each gives to the lane before it; lane 0, to the group's last, of its next vector
                uint32_t given = lane() == 0 && i < k - 1 ? word_of(x[(i + 1) % k], j) : both[j];
                int which = i * lanes + (lane() == 0 ? lanes : lane());
                if (i >= unguarded && which == count) { given = first[j]; }
                both[words + j] = from(given, lane() + 1);
            });
            unrolled<words>([&](int j) {
                uint32_t low = both[whole + j], high = both[(whole + j + 1) % (2 * words)];
                word_of(x[i], j) = whole == more ? low : __byte_perm(low, high, 0x5432);
            });
        }
    }

    // To p, shift elements past a boundary. The last vector, turned, is the stretch's end and its begin:
    // these go element by element.
    __device__ void store(T* p, int shift, int count) const {
        int before = -shift & (n - 1);  // elements before a boundary
        Stretch turned = *this;
        turned.turn(before, count);
        T* whole = kept(p + before + n * lane());
        unrolled<k>([&](int i) {
            if (i < unguarded || i * lanes + lane() < count - 1) {
                llmc::store(whole + i * lanes * n, turned.x[i]);
            }
        });
        uint32_t part = 0;
        unrolled<words>([&](int j) {
            uint32_t word = word_of(turned.x[unguarded], j);
#pragma unroll
            for (int i = unguarded + 1; i < k; i++) {
                word = i * lanes < count ? word_of(turned.x[i], j) : word;
            }
            word = from(word, count - 1);
            if (lane() * words / n == j) { part = word; }
        });
        if (sizeof(T) == 2 && lane() % 2 == 1) { part >>= 16; }
        if (lane() < n) {
            T* at = p + (lane() < n - before ? n * (count - 1) + before + lane() : lane() - (n - before));
            *reinterpret_cast<Bits<T>*>(at) = (Bits<T>)part;
        }
    }
};

// A layout of layouts.h's. A row is shared by `lanes` lanes of each of `warps` warps of each block. A lane holds k vectors,
// the first `unguarded` of which are there in every lane, and one column more. Groups of lanes of a warp have a row each, as far
// past 16-byte boundaries as the others'. teams: of one warp each, several
// where rows are short, since blocks begin no faster than 0.8 a ns.
template <const auto& table, int index, bool kRare>
struct Layout {
    static constexpr layouts::UnalignedForward row = table[index];
    static constexpr int warps = row.warps, lanes = row.lanes, k = row.vectors, cluster = row.cluster;
    static constexpr int unguarded = kRare ? row.rare_unguarded : row.unguarded,
                         early = kRare ? 0 : row.early;
    // rare ones need more registers
    static constexpr int blocks_per_sm =
        kRare && row.blocks_per_sm > 1 ? row.blocks_per_sm * 3 / 4 : row.blocks_per_sm;
    static constexpr int teams = row.teams, threads = warps * teams * kWarp;
    static constexpr int of_warp = kWarp / lanes, rows = of_warp * teams;  // rows of a warp; of a block
    static_assert(warps == 1 || rows == 1, "a block's barrier is that of one row");
    static_assert(cluster == 1 || warps > 1);

    // of rows with vectors of n columns
    static constexpr int fewest(int n) { return cluster * warps * (unguarded * lanes + 1) * n; }
};

// How C columns are dealt out: vectors to the warps, in stretches, as many as there are or as there is room
// for; the columns after these one to each lane.
struct Deal {
    int vectors, each, more;  // each warp has `each` of them, the first `more` warps one more
    float per_column;         // 1 / C
    Prefetch prefetch;
};

// which of the row's warps is this block's first
template <typename L>
__device__ int first_warp() {
    return L::cluster == 1 ? 0 : (int)cluster_rank() * L::warps;
}

// What a thread has of a row, by C alone.
template <typename L, int n>
struct Share {
    int lane, count, first;  // of the group; vectors of the warp, and its first column
    int single, columns;     // this lane's column after all vectors, if it is < C; columns of the warp

    __device__ Share(const Deal& deal, int C) : lane(threadIdx.x % L::lanes) {
        int warp = L::warps == 1 ? 0 : first_warp<L>() + threadIdx.x / kWarp;
        count = L::warps == 1 ? deal.vectors : deal.each + (warp < deal.more);
        first = L::warps == 1 ? 0 : (deal.each * warp + min(warp, deal.more)) * n;
        single = n * deal.vectors + warp * L::lanes + lane;
        columns = L::warps == 1 ? C : n * count + min(max(C - (single - lane), 0), L::lanes);
    }
    __device__ bool inside(int i) const { return i < L::unguarded || i * L::lanes + lane < count; }
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

template <typename L, typename T>
struct Part {
    static constexpr int n = Vec<T>::size;
    Stretch<T, L::lanes, L::k, L::unguarded> stretch;
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
        unrolled<L::k>([&](int i) {
            if (!at.inside(i)) { return; }
            unrolled<n>([&](int j) { act(as_float(stretch.x[i], j), j % 2); });
        });
        if (at.single < C) { act(as_float(single, 0), 0); }
    }
};

// of a group's part of a row
template <typename L, typename T>
__device__ Moments moments_of_part(const Part<L, T>& part, const Share<L, Vec<T>::size>& at, int C,
                                   float per_column, bool rms) {
    float columns = at.columns, per_n = L::warps == 1 ? per_column : __fdividef(1.0f, columns);
    auto all = [&](auto add) { part.each(at, C, add); };
    return moments_of<L::lanes>(all, per_n, all, columns, per_n, rms);
}

// of a group's row, the same in all of its threads
template <typename L, int n>
__device__ Moments moments_of_row(const Moments& of_warp, const Deal& deal, int C) {
    if constexpr (L::cluster == 1) { return merge<L::warps>(of_warp, deal.per_column); }
    int vectors = deal.each * L::warps + min(max(deal.more - first_warp<L>(), 0), L::warps);
    int singles = C - n * deal.vectors - first_warp<L>() * L::lanes;
    float columns = n * vectors + min(max(singles, 0), L::warps * L::lanes);  // of this block
    Moments mine = merge<L::warps>(of_warp, __fdividef(1.0f, columns));
    mine.n = columns;
    auto& meeting = Meeting<L::cluster>::place();
    return joined<L::cluster>(meeting.exchange(mine, cluster_rank(), threadIdx.x), deal.per_column);
}

// The weights, or biases, of a thread's columns: asked for with the row if `early`, else when they are
// needed; as vectors, or one by one where they are not aligned. Where registers lack, in Ampere's code and for
// wide lanes, by loads that the compiler cannot move before the row's barrier. A cluster's row may be longer than
// the array that stands for what is not given: all of its warps read the same part of that.
template <typename L, int n, bool kAligned, bool early, typename W>
struct Columns {
    static_assert(L::cluster == 1 || L::k * L::lanes * n <= kMostColumns);
    const W* from;  // of the lane's first vector
    Elements<W, n> held[early ? L::k : 1];
    Elements<W, 1> single;

    __device__ Columns(const W* given, const W* otherwise, const Share<L, n>& at, int C) : single{} {
        bool first = L::cluster > 1 && given == nullptr;
        const W* columns = given != nullptr ? given : otherwise;
        from = columns + (first ? 0 : at.first) + n * at.lane;
#pragma unroll
        for (int i = 0; i < L::k && early; i++) {
            if (at.inside(i)) { held[i] = load(i); }
        }
        if (at.single < C) { single = load_constant<1>(columns + (first ? 0 : at.single)); }
    }
    __device__ Elements<W, n> load(int i) const {
        const W* p = from + i * L::lanes * n;
        if constexpr (kAligned) {
            if constexpr (L::k > 8 || (!kSm90 && L::warps > 1)) { return llmc::load<n>(p); }
            return load_constant<n>(p);
        } else {
            Elements<W, n> x;
            unrolled<n>([&](int j) { x.at[j] = load_constant<1>(p + j).at[0]; });
            return x;
        }
    }
    __device__ Elements<W, n> of(int i) const {
        if constexpr (early) { return held[i]; }
        return load(i);
    }
};

// a thread's part of a row, in place
template <typename L, typename T, typename Weights, typename Biases>
__device__ void normalise(Part<L, T>& part, const Share<L, Vec<T>::size>& at, const Weights& weights,
                          const Biases& biases, const Normal& normal) {
    auto& x = part.stretch.x;
    unrolled<L::k>([&](int i) {
        if (at.inside(i)) { x[i] = normalised<T>(x[i], weights.of(i), biases.of(i), normal); }
    });
    part.single = normalised<T>(part.single, weights.single, biases.single, normal);
}

// Is a later row asked for ahead? As in row_in_registers.cuh; short ones share a warp.
template <typename L>
constexpr bool kPrefetches = kSm90&& L::rows == 1;

template <typename L, bool kAligned, typename T, typename W>
__device__ void normalise_row(const LayerNormForward<T, W>& call, const Deal& deal, int64_t row,
                              int64_t beyond) {
    constexpr int n = Vec<T>::size;
    Share<L, n> at(deal, call.C);
    Part<L, T> part;
    Row<const T> inp(call.inp, call.inp_stride, row, beyond);
    part.load(inp, at, call.C);
    Columns<L, n, kAligned, (L::early >= 1), W> weights(call.weight, or_ones(call.weight), at, call.C);
    Columns<L, n, kAligned, (L::early >= 2), W> biases(call.bias, or_zeros(call.bias), at, call.C);
    if constexpr (kPrefetches<L>) {
        int share = ceil_div(call.C, L::cluster), begin = L::cluster == 1 ? 0 : cluster_rank() * share;
        if (threadIdx.x == 0) { deal.prefetch.ask<false>(call, row, begin, share); }
    }
    if constexpr (kSm90) { dependency_launch(); }
    part.stretch.place(inp.shift, at.count);
    Moments mine = moments_of_part(part, at, call.C, deal.per_column, call.rms);
    Moments of_row = moments_of_row<L, n>(mine, deal, call.C);
    Normal normal = normal_of(of_row, deal.per_column, (float)call.eps);
    if (threadIdx.x % (L::warps * L::lanes) == 0 && first_warp<L>() == 0) {
        write_statistics(call, row + beyond, normal);
    }
    normalise(part, at, weights, biases, normal);
    part.store({call.out, call.out_stride, row, beyond}, at, call.C);
}

// That are to fit an SM: Ampere's code takes more registers. (On the host, for the row asked for ahead: Ampere's.)
template <typename L>
constexpr int blocks_of() {
    return kSm90 ? L::blocks_per_sm : L::blocks_per_sm - L::blocks_per_sm / 5;
}

// A block's rows are n apart: then they are equally far past 16-byte boundaries, whatever the stride. A group
// that would have a row beyond the last does that of its warp's first group again: its loads come before all
// stores, its stores are the same.
template <typename L, bool kAligned, typename T, typename W>
__global__ void __launch_bounds__(L::threads, (blocks_of<L>()))
    layernorm_forward_kernel(LayerNormForward<T, W> call, Deal deal) {
    constexpr unsigned n = Vec<T>::size;
    if constexpr (L::cluster == 1) {
        prefetch_parameters(call);
        if constexpr (kSm90) { dependency_wait(); }
        int64_t row = (int64_t)(blockIdx.x / n) * (n * L::rows) + blockIdx.x % n;
        int first = L::teams == 1 ? 0 : threadIdx.x / kWarp * (n * L::of_warp);
        if (row + first >= call.N) { return; }
        int beyond = L::rows == 1 ? 0 : threadIdx.x / L::lanes * n;
        normalise_row<L, kAligned>(call, deal, row, row + beyond < call.N ? beyond : first);
    } else if constexpr (kSm90) {
        Meeting<L::cluster>::place().open();
        dependency_wait();
        normalise_row<L, kAligned>(call, deal, blockIdx.x / L::cluster, 0);
    }
}

template <typename L, bool kAligned, typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    constexpr int n = Vec<T>::size, warps = L::warps * L::cluster;  // of a row
    constexpr auto* kernel = layernorm_forward_kernel<L, kAligned, T, W>;
    int64_t blocks = L::rows == 1 ? call.N * L::cluster : n * ceil_div(call.N, (int64_t)n * L::rows);
    const LaunchConfig config{grid_x(blocks), L::threads, 0, stream, L::cluster, runs_hopper_code(kernel)};
    int under_way = rows_under_way<kernel>(config, blocks_of<L>() * L::rows);
    if (under_way == 0) { return false; }
    int vectors = std::min(call.C / n, warps * L::lanes * L::k);
    Deal deal{vectors, vectors / warps, vectors % warps, 1.0f / call.C, {call, under_way / 3}};
    config.launch(kernel, call, deal);
    return true;
}

// weights that are not aligned, or of another type, are read one by one
template <bool kAligned, typename T, typename W>
bool launch_layout(const LayerNormForward<T, W>& call, int layout, cudaStream_t stream) {
    using layouts::kUnalignedForward;
    constexpr bool rare = !kAligned;
    return with_constant<0, std::size(kUnalignedForward)>(layout, [&]<int i>() {
        constexpr int n = Vec<T>::size;
        if constexpr (kUnalignedForward[i].is_for(rare)) {
            using L = Layout<kUnalignedForward, i, rare>;
            constexpr int none = layouts::kFewestUnalignedForward - 1;
            static_assert(L::fewest(n) - 1 <=
                          held_before<layouts::UnalignedForward>(kUnalignedForward, i, n, rare, none));
            return launch<L, kAligned>(call, stream);
        }
        return false;
    });
}

template <typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, const Choice& choice, cudaStream_t stream) {
    if constexpr (std::is_same_v<T, W>) {
        if (aligned(call.weight, call.bias)) { return launch_layout<true>(call, choice.layout, stream); }
    }
    return launch_layout<false>(call, choice.layout, stream);
}

}  // namespace llmc::unaligned_rows_forward
