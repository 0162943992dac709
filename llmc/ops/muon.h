// Muon's update on the device, but for its matrix products, which newton_schulz.h computes in between. The
// rule is muon_rule.h's, the arithmetic that of reference_muon.h; the host is never asked.
//   T: float, or __nv_bfloat16 with fp32 master weights;  Grad: float or T
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/stream.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/muon_rule.h"

namespace llmc {

// Some copies (layers) of a tensor, which lie `stride` elements apart, a multiple of 4; a copy is `matrices`
// matrices (rows, cols), one behind the other.
struct MuonTensor {
    int tensor;  // its number in the model
    int rows, cols, matrices;
    int first_copy, copies;  // the number of the first, and how many
    int64_t stride;

    int64_t size() const { return (int64_t)rows * cols; }
    int count() const { return matrices * copies; }
};

// From one direction to the next, in elements: rounded up, so that products can read vectors.
constexpr int64_t muon_stride(int64_t size) { return (size + 63) / 64 * 64; }

size_t muon_scratch(int count);  // bytes for `count` matrices; no initialisation needed

// m, the mean gradient, takes the gradient in; x (count, muon_stride(size)) = the look ahead over its own
// norm. m and grad point to the first of the copies, 16-byte aligned, as x and scratch are. Nothing where
// decision->skipped.
template <typename T, typename Grad>
void muon_direction(T* x, void* scratch, float* m, const Grad* grad, const MuonTensor& shape,
                    const StepDecision* decision, cudaStream_t stream);

// The step along x (count, muon_stride(size)), whose singular values are near 1. param, master and their
// rounding as in adamw_update(), of which the decay is that of a tensor that decays. inputs: in device
// memory
template <typename T>
void muon_update(T* param, float* master, const T* x, const MuonTensor& shape, const StepDecision* decision,
                 const StepInputs* inputs, uint64_t seed, cudaStream_t stream);

}  // namespace llmc
