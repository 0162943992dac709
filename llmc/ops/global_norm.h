// The sum of squares of the whole gradient, in a fixed order: squares are added in float by a thread, in
// double from there on.
//   Grad: float or __nv_bfloat16
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/stream.h"
#include "llmc/ops/step_params.h"

namespace llmc {

size_t sum_of_squares_scratch();  // bytes

// *sum (device memory) = sum of x[i]^2 over n elements; NaN and infinity come through. x 16-byte aligned;
// scratch 8-byte aligned, needs no initialisation.
template <typename Grad>
void sum_of_squares(double* sum, void* scratch, const Grad* x, int64_t n, cudaStream_t stream);

// sums[k] = that of chunks[k] of x, for k < count; x: of the chunks' share, or with `whole` of all elements,
// 16-byte aligned; chunks: in device memory
void squares_of_chunks(double* sums, const float* x, bool whole, const NormChunk* chunks, int64_t count,
                       cudaStream_t stream);

}  // namespace llmc
