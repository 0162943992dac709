// The kernels behind classifier_forward_backward(), which chooses. Arguments as in classifier.h.
//   rows     Hopper: a row waits in shared memory, of one block or shared out to a cluster, between its maximum and its
//            gradient: read once, written once
//   general  any GPU, any rows: a row is read twice, the second time mostly from the caches
#pragma once
#include <cstdint>

#include "llmc/cuda/stream.h"

namespace llmc {

// How the kernel for Hopper shares out a row. A block is 8 warps that compute and one that moves; two blocks to an SM.
namespace classifier_rows {
constexpr int kChunkBytes = 8192, kChunks = 13;  // of a block: 104 KB, of the 113 that half of an SM has
constexpr int kMostBlocks = 8;                   // of a cluster
constexpr int kLeastBytes = 2 * kChunkBytes;     // of a row: shorter ones leave most of a block idle
}  // namespace classifier_rows

// The blocks that share a row of row_bytes bytes; 0: it is left to the general kernel.
constexpr int classifier_blocks(int64_t row_bytes) {
    using namespace classifier_rows;
    int64_t blocks = (row_bytes + kChunks * kChunkBytes - 1) / (kChunks * kChunkBytes);
    bool fits = row_bytes >= kLeastBytes && row_bytes % 16 == 0 && blocks <= kMostBlocks;
    return fits ? (int)blocks : 0;
}

// false, and nothing is launched, where these rows are not for it: their length, their address, the device
template <typename T>
bool classifier_forward_backward_rows(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                      int64_t N, int V, int Vp, cudaStream_t stream);
template <typename T>
void classifier_forward_backward_general(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                         int64_t N, int V, int Vp, cudaStream_t stream);

}  // namespace llmc
