// One block; a thread for each tensor.
#include "llmc/ops/fp8_scales.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc {

namespace {

constexpr int kThreads = 1024;

// the largest magnitude of a step, which leaves room for the next one's
__device__ float take_amax(const Fp8Scales& scales, int64_t i) {
    float amax = 0;
    for (int r = 0; r < scales.ranks; r++) {
        float* of_rank = scales.amax + r * scales.n + i;
        amax = fmaxf(amax, *of_rank);
        *of_rank = 0;
    }
    return amax;
}

// saturated: null if no step ends
__global__ void __launch_bounds__(kThreads) fp8_scales_kernel(Fp8Scales scales, Fp8Saturated* saturated) {
    __shared__ int tensors, first;
    if (threadIdx.x == 0) { tensors = 0, first = (int)scales.n; }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < scales.n; i += kThreads) {
        const float most = i < scales.gradients ? kMostE4m3 : kMostE5m2;
        float* history = scales.history + i * kFp8History;
        float known[kFp8History], largest = 0;
#pragma unroll
        for (int k = 0; k < kFp8History; k++) { known[k] = history[k]; }
        if (saturated != nullptr) {
            const float amax = take_amax(scales, i);
            if (amax * scales.scale[i] > most) {
                atomicAdd(&tensors, 1);
                atomicMin(&first, (int)i);
            }
#pragma unroll
            for (int k = kFp8History - 1; k > 0; k--) { history[k] = known[k] = known[k - 1]; }
            if (isfinite(amax)) { history[0] = known[0] = amax; }
        }
#pragma unroll
        for (int k = 0; k < kFp8History; k++) { largest = fmaxf(largest, known[k]); }
        if (largest == 0) { continue; }
        const float scale = fp8_scale(most, largest);
        scales.scale[i] = scale;
        scales.inverse[i * kFp8Inverse] = 1 / scale;
    }
    __syncthreads();
    if (threadIdx.x == 0 && saturated != nullptr) { *saturated = {tensors, first}; }
}

}  // namespace

void end_fp8_step(const Fp8Scales& scales, Fp8Saturated* saturated, cudaStream_t stream) {
    fp8_scales_kernel<<<1, kThreads, 0, stream>>>(scales, saturated);
    check_launch();
}
void restore_fp8_scales(const Fp8Scales& scales, cudaStream_t stream) {
    fp8_scales_kernel<<<1, kThreads, 0, stream>>>(scales, nullptr);
    check_launch();
}

}  // namespace llmc
