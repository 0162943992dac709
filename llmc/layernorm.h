// LayerNorm as the model calls it: one struct a call, defaults for what is optional. Formulas: reference.h.
//   T: float, __nv_bfloat16, __half;  Grad: float or T (gradients of weight and bias);  statistics: float
// Rows are contiguous. A row's result does not depend on the batch it sits in; sums over rows run in a fixed
// order.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/stream.h"

namespace llmc {

template <typename T>
struct LayerNormForward {
    T* out;                 // (N,C) written (=)
    float* mean = nullptr;  // (N) written (=), or null if not wanted
    float* rstd = nullptr;
    const T* inp;     // (N,C)
    const T* weight;  // (C)
    const T* bias;    // (C)
    int64_t N;
    int C;
    float eps = 1e-5f;
    T* residual =
        nullptr;  // (N,C): = inp + inp2, rounded to T, and out normalises that; may alias inp or inp2
    const T* inp2 = nullptr;  // (N,C), with residual
};

template <typename T>
void layernorm_forward(const LayerNormForward<T>& call, cudaStream_t stream);

template <typename T, typename Grad>
struct LayerNormBackward {
    T* dinp;            // (N,C) written (=); += with accumulate_dinp
    Grad* dweight;      // (C) written (=); += with accumulate
    Grad* dbias;        // (C) likewise
    void* scratch;      // layernorm_backward_scratch bytes, 16-byte aligned, no initialisation needed
    const T* dout;      // (N,C)
    const T* inp;       // (N,C)
    const T* weight;    // (C)
    const float* mean;  // (N) as saved by forward
    const float* rstd;
    int64_t N;
    int C;
    bool accumulate_dinp = false, accumulate = false;
};

size_t layernorm_backward_scratch(int C);  // bytes

template <typename T, typename Grad>
void layernorm_backward(const LayerNormBackward<T, Grad>& call, cudaStream_t stream);

}  // namespace llmc
