// Elements of rows in the type their sums are held in, and back: float for all types but double.
#pragma once
#include "llmc/vectors.cuh"

namespace llmc {

// element j, j a constant after unrolling
template <typename Acc, typename T, int n>
__device__ inline Acc as_acc(const Elements<T, n>& x, int j) {
    if constexpr (std::is_same_v<Acc, float>) {
        return as_float(x, j);
    } else {
        return (Acc)x.at[j];
    }
}

// n numbers rounded to T
template <typename T, int n>
__device__ inline Elements<T, n> as_stored(const acc_t<T> (&x)[n]) {
    if constexpr (std::is_same_v<acc_t<T>, float>) {
        return rounded<T>(x);
    } else {
        Elements<T, n> y;
#pragma unroll
        for (int j = 0; j < n; j++) { y.at[j] = (T)x[j]; }
        return y;
    }
}

}  // namespace llmc
