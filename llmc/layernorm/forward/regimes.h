// The kernels of LayerNorm forward that choose.h chooses from, a file each: <name>.cu, or a <name>.cuh of which
// <name>_<type>.cu make kernels. Each launches what was chosen; false: the device has no room for such clusters, and nothing
// was done. Strides are filled in; N is at least 1. The last two are not given calls with a residual.
#pragma once
#include "llmc/layernorm/choose.h"
#include "llmc/layernorm/layernorm.h"

namespace llmc {

using layernorm::Choice, layernorm::Kernel;

template <typename T, typename W>
bool layernorm_forward_short_rows(const LayerNormForward<T, W>& call, const Choice& choice,
                                  cudaStream_t stream);

template <typename T, typename W>
bool layernorm_forward_row_in_registers(const LayerNormForward<T, W>& call, const Choice& choice,
                                        cudaStream_t stream);

template <typename T, typename W>
bool layernorm_forward_unaligned_rows(const LayerNormForward<T, W>& call, const Choice& choice,
                                      cudaStream_t stream);

template <typename T, typename W>
bool layernorm_forward_fallback(const LayerNormForward<T, W>& call, const Choice& choice,
                                cudaStream_t stream);

// layernorm_forward() by this kernel or not at all: the shootouts race them. false: it does not take such a call, and
// nothing was done.
template <typename T, typename W>
bool layernorm_forward_by(Kernel kernel, const LayerNormForward<T, W>& call, cudaStream_t stream);

}  // namespace llmc
