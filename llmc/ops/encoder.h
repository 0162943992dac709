// The encoder: out = wte[token] + wpe[position], with dropout or without, and its gradient by a sort instead of atomics.
//   Real: float or __nv_bfloat16 (activations and weights);  Grad: float or Real (gradients of parameters)
// Formulas: reference.h. Everything is queued on the stream; nothing waits. tokens (B,T) is checked by the
// caller.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/types.h"
#include "llmc/host/base/dropout.h"

namespace llmc {

// out (B,T,C) written (=), the sum rounded once; wte (V,C), wpe (at least T rows, C)
template <typename Real>
void encoder_forward(Real* out, const int32_t* tokens, const Real* wte, const Real* wpe, int B, int T, int C,
                     cudaStream_t stream, const Dropout& dropout = {});

// bytes of scratch that encoder_backward needs; they need no initialisation
size_t encoder_backward_scratch(int B, int T, int C, int V);

// dwte (V,C) is added to (+=): a row is added to once, by the fp32 sum over its tokens in a fixed order.
// dwpe: the first T rows are written (=), or added to with accumulate. dout (B,T,C). scratch: 256-byte
// aligned.
template <typename Real, typename Grad>
void encoder_backward(Grad* dwte, Grad* dwpe, void* scratch, const Real* dout, const int32_t* tokens, int B,
                      int T, int C, int V, bool accumulate, cudaStream_t stream);

}  // namespace llmc
