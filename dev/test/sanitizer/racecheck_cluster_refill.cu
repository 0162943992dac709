// Proof that compute-sanitizer's racecheck goes wrong where a cluster's blocks tell one another by st.async that they
// have read: it does not take the wait for such stores for an order between the warps of a block, and reports a copy
// into a stage that all of them have read. LayerNorm backward's team_ring.cuh refills its stages so in clusters. Here
// warps only read a stage, exchange sums, and one thread refills it. What must come out (sm_90):
//   f=dev/test/sanitizer/racecheck_cluster_refill; nvcc -std=c++20 -I. -gencode arch=compute_90a,code=sm_90a $f.cu -o $f
//   compute-sanitizer --tool racecheck dev/test/sanitizer/racecheck_cluster_refill           right, and hazards
//   compute-sanitizer --tool racecheck dev/test/sanitizer/racecheck_cluster_refill meet      right, 0 hazards
// "meet" adds a __syncthreads() after the wait: nothing else differs.
#include <cstdio>
#include <vector>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/reduce.cuh"

namespace {
constexpr int kBlocks = 8, kClusters = 4, kWarps = 4, kColumns = kWarps * llmc::kWarp, kStages = 2,
              kTurns = 8;
constexpr uint32_t kBytes = kColumns * sizeof(float);

// inp (kTurns,kColumns), out (kBlocks * kClusters,kTurns): kBlocks times each row's sum
__global__ void kernel(const float* inp, float* out, bool meet) {
    using namespace llmc;
    __shared__ alignas(128) float stage[kStages][kColumns];
    __shared__ alignas(16) float2 sums[kStages][kBlocks * kWarps];
    __shared__ uint64_t full[kStages], summed[kStages];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    auto fetch = [&](int turn) {
        mbarrier_arrive_expect(&full[turn % kStages], kBytes);
        bulk_copy(stage[turn % kStages], inp + turn * kColumns, kBytes, &full[turn % kStages]);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < kStages; s++) {
            mbarrier_init(&full[s], 1);
            mbarrier_init(&summed[s], 1);
        }
        mbarrier_init_fence();
        for (int turn = 0; turn < kStages; turn++) { fetch(turn); }
    }
    cluster_sync();
    for (int turn = 0; turn < kTurns; turn++) {
        int s = turn % kStages, parity = turn / kStages % 2;
        mbarrier_wait(&full[s], parity);
        float sum = warp_sum(stage[s][threadIdx.x]);
        if (threadIdx.x == 0) { mbarrier_arrive_expect(&summed[s], sizeof(sums[s])); }
        if (lane < kBlocks) {
            store2_async(&sums[s][cluster_rank() * kWarps + warp], {sum, 0}, &summed[s], lane);
        }
        mbarrier_wait_cluster(&summed[s], parity);
        if (meet) { __syncthreads(); }
        if (threadIdx.x == 0) {
            float total = 0;
            for (float2 one : sums[s]) { total += one.x; }
            out[blockIdx.x * kTurns + turn] = total;
            if (turn + kStages < kTurns) { fetch(turn + kStages); }
        }
    }
    cluster_sync();
}
}  // namespace

int main(int argc, char**) {
    std::vector<float> rows(kTurns * kColumns), found(kBlocks * kClusters * kTurns);
    for (int i = 0; i < (int)rows.size(); i++) { rows[i] = i / kColumns + 1; }
    float *inp = nullptr, *out = nullptr;
    llmc::check(cudaMalloc(&inp, rows.size() * sizeof(float)));
    llmc::check(cudaMalloc(&out, found.size() * sizeof(float)));
    llmc::check(cudaMemcpy(inp, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice));
    cudaLaunchAttribute cluster{cudaLaunchAttributeClusterDimension, {}, {.clusterDim = {kBlocks, 1, 1}}};
    cudaLaunchConfig_t config{kBlocks * kClusters, kColumns, 0, nullptr, &cluster, 1};
    llmc::check(cudaLaunchKernelEx(&config, kernel, (const float*)inp, out, argc > 1));
    llmc::check(cudaMemcpy(found.data(), out, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
    bool right = true;
    for (int i = 0; i < (int)found.size(); i++) {
        right &= found[i] == kBlocks * kColumns * (i % kTurns + 1);
    }
    std::printf("%s\n", right ? "right" : "WRONG");
    return right ? 0 : 1;
}
