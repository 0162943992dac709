// A thread for each tensor.
#include "llmc/ops/fp8_scales.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc {

namespace {

constexpr int kThreads = 128;

__global__ void fp8_scales_kernel(Fp8Scales scales, bool ends_step) {
    constexpr float e4m3 = 448, e5m2 = 57344;
    constexpr int most_exponent = 100;  // both scales are then normal numbers
    const int64_t i = (int64_t)blockIdx.x * kThreads + threadIdx.x;
    if (i >= scales.n) { return; }
    float* history = scales.history + i * kFp8History;
    float known[kFp8History], largest = 0;
#pragma unroll
    for (int k = 0; k < kFp8History; k++) { known[k] = history[k]; }
    if (ends_step) {
        float amax = 0;
        for (int r = 0; r < scales.ranks; r++) {
            amax = fmaxf(amax, scales.amax[r * scales.n + i]);
            scales.amax[r * scales.n + i] = 0;
        }
#pragma unroll
        for (int k = kFp8History - 1; k > 0; k--) { history[k] = known[k] = known[k - 1]; }
        if (isfinite(amax)) { history[0] = known[0] = amax; }
    }
#pragma unroll
    for (int k = 0; k < kFp8History; k++) { largest = fmaxf(largest, known[k]); }
    if (largest == 0) { return; }
    const int exponent = ilogbf((i < scales.activations ? e4m3 : e5m2) / largest);
    const int kept = min(max(exponent, -most_exponent), most_exponent);
    scales.scale[i] = ldexpf(1, kept);
    scales.inverse[i * kFp8Inverse] = ldexpf(1, -kept);
}

void launch(const Fp8Scales& scales, bool ends_step, cudaStream_t stream) {
    fp8_scales_kernel<<<(unsigned)ceil_div(scales.n, (int64_t)kThreads), kThreads, 0, stream>>>(scales,
                                                                                                ends_step);
    check_launch();
}

}  // namespace

void end_fp8_step(const Fp8Scales& scales, cudaStream_t stream) { launch(scales, true, stream); }
void restore_fp8_scales(const Fp8Scales& scales, cudaStream_t stream) { launch(scales, false, stream); }

}  // namespace llmc
