// What attention in fp32 and in bf16 share: where heads lie, and the dot products that backward starts from.
#pragma once
#include <cmath>
#include <cstdint>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc {

struct AttentionSizes {
    int T, NH, HS;
    float scale = 1;  // of the scores
};

inline AttentionSizes sizes_of(int T, int NH, int HS) { return {T, NH, HS, 1 / std::sqrt((float)HS)}; }

// element offset of (b, t = 0, which, h), head = b * NH + h, in a (B,T,count,NH,HS) tensor
__device__ inline int64_t head_offset(const AttentionSizes& s, int head, int count, int which) {
    return (((int64_t)(head / s.NH) * s.T * count + which) * s.NH + head % s.NH) * s.HS;
}

// rows of one head: row t starts at base + t * stride and has HS elements
template <typename T>
struct HeadRows {
    const T* base;
    int64_t stride;
    int seq_len, HS;
};

// launches a kernel whose blocks have `rows` rows of a head each, and `bytes` of shared memory
template <typename... Parameters, typename... Arguments>
void launch_heads(void (*kernel)(Parameters...), int rows, int threads, int bytes, int B,
                  const AttentionSizes& s, cudaStream_t stream, Arguments... arguments) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    unsigned grid = grid_x((int64_t)ceil_div(s.T, rows) * B * s.NH);
    kernel<<<grid, threads, bytes, stream>>>(arguments...);
    check_launch();
}

// dot (B,NH,T) = the sum over a head's row of dout * out; kLanes lanes of a warp a row, kV elements at a time
template <int kLanes, int kV, typename T>
__global__ void attention_dot_kernel(float* dot, const T* dout, const T* out, int64_t rows, int seq_len,
                                     int NH, int HS) {
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kLanes;  // (b * seq_len + t) * NH + h
    bool exists = row < rows;
    float sum = 0;
    for (int c = threadIdx.x % kLanes * kV; exists && c < HS; c += kLanes * kV) {
        auto a = load<kV>(dout + row * HS + c), b = load<kV>(out + row * HS + c);
        unrolled<kV>([&](int i) { sum += (float)a.at[i] * (float)b.at[i]; });
    }
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    int64_t t = row / NH % seq_len, b = row / NH / seq_len, h = row % NH;
    if (exists && threadIdx.x % kLanes == 0) { dot[(b * NH + h) * seq_len + t] = sum; }
}

template <int kLanes, int kV, typename T>
void find_dots(float* dot, const T* dout, const T* out, int B, const AttentionSizes& s, cudaStream_t stream) {
    constexpr int kBlock = 256;
    int64_t rows = (int64_t)B * s.T * s.NH;
    unsigned grid = grid_x(ceil_div(rows, kBlock / kLanes));
    attention_dot_kernel<kLanes, kV><<<grid, kBlock, 0, stream>>>(dot, dout, out, rows, s.T, s.NH, s.HS);
    check_launch();
}

}  // namespace llmc
