// Loads and stores of n elements at once, n = 1 or a full 16-byte vector, so that a kernel is written once
// for aligned and for any pointers; and of vectors at the edges of an array, so that it is for any size.
#pragma once
#include <cstdint>

#include "llmc/cuda/device.cuh"

namespace llmc {

template <int n, typename T>
__device__ inline Elements<T, n> load(const T* p) {
    return Elements<T, n>::load(p);
}
template <typename T, int n>
__device__ inline void store(T* p, const Elements<T, n>& x) {
    x.store(p);
}

// a word of elements that are 1
template <typename T>
constexpr uint32_t kOneWord = std::is_same_v<T, float>    ? 0x3f800000u
                              : std::is_same_v<T, __half> ? 0x3c003c00u
                                                          : 0x3f803f80u;

// The compiler takes x for new: it computes again what it made of x before, instead of holding that in registers.
template <typename X>
__device__ inline void hide_from_optimizer(X& x) {
    static_assert(sizeof(X) % 4 == 0);
    auto* words = reinterpret_cast<uint32_t*>(&x);
#pragma unroll
    for (int w = 0; w < (int)sizeof(X) / 4; w++) { asm volatile("" : "+r"(words[w])); }
}

// Element j as a float, j a constant after unrolling. A pair of bf16 is two floats' upper halves: a shift or
// a mask each, where the compiler would take the half out of its word first.
template <typename T, int n>
__device__ inline float as_float(const Elements<T, n>& x, int j) {
    if constexpr (std::is_same_v<T, __nv_bfloat16> && n % 2 == 0) {
        uint32_t word = reinterpret_cast<const uint32_t*>(&x)[j / 2];
        return __uint_as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
    } else if constexpr (std::is_same_v<T, __half> && n % 2 == 0) {
        __half2 pair = reinterpret_cast<const __half2*>(&x)[j / 2];
        return j % 2 == 0 ? __low2float(pair) : __high2float(pair);
    } else {
        return (float)x.at[j];
    }
}

// n numbers rounded to T, in pairs where T has instructions for that
template <typename T, int n>
__device__ inline Elements<T, n> rounded(const acc_t<T> (&x)[n]) {
    Elements<T, n> y;
    if constexpr (std::is_same_v<T, __nv_bfloat16> && n % 2 == 0) {
#pragma unroll
        for (int j = 0; j < n; j += 2) {
            reinterpret_cast<__nv_bfloat162*>(&y)[j / 2] = __floats2bfloat162_rn(x[j], x[j + 1]);
        }
    } else if constexpr (std::is_same_v<T, __half> && n % 2 == 0) {
#pragma unroll
        for (int j = 0; j < n; j += 2) {
            reinterpret_cast<__half2*>(&y)[j / 2] = __floats2half2_rn(x[j], x[j + 1]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < n; j++) { y.at[j] = (T)x[j]; }
    }
    return y;
}

// element j in the type that sums are held in: float for all types but double
template <typename Acc, typename T, int n>
__device__ inline Acc as_acc(const Elements<T, n>& x, int j) {
    if constexpr (std::is_same_v<Acc, float>) { return as_float(x, j); }
    return (Acc)x.at[j];
}

// of any type: as many bytes as one instruction moves
template <int bytes>
using Bytes =
    std::conditional_t<bytes == 16, int4,
                       std::conditional_t<bytes == 8, int2, std::conditional_t<bytes == 4, int, short>>>;

// load and store for what is read or written once and not again soon: it leaves the cache first (ld.cs,
// st.cs).
template <int n, typename T>
__device__ inline Elements<T, n> load_streaming(const T* p) {
    using Raw = Bytes<sizeof(Elements<T, n>)>;
    Elements<T, n> x;
    *reinterpret_cast<Raw*>(&x) = __ldcs(reinterpret_cast<const Raw*>(p));
    return x;
}
template <typename T, int n>
__device__ inline void store_streaming(T* p, const Elements<T, n>& x) {
    using Raw = Bytes<sizeof(Elements<T, n>)>;
    __stcs(reinterpret_cast<Raw*>(p), *reinterpret_cast<const Raw*>(&x));
}

// Load of what no kernel writes while this one runs (ld.global.nc): it may move across barriers and stores.
template <int n, typename T>
__device__ inline Elements<T, n> load_constant(const T* p) {
    constexpr int bytes = sizeof(Elements<T, n>) < 16 ? sizeof(Elements<T, n>) : 16;
    Elements<T, n> x;
#pragma unroll
    for (int i = 0; i < (int)sizeof(x) / bytes; i++) {
        reinterpret_cast<Bytes<bytes>*>(&x)[i] = __ldg(reinterpret_cast<const Bytes<bytes>*>(p) + i);
    }
    return x;
}

// n elements from p[at] on, or `otherwise` where p is null
template <int n, typename T>
__device__ inline Elements<T, n> load_or(const T* p, int64_t at, T otherwise) {
    Elements<T, n> x;
    if (p == nullptr) {
#pragma unroll
        for (int i = 0; i < n; i++) { x.at[i] = otherwise; }
    } else {
        x = load<n>(p + at);
    }
    return x;
}

// are all of these aligned to 16 bytes (null is)?
template <typename... Pointers>
bool aligned(Pointers... p) {
    return (... && ((uintptr_t)p % 16 == 0));
}

// ---- at the edges of an array: one instruction where a vector is whole and aligned, single elements where it is not

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
