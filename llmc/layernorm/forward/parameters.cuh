// Weight and bias that a call may lack.
#pragma once
#include <cstdint>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc::layernorm_parameters {

constexpr int kMostVectors = 2112, kMostColumns = kMostVectors * 8;  // of a row that is not long

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

}  // namespace llmc::layernorm_parameters
