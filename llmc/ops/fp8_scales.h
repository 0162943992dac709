// The scales of FP8 tensors, delayed: each follows from the largest magnitudes of the steps before, so that a tensor is scaled
// and written in the read that finds this step's. A scale is a power of two, so that it rounds nothing, and leaves up to a
// factor of 2 above the largest magnitude known.
#pragma once
#include <bit>
#include <cstdint>

#include "llmc/cuda/types.h"

namespace llmc {

constexpr int kFp8History = 16;  // steps
constexpr int kFp8Inverse =
    4;  // floats from one to the next: cuBLASLt takes a scale at a multiple of 16 bytes only
constexpr float kMostE4m3 = 448, kMostE5m2 = 57344;

// of a positive normal number
constexpr int exponent_of(float x) { return (int)(std::bit_cast<uint32_t>(x) >> 23) - 127; }
constexpr float power_of_two(int exponent) { return std::bit_cast<float>((uint32_t)(exponent + 127) << 23); }
// largest: above 0; most: of the format. Such that scale and 1 / scale are normal numbers.
constexpr float fp8_scale(float most, float largest) {
    const int exponent = exponent_of(most / largest);
    return power_of_two(exponent < -100 ? -100 : exponent > 100 ? 100 : exponent);
}

// Device memory of n tensors, of which those from `gradients` on are in e5m2, the others in e4m3.
struct Fp8Scales {
    int64_t n = 0, gradients = 0;
    int ranks = 1;
    float* amax = nullptr;  // (ranks,n) raised during a step, see Fp8Output
    float* history =
        nullptr;  // (n,kFp8History) of the steps before, the last one first; 0 where nothing is known
    float* scale = nullptr;    // (n)
    float* inverse = nullptr;  // (n,kFp8Inverse) 1 / scale in the first of each
};

// How many tensors of a step had numbers beyond what its scale left room for, and which is the first of them.
struct Fp8Saturated {
    int32_t tensors = 0, first = 0;
};

// After a step: amax of all ranks goes into the history, unless it is not finite, and is 0 then; then the scales.
// saturated: in device memory
void end_fp8_step(const Fp8Scales& scales, Fp8Saturated* saturated, cudaStream_t stream);
// The scales of the history alone. Where nothing is known they stay.
void restore_fp8_scales(const Fp8Scales& scales, cudaStream_t stream);

}  // namespace llmc
