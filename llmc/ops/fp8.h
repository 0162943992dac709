// Tensors of a training step in FP8: an activation in e4m3, a gradient in e5m2, each with its transpose where a product needs
// that, each from one read of what it is made of. LayerNorm's: llmc/layernorm/fp8.
//   T: __nv_bfloat16;  Grad: float or T
// N and C are multiples of 16; pointers are aligned to 16 bytes; nothing may alias. Computed in fp32, times *scale, rounded
// once; beyond the format's largest number that one; NaN stays NaN. Hopper or later. The same call gives the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/types.h"

namespace llmc {

struct Fp8Output {
    uint8_t* rows = nullptr;        // (N,C), or null if not wanted
    uint8_t* transposed = nullptr;  // (C,N) likewise
    const float* scale;             // (1) in device memory
    float* amax = nullptr;  // (1) raised to the largest magnitude before scaling, or null; NaN does not count
};

// dbias (C) = the sums of the gradient's columns in fp32, before it is rounded, in a fixed order; += with accumulate
template <typename Grad>
struct Fp8ColumnSums {
    Grad* dbias = nullptr;    // null if not wanted
    void* scratch = nullptr;  // fp8_sums_scratch bytes, no initialisation needed
    bool accumulate = false;
};
size_t fp8_sums_scratch(int64_t N, int C);

// out = inp (N,C)
template <typename T>
void cast_e4m3(const Fp8Output& out, const T* inp, int64_t N, int C, cudaStream_t stream);
template <typename T, typename Grad>
void cast_e5m2(const Fp8Output& out, const Fp8ColumnSums<Grad>& sums, const T* inp, int64_t N, int C,
               cudaStream_t stream);

// out = gelu(inp)
template <typename T>
void gelu_e4m3(const Fp8Output& out, const T* inp, int64_t N, int C, cudaStream_t stream);

// out = gelu'(inp) dout in e5m2; activation = gelu(inp) again, of which the transpose alone can be had: forward need not keep
// it
template <typename T, typename Grad>
void gelu_backward_e5m2(const Fp8Output& out, const Fp8Output& activation, const Fp8ColumnSums<Grad>& sums,
                        const T* dout, const T* inp, int64_t N, int C, cudaStream_t stream);

}  // namespace llmc
