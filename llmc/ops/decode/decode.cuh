// What the kernels of decode.h share: how they are launched, one after the other, each beginning while the
// one before it ends.
#pragma once
#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/ops/decode/decode.h"

namespace llmc {

// Until it returns, what earlier kernels write must not be touched, nor what they read be written. The
// kernels after this one, which may then begin, say the same: so when it returns all earlier ones have ended.
__device__ inline void wait_for_earlier() {
    if constexpr (kSm90) {
        dependency_launch();
        dependency_wait();
    }
}

template <typename... Parameters, typename... Arguments>
void launch_decode(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
                   cudaStream_t stream, Arguments... arguments) {
    LaunchAttributes attributes;
    attributes.overlapping(runs_hopper_code(kernel));
    cudaLaunchConfig_t config = attributes.config(grid, threads, shared_bytes, stream);
    check(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace llmc
