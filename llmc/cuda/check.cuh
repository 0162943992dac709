// CUDA errors become llmc::Error (error.h): check() around every call, check_launch() after every <<<>>>.
#pragma once
#include <cstdint>
#include <source_location>

#include <cuda_runtime.h>

#include "llmc/host/base/error.h"

namespace llmc {

// throws Error(kExitDevice) with the place, CUDA's name for the failure, its text, and a cure where there is
// one
inline void check(cudaError_t status, std::source_location at = std::source_location::current()) {
    if (status == cudaSuccess) { return; }
    const char* cure = "";
    if (status == cudaErrorMemoryAllocation) {
        cure = ". Free device memory (see nvidia-smi) or use a smaller problem";
    }
    if (status == cudaErrorNoKernelImageForDevice) { cure = ". Build for this GPU: make ARCH=sm_XY"; }
    if (status == cudaErrorInsufficientDriver) {
        cure = ". Install NVIDIA's driver (nvidia-smi shows its version), or a newer one";
    }
    throw Error(kExitDevice, "{}:{}: {}: {}{}", at.file_name(), at.line(), cudaGetErrorName(status),
                cudaGetErrorString(status), cure);
}

// reports a bad launch here, at the launch, and not at the next unlucky call
inline void check_launch(std::source_location at = std::source_location::current()) {
    check(cudaGetLastError(), at);
}

// gridDim.x for this many blocks, which may come from a 64-bit number of rows
inline unsigned grid_x(int64_t blocks, std::source_location at = std::source_location::current()) {
    require(blocks > 0 && blocks <= INT32_MAX, "too many rows for one launch at this block size", at);
    return (unsigned)blocks;
}

}  // namespace llmc
