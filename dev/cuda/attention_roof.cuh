// Attention's roof: the longest of three times, each of which no version can be faster than:
//   products       those of the 64 x 64 tiles up to the diagonal, at the rate of a large product by cuBLASLt:
//   2 forward, 5
//                  backward
//   exponentials   one for each pair of a query and a key, at the rate of a kernel that computes nothing else
//   bytes          what must be read and written once, at the rate of a kernel that only copies (roof.cuh)
// The rates are measured in the process, the first two once.
#pragma once
#include "dev/cuda/roof.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/mma.cuh"
#include "llmc/ops/matmul/matmul.h"

namespace llmc {

// in [-1, 1): a product of zeros, or of what is not a number, takes another power and thus another time
static __global__ void fill_bf16_kernel(bf16* p, int64_t n) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        uint32_t h = (uint32_t)i * 0x9e3779b9u;
        h = (h ^ h >> 15) * 0x2c1b3c6du;
        p[i] = (bf16)((int)(h ^ h >> 13) * 0x1p-31f);
    }
}

// operations a microsecond
inline double measure_products(const Stream& stream) {
    constexpr int n = 8192;
    DeviceMemory workspace(Matmul::kWorkspace), a(sizeof(bf16) * n * n), b(a.size()), out(a.size());
    for (const DeviceMemory* matrix : {&a, &b}) {
        fill_bf16_kernel<<<1024, 256, 0, stream>>>((bf16*)matrix->data(), (int64_t)n * n);
        check_launch();
    }
    Matmul matmul(workspace.data(), false);
    Replay replay(stream, 1, [&](int) {
        matmul.forward((bf16*)out.data(), (bf16*)a.data(), (bf16*)b.data(), (const bf16*)nullptr, n, n, n,
                       stream);
    });
    return 2.0 * n * n * n / replay.time(kWarmupReplays, kReplays).median;
}

constexpr int kChains = 4;

// 2^-x again and again, which stays between 0 and 1
static __global__ void exponentials_kernel(float* out, int steps) {
    float x[kChains];
    for (int k = 0; k < kChains; k++) { x[k] = (threadIdx.x + k) * 1e-3f; }
    for (int i = 0; i < steps; i++) {
#pragma unroll
        for (int k = 0; k < kChains; k++) { x[k] = exp2_approx(-x[k]); }
    }
    float sum = 0;
    for (float y : x) { sum += y; }
    if (sum < 0) { *out = sum; }  // never: but the compiler does not know
}

// a microsecond
inline double measure_exponentials(const Stream& stream) {
    constexpr int kThreads = 1024, kSteps = 4096;
    unsigned blocks = 2 * device_facts().multiprocessors;
    DeviceMemory out(sizeof(float));
    Replay replay(stream, 1, [&](int) {
        exponentials_kernel<<<blocks, kThreads, 0, stream>>>((float*)out.data(), kSteps);
        check_launch();
    });
    return (double)blocks * kThreads * kSteps * kChains / replay.time(kWarmupReplays, kReplays).median;
}

// The streams of a roof are one to three reads and one or two writes: the problem's bytes are shared out to
// as many of those.
inline Roof attention_roof(const Problem& p, const Stream& stream) {
    static const double products = measure_products(stream), exponentials = measure_exponentials(stream);
    const int reads = std::min(p.reads, kMaxReads), writes = std::min(p.writes, kMaxWrites);
    Roof roof = measure_roof(stream, reads, writes, false, p.useful_bytes() / (reads + writes));
    double heads = (double)p.N / p.T * (p.C / kHeadColumns), rows = ceil_div(p.T, 64);
    double tiles = heads * rows * (rows + 1) / 2, pairs = heads * p.T * (p.T + 1.0) / 2;
    double product = 2.0 * 64 * 64 * kHeadColumns;  // of two tiles
    roof.parts = {{"products", tiles * (p.writes == 1 ? 2 : 5) * product / products},
                  {"exponentials", pairs / exponentials},
                  {"bytes", roof.us.median}};
    double longest = 0;
    for (const auto& [name, us] : roof.parts) { longest = std::max(longest, us); }
    roof.us.median = roof.us.p20 = roof.us.p80 = longest;
    return roof;
}

}  // namespace llmc
