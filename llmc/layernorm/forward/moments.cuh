// Mean and squares of the parts of a row, of the whole from them, and how it is then normalised.
#pragma once
#include "llmc/layernorm/kernel.cuh"

namespace llmc::layernorm {

// What a warp or a block knows of its elements: their mean is about + m, two numbers since one has too few
// bits where the mean is large and the spread small; `squares` is about the mean, n their number.
template <typename Acc>
struct alignas(4 * sizeof(Acc)) MomentsIn {
    Acc about, m, squares, n;

    __device__ float4 packed() const { return {about, m, squares, n}; }
};
using Moments = MomentsIn<float>;

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// What `count` moments come to, the same in every thread. Chan et al. 1983. Means are compared with the
// first's: for equal ones everything is exact.
template <int count>
__device__ Moments joined(const Moments* all, float per_column) {
    constexpr int lanes = power_of_two(count);
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
// additions, half as long. per_some, per_n: 1 / how many they are in all lanes.
template <int lanes, typename Some, typename All>
__device__ Moments moments_of(const Some& some, float per_some, const All& all, float n, float per_n) {
    float sums[2] = {}, rests = 0, squares[2] = {};
    some([&](float x, int chain) { sums[chain] += x; });
    // rounded before it is taken off, as whoever merges has it: no fused multiply and add
    float about = __fmul_rn(group_sum<lanes>(sums[0] + sums[1]), per_some);
    all([&](float x, int chain) {
        float d = x - about;
        rests += d;
        squares[chain] = fmaf(d, d, squares[chain]);
    });
    return moments_about(about, group_sums<lanes>({rests, squares[0] + squares[1]}), n, per_n);
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

using llmc::store_evict_last;
__device__ inline void store_evict_last(double* p, double x) { *p = x; }

// By one thread. They stay in L2 while rows stream by.
template <typename Call, typename Acc>
__device__ void write_statistics(const Call& call, int64_t row, const NormalIn<Acc>& normal) {
    if (call.mean != nullptr) { store_evict_last(call.mean + row, normal.mean); }
    if (call.rstd != nullptr) { store_evict_last(call.rstd + row, normal.s); }
}

}  // namespace llmc::layernorm
