// Takes the place of CUDA's own header where g++ compiles what rewrite.pl has made of a kernel's source: what CUDA C++
// has without a header, and the runtime's templates.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include "dev/emulate/machine.h"

// ---- arithmetic ----------------------------------------------------------------------------------

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return std::min<std::common_type_t<A, B>>(a, b);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return std::max<std::common_type_t<A, B>>(a, b);
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
// bytes of y:x by the digits of `which`
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
    uint64_t all = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) { result |= (unsigned)(all >> 8 * (which >> 4 * i & 7) & 0xff) << 8 * i; }
    return result;
}

// ---- memory --------------------------------------------------------------------------------------

template <typename T>
T __ldg(const T* p) {
    return *p;
}
template <typename T>
T __ldcs(const T* p) {
    return *p;
}
template <typename T>
void __stcs(T* p, T x) {
    *p = x;
}
inline void __threadfence() {}
inline size_t __cvta_generic_to_shared(const void* p) { return emulation::shared_window(p); }
inline void* __cvta_shared_to_generic(size_t address) { return emulation::shared_memory((uint32_t)address); }

// ---- warps and blocks ----------------------------------------------------------------------------

namespace emulation {

// what each lane of the warp gives, once all have
inline const uint64_t* given_by_all(const char* what, unsigned mask, uint64_t mine) {
    if (mask != ~0u) { machine().fail(std::string(what) + " of a part of the warp"); }
    return machine().exchange(what, mine);
}

// x of the lane that from(lane) names, if it is one of the group's
template <typename X, typename From>
X shuffled(const char* what, unsigned mask, X x, int width, From from) {
    static_assert(sizeof(X) <= 8);
    int lane = machine().lane().in_warp, group = lane / width * width;
    int other = from(lane - group);
    const uint64_t* given = given_by_all(what, mask, in(x).bits);
    X result;
    std::memcpy(&result, &given[other >= 0 && other < width ? group + other : lane], sizeof(X));
    return result;
}

}  // namespace emulation

template <typename X>
X __shfl_sync(unsigned mask, X x, int from, int width = 32) {
    return emulation::shuffled("__shfl_sync", mask, x, width, [&](int) { return from & (width - 1); });
}
template <typename X>
X __shfl_xor_sync(unsigned mask, X x, int distance, int width = 32) {
    return emulation::shuffled("__shfl_xor_sync", mask, x, width, [&](int lane) { return lane ^ distance; });
}
template <typename X>
X __shfl_down_sync(unsigned mask, X x, int distance, int width = 32) {
    return emulation::shuffled("__shfl_down_sync", mask, x, width, [&](int lane) { return lane + distance; });
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x) {
    for (int distance = 16; distance > 0; distance /= 2) { x = max(x, __shfl_xor_sync(mask, x, distance)); }
    return x;
}
inline int __any_sync(unsigned mask, int x) {
    const uint64_t* given = emulation::given_by_all("__any_sync", mask, x != 0);
    int lanes = emulation::machine().lane().warp->lanes;
    return std::any_of(given, given + lanes, [](uint64_t g) { return g != 0; });
}
inline void __syncwarp(unsigned mask = ~0u) { emulation::given_by_all("__syncwarp", mask, 0); }

inline int __syncthreads_or(int x) {
    auto& block = emulation::machine().block();
    emulation::machine().synchronise(block.named[0], "__syncthreads", block.threads, true, x != 0);
    return block.named[0].was_any;
}
inline void __syncthreads() { __syncthreads_or(0); }

namespace emulation {

// what an atomic does at p: no access for who watches those, who would take it for one that races
template <typename T, typename Change>
[[gnu::no_sanitize_thread]] T atomically(T* p, Change change) {
    if (watcher.atomic != nullptr) { watcher.atomic(p); }
    T before = *p;
    *p = change(before);
    return before;
}

}  // namespace emulation

template <typename T>
T atomicAdd(T* p, std::type_identity_t<T> x) {
    return emulation::atomically(p, [x](T before) { return before + x; });
}
template <typename T>
T atomicMax(T* p, std::type_identity_t<T> x) {
    return emulation::atomically(p, [x](T before) { return std::max(before, x); });
}

// ---- the runtime's templates ---------------------------------------------------------------------

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
    emulation::Launch launch{config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute& attribute = config->attrs[i];
        if (attribute.id == cudaLaunchAttributeClusterDimension) {
            launch.cluster = attribute.val.clusterDim.x;
        }
        if (attribute.id == cudaLaunchAttributeCooperative) {
            launch.cooperative = attribute.val.cooperative;
        }
    }
    launch.kernel = (const void*)kernel;
    std::tuple<Parameters...> values(arguments...);
    emulation::launch(launch, [=] { std::apply(kernel, values); });
    return cudaGetLastError();
}
template <typename T>
cudaError_t cudaMalloc(T** p, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void**>(p), bytes);
}
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void*)kernel, attribute, value);
}
template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
    *attributes = {};
    attributes->ptxVersion = __CUDA_ARCH__ / 10;
    return cudaSuccess;
}
template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
    return cudaOccupancyMaxActiveClusters(clusters, (const void*)kernel, config);
}
