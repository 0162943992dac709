// The vocabulary every kernel is written in: 16-byte vectors, warp sums, 2^x, and what the target can do.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "llmc/cuda/types.h"

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

constexpr unsigned kAllLanes = 0xffffffffu;

// n elements, moved by one instruction if they are up to 16 bytes; p must be aligned to as many
template <typename T, int n>
struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Elements {
    static constexpr int size = n;
    T at[n];

    __device__ static Elements load(const T* p) { return *reinterpret_cast<const Elements*>(p); }
    __device__ void store(T* p) const { *reinterpret_cast<Elements*>(p) = *this; }
};
// 16 bytes of T: 4 float, 8 bf16 or fp16, 2 double
template <typename T>
using Vec = Elements<T, 16 / sizeof(T)>;

// the sum over the warp's 32 lanes, the same bits in each: a + b == b + a, and every lane adds the same tree
template <typename Acc>
__device__ inline Acc warp_sum(Acc x) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(kAllLanes, x, distance);
    }
    return x;
}

// f(i, j, ...) for all i below n, j below the next number, ..., in order and unrolled: what is indexed lies in registers
template <int n, int... more, typename F, typename... Indices>
__device__ __forceinline__ void unrolled(const F& f, Indices... at) {
#pragma unroll
    for (int i = 0; i < n; i++) {
        if constexpr (sizeof...(more) > 0) {
            unrolled<more...>(f, at..., i);
        } else {
            f(at..., i);
        }
    }
}

constexpr float kLog2e = 1.44269504f;  // exp(x) = 2^(kLog2e x)

// 2^x in one instruction. exp2f costs four, to keep results below 2^-126, which nobody here can tell from 0.
// Within 2^-22 of 2^x, relative; 0 below 2^-126, infinity from 2^128 on, NaN for NaN
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace llmc
