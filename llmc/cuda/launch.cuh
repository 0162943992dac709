// What a launch asks for beyond its grid: clusters of blocks, of which a device holds so many at once, and to begin while
// the kernel before it still ends.
#pragma once
#include <cuda_runtime.h>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device_facts.cuh"

namespace llmc {

struct LaunchConfig {
    dim3 grid;
    int threads;
    size_t shared_bytes = 0;
    cudaStream_t stream = nullptr;
    int cluster = 1;  // blocks of a cluster
    // The kernel may begin once all blocks of the one before it in the stream have ended or said dependency_launch(). It
    // says dependency_wait() before it touches what earlier kernels read or write. Hopper or later.
    bool overlapping = false;
    bool cooperative = false;                                   // all blocks run at once, or the launch fails
    std::source_location at = std::source_location::current();  // which an error names

    template <typename... Parameters, typename... Arguments>
    void launch(void (*kernel)(Parameters...), const Arguments&... arguments) const {
        check(with([&](auto* config) { return cudaLaunchKernelEx(config, kernel, arguments...); }), at);
    }
    // act(config) for the runtime's config
    template <typename Act>
    cudaError_t with(const Act& act) const {
        cudaLaunchAttribute attributes[3]{};
        cudaLaunchConfig_t config{grid, threads, shared_bytes, stream, attributes, 0};
        auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
            attributes[config.numAttrs].id = id;
            return attributes[config.numAttrs++].val;
        };
        if (overlapping) {
            add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed =
                1;
        }
        if (cooperative) { add(cudaLaunchAttributeCooperative).cooperative = 1; }
        if (cluster > 1) { add(cudaLaunchAttributeClusterDimension).clusterDim = {(unsigned)cluster, 1, 1}; }
        return act(&config);
    }
};

// How many clusters of a kernel a device holds at once. 0: none, as the device has no clusters of this size or not that much
// shared memory, or the kernel's code is not for them. Of the config the grid does not matter. Asked once a device, when the
// kernel is prepared too.
template <auto* kernel>
int most_clusters(LaunchConfig config) {
    static PerDevice<int> clusters;
    return clusters([&] {
        int found = 0, bytes = (int)config.shared_bytes;
        if (!runs_hopper_code(kernel) || bytes > device_facts().shared_bytes) { return 0; }
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        config.grid = config.cluster;
        auto ask = [&](auto* with) { return cudaOccupancyMaxActiveClusters(&found, kernel, with); };
        if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
            config.with(ask) != cudaSuccess) {
            (void)cudaGetLastError();
            return 0;
        }
        return found;
    });
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
void launch_overlapping(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared_bytes,
                        cudaStream_t stream, Arguments... arguments) {
    const LaunchConfig config{grid, threads, shared_bytes, stream, 1, runs_hopper_code(kernel)};
    config.launch(kernel, arguments...);
}

}  // namespace llmc
