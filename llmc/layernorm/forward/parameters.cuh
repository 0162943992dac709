// Weight and bias that a call may lack, and rows that are asked for ahead.
#pragma once
#include "llmc/layernorm/kernel.cuh"

namespace llmc::layernorm {

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
__device__ const W* ones() {
    return reinterpret_cast<const W*>(std::is_same_v<W, float>    ? kOnesFp32.words
                                      : std::is_same_v<W, __half> ? kOnesFp16.words
                                                                  : kOnesBf16.words);
}
template <typename W>
__device__ const W* or_ones(const W* given) {
    return given != nullptr ? given : ones<W>();
}
template <typename W>
__device__ const W* or_zeros(const W* given) {
    return given != nullptr ? given : reinterpret_cast<const W*>(kZeros.words);
}

template <typename Call>
__device__ void prefetch_parameters(const Call& call) {
    prefetch_lines(call.C, or_ones(call.weight), or_zeros(call.bias));
}

// prefetch: asks for a row, from HBM into L2, some time before the block that will have it begins. What blocks have asked
// for themselves is not always enough for HBM to be busy: they wait for one another's sums, or their last rows' stores.
// Too early, and the row has left L2 when it is wanted.
struct Prefetch {
    int64_t rows;                 // the first of them ask
    int64_t distance, distance2;  // elements from a row to what it asks for, in inp and in inp2

    // A row asks for the one `later` rows after it. By measurement: a third or a quarter of those under way at a time.
    template <typename T, typename W>
    Prefetch(const LayerNormForward<T, W>& call, int later)
        : rows(call.N - later), distance(later * call.inp_stride), distance2(later * call.inp2_stride) {}

    // One thread, for this row: for `most` columns from `first` on, or for those that the row has.
    template <bool kResidual, typename T, typename W>
    __device__ void ask(const LayerNormForward<T, W>& call, int64_t row, int first, int most) const {
        int columns = min(most, call.C - first);
        if (row >= rows || columns <= 0) { return; }
        uint32_t bytes = columns * (uint32_t)sizeof(T);
        bulk_prefetch(call.inp + row * call.inp_stride + first + distance, bytes);
        if constexpr (kResidual) {
            bulk_prefetch(call.inp2 + row * call.inp2_stride + first + distance2, bytes);
        }
    }
};

}  // namespace llmc::layernorm
