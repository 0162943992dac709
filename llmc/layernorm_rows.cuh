// What every regime of LayerNorm asks of a call. Host only.
#pragma once
#include "llmc/layernorm.h"
#include "llmc/vectors.cuh"

namespace llmc {

// may rows be read and written 16 bytes at a time? Strides must be filled in.
template <typename T, typename W>
bool rows_are_vectors(const LayerNormForward<T, W>& call) {
    return (call.C | call.out_stride | call.inp_stride | call.residual_stride | call.inp2_stride) %
                   Vec<T>::size ==
               0 &&
           aligned(call.out, call.inp, call.weight, call.bias, call.residual, call.inp2);
}
template <typename T, typename Grad, typename W>
bool rows_are_vectors(const LayerNormBackward<T, Grad, W>& call) {
    return (call.C | call.dinp_stride | call.dout_stride | call.inp_stride) % Vec<T>::size == 0 &&
           aligned(call.dinp, call.dout, call.inp, call.weight);
}

}  // namespace llmc
