// What is summed of a step's gradient, in orders that depend neither on threads nor on ranks: its squares, and what groups of
// micro-batches add to it.
//   Grad: float or __nv_bfloat16
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/types.h"
#include "llmc/ops/step_params.h"

namespace llmc {

// ---- squares are added in float by a thread, in double from there on

size_t sum_of_squares_scratch();  // bytes

// *sum (device memory) = sum of x[i]^2 over n elements; NaN and infinity come through. x 16-byte aligned;
// scratch 8-byte aligned, needs no initialisation.
template <typename Grad>
void sum_of_squares(double* sum, void* scratch, const Grad* x, int64_t n, cudaStream_t stream);

// sums[k] = that of chunks[k] of x, for k < count; x: of the chunks' share, or with `whole` of all elements,
// 16-byte aligned; chunks: in device memory
void squares_of_chunks(double* sums, const float* x, bool whole, const NormChunk* chunks, int64_t count,
                       cudaStream_t stream);

// ---- groups: what their gradients, losses and squares add up to

// What the ranks have computed of one rank's share of the elements: of as many groups as there are ranks.
template <typename Grad>
struct GroupParts {
    const Grad* own;      // this rank's, of all elements
    const Grad* arrived;  // the other ranks', in their order, of the share: (ranks - 1, stride)
    int64_t stride;
    int rank, ranks;
    const NormChunk* chunks;  // the share's, in device memory, whose sizes are multiples of 8
    int64_t count;            // of them
};

// sums += the parts, one after the other by their ranks; with start the first part is copied. sums: of the
// share, or with `whole` of all elements. The stride is a multiple of 8, all arrays are 16-byte aligned; none
// may overlap.
template <typename Grad>
void add_parts(float* sums, bool whole, const GroupParts<Grad>& parts, bool start, cudaStream_t stream);

// *squares = the sum of those of all chunks (n), of which the one at chunks[places[k]] is the k-th in order;
// *loss = the sum of losses (groups) in the groups' order, where rank r has losses[r * groups / ranks] and on:
// of the groups r, r + ranks, ... All in device memory.
void sum_groups(double* squares, double* loss, const double* chunks, const int32_t* places, int64_t n,
                const double* losses, int groups, int ranks, cudaStream_t stream);

}  // namespace llmc
