// Loads and stores of n elements at once, n = 1 or a full 16-byte vector, so that a kernel is written once
// for aligned and for any pointers.
#pragma once
#include <cstdint>

#include "llmc/device.cuh"

namespace llmc {

template <typename T, int n>
struct alignas(sizeof(T) * n) Elements {
    T at[n];
};

template <int n, typename T>
__device__ inline Elements<T, n> load(const T* p) {
    return *reinterpret_cast<const Elements<T, n>*>(p);
}
template <typename T, int n>
__device__ inline void store(T* p, const Elements<T, n>& x) {
    *reinterpret_cast<Elements<T, n>*>(p) = x;
}

// are all of these 16-byte aligned (null is)?
template <typename... Pointers>
bool aligned(Pointers... p) {
    return (... && ((uintptr_t)p % 16 == 0));
}

}  // namespace llmc
