// See measuring.cuh and checksum.cuh.
#include "llmc/cuda/measuring.cuh"

#include <cuda_bf16.h>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/checksum.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/resources.cuh"

namespace llmc {

static __global__ void hold_kernel(uint64_t ns) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < ns);
}

void hold(int microseconds, cudaStream_t stream) {
    hold_kernel<<<1, 1, 0, stream>>>(1000 * (uint64_t)microseconds);
    check_launch();
}

// kCount vectors of each stream, `stride` apart: all are read before the first is written, so that the loads
// overlap, and what is written depends on all that was read
template <int R, int W, int kCount>
static __device__ void stream_vectors(const Streams& s, int64_t first, int64_t stride) {
    uint4 v[kCount][R];
#pragma unroll
    for (int u = 0; u < kCount; u++) {
#pragma unroll
        for (int r = 0; r < R; r++) { v[u][r] = s.in[r][first + u * stride]; }
    }
#pragma unroll
    for (int u = 0; u < kCount; u++) {
        uint4 x = v[u][0];
#pragma unroll
        for (int r = 1; r < R; r++) {
            x = {x.x ^ v[u][r].x, x.y ^ v[u][r].y, x.z ^ v[u][r].z, x.w ^ v[u][r].w};
        }
#pragma unroll
        for (int w = 0; w < W; w++) { s.out[w][first + u * stride] = x; }
        if constexpr (W == 0) {  // never, but the compiler does not know
            if ((x.x & x.y & x.z & x.w) == ~0u) { s.out[0][first + u * stride] = x; }
        }
    }
}

template <int R, int W, int kUnroll, bool kPdl>
static __global__ void __launch_bounds__(stream_threads(R, kUnroll)) stream_kernel(Streams s, int64_t n) {
    if constexpr (kPdl && kSm90) {
        dependency_launch();
        dependency_wait();
    }
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (kUnroll - 1) * threads < n; i += kUnroll * threads) {
        stream_vectors<R, W, kUnroll>(s, i, threads);
    }
    for (; i < n; i += threads) { stream_vectors<R, W, 1>(s, i, threads); }
}

struct Mix {
    int reads, writes;
    bool pdl;
    void (*kernels[3])(Streams, int64_t n);  // that take 1, 2, 4 vectors of each stream at a time
};
template <int R, int W, bool kPdl = false>
constexpr Mix mix{
    R, W, kPdl, {stream_kernel<R, W, 1, kPdl>, stream_kernel<R, W, 2, kPdl>, stream_kernel<R, W, 4, kPdl>}};

void move_streams(const StreamLaunch& launch, const Streams& streams, int64_t n, cudaStream_t stream) {
    const LaunchConfig config{launch.blocks, launch.threads, 0, stream, 1, launch.pdl};
    for (const Mix& m :
         {mix<1, 0>, mix<1, 1>, mix<1, 1, true>, mix<2, 1>, mix<2, 1, true>, mix<3, 1>, mix<3, 1, true>,
          mix<2, 2>, mix<2, 2, true>, mix<3, 2>, mix<3, 3>, mix<4, 3>, mix<5, 2>, mix<5, 3>}) {
        if (m.reads != launch.reads || m.writes != launch.writes || m.pdl != launch.pdl) { continue; }
        return config.launch(m.kernels[launch.unroll / 2], streams, n);
    }
    throw Error(kExitUsage, "no roof of {} reads and {} writes", launch.reads, launch.writes);
}
bool streams_overlap() { return runs_hopper_code(stream_kernel<1, 1, 1, true>); }

static __global__ void fill_kernel(uint32_t* p, int64_t n) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        uint32_t h = ((uint32_t)i + 1) * 0x9e3779b9u;
        h = (h ^ h >> 15) * 0x2c1b3c6du;
        p[i] = h ^ h >> 13;
    }
}

void fill(void* memory, int64_t words, cudaStream_t stream) {
    fill_kernel<<<1024, 256, 0, stream>>>((uint32_t*)memory, words);
    check_launch();
}

static __global__ void count_differences_kernel(unsigned long long* count, const std::byte* a,
                                                const std::byte* b, int64_t n) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    unsigned long long mine = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        mine += a[i] != b[i];
    }
    if (mine > 0) { atomicAdd(count, mine); }
}

void count_differences(unsigned long long* count, const std::byte* a, const std::byte* b, int64_t n,
                       cudaStream_t stream) {
    count_differences_kernel<<<1024, 256, 0, stream>>>(count, a, b, n);
    check_launch();
}

static __global__ void fill_bf16_kernel(__nv_bfloat16* p, int64_t n) {
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        uint32_t h = (uint32_t)i * 0x9e3779b9u;
        h = (h ^ h >> 15) * 0x2c1b3c6du;
        p[i] = (__nv_bfloat16)((int)(h ^ h >> 13) * 0x1p-31f);
    }
}

void fill_bf16(__nv_bfloat16* p, int64_t n, cudaStream_t stream) {
    fill_bf16_kernel<<<1024, 256, 0, stream>>>(p, n);
    check_launch();
}

static __global__ void exponentials_kernel(float* out, int steps) {
    float x[kExponentialChains];
    for (int k = 0; k < kExponentialChains; k++) { x[k] = (threadIdx.x + k) * 1e-3f; }
    for (int i = 0; i < steps; i++) {
#pragma unroll
        for (int k = 0; k < kExponentialChains; k++) { x[k] = exp2_approx(-x[k]); }
    }
    float sum = 0;
    for (float y : x) { sum += y; }
    if (sum < 0) { *out = sum; }  // never: but the compiler does not know
}

void exponentials(float* out, int steps, unsigned blocks, int threads, cudaStream_t stream) {
    exponentials_kernel<<<blocks, threads, 0, stream>>>(out, steps);
    check_launch();
}

// ---- checksum.cuh

// adds hashes of n words and their places, which count from `first`: the same in any order
static __global__ void checksum_kernel(unsigned long long* sum, const uint32_t* words, int64_t n,
                                       int64_t first) {
    unsigned long long mine = 0;
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        uint64_t h = ((uint64_t)words[i] << 32 | (uint32_t)(first + i)) * 0x9e3779b97f4a7c15u;
        mine += (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    }
    atomicAdd(sum, mine);
}

void add_checksum(uint64_t* sum, const uint32_t* words, int64_t n, int64_t first, cudaStream_t stream) {
    checksum_kernel<<<1024, 256, 0, stream>>>((unsigned long long*)sum, words, n, first);
    check_launch();
}

uint64_t checksum(const uint32_t* words, int64_t n, cudaStream_t stream) {
    DeviceMemory sum(sizeof(uint64_t));
    uint64_t value = 0;
    check(cudaMemsetAsync(sum.data(), 0, sizeof(value), stream));
    add_checksum((uint64_t*)sum.data(), words, n, 0, stream);
    check(cudaMemcpyAsync(&value, sum.data(), sizeof(value), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    return value;
}

}  // namespace llmc
