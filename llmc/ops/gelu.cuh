// GELU of one number, for kernels that have it in a register. The formulas are reference.h's; what is exp(z) there is
// 2^(z log2 e) here.
#pragma once
#include "llmc/cuda/device.cuh"

namespace llmc {

// reference.h's kGeluScale, kGeluCubic and kGeluLargest, in fp32
constexpr float kGeluScaleF = 1.5957691216057308f, kGeluCubicF = 0.044715f, kGeluLargestF = 80;

// exp(-2u), at most exp(80). z is rounded, so that exp(z) has an error of |z| 2^-24 whoever computes it; the
// product and the power add as much again and 2^-22.
__device__ inline float gelu_exp(float x) {
    float z = -kGeluScaleF * (x + kGeluCubicF * x * x * x);
    z = z > kGeluLargestF ? kGeluLargestF : z;  // NaN stays NaN
    return exp2_approx(z * kLog2e);
}

__device__ inline float gelu(float x) {
    return __fdividef(x, 1 + gelu_exp(x));  // 2 ulp for denominators up to 2^126; this one is below 2^116
}

struct Gelu2 {
    float gelu, slope;
};
__device__ inline Gelu2 gelu_and_slope(float x) {
    const float e = gelu_exp(x), s = __fdividef(1, 1 + e);
    return {x * s, s + x * s * (e * s) * (kGeluScaleF * (1 + 3 * kGeluCubicF * x * x))};
}

}  // namespace llmc
