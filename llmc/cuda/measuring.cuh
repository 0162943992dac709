// Kernels that measure others: one that keeps a stream busy while the host queues, and one that moves bytes and computes
// nothing.
#pragma once
#include <cstdint>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc {

// ---- hold: without it short kernels would be timed waiting for the host

static __global__ void hold_kernel(uint64_t ns) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < ns);
}

inline void hold(int microseconds, cudaStream_t stream) {
    hold_kernel<<<1, 1, 0, stream>>>(1000 * (uint64_t)microseconds);
    check_launch();
}

// ---- streams of bytes: what memory-bound kernels are held against

struct Streams {
    const uint4* in[5];
    uint4* out[3];
};

// kCount vectors of each stream, `stride` apart: all are read before the first is written, so that the loads
// overlap, and what is written depends on all that was read
template <int R, int W, int kCount>
__device__ void stream_vectors(const Streams& s, int64_t first, int64_t stride) {
    uint4 v[kCount][R];
#pragma unroll
    for (int u = 0; u < kCount; u++) {
#pragma unroll
        for (int r = 0; r < R; r++) { v[u][r] = s.in[r][first + u * stride]; }
    }
#pragma unroll
    for (int u = 0; u < kCount; u++) {
        uint4 x = v[u][0];
#pragma unroll
        for (int r = 1; r < R; r++) {
            x = {x.x ^ v[u][r].x, x.y ^ v[u][r].y, x.z ^ v[u][r].z, x.w ^ v[u][r].w};
        }
#pragma unroll
        for (int w = 0; w < W; w++) { s.out[w][first + u * stride] = x; }
        if constexpr (W == 0) {  // never, but the compiler does not know
            if ((x.x & x.y & x.z & x.w) == ~0u) { s.out[0][first + u * stride] = x; }
        }
    }
}

// the most threads of a block: 65536 registers hold a vector of each of these streams, 4 registers, and the addresses
template <int R, int kUnroll>
constexpr int kStreamThreads = R* kUnroll <= 12 ? 1024 : 512;

// n vectors in each stream. kPdl: the next launch may start; nothing is read before the one before is over
template <int R, int W, int kUnroll, bool kPdl>
__global__ void __launch_bounds__(kStreamThreads<R, kUnroll>) stream_kernel(Streams s, int64_t n) {
    if constexpr (kPdl && kSm90) {
        dependency_launch();
        dependency_wait();
    }
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (kUnroll - 1) * threads < n; i += kUnroll * threads) {
        stream_vectors<R, W, kUnroll>(s, i, threads);
    }
    for (; i < n; i += threads) { stream_vectors<R, W, 1>(s, i, threads); }
}

// bits that look like data: zeros can be moved faster than real numbers
template <typename Word>
__global__ void fill_kernel(Word* p, int64_t n, uint32_t seed) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        uint32_t h = ((uint32_t)i + seed) * 0x9e3779b9u;
        h = (h ^ h >> 15) * 0x2c1b3c6du;
        p[i] = h ^ h >> 13;
    }
}

}  // namespace llmc
