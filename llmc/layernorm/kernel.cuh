// From a call of LayerNorm to a kernel's launch: what choose.h asks of the call and of the GPU, and the template arguments of
// what it chose. With the vocabulary that the kernels are written in.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/choose.h"
#include "llmc/layernorm/launchers.h"
#include "llmc/layernorm/layernorm.h"

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
// weights are of W, and read 16 bytes at a time at most.
template <typename T, typename W>
int piece_of(uint64_t strides, std::initializer_list<const void*> rows,
             std::initializer_list<const void*> weights) {
    auto bits = [](auto& pointers) {
        uint64_t all = 0;
        for (const void* p : pointers) { all |= (uintptr_t)p; }
        return all;
    };
    uint64_t n = Vec<T>::size, of_rows = bits(rows), of_weights = bits(weights);
    while (strides % n || of_rows % (n * sizeof(T)) || of_weights % std::min<uint64_t>(16, n * sizeof(W))) {
        n /= 2;
    }
    return (int)n;
}

template <typename T, typename W>
Call packed(const LayerNormForward<T, W>& call) {
    int piece =
        piece_of<T, W>(call.C | call.out_stride | call.inp_stride | call.residual_stride | call.inp2_stride,
                       {call.out, call.inp, call.residual, call.inp2}, {call.weight, call.bias});
    return {.N = call.N,
            .C = call.C,
            .bytes = sizeof(T),
            .piece = piece,
            .same_weights = std::is_same_v<T, W>,
            .aligned_weights = aligned(call.weight, call.bias),
            .adds = call.residual != nullptr};
}
template <typename T, typename W>
Call packed(const LayerNormBackwardRows<T, W>& call) {
    int piece = piece_of<T, W>(call.C | call.dinp_stride | call.dout_stride | call.inp_stride,
                               {call.dinp, call.dout, call.inp}, {call.weight});
    return {.N = call.N,
            .C = call.C,
            .bytes = sizeof(T),
            .piece = piece,
            .same_weights = std::is_same_v<T, W>,
            .adds = call.accumulate_dinp,
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
