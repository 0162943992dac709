// What a launch asks for beyond its grid: clusters of blocks, and to begin while the kernel before it still ends.
#pragma once
#include <cuda_runtime.h>

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

}  // namespace llmc
