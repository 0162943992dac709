// What a launch asks for beyond its grid: clusters of blocks, of which a device holds so many at once, and to begin while
// the kernel before it still ends.
#pragma once
#include <cuda_runtime.h>
#include <array>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device_facts.cuh"

namespace llmc {

// Lives as long as the config it gives is used.
class LaunchAttributes {
public:
    // The kernel may begin once all blocks of the one before it in the stream have ended or said dependency_launch(). It
    // says dependency_wait() before it touches what earlier kernels read or write. Hopper or later.
    LaunchAttributes& overlapping(bool wanted = true) {
        if (wanted) {
            auto& added = add(cudaLaunchAttributeProgrammaticStreamSerialization);
            added.programmaticStreamSerializationAllowed = 1;
        }
        return *this;
    }
    // all blocks run at once, or the launch fails
    LaunchAttributes& cooperative(bool wanted) {
        if (wanted) { add(cudaLaunchAttributeCooperative).cooperative = 1; }
        return *this;
    }
    // of `blocks` blocks each
    LaunchAttributes& clusters(unsigned blocks) {
        if (blocks > 1) { add(cudaLaunchAttributeClusterDimension).clusterDim = {blocks, 1, 1}; }
        return *this;
    }
    cudaLaunchConfig_t config(dim3 grid, unsigned threads, size_t shared_bytes, cudaStream_t stream) {
        return {grid, threads, shared_bytes, stream, attributes_, count_};
    }

private:
    cudaLaunchAttribute attributes_[3]{};
    unsigned count_ = 0;

    cudaLaunchAttributeValue& add(cudaLaunchAttributeID id) {
        attributes_[count_].id = id;
        return attributes_[count_++].val;
    }
};

// How many clusters of a kernel a device holds at once. 0: none, as the device has no clusters of this size or not that much
// shared memory, or the kernel's code is not for them. config: the launch, with a cluster of `blocks` blocks. Asked once a
// device, when the kernel is prepared too.
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

// ---- kernels one after the other, each of which begins while the one before it ends

// Until it returns, what earlier kernels write must not be touched, nor what they read be written. The
// kernels after this one, which may then begin, say the same: so when it returns all earlier ones have ended.
__device__ inline void wait_for_earlier() {
    if constexpr (kSm90) {
        dependency_launch();
        dependency_wait();
    }
}

template <typename... Parameters, typename... Arguments>
void launch_overlapping(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
                        cudaStream_t stream, Arguments... arguments) {
    LaunchAttributes attributes;
    attributes.overlapping(runs_hopper_code(kernel));
    cudaLaunchConfig_t config = attributes.config(grid, threads, shared_bytes, stream);
    check(cudaLaunchKernelEx(&config, kernel, arguments...));
}

}  // namespace llmc
