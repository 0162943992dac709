// What the kernels of LayerNorm forward share: the moments of a row and how it is normalised by them, weight and bias that
// a call may lack, and rows that are asked for ahead.
#pragma once
#include <bit>

#include "llmc/layernorm/kernel.cuh"

namespace llmc::layernorm {

// ---- mean and squares of the parts of a row, of the whole from them, and how it is then normalised

// What a warp or a block knows of its elements: their mean is about + m, two numbers since one has too few
// bits where the mean is large and the spread small; `squares` is about the mean, n their number.
template <typename Acc>
struct alignas(4 * sizeof(Acc)) MomentsIn {
    Acc about, m, squares, n;

    __device__ float4 packed() const { return {about, m, squares, n}; }
};
using Moments = MomentsIn<float>;

// What `count` moments come to, the same in every thread. Chan et al. 1983. Means are compared with the
// first's: for equal ones everything is exact.
template <int count>
__device__ Moments joined(const Moments* all, float per_column) {
    constexpr int lanes = std::bit_ceil((unsigned)count);
    int at = threadIdx.x % lanes;
    Moments zero = all[0], other = at < count ? all[at] : zero;
    float n = at < count ? other.n : 0.0f, d = (other.about - zero.about) + (other.m - zero.m);
    float mean = group_sum<lanes>(n * d) * per_column;
    float squares = group_sum<lanes>(at < count ? other.squares + n * (d - mean) * (d - mean) : 0.0f);
    return {zero.about, zero.m + mean, squares, 0};
}

// From the sums of what is left of n elements without `about`, and of its squares; per_n: 1 / n, rounded somehow.
__device__ inline Moments moments_about(float about, float2 sums, float n, float per_n) {
    float m = sums.x * per_n;
    m = fmaf(fmaf(-m, n, sums.x), per_n, m);  // sums.x / n, correctly rounded
    float squares = fmaf(-sums.x, m, sums.y);
    return {about, m, squares < 0 ? 0.0f : squares, n};  // a NaN stays one
}

// Of the n elements that `lanes` neighbouring lanes have, by two passes. The first, over some of them, has a mean as
// good as a sum of floats can be; the second, over all, corrects it by the mean of what is left: so a constant row's
// mean is its number, exactly. some(add), all(add): add(x, chain) for these elements of a lane, in two chains of
// additions, half as long. per_some, per_n: 1 / how many they are in all lanes. rms: both means are taken for 0.
template <int lanes, typename Some, typename All>
__device__ Moments moments_of(const Some& some, float per_some, const All& all, float n, float per_n,
                              bool rms) {
    float sums[2] = {}, rests = 0, squares[2] = {};
    some([&](float x, int chain) { sums[chain] += x; });
    // rounded before it is taken off, as whoever merges has it: no fused multiply and add
    float about = __fmul_rn(group_sum<lanes>(sums[0] + sums[1]), per_some);
    if (rms) { about = 0; }
    all([&](float x, int chain) {
        float d = x - about;
        rests += d;
        squares[chain] = fmaf(d, d, squares[chain]);
    });
    float2 of_all = group_sums<lanes>({rests, squares[0] + squares[1]});
    if (rms) { of_all.x = 0; }
    return moments_about(about, of_all, n, per_n);
}

// of a block's warps
template <int warps>
__device__ Moments merge(const Moments& mine, float per_column) {
    if constexpr (warps == 1) { return mine; }
    __shared__ Moments of_warp[warps];
    if (threadIdx.x % kWarp == 0) { of_warp[threadIdx.x / kWarp] = mine; }
    __syncthreads();
    return joined<warps>(of_warp, per_column);
}

// Blocks of a cluster that share a row exchange its moments: each, or each of their warps, sends its own to all, into
// shared memory. Where they meet, once a kernel: in the shared memory of each block, at the same place. parts: of the
// row, whose moments come one by one.
template <int blocks, int parts = blocks>
struct Meeting {
    Moments of_part[parts];
    uint64_t come;  // all of them

    __device__ static Meeting& place() {
        __shared__ Meeting here;
        return here;
    }
    // every thread, at the kernel's beginning
    __device__ void open() {
        if (threadIdx.x == 0) {
            mbarrier_init(&come, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&come, sizeof(of_part));
        }
        __syncwarp();
        // relaxed: the fence has released the barrier, and there is nothing else to see
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
    // Every thread, with what it knows of its part of the row; one of those who know it for each block to send it to.
    // Who has got all of them may end: nothing more is sent to it, and what it sent itself needs it no longer.
    __device__ const Moments* exchange(const Moments& mine, int part, int to) {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // every block has opened
        if (to < blocks) { store4_async(&of_part[part], mine.packed(), &come, to); }
        mbarrier_wait_cluster(&come, 0);
        return of_part;
    }
};

// How a row is normalised: its mean and 1 / deviation; `rest` is what the mean has beyond one number, times -s.
template <typename Acc>
struct NormalIn {
    Acc mean, s, rest;

