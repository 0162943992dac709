// The launchers of the kernels that choose.h chooses from; <name>.cuh of forward/ and backward/ has the kernel of the
// namespace <name>_forward, <name>_backward. Strides are filled in; N is at least 1.
#pragma once
#include "llmc/layernorm/choose.h"
#include "llmc/layernorm/layernorm.h"

namespace llmc {

using layernorm::Choice, layernorm::Kernel;

// ---- forward. false: the device has no room for such clusters, and nothing was done. The last two are not given calls with a
// residual.

namespace short_rows_forward {
template <typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace short_rows_forward
namespace row_in_registers_forward {
template <typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace row_in_registers_forward
namespace unaligned_rows_forward {
template <typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace unaligned_rows_forward
namespace fallback_forward {
template <typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace fallback_forward

// layernorm_forward() by this kernel or not at all: the shootouts race them. false: it does not take such a call, and
// nothing was done.
template <typename T, typename W>
bool layernorm_forward_by(Kernel kernel, const LayerNormForward<T, W>& call, cudaStream_t stream);

// ---- backward. Each writes dinp (=, or += with accumulate_dinp) and leaves in scratch, for each of several groups of rows, the
// sums of dout xhat and of dout by column: (2,groups,C), of acc_t<T>. It answers how many groups; 0: the device has no room for
// such clusters, and nothing was done. With sum_dinp a kernel may leave the sums of dinp, as stored, after the other two,
// (3,groups,C), and say so, if C is at most kSummedColumns. Of one row the sums are what the call asks for: a kernel may write
// that at once, and say so. team_ring is Hopper's alone; the others take calls on any GPU, unaligned_rows in other code.
// A call's dweight, dbias and dinp_sums are null here.

// what a call of one row asks for by column: each (C), 16-byte aligned, of T or of float; null if not wanted
struct ColumnOutputs {
    bool given = false, floats = false, accumulate = false;
    void *dweight = nullptr, *dbias = nullptr, *dinp_sums = nullptr;
};

template <typename T, typename W>
struct LayerNormBackwardRows : LayerNormBackward<T, float, W> {
    bool sum_dinp = false, columns = false;  // columns: are dweight or dbias wanted?
    ColumnOutputs of_one_row{};
};

constexpr int kSummedColumns = layernorm::kThresholds.summed_columns;

struct ColumnGroups {
    int count = 0;
    bool early = false;  // the kernel calls dependency_launch(): the one that adds up may come and wait
    bool dinp = false;   // the sums of dinp are there, too
    bool done = false;   // of one row: written where the call wants them, nothing is in scratch
    int stride = 0;      // numbers of a group in scratch, zeros behind its C among them; 0: C
};

namespace short_rows_backward {
template <typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace short_rows_backward
namespace team_ring_backward {
template <typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace team_ring_backward
namespace unaligned_rows_backward {
template <typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace unaligned_rows_backward
namespace fallback_backward {  // by cp.async, or by kernels that take every call
template <typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace fallback_backward

// layernorm_backward() by this kernel or not at all: the shootouts race them. false: it does not take such a call, and
// nothing was done.
template <typename T, typename Grad, typename W>
bool layernorm_backward_by(Kernel kernel, const LayerNormBackward<T, Grad, W>& call, cudaStream_t stream);

}  // namespace llmc
