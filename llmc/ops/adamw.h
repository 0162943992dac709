// The optimizer step on the device: decide (clip, skip), then AdamW. The host is never asked.
// Decoupled weight decay, Loshchilov and Hutter 2017, arXiv:1711.05101; arithmetic as adamw_cpu in
// reference.h.
#pragma once
#include <compare>
#include <cstdint>

#include "llmc/cuda/types.h"
#include "llmc/ops/fp8_scales.h"
#include "llmc/ops/step_params.h"

struct __nv_bfloat16;  // CUDA's, by its declaration alone: the CPU's model includes this

namespace llmc {

// What the device decided about a step; in device memory, copied to the host as it is.
struct StepDecision {
    int64_t updates;   // optimizer updates that happened, this one included
    float loss, norm;  // mean over the targets; of the gradient, before clipping
    float grad_scale;  // 1, or clip / (norm + 1e-6) where that is less
    float step_size;   // lr / (1 - beta1^updates)
    float correct2;    // 1 / sqrt(1 - beta2^updates)
    int32_t skipped;   // loss or norm was not finite or an outlier, or the gradient too long: no update
    Fp8Saturated saturated = {};
};

// *decision from the sums that classifier.h and gradient_sums.h left on the device; decision->updates goes up
// by one unless the step is skipped. inputs: in device memory; their targets: how many losses the sum holds.
void decide_step(StepDecision* decision, const double* loss_sum, const double* squares,
                 const StepInputs* inputs, cudaStream_t stream);

// what AdamW has in common in all steps, as in StepParams
struct AdamWConstants {
    double beta1, beta2, eps;
    auto operator<=>(const AdamWConstants&) const = default;
};

// A part of one tensor of the 16. Random numbers are keyed by (seed, updates, tensor, first + i), so they depend on nothing
// else.
struct AdamWTensor {
    int tensor;         // its number in the model
    int64_t size;       // elements
    int64_t first = 0;  // the number of the first one, counted over all layers
};

// A part of one copy of a tensor, of at most kNormChunk elements. Its random numbers are keyed as those of
// AdamWTensor.
struct alignas(16) AdamWPiece {
    int64_t at;      // where it begins in param
    int64_t kept;    // in the other arrays, which may be of a share of the elements only
    int64_t second;  // and in v, which may lack some tensors
    int64_t first;   // the number of its first element
    int32_t size;
    int16_t tensor;
    bool decays;  // the weight decay is for it
};

// Updates in place, all pieces in one launch; nothing where decision->skipped.
//   T = float:    param is the weights; low is null
//   T = bfloat16: the weights are fp32: param is what they are rounded to stochastically, low their lower halves
// pieces (n), decision, inputs: in device memory; no two pieces have an element in common.
template <typename T, typename Grad>
void adamw_update(T* param, uint16_t* low, float* m, float* v, const Grad* grad, const AdamWPiece* pieces,
                  int64_t n, const StepDecision* decision, const StepInputs* inputs,
                  const AdamWConstants& constants, uint64_t seed, cudaStream_t stream);

// param = weights rounded, as adamw_update left them after decision->updates updates (to nearest for 0), and low (null:
// not kept) their lower halves; shape: of all arrays.
void split_weights(__nv_bfloat16* param, uint16_t* low, const float* weights, const AdamWTensor& shape,
                   const StepDecision* decision, uint64_t seed, cudaStream_t stream);
// and back
void join_weights(float* weights, const __nv_bfloat16* param, const uint16_t* low, const AdamWTensor& shape,
                  const StepDecision* decision, uint64_t seed, cudaStream_t stream);

}  // namespace llmc
