// The kernels LayerNorm backward chooses from, a file each: <name>.cu, or a <name>.cuh of which
// <name>_<type>.cu make kernels. A regime writes dinp (=, or += with accumulate_dinp) and leaves in scratch, for
// each of several groups of rows, the sums of dout xhat and of dout by column: (2,groups,C), of acc_t<T>. It
// answers how many groups; 0: it does not take such a call and has done nothing. With sum_dinp a regime may leave
// the sums of dinp, as stored, after the other two, (3,groups,C), and say so, if C is at most kSummedColumns.
// ring is Hopper's alone; narrow, odd and general take calls on any GPU, odd in other code.
// Of one row the sums are what the call asks for: a regime may write that at once, and say so.
// A call's dweight, dbias and dinp_sums are null here; strides are filled in; N is at least 1.
#pragma once
#include "llmc/layernorm/layernorm.h"

namespace llmc {

// what a call of one row asks for by column: each (C), 16-byte aligned, of T or of float; null if not wanted
struct ColumnOutputs {
    bool given = false, floats = false, accumulate = false;
    void *dweight = nullptr, *dbias = nullptr, *dinp_sums = nullptr;
};

template <typename T, typename W>
struct LayerNormBackwardRows : LayerNormBackward<T, float, W> {
    bool sum_dinp = false;
    ColumnOutputs of_one_row{};
};

constexpr int kSummedColumns = 2048;  // what GPT-2's residual stream needs, and some more

constexpr int kMostGroups = 256;  // of sums in float that scratch holds: no GPU has so many multiprocessors

struct ColumnGroups {
    int count = 0;
    bool early = false;  // the kernel calls dependency_launch(): the one that adds up may come and wait
    bool dinp = false;   // the sums of dinp are there, too
    bool done = false;   // of one row: written where the call wants them, nothing is in scratch
    int stride = 0;      // numbers of a group in scratch, zeros behind its C among them; 0: C
};

template <typename T, typename W>
ColumnGroups layernorm_backward_narrow(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream);

template <typename T, typename W>
ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream);

template <typename T, typename W>
ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream);

template <typename T, typename W>
using LayerNormBackwardRegime = ColumnGroups(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream);

// layernorm_backward() by this regime or not at all: the shootouts race them. false: it does not take such a call, and
// nothing was done.
template <typename T, typename Grad, typename W>
bool layernorm_backward_by(LayerNormBackwardRegime<T, W>* regime, const LayerNormBackward<T, Grad, W>& call,
                           cudaStream_t stream);

// takes every call
template <typename T, typename W>
ColumnGroups layernorm_backward_general(const LayerNormBackwardRows<T, W>& call, bool columns,
                                        cudaStream_t stream);

}  // namespace llmc
