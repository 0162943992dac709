// What every regime of LayerNorm asks of a call. Host only.
#pragma once
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/layernorm.h"

namespace llmc {

// May rows be read and written n elements at a time? Those of weight and bias are, 16 bytes at most at a time. Strides
// must be filled in.
template <int n, typename T, typename W>
bool rows_are_in(const LayerNormForward<T, W>& call) {
    return (call.C | call.out_stride | call.inp_stride | call.residual_stride | call.inp2_stride) % n == 0 &&
           aligned_to<n * sizeof(T)>(call.out, call.inp, call.residual, call.inp2) &&
           aligned_to<alignof(Elements<W, n>)>(call.weight, call.bias);
}
template <int n, typename T, typename Grad, typename W>
bool rows_are_in(const LayerNormBackward<T, Grad, W>& call) {
    return (call.C | call.dinp_stride | call.dout_stride | call.inp_stride) % n == 0 &&
           aligned_to<n * sizeof(T)>(call.dinp, call.dout, call.inp) &&
           aligned_to<alignof(Elements<W, n>)>(call.weight);
}

// 16 bytes at a time?
template <typename T, typename W>
bool rows_are_vectors(const LayerNormForward<T, W>& call) {
    return rows_are_in<Vec<T>::size>(call);
}
template <typename T, typename Grad, typename W>
bool rows_are_vectors(const LayerNormBackward<T, Grad, W>& call) {
    return rows_are_in<Vec<T>::size>(call);
}

}  // namespace llmc
