// LayerNorm whose result Hopper's FP8 tensor cores read: e4m3, and its transpose for the gradient of the weight, from one
// read of the row. 4 bytes an element move, as much as a bf16 LayerNorm's.
#pragma once
#include <cstdint>

#include "llmc/cuda/types.h"
#include "llmc/host/base/dropout.h"

namespace llmc {

constexpr int kMostFp8Columns = 6144, kMostFp8Dropped = 4096;

// y = (x - mean(x)) * rstd * weight + bias as layernorm.h has it, x a row of inp or, with residual, of inp + inp2 rounded to
// T; out is y * *scale in e4m3: to the nearest, ties to even, beyond 448 saturated; NaN stays NaN. The statistics are
// those of two passes over the row in fp32; the same call gives the same bits.
// T: __nv_bfloat16. N and C are multiples of 16, N at most 2^30, C kMostFp8Columns; pointers are aligned to 16 bytes.
// residual may alias inp or inp2, nothing else may alias. Hopper or later. Errors (llmc::Error): another size, alignment or GPU.
template <typename T>
struct LayerNormForwardFp8 {
    uint8_t* out;                   // (N,C) e4m3
    uint8_t* transposed = nullptr;  // (C,N) the same bytes, or null if not wanted
    float* amax = nullptr;          // (1) raised to the largest |y|, or null; NaN does not count
    float* mean = nullptr;          // (N), or null if not wanted
    float* rstd = nullptr;
    const T* inp;        // (N,C)
    const T* weight;     // (C)
    const T* bias;       // (C)
    const float* scale;  // (1) in device memory
    int64_t N;
    int C;
    float eps = 1e-5f;
    T* residual = nullptr;    // (N,C): inp + inp2, rounded to T, which out normalises
    const T* inp2 = nullptr;  // (N,C), with residual
};

// dropout: of inp2, before it is added; then C is at most kMostFp8Dropped
template <typename T>
void layernorm_forward_fp8(const LayerNormForwardFp8<T>& call, cudaStream_t stream,
                           const Dropout& dropout = {});

}  // namespace llmc
