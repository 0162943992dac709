// Functions of the driver, found at run time: a program that is linked to libcuda would not start without a driver.
#pragma once
#include <cudaTypedefs.h>

#include "llmc/cuda/check.cuh"

namespace llmc {

// F: the type that cudaTypedefs.h has for this function, as of `version` (11070: CUDA 11.7)
template <typename F>
F driver_function(const char* name, unsigned version) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    check(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || function == nullptr) {
        throw Error(kExitDevice, "the driver has no {}: install NVIDIA's driver 525 or later", name);
    }
    return (F)function;
}

}  // namespace llmc
