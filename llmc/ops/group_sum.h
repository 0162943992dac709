// The gradient of a step whose micro-batches are in groups: what the groups' gradients, losses and squares
// add up to, in an order that does not depend on the number of ranks.
//   Grad: float or __nv_bfloat16
#pragma once
#include <cstdint>

#include "llmc/cuda/stream.h"

namespace llmc {

// What the ranks have computed of one rank's share of the elements: of as many groups as there are ranks. The
// share is n elements: whole chunks of kNormChunk, the last of all elements may be shorter.
template <typename Grad>
struct GroupParts {
    const Grad* own;      // this rank's, of all elements
    const Grad* arrived;  // the other ranks', in their order: (ranks - 1, stride), n of each used
    int64_t stride;
    int rank, ranks;
    const int32_t* numbers;  // of the share's chunks among all, in device memory
};

// sums += the parts, one after the other by their ranks; with start the first part is copied. sums: of the
// share (n), or with `whole` of all elements. n and stride are multiples of 8, all arrays 16-byte aligned; none
// may overlap.
template <typename Grad>
void add_parts(float* sums, bool whole, const GroupParts<Grad>& parts, int64_t n, bool start,
               cudaStream_t stream);

// *squares = the sum of those of all chunks (n), of which the one at chunks[places[k]] is the k-th in order;
// *loss = the sum of losses (groups) in the groups' order, where rank r has losses[r * groups / ranks] and on:
// of the groups r, r + ranks, ... All in device memory.
void sum_groups(double* squares, double* loss, const double* chunks, const int32_t* places, int64_t n,
                const double* losses, int groups, int ranks, cudaStream_t stream);

}  // namespace llmc
