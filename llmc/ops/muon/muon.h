// Muon's update on the device, but for its matrix products, which newton_schulz.h computes in between. The
// rule is muon_rule.h's, the arithmetic that of reference_muon.h; the host is never asked.
//   T: float, or __nv_bfloat16 with fp32 master weights;  Grad: float or T
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/stream.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/muon/muon_rule.h"

namespace llmc {

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
