// How many clusters of a kernel a device holds at once.
#pragma once
#include <array>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device_facts.cuh"

namespace llmc {

// 0: none, as the device has no clusters of this size or not that much shared memory, or the kernel's code is not for
// them. config: the launch, with a cluster of `blocks` blocks. Asked once a device, when the kernel is prepared too.
template <auto* kernel>
int most_clusters(cudaLaunchConfig_t config, int blocks) {
    static OncePerDevice asked;
    static std::array<int, kMostDevices> clusters;
    asked([&](int device) {
        int bytes = (int)config.dynamicSmemBytes;
        if (!runs_hopper_code(kernel) || bytes > device_facts().shared_bytes) { return; }
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        config.gridDim.x = blocks;
        if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
            cudaOccupancyMaxActiveClusters(&clusters[device], kernel, &config) != cudaSuccess) {
            (void)cudaGetLastError();
            clusters[device] = 0;
        }
    });
    return clusters[current_device()];
}

}  // namespace llmc
