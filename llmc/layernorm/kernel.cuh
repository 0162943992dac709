// From a call of LayerNorm to a kernel's launch: the launchers, what choose.h asks of the call and of the GPU, and the template
// arguments of what it chose. With the vocabulary that the kernels are written in.
#pragma once
#include <algorithm>
#include <array>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/choose.h"
#include "llmc/layernorm/layernorm.h"

namespace llmc {

using layernorm::Choice, layernorm::Kernel;

// ---- The launchers of the kernels that choose.h chooses from; <name>.cuh of forward/ and backward/ has the kernel of the
// namespace <name>_forward, <name>_backward. Strides are filled in; N is at least 1.

// ---- forward. false: the device has no room for such clusters, and nothing was done. The last two are not given calls with a
// residual.

// what is launched; kernels without dropout are not given it
template <typename T, typename W, typename Out = T>
struct LayerNormForwardRows : LayerNormForward<T, W, Out> {
    Dropout dropout{};
};

namespace short_rows_forward {
template <typename T, typename W>
bool launch(const LayerNormForwardRows<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace short_rows_forward
namespace row_in_registers_forward {
template <typename T, typename W, typename Out>
bool launch(const LayerNormForwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream);
}  // namespace row_in_registers_forward
namespace unaligned_rows_forward {
template <typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace unaligned_rows_forward
namespace fallback_forward {
template <typename T, typename W, typename Out>
bool launch(const LayerNormForward<T, W, Out>& call, const Choice& choice, cudaStream_t stream);
}  // namespace fallback_forward

// to (N,C) = x + what dropout leaves of y, or without x (null) that alone, by a kernel of its own. strides: of to, x, y
template <typename T>
void layernorm_add_dropped(T* to, const T* x, const T* y, int64_t N, int C, std::array<int64_t, 3> strides,
                           const Dropout& dropout, cudaStream_t stream);

// layernorm_forward() by this kernel or not at all: the shootouts race them. false: it does not take such a call, and
// nothing was done.
template <typename T, typename W, typename Out>
bool layernorm_forward_by(Kernel kernel, const LayerNormForward<T, W, Out>& call, cudaStream_t stream);

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

template <typename T, typename W, typename Out = T>
struct LayerNormBackwardRows : LayerNormBackward<T, float, W, Out> {
    bool sum_dinp = false, columns = false;  // columns: are dweight or dbias wanted?
    ColumnOutputs of_one_row{};
};

constexpr int kSummedColumns = layernorm::kThresholds.summed_columns;

struct ColumnGroups {
    int count = 0;
    bool early = false;    // the kernel calls dependency_launch(): the one that adds up may come and wait
    bool dinp = false;     // the sums of dinp are there, too
    bool dropped = false;  // what is dropped of dinp is written, and the sums are of that
    bool done = false;     // of one row: written where the call wants them, nothing is in scratch
    int stride = 0;        // numbers of a group in scratch, zeros behind its C among them; 0: C
};

namespace short_rows_backward {
template <typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace short_rows_backward
namespace team_ring_backward {
template <typename T, typename W, typename Out>
ColumnGroups launch(const LayerNormBackwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream);
}  // namespace team_ring_backward
namespace unaligned_rows_backward {
template <typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream);
}  // namespace unaligned_rows_backward
namespace fallback_backward {  // by cp.async, or by kernels that take every call
template <typename T, typename W, typename Out>
ColumnGroups launch(const LayerNormBackwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream);
}  // namespace fallback_backward

// layernorm_backward() by this kernel or not at all: the shootouts race them. false: it does not take such a call, and
// nothing was done.
template <typename T, typename Grad, typename W, typename Out>
bool layernorm_backward_by(Kernel kernel, const LayerNormBackward<T, Grad, W, Out>& call,
                           cudaStream_t stream);

}  // namespace llmc

namespace llmc::layernorm {

// act.operator()<i>() for an i that is known at run time, from <= i < to; on a GPU the same in all of a warp
template <int from, int to, typename Act>
constexpr auto with_constant(int i, const Act& act) {
    constexpr int middle = (from + to) / 2;
    if constexpr (to - from == 1) {
        return act.template operator()<from>();
    } else if (i < middle) {
        return with_constant<from, middle>(i, act);
    } else {
        return with_constant<middle, to>(i, act);
    }
}

// ---- host only

// act.operator()<piece>() likewise: n elements, a vector, or with `halves` n / 2, n / 4 .. 1, else 1
template <int n, bool halves, typename Act>
auto with_piece(int piece, const Act& act) {
    if constexpr (n > 1) {
        constexpr int next = halves ? n / 2 : 1;
        if (piece < n) { return with_piece<next, halves>(piece, act); }
    }
    return act.template operator()<n>();
}

// The elements of T, a vector at most, that rows can be read and written at a time: 1, 2, 4 .. Strides must be filled in;
// weights are of W, and read 16 bytes at a time at most. Each has the bits of all of them.
template <typename T, typename W>
int piece_of(uint64_t strides, uint64_t rows, uint64_t weights) {
    uint64_t n = Vec<T>::size;
    while (strides % n || rows % (n * sizeof(T)) || weights % std::min<uint64_t>(16, n * sizeof(W))) {
        n /= 2;
    }
    return (int)n;
}
template <typename... Pointers>
uint64_t bits_of(Pointers... p) {
    return (... | (uintptr_t)p);
}

// Kernels drop for these types; for others a kernel of its own does, as for long rows, for which registers lack.
template <typename T, typename W>
constexpr bool kDrops = std::is_same_v<T, W> &&
                        (std::is_same_v<T, float> || std::is_same_v<T, __nv_bfloat16>);

template <typename T, typename W, typename Out>
Call packed(const LayerNormForwardRows<T, W, Out>& call) {
    constexpr bool mixed = !std::is_same_v<T, Out>;
    int piece =
        piece_of<T, W>(call.C | call.out_stride | call.inp_stride | call.residual_stride | call.inp2_stride,
                       bits_of(call.inp, call.residual, call.inp2) | (mixed ? 0 : bits_of(call.out)),
                       bits_of(call.weight, call.bias));
    if (mixed && !aligned(call.out)) { piece = 1; }
    return {.N = call.N,
            .C = call.C,
            .bytes = sizeof(T),
            .piece = piece,
            .same_weights = std::is_same_v<T, W>,
            .aligned_weights = aligned(call.weight, call.bias),
            .adds = call.residual != nullptr,
            .mixed = mixed,
            .drops_apart = call.dropout.rows != nullptr &&
                           (!kDrops<T, W> || call.C > kThresholds.dropped_vectors * Vec<T>::size)};
}
template <typename T, typename W, typename Out>
Call packed(const LayerNormBackwardRows<T, W, Out>& call) {
    const uint64_t strides = call.C | call.dinp_stride | call.dout_stride | call.inp_stride |
                             call.dropped_stride | call.copy_stride;
    const uint64_t of_out = bits_of(call.dout, call.dropped, call.copy);
    constexpr bool mixed = !std::is_same_v<T, Out>;
    int piece =
        piece_of<T, W>(strides, bits_of(call.dinp, call.inp) | (mixed ? 0 : of_out), bits_of(call.weight));
    // of 16-bit rows, too, whole vectors are copied
    if (mixed && (strides % Vec<Out>::size != 0 || of_out % sizeof(Vec<Out>) != 0)) { piece = 1; }
    return {.N = call.N,
            .C = call.C,
            .bytes = sizeof(T),
            .piece = piece,
            .same_weights = std::is_same_v<T, W>,
            .adds = call.accumulate_dinp,
            .mixed = mixed,
            .usual = call.columns && call.dinp != nullptr};
}

// The current device, and for what this kernel's code, and that of all others beside it, is made.
template <typename Kernel>
Gpu this_gpu(Kernel* kernel) {
    bool hopper = runs_hopper_code(kernel);
    return {hopper, device_facts().multiprocessors, device_facts().shared_bytes, hopper ? 16 : 1};
}

// launch(choice) by what choose(gpu) gives, which may say false: the device has no room for such clusters; then by what it
// gives where these are too large. false: it gives nothing.
template <typename Choose, typename Launch>
bool launch_chosen(Gpu gpu, const Choose& choose, const Launch& launch) {
    for (Maybe choice = choose(gpu); choice; choice = choose(gpu)) {
        if (launch(*choice)) { return true; }
        gpu.cluster = choice->cluster - 1;
    }
    return false;
}

}  // namespace llmc::layernorm
