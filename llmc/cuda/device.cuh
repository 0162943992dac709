// The vocabulary every kernel is written in: accumulator types, 16-byte vectors, warp sums, and what the
// target can do.
#pragma once
#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "llmc/cuda/accumulator.h"

namespace llmc {

// What the code being compiled may use; false on the host. The only #if on an architecture: kernels
// say if constexpr.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kSm90 = true;  // bulk copies, mbarriers, clusters
#else
constexpr bool kSm90 = false;
#endif
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kSm90a = true;  // wgmma, setmaxnreg: Hopper alone, and only as sm_90a
#else
constexpr bool kSm90a = false;
#endif

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

template <typename A, typename B>
__host__ __device__ constexpr std::common_type_t<A, B> ceil_div(A a, B b) {
    return (a + b - 1) / b;
}

// 16 bytes of T (4 float, 8 bf16 or fp16, 2 double), moved by one instruction; p must be 16-byte aligned
template <typename T>
struct alignas(16) Vec {
    static constexpr int size = 16 / sizeof(T);
    T at[size];

    __device__ static Vec load(const T* p) { return *reinterpret_cast<const Vec*>(p); }
    __device__ void store(T* p) const { *reinterpret_cast<Vec*>(p) = *this; }
};

// the sum over the warp's 32 lanes, the same bits in each: a + b == b + a, and every lane adds the same tree
template <typename Acc>
__device__ inline Acc warp_sum(Acc x) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(kAllLanes, x, distance);
    }
    return x;
}

}  // namespace llmc
