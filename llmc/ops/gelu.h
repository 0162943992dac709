// GELU, the tanh form, for where a matmul's epilogue has none. Formulas: reference.h.
//   T: float or __nv_bfloat16; computed in float, rounded once. Any n; pointers aligned for T alone will do.
#pragma once
#include <cstdint>

#include "llmc/cuda/types.h"

namespace llmc {

// out (n) = gelu(inp (n)); out may alias inp
template <typename T>
void gelu_forward(T* out, const T* inp, int64_t n, cudaStream_t stream);

// dinp (n) = gelu'(inp) dout; dinp may alias dout
template <typename T>
void gelu_backward(T* dinp, const T* dout, const T* inp, int64_t n, cudaStream_t stream);

}  // namespace llmc
