// Kernels that measure others: one that keeps a stream busy while the host queues, and one that moves bytes and computes
// nothing. What calls them is left to the host's compiler.
#pragma once
#include <cuda_bf16.h>
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/check.cuh"

namespace llmc {

// without it short kernels would be timed waiting for the host
void hold(int microseconds, cudaStream_t stream);

// ---- streams of bytes: what memory-bound kernels are held against

struct Streams {
    const uint4* in[5];
    uint4* out[3];
};

// the most threads of a block: 65536 registers hold a vector of each of these streams, 4 registers, and the addresses
constexpr int stream_threads(int reads, int unroll) { return reads * unroll <= 12 ? 1024 : 512; }

// pdl: the next launch may start; nothing is read before the one before is over. Of Hopper or later.
struct StreamLaunch {
    int reads, writes, unroll;  // unroll: 1, 2, 4 vectors of each stream at a time
    bool pdl;
    unsigned blocks;
    int threads;
};

// of n vectors in each stream; throws Error(kExitUsage) where there is no kernel for so many streams
void move_streams(const StreamLaunch& launch, const Streams& streams, int64_t n, cudaStream_t stream);
// Is the current device Hopper or later, and the code of these kernels for it made so?
bool streams_overlap();

// bits that look like data: zeros can be moved faster than real numbers
void fill(void* memory, int64_t words, cudaStream_t stream);

// ---- what shootouts measure by, but no rung has

// adds to *count, in device memory, in how many of n bytes a and b differ
void count_differences(unsigned long long* count, const std::byte* a, const std::byte* b, int64_t n,
                       cudaStream_t stream);

// in [-1, 1): a product of zeros, or of what is not a number, takes another power and thus another time
void fill_bf16(__nv_bfloat16* p, int64_t n, cudaStream_t stream);

// 2^-x again and again, which stays between 0 and 1: in each thread that many steps of so many exponentials
constexpr int kExponentialChains = 4;
void exponentials(float* out, int steps, unsigned blocks, int threads, cudaStream_t stream);

}  // namespace llmc
