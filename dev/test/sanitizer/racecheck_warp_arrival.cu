// Proof that compute-sanitizer's racecheck goes wrong where not every lane of a warp arrives at an mbarrier and waits
// for it: that lane 0 arrives after __syncwarp() is no order to it for what the other lanes have read, nor is what lane 0
// alone asks of the barrier one for its warp. LayerNorm backward's cp_async_pipelined.cuh exchanges the sums of a block's
// warps so, in two sets or more: all wait for them or, where blocks share rows, the last warp tells them all, as in
// "told". Here warps do nothing else. What must come out (sm_80 on):
//   f=dev/test/sanitizer/racecheck_warp_arrival; nvcc -std=c++20 -I. -gencode arch=compute_90,code=sm_90 $f.cu -o $f
//   compute-sanitizer --tool racecheck dev/test/sanitizer/racecheck_warp_arrival                 right, and a hazard
//   compute-sanitizer --tool racecheck dev/test/sanitizer/racecheck_warp_arrival told            right, and a hazard
//   compute-sanitizer --tool racecheck dev/test/sanitizer/racecheck_warp_arrival each            right, 0 hazards
//   compute-sanitizer --tool racecheck dev/test/sanitizer/racecheck_warp_arrival told each       right, 0 hazards
// "each": every lane arrives, and waits: nothing else differs.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/reduce.cuh"

namespace {
constexpr int kWarps = 4, kSets = 2, kTurns = 8;

// out (kWarps,kTurns): the sum over all threads of turn + 1, as each warp has it; told (kTurns): 0
__global__ void kernel(float* out, volatile float* told, bool tell, bool each) {
    using namespace llmc;
    __shared__ float sums[kSets][kWarps];
    __shared__ uint64_t summed[kSets];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (threadIdx.x == 0) {
#pragma unroll
        for (uint64_t& barrier : summed) { mbarrier_init(&barrier, each ? kWarps * kWarp : kWarps); }
    }
    __syncthreads();
    for (int turn = 0; turn < kTurns; turn++) {
        int set = turn % kSets, parity = turn / kSets % 2, next = turn + 1;
        float sum = warp_sum(turn + 1.0f), total = 0;
        bool complete = !tell;
        __syncwarp();  // so that lane 0 arrives for what all have read
        if (lane == 0) {
            // the phase of the turn before, which has: so its reads come before this write
            if (tell) { mbarrier_ended(&summed[next % kSets], (next / kSets + 1) % 2); }
            sums[set][warp] = sum;
        }
        if (lane == 0 || each) {
            mbarrier_arrive(&summed[set]);
            if (tell) { complete = mbarrier_ended(&summed[set], parity); }
        }
        if (__any_sync(kAllLanes, complete)) {
            mbarrier_wait(&summed[set], parity);
            total = warp_sum(lane < kWarps ? sums[set][lane] : 0);
            if (tell && lane == 0) { told[turn] = total; }
        }
        while (__any_sync(kAllLanes, total == 0)) { total = told[turn]; }
        if (tell && each) { mbarrier_wait(&summed[set], parity); }
        if (lane == 0) { out[warp * kTurns + turn] = total; }
    }
}
}  // namespace

int main(int argc, char** argv) {
    std::vector<std::string> words(argv + 1, argv + argc);
    auto has = [&](const char* word) { return std::count(words.begin(), words.end(), word) > 0; };
    std::vector<float> found(kWarps * kTurns);
    float *out = nullptr, *told = nullptr;
    llmc::check(cudaMalloc(&out, found.size() * sizeof(float)));
    llmc::check(cudaMalloc(&told, kTurns * sizeof(float)));
    llmc::check(cudaMemset(told, 0, kTurns * sizeof(float)));
    kernel<<<1, kWarps * llmc::kWarp>>>(out, told, has("told"), has("each"));
    llmc::check_launch();
    llmc::check(cudaMemcpy(found.data(), out, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
    bool right = true;
    for (int i = 0; i < (int)found.size(); i++) {
        right &= found[i] == kWarps * llmc::kWarp * (i % kTurns + 1);
    }
    std::printf("%s\n", right ? "right" : "WRONG");
    return right ? 0 : 1;
}
