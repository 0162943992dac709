// A checksum of device memory, to see whether two results have the same bits without keeping either.
#pragma once
#include <cstdint>

#include "llmc/cuda/check.cuh"

namespace llmc {

// sum: in device memory
void add_checksum(uint64_t* sum, const uint32_t* words, int64_t n, int64_t first, cudaStream_t stream);

// of n words of device memory, once all that is queued on the stream is done; waits
uint64_t checksum(const uint32_t* words, int64_t n, cudaStream_t stream);

}  // namespace llmc
