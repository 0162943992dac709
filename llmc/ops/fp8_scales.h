// The scales of FP8 tensors, delayed: each follows from the largest magnitudes of the steps before, so that a tensor is scaled
// and written in the read that finds this step's. A scale is a power of two, so that it rounds nothing, and leaves up to a
// factor of 2 above the largest magnitude known.
#pragma once
#include <cstdint>

#include "llmc/cuda/types.h"

namespace llmc {

constexpr int kFp8History = 16;  // steps
constexpr int kFp8Inverse =
    4;  // floats from one to the next: cuBLASLt takes a scale at a multiple of 16 bytes only

// Device memory of n tensors, of which the first `activations` are in e4m3, the others in e5m2.
struct Fp8Scales {
    int64_t n = 0, activations = 0;
    int ranks = 1;
    float* amax = nullptr;  // (ranks,n) raised during a step, see Fp8Output
    float* history =
        nullptr;  // (n,kFp8History) of the steps before, the last one first; 0 where nothing is known
    float* scale = nullptr;    // (n)
    float* inverse = nullptr;  // (n,kFp8Inverse) 1 / scale in the first of each
};

// After a step: amax goes into the history, unless it is not finite, and is 0 then; then the scales.
void end_fp8_step(const Fp8Scales& scales, cudaStream_t stream);
// The scales of the history alone. Where nothing is known they stay.
void restore_fp8_scales(const Fp8Scales& scales, cudaStream_t stream);

}  // namespace llmc
