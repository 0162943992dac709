// What the classifier's kernels share: exponentials, and how sums of them relative to different maxima are joined.
#pragma once
#include <type_traits>

#include "llmc/cuda/device.cuh"

namespace llmc {

// exp(x - largest), x at most `largest`. float: within 2 ulp. bf16: of x log2(e) - largest log2(e), where the second product
// is rounded. Whatever it is rounded to, all of a row is relative to that number, so that only the difference's rounding
// counts: within |x - largest| 2^-23 + 2^-22, relative, beside bf16's own 2^-9. In a row's sum of exp(x_v) the first part
// weighs 2^-23 sum_v p_v |x_v|, which is at most 2^-23 ln V (an entropy).
template <typename T>
__device__ inline float exp_below(float x, float largest) {
    if constexpr (std::is_same_v<T, float>) {
        return expf(x - largest);
    } else {
        return exp2_approx(fmaf(x, kLog2e, -__fmul_rn(largest, kLog2e)));
    }
}

// from sums relative to one maximum to sums relative to a larger one
template <typename T>
__device__ inline float rescale(float largest, float larger) {
    if constexpr (std::is_same_v<T, float>) {
        return expf(largest - larger);
    } else {
        return exp2_approx(__fmul_rn(largest, kLog2e) - __fmul_rn(larger, kLog2e));
    }
}

// Logits below this do not count where no logit is above it. Times log2(e) it is finite, so that exp_below() of -infinity
// is 0 and not NaN.
constexpr float kLowest = -2e38f;

// over columns of a row
struct Softmax {
    float largest = kLowest;  // NaN is passed over here and comes through in the sum
    float sum = 0;            // of exp(x - largest)
};

template <typename T>
__device__ inline float sum_below(const Softmax& s, float larger) {
    return s.sum * rescale<T>(s.largest, larger);
}

// all parts of a warp's `lanes` neighbouring lanes, in each of them; T: of the logits
template <typename T, int lanes>
__device__ inline Softmax joined(const Softmax& part) {
    Softmax all = part;
#pragma unroll
    for (int d = lanes / 2; d > 0; d /= 2) {
        all.largest = fmaxf(all.largest, __shfl_xor_sync(kAllLanes, all.largest, d));
    }
    all.sum = sum_below<T>(part, all.largest);
#pragma unroll
    for (int d = lanes / 2; d > 0; d /= 2) { all.sum += __shfl_xor_sync(kAllLanes, all.sum, d); }
    return all;
}

// -ln softmax(x)[target]
__device__ inline float loss_of(const Softmax& row, float target_logit) {
    return logf(row.sum) + (row.largest - target_logit);
}

}  // namespace llmc
