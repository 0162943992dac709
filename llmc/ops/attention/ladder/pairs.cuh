// What v1 forward and backward share: rows of one head in global memory, a score for each pair of a query and
// a key.
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/mma.cuh"
#include "llmc/ops/attention/attention.cuh"

namespace llmc::v1 {

constexpr int kHeadSize = 64, kThreads = 256;

inline AttentionSizes sizes_of(int T, int NH) { return {T, NH, kHeadSize, 0.125f}; }
inline size_t scores_bytes(int B, int T, int NH) { return sizeof(float) * B * NH * T * T; }

// row t of a head of a (B,T,count,NH,64) tensor
__device__ inline const bf16* row_of(const bf16* tensor, const AttentionSizes& s, int head, int count,
                                     int which, int t) {
    return tensor + head_offset(s, head, count, which) + (int64_t)t * count * s.NH * kHeadSize;
}

__device__ inline float dot_product(const bf16* a, const bf16* b) {
    float sum = 0;
    for (int c = 0; c < kHeadSize; c += 8) {
        auto x = load<8>(a + c), y = load<8>(b + c);
#pragma unroll
        for (int i = 0; i < 8; i++) { sum += (float)x.at[i] * (float)y.at[i]; }
    }
    return sum;
}

// a block for 256 keys, a query and a head
inline dim3 grid_of_pairs(int B, int T, int NH) {
    require(T <= 65535 && B * NH <= 65535, "v1: at most 65535 tokens and heads");
    return dim3(ceil_div(T, kThreads), T, B * NH);
}
// a block for 4 rows of a head, a thread for each element
inline dim3 grid_of_rows(int B, int T, int NH) { return dim3(ceil_div(T, 4), B * NH); }
inline dim3 block_of_rows() { return dim3(kHeadSize, 4); }

}  // namespace llmc::v1
