// The machine itself: what it computes where a kernel is right, and what it says where one is not.
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/reduce.cuh"

using namespace llmc;

namespace {

// ---- kernels ---------------------------------------------------------------------------------------

// out[i] = the block's sum of in, of each lane's neighbour, and where anybody's is negative
__global__ void right_kernel(float* out, const float* in) {
    __shared__ float kept[64];
    kept[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float next = __shfl_down_sync(kAllLanes, kept[threadIdx.x ^ 32], 1);
    int negative = __syncthreads_or(kept[threadIdx.x] < 0);
    out[threadIdx.x] = block_sum(in[threadIdx.x]) + 1000 * next + 100000 * negative;
}

// Rows of 32 floats through one stage; out: their sums. Right only if `waits`: else the stage is refilled while some
// warps still read.
__global__ void ring_kernel(float* out, const float* in, int rows, bool waits) {
    __shared__ alignas(16) float stage[kWarp];
    __shared__ uint64_t full;
    auto fetch = [&](int row) {
        mbarrier_arrive_expect(&full, sizeof(stage));
        bulk_copy(stage, in + row * kWarp, sizeof(stage), &full);
    };
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        fetch(0);
    }
    __syncthreads();
    for (int row = 0; row < rows; row++) {
        mbarrier_wait(&full, row % 2);
        float sum = warp_sum(stage[threadIdx.x % kWarp]);
        if (waits) { __syncthreads(); }
        if (threadIdx.x == 0 && row + 1 < rows) { fetch(row + 1); }
        if (threadIdx.x % kWarp == 0) { out[row * 4 + threadIdx.x / kWarp] = sum; }
    }
}

__global__ void one_stays_away_kernel() {
    if (threadIdx.x != 5) { __syncthreads(); }
}
__global__ void no_init_kernel() {
    __shared__ uint64_t barrier;
    mbarrier_arrive(&barrier);
}
__global__ void two_arrivals_kernel() {
    __shared__ uint64_t barrier;
    if (threadIdx.x == 0) { mbarrier_init(&barrier, 2); }
    __syncthreads();
    if (threadIdx.x == 0) { mbarrier_arrive_expect(&barrier, 16); }
    if (threadIdx.x < 2) { mbarrier_arrive(&barrier); }
}
// `bytes` from in on, which is to be 16-byte aligned
__global__ void copy_kernel(const float* in, int bytes) {
    __shared__ alignas(16) float stage[64];
    __shared__ uint64_t full;
    if (threadIdx.x > 0) { return; }
    mbarrier_init(&full, 1);
    mbarrier_arrive_expect(&full, bytes);
    bulk_copy(stage, in, bytes, &full);
    mbarrier_wait(&full, 0);
}
__global__ void apart_kernel(float* out) {
    if (threadIdx.x < 16) {
        out[0] = __shfl_sync(kAllLanes, 1.0f, 0);
    } else {
        __syncwarp();
    }
}
// The second block may have ended before the first one's numbers come.
__global__ void leave_kernel() {
    __shared__ alignas(8) float2 pair;
    __shared__ uint64_t come;
    if (threadIdx.x == 0) { mbarrier_init(&come, 1); }
    cluster_sync();
    if (cluster_rank() == 0 && threadIdx.x == 0) { store2_async(&pair, {1, 2}, &come, 1); }
}

// ---- how they end ----------------------------------------------------------------------------------

template <typename... Parameters, typename... Arguments>
std::string failure(unsigned blocks, void (*kernel)(Parameters...), Arguments... arguments) {
    try {
        emulation::machine().run({.grid = blocks, .block = 128, .cluster = blocks},
                                 [&] { kernel(arguments...); });
    } catch (const std::runtime_error& e) { return e.what(); }
    return "none";
}
bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

struct OnDevice {
    float* data = nullptr;
    explicit OnDevice(const std::vector<float>& values) {
        cudaMalloc(&data, values.size() * sizeof(float));
        std::copy(values.begin(), values.end(), data);
    }
    ~OnDevice() { cudaFree(data); }
    OnDevice(const OnDevice&) = delete;
};

constexpr int kRows = 9;

// launches of ring_kernel, of 20, whose sums are not those of the rows
int wrong_rings(bool waits) {
    std::vector<float> rows(kRows * kWarp);
    for (size_t i = 0; i < rows.size(); i++) { rows[i] = (float)(i / kWarp); }
    OnDevice in(rows), out(std::vector<float>(kRows * 4));
    int wrong = 0;
    for (int launch = 0; launch < 20; launch++) {
        bool right = failure(1, ring_kernel, out.data, in.data, kRows, waits) == "none";
        for (int i = 0; i < kRows * 4; i++) { right &= out.data[i] == (float)(kWarp * (i / 4)); }
        wrong += !right;
    }
    return wrong;
}

}  // namespace

TEST_SUITE("emulated") {
    TEST_CASE("emulated machine: sums, shuffles and votes") {
        std::vector<float> values(64);
        for (int i = 0; i < 64; i++) { values[i] = (float)(i - 3); }
        OnDevice in(values), out(values);
        emulation::machine().run({.grid = 1, .block = 64}, [&] { right_kernel(out.data, in.data); });
        for (int i = 0; i < 64; i++) {
            int neighbour = (i ^ 32) + (i % 32 < 31 ? 1 : 0);  // lane 31 has none, and gets its own
            CHECK(out.data[i] == 64 * 63 / 2 - 3 * 64 + 1000 * (neighbour - 3) + 100000);
        }
    }
    TEST_CASE("emulated machine: a stage that is refilled too early is seen") {
        CHECK(wrong_rings(true) == 0);
        CHECK(wrong_rings(false) > 0);
    }
    TEST_CASE("emulated machine: what kernels must not do") {
        CHECK(contains(failure(1, one_stays_away_kernel), "all threads wait: 127 for __syncthreads"));
        CHECK(contains(failure(1, no_init_kernel), "not initialised"));
        CHECK(contains(failure(1, two_arrivals_kernel), "more arrivals"));
        OnDevice in(std::vector<float>(64));
        CHECK(failure(1, copy_kernel, in.data, 256) == "none");
        CHECK(contains(failure(1, copy_kernel, in.data + 1, 16), "not whole vectors"));
        CHECK(contains(failure(1, copy_kernel, in.data, 24), "not whole vectors"));
        CHECK(contains(failure(1, copy_kernel, in.data + 32, 144), "not within an allocation"));
        CHECK(contains(failure(1, apart_kernel, in.data), "lanes of a warp at"));
        int ended = 0;
        for (int i = 0; i < 20; i++) { ended += contains(failure(2, leave_kernel), "has ended"); }
        CHECK(ended > 0);
        CHECK(failure(1, copy_kernel, in.data, 256) == "none");  // and goes on
    }
}
