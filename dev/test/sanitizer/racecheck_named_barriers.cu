// Proof that compute-sanitizer's racecheck goes wrong where teams of a block's warps meet at named barriers (bar.sync 1
// and on) unequally often: it then takes no notice of the block's own barrier. In LayerNorm backward's team_ring.cuh and
// unaligned_rows.cuh teams have rows of their own, some a row more than others; at the end all leave their sums in
// shared memory, __syncthreads(), and add them up: 51 reports at 600x768 fp32, where 4 teams have 1 or 2 rows each, 0 at
// 3168x768, where all have 6. Here teams do nothing but meet. What must come out (sm_90):
//   f=dev/test/sanitizer/racecheck_named_barriers; nvcc -std=c++20 -I. -gencode arch=compute_90a,code=sm_90a $f.cu -o $f
//   compute-sanitizer --tool racecheck dev/test/sanitizer/racecheck_named_barriers             right, and a hazard
//   compute-sanitizer --tool racecheck dev/test/sanitizer/racecheck_named_barriers equally     right, 0 hazards
// The second has all teams meet 4 times, the first 3, 4 or 5 times: nothing else differs.
#include <cstdio>
#include <vector>

#include "llmc/cuda/check.cuh"

namespace {
constexpr int kTeam = 128, kTeams = 4, kThreads = kTeam * kTeams, kBlocks = 64;

// out (kBlocks,kTeam): sums over the teams of 1, ..., kThreads
__global__ void kernel(float* out, bool equally) {
    __shared__ float numbers[kThreads];
    int team = threadIdx.x / kTeam;
    for (int turn = 0; turn < (equally ? 4 : 3 + team % 3); turn++) {
        asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kTeam) : "memory");
    }
    __syncthreads();
    numbers[threadIdx.x] = threadIdx.x + 1;
    __syncthreads();
    if (threadIdx.x >= kTeam) { return; }
    float sum = 0;
    for (int t = 0; t < kTeams; t++) { sum += numbers[t * kTeam + threadIdx.x]; }
    out[blockIdx.x * kTeam + threadIdx.x] = sum;
}
}  // namespace

int main(int argc, char**) {
    float* out = nullptr;
    llmc::check(cudaMalloc(&out, kBlocks * kTeam * sizeof(float)));
    kernel<<<kBlocks, kThreads>>>(out, argc > 1);
    llmc::check_launch();
    std::vector<float> found(kBlocks * kTeam);
    llmc::check(cudaMemcpy(found.data(), out, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
    bool right = true;
    for (int i = 0; i < kBlocks * kTeam; i++) {
        right &= found[i] == kTeams * (i % kTeam + 1) + kTeam * kTeams * (kTeams - 1) / 2;
    }
    std::printf("%s\n", right ? "right" : "WRONG");
    return right ? 0 : 1;
}