    __device__ Acc xhat(Acc x) const { return fma(x - mean, s, rest); }
};
using Normal = NormalIn<float>;
template <typename Acc>
__device__ NormalIn<Acc> normal_of(const MomentsIn<Acc>& row, Acc per_column, Acc eps) {
    Acc s = rsqrt(row.squares * per_column + eps);
    Acc mean = row.about + row.m, rest = (row.about - mean) + row.m;
    return {mean, s, -rest * s};
}

// n neighbouring elements of a row as they are normalised
template <typename Out, typename T, typename W, int n>
__device__ Elements<Out, n> normalised(const Elements<T, n>& x, const Elements<W, n>& weight,
                                       const Elements<W, n>& bias, const NormalIn<acc_t<T>>& normal) {
    using Acc = acc_t<T>;
    Acc y[n];
#pragma unroll
    for (int j = 0; j < n; j++) {
        y[j] = normal.xhat(as_acc<Acc>(x, j)) * as_acc<Acc>(weight, j) + as_acc<Acc>(bias, j);
    }
    return rounded<Out>(y);
}

using llmc::store_evict_last;
__device__ inline void store_evict_last(double* p, double x) { *p = x; }

// By one thread. They stay in L2 while rows stream by.
template <typename Call, typename Acc>
__device__ void write_statistics(const Call& call, int64_t row, const NormalIn<Acc>& normal) {
    if (call.mean != nullptr) { store_evict_last(call.mean + row, normal.mean); }
    if (call.rstd != nullptr) { store_evict_last(call.rstd + row, normal.s); }
}

// ---- weight and bias that a call may lack, and rows that are asked for ahead

constexpr int kMostColumns = layouts::kShortVectors * 8;  // of a row that is not long

// A missing weight is read from an array of ones, a missing bias from one of zeros: no branches among loads.
template <int bytes>
struct alignas(16) Filled {
    uint32_t words[bytes / 4];
    constexpr explicit Filled(uint32_t word) : words() {
        for (uint32_t& w : words) { w = word; }
    }
};
__device__ constexpr Filled<2 * kMostColumns> kOnesBf16(kOneWord<__nv_bfloat16>), kOnesFp16(kOneWord<__half>);
__device__ constexpr Filled<4 * kMostColumns> kOnesFp32(kOneWord<float>), kZeros(0);

template <typename W>
__device__ const W* or_ones(const W* given) {
    if (given != nullptr) { return given; }
    return reinterpret_cast<const W*>(std::is_same_v<W, float>    ? kOnesFp32.words
                                      : std::is_same_v<W, __half> ? kOnesFp16.words
                                                                  : kOnesBf16.words);
}
template <typename W>
__device__ const W* or_zeros(const W* given) {
    return given != nullptr ? given : reinterpret_cast<const W*>(kZeros.words);
}

template <typename Call>
__device__ void prefetch_parameters(const Call& call) {
    prefetch_lines(call.C, or_ones(call.weight), or_zeros(call.bias));
}

// Rows that the device works on at once, if so many fit a multiprocessor; of those that a cluster shares as many as it has
// room for clusters, 0: none.
template <auto* kernel>
int rows_under_way(const LaunchConfig& config, int of_multiprocessor) {
    return config.cluster > 1 ? most_clusters<kernel>(config)
                              : device_facts().multiprocessors * of_multiprocessor;
}

// L with dropout of the second input.
template <typename L>
struct Dropping : L {
    static constexpr bool drops = true;
};
// what its kernels are given
template <typename L, typename T, typename W, typename Out = T>
using CallOf = std::conditional_t<L::drops, LayerNormForwardRows<T, W, Out>, LayerNormForward<T, W, Out>>;

template <typename L, typename Call>
__device__ auto mask_of(const Call& call, int64_t row) {
    if constexpr (L::drops) {
        return DropoutRow(call.dropout, row, call.C);
    } else {
        return 0;
    }
}
// of n columns from c on: x + x2, which is dropped first
template <typename T, int n>
__device__ Elements<T, n> dropped_sum(const Elements<T, n>& x, const Elements<T, n>& x2,
                                      const DropoutRow& mask, int c) {
    const auto factors = mask.factors<n>(c);
    float sum[n];
    unrolled<n>([&](int j) { sum[j] = fmaf(as_float(x2, j), factors[j], as_float(x, j)); });
    return rounded<T>(sum);
}

// prefetch: asks for a row, from HBM into L2, some time before the block that will have it begins. What blocks have asked
// for themselves is not always enough for HBM to be busy: they wait for one another's sums, or their last rows' stores.
// Too early, and the row has left L2 when it is wanted.
struct Prefetch {
    int64_t rows;                 // the first of them ask
    int64_t distance, distance2;  // elements from a row to what it asks for, in inp and in inp2

    // A row asks for the one `later` rows after it. By measurement: a third or a quarter of those under way at a time.
    template <typename Call>
    Prefetch(const Call& call, int later)
        : rows(call.N - later), distance(later * call.inp_stride), distance2(later * call.inp2_stride) {}

    // One thread, for this row: for `most` columns from `first` on, or for those that the row has.
    template <bool kResidual, typename Call>
    __device__ void ask(const Call& call, int64_t row, int first, int most) const {
        int columns = min(most, call.C - first);
        if (row >= rows || columns <= 0) { return; }
        uint32_t bytes = columns * (uint32_t)sizeof(*call.inp);
        bulk_prefetch(call.inp + row * call.inp_stride + first + distance, bytes);
        if constexpr (kResidual) {
            bulk_prefetch(call.inp2 + row * call.inp2_stride + first + distance2, bytes);
        }
    }
};

}  // namespace llmc::layernorm
