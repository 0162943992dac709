// Vectors at the edges of an array: one instruction where a vector is whole and aligned, single elements
// where it is not. So one kernel serves any size and any alignment.
#pragma once
#include "llmc/cuda/device.cuh"

namespace llmc {

// p[i], ... as many as V holds, all within p[0] ... p[n - 1] and aligned for V
template <typename V, typename T>
__device__ inline bool is_whole(const T* p, int64_t i, int64_t n) {
    return i >= 0 && i + V::size <= n && reinterpret_cast<uintptr_t>(p + i) % sizeof(V) == 0;
}

// p[i], p[i + 1], ...; `rest` for those outside p[0] ... p[n - 1]. V: Vec<T> or its like.
template <typename V, typename T>
__device__ inline V load_within(const T* p, int64_t i, int64_t n, std::type_identity_t<T> rest = T(0.0f)) {
    if (is_whole<V>(p, i, n)) { return *reinterpret_cast<const V*>(p + i); }
    V x;
#pragma unroll
    for (int j = 0; j < V::size; j++) { x.at[j] = i + j >= 0 && i + j < n ? p[i + j] : rest; }
    return x;
}

// x[k] = load_within<V>(row_at(k), i, n) for k < count. Whole vectors of all m rows are asked for before any
// is waited for, which the branch inside load_within prevents.
template <typename V, int m, typename RowAt>
__device__ inline void load_together(V (&x)[m], RowAt row_at, int64_t count, int64_t i, int64_t n) {
    bool whole = count >= m;
#pragma unroll
    for (int k = 0; k < m; k++) { whole = whole && is_whole<V>(row_at(k), i, n); }
    if (whole) {
#pragma unroll
        for (int k = 0; k < m; k++) { x[k] = *reinterpret_cast<const V*>(row_at(k) + i); }
        return;
    }
#pragma unroll
    for (int k = 0; k < m; k++) {
        if (k < count) { x[k] = load_within<V>(row_at(k), i, n); }
    }
}

// p[i], p[i + 1], ... = x, those of them within p[0] ... p[n - 1]
template <typename V, typename T>
__device__ inline void store_within(T* p, int64_t i, int64_t n, const V& x) {
    if (is_whole<V>(p, i, n)) {
        *reinterpret_cast<V*>(p + i) = x;
        return;
    }
#pragma unroll
    for (int j = 0; j < V::size; j++) {
        if (i + j >= 0 && i + j < n) { p[i + j] = x.at[j]; }
    }
}

}  // namespace llmc
