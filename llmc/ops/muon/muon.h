// Muon: its rule in numbers, for the CPU and the GPU; its update on the device.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/types.h"
#include "llmc/ops/adamw.h"

namespace llmc {

// ---- the rule. Of a weight matrix W (rows, cols), its gradient G and a
// mean M:
//   M = mu M + (1 - mu) G,   U = mu M + (1 - mu) G,   W = (1 - lr decay) W - lr scale orthogonal(U)
// orthogonal(U) is U with all of its singular values near 1: five Newton-Schulz iterations of an odd
// polynomial,
//   X = U / (||U||_F + eps), then five times X = (a + b X X^T + c (X X^T)^2) X.
// A singular value above 0.0016 of the norm ends between 0.68 and 1.21, and nothing but matrix products is
// needed. Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. The scale makes the update's
// elements as large as those of AdamW's usual update, so that the learning rate and the decay are AdamW's:
// Liu et al. 2025, arXiv:2502.16982.

constexpr double kMuonMomentum = 0.95;  // mu
constexpr double kNewtonSchulzA = 3.4445, kNewtonSchulzB = -4.7750, kNewtonSchulzC = 2.0315;
constexpr int kNewtonSchulzSteps = 5;
constexpr double kNewtonSchulzEps = 1e-12;  // of a mean gradient that is zero, the direction is zero

// orthogonal(U)'s elements have a root mean square of 1 / sqrt(max(rows, cols)), an update of AdamW 0.2 to
// 0.4
inline double muon_scale(int rows, int cols) { return 0.2 * std::sqrt((double)std::max(rows, cols)); }

// ---- the update on the device, but for its matrix products. The arithmetic is that of reference.h; the host is never asked.
//   T: float, or __nv_bfloat16 with fp32 master weights;  Grad: float or T

// A layer's copy of a tensor: where it begins in param, and in the other arrays, which may be of a share of the
// elements only; multiples of 4.
struct MuonCopy {
    int64_t at, kept;
    int32_t layer;
};

// Some copies of a tensor, each `matrices` matrices (rows, cols), one behind the other.
struct MuonTensor {
    int tensor;  // its number in the model
    int rows, cols, matrices;
    const MuonCopy* copies;  // in device memory
    int num_copies;

    int64_t size() const { return (int64_t)rows * cols; }
    int count() const { return matrices * num_copies; }
};

// From one direction to the next, in elements: rounded up, so that products can read vectors.
constexpr int64_t muon_stride(int64_t size) { return (size + 63) / 64 * 64; }

size_t muon_scratch(int count);  // bytes for `count` matrices; no initialisation needed

// m, the mean gradient, takes the gradient in; x (count, muon_stride(size)) = the look ahead over its own
// norm. All arrays are 16-byte aligned. Nothing where decision->skipped.
template <typename T, typename Grad>
void muon_direction(T* x, void* scratch, float* m, const Grad* grad, const MuonTensor& shape,
                    const StepDecision* decision, cudaStream_t stream);

// The step along x (count, muon_stride(size)), whose singular values are near 1. param, low and their
// rounding as in adamw_update(), of which the decay is that of a tensor that decays. inputs: in device
// memory
template <typename T>
void muon_update(T* param, uint16_t* low, const T* x, const MuonTensor& shape, const StepDecision* decision,
                 const StepInputs* inputs, uint64_t seed, cudaStream_t stream);

}  // namespace llmc
