// 2^x in one instruction. exp2f costs four, to keep results below 2^-126, which nobody here can tell from 0.
#pragma once

namespace llmc {

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(kLog2e x)

// within 2^-22 of 2^x, relative; 0 below 2^-126, infinity from 2^128 on, NaN for NaN
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace llmc
