// The kernels LayerNorm forward chooses from, a file each: <name>.cu, or a <name>.cuh of which <name>_<type>.cu
// make kernels. What a regime does not take it leaves alone and answers false; the first that takes a call has
// it. Strides are filled in; N is at least 1. The last two are not given calls with a residual.
#pragma once
#include "llmc/layernorm/layernorm.h"

namespace llmc {

// columns, 64 vectors; what takes longer rows gives them a warp each or more
template <typename T>
constexpr int kNarrowRow = 1024 / sizeof(T);

template <typename T, typename W>
bool layernorm_forward_narrow(const LayerNormForward<T, W>& call, cudaStream_t stream);

template <typename T, typename W>
bool layernorm_forward_registers(const LayerNormForward<T, W>& call, cudaStream_t stream);

template <typename T, typename W>
bool layernorm_forward_odd(const LayerNormForward<T, W>& call, cudaStream_t stream);

// takes every call
template <typename T, typename W>
void layernorm_forward_general(const LayerNormForward<T, W>& call, cudaStream_t stream);

}  // namespace llmc
