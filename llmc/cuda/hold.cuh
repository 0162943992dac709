// Keeps a stream busy while the host queues more on it: short kernels would else be timed waiting for the host.
#pragma once
#include <cstdint>

#include "llmc/cuda/check.cuh"

namespace llmc {

static __global__ void hold_kernel(uint64_t ns) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < ns);
}

inline void hold(int microseconds, cudaStream_t stream) {
    hold_kernel<<<1, 1, 0, stream>>>(1000 * (uint64_t)microseconds);
    check_launch();
}

}  // namespace llmc
