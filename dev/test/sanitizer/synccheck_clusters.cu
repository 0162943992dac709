// Proof that compute-sanitizer's synccheck goes wrong where several blocks of clusters of more than 8 are on one
// multiprocessor: it then takes mbarriers of one block for those of another, and reports "Missing wait" in blocks of
// rank 8 and on. LayerNorm forward has such clusters of 16 at 160x131072 fp32. Here each block knows only its own
// barriers: it arrives, waits, arrives again. What must come out (sm_90):
//   f=dev/test/sanitizer/synccheck_clusters; nvcc -std=c++20 -I. -gencode arch=compute_90a,code=sm_90a $f.cu -o $f
//   dev/test/sanitizer/synccheck_clusters                                              right
//   compute-sanitizer --tool synccheck dev/test/sanitizer/synccheck_clusters           reports, and the tool ends the kernel
//   compute-sanitizer --tool synccheck dev/test/sanitizer/synccheck_clusters alone     right, 0 errors
// "alone" gives each block so much shared memory that it has a multiprocessor to itself: nothing else differs.
#include <cstdio>
#include <vector>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"

namespace {
constexpr int kBlocks = 16, kClusters = 28, kBarriers = 4, kTurns = 6;

// turns (kBlocks * kClusters): how many phases each block saw end
__global__ void kernel(int* turns) {
    extern __shared__ __align__(128) unsigned char memory[];
    uint64_t* barriers = reinterpret_cast<uint64_t*>(memory + 512);
    if (threadIdx.x == 0) {
        for (int i = 0; i < kBarriers; i++) { llmc::mbarrier_init(&barriers[i], 1); }
        llmc::mbarrier_init_fence();
        for (int i = 0; i < kBarriers; i++) { llmc::mbarrier_arrive(&barriers[i]); }
    }
    llmc::cluster_sync();
    for (int turn = 0; turn < kTurns; turn++) {
        uint64_t* barrier = &barriers[turn % kBarriers];
        llmc::mbarrier_wait(barrier, turn / kBarriers % 2);
        if (threadIdx.x == 0 && turn + kBarriers < kTurns) { llmc::mbarrier_arrive(barrier); }
        __syncthreads();
    }
    llmc::cluster_sync();
    if (threadIdx.x == 0) { turns[blockIdx.x] = kTurns; }
}
}  // namespace

int main(int argc, char**) {
    int* turns = nullptr;
    llmc::check(cudaMalloc(&turns, kBlocks * kClusters * sizeof(int)));
    int bytes = argc > 1 ? 200000 : 1024;
    llmc::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    llmc::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchAttribute cluster{cudaLaunchAttributeClusterDimension, {}, {.clusterDim = {kBlocks, 1, 1}}};
    cudaLaunchConfig_t config{kBlocks * kClusters, 64, (size_t)bytes, nullptr, &cluster, 1};
    llmc::check(cudaLaunchKernelEx(&config, kernel, turns));
    std::vector<int> found(kBlocks * kClusters);
    llmc::check(cudaMemcpy(found.data(), turns, found.size() * sizeof(int), cudaMemcpyDeviceToHost));
    bool right = true;
    for (int count : found) { right &= count == kTurns; }
    std::printf("%s\n", right ? "right" : "WRONG");
    return right ? 0 : 1;
}
