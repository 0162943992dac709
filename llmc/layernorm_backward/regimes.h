// The kernels LayerNorm backward chooses from, a file each: <name>.cu, or a <name>.cuh of which
// <name>_<type>.cu make kernels. A regime writes dinp (=, or += with accumulate_dinp) and leaves in scratch, for
// each of several groups of rows, the sums of dout xhat and of dout by column: (2,groups,C), of acc_t<T>. It
// answers how many groups; 0: it does not take such a call and has done nothing. A call's dweight and dbias are
// null here; strides are filled in; N is at least 1.
#pragma once
#include "llmc/layernorm.h"

namespace llmc {

template <typename T, typename W>
using LayerNormBackwardRows = LayerNormBackward<T, float, W>;

struct ColumnGroups {
    int count = 0;
    bool early =
        false;  // the kernel calls dependency_launch(): the one that adds the groups up may come and wait
};

template <typename T, typename W>
ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream);

template <typename T, typename W>
ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream);

template <typename T, typename W>
ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream);

// takes every call
template <typename T, typename W>
ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<T, W>& call, bool columns,
                                        cudaStream_t stream);

}  // namespace llmc
