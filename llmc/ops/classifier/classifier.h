// The classifier: softmax, cross-entropy and its gradient in one pass over the logits. Formulas: reference.h.
//   T: float or __nv_bfloat16. logits (N,Vp), of which the first V columns count; targets (N) in [0, V) or
//   kIgnoreTarget; losses (N) in nats, 0 where the target is ignored. V <= Vp; no alignment assumed.
#pragma once
#include <cstdint>

#include "llmc/cuda/types.h"

namespace llmc {

// losses (N) and predicted (N, the arg max, lowest index first) are written (=); logits are read only
template <typename T>
void classifier_forward(float* losses, int32_t* predicted, const T* logits, const int32_t* targets, int64_t N,
                        int V, int Vp, cudaStream_t stream);

// losses (N) written (=); logits are replaced by their gradient dloss (softmax - onehot), 0 in ignored rows
// and in columns V to Vp. *dloss, in device memory: a row's weight in the loss, 1 / (targets that count).
template <typename T>
void classifier_forward_backward(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                 int64_t N, int V, int Vp, cudaStream_t stream);

// *sum = the sum of losses (N) in double, in a fixed order; += with accumulate. sum is in device memory.
void sum_losses(double* sum, const float* losses, int64_t N, bool accumulate, cudaStream_t stream);

// Hopper's kernel of classifier_forward_backward(), for tests; false: it cannot take these rows
template <typename T>
bool classifier_forward_backward_rows(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                      int64_t N, int V, int Vp, cudaStream_t stream);

}  // namespace llmc
