// A problem's tensors as the calls of llmc/layernorm/layernorm.h. Host only: the shootouts and the tests make them here.
// Tensors: anything with rows<T>(name, other), the tensor of that name, or else the one in whose place it is.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "dev/cuda/problem.h"
#include "llmc/layernorm/layernorm.h"

namespace llmc {

// forward and residual + forward
template <typename T, typename W, typename Out = T, typename Tensors>
LayerNormForward<T, W, Out> forward_call(const Tensors& t, const Problem& p) {
    Rows<Out> out = t.template rows<Out>("out");
    Rows<T> residual = t.template rows<T>("residual");
    Rows<T> inp2 = t.template rows<T>("inp2", "residual");
    bool over_first = residual.data != nullptr && p.form.in_place == 1;
    Rows<T> inp = t.template rows<T>("inp", over_first ? "residual" : "out");
    return {.out = out.data,
            .mean = t.template rows<acc_t<T>>("mean").data,
            .rstd = t.template rows<acc_t<T>>("rstd").data,
            .inp = inp.data,
            .weight = t.template rows<W>("weight").data,
            .bias = t.template rows<W>("bias").data,
            .N = p.N,
            .C = p.C,
            .eps = p.eps,
            .residual = residual.data,
            .inp2 = inp2.data,
            .out_stride = out.stride,
            .inp_stride = inp.stride,
            .residual_stride = residual.stride,
            .inp2_stride = inp2.stride,
            .rms = p.form.rms};
}

template <typename T, typename Grad, typename W, typename Out = T, typename Tensors>
LayerNormBackward<T, Grad, W, Out> backward_call(const Tensors& t, const Problem& p, void* scratch) {
    Rows<Out> dout = t.template rows<Out>("dout", "dinp"), copy = t.template rows<Out>("copy");
    Rows<T> dinp = t.template rows<T>("dinp");
    Rows<T> inp = t.template rows<T>("inp"), dropped = t.template rows<T>("dropped");
    return {.dinp = dinp.data,
            .dweight = t.template rows<Grad>("dweight").data,
            .dbias = t.template rows<Grad>("dbias").data,
            .scratch = scratch,
            .dout = dout.data,
            .inp = inp.data,
            .weight = t.template rows<W>("weight").data,
            .mean = t.template rows<acc_t<T>>("mean").data,
            .rstd = t.template rows<acc_t<T>>("rstd").data,
            .N = p.N,
            .C = p.C,
            .accumulate_dinp = p.form.accumulate_dinp,
            .accumulate = p.form.accumulate,
            .dinp_stride = dinp.stride,
            .dout_stride = dout.stride,
            .inp_stride = inp.stride,
            .rms = p.form.rms,
            .dropped = dropped.data,
            .dropped_stride = dropped.stride,
            .copy = copy.data,
            .copy_stride = copy.stride};
}

// act.operator()<Out>() by the form of a mixed call
template <typename Act>
void with_out(const CallForm& form, const Act& act) {
    *form.out == Dtype::kBf16 ? act.template operator()<__nv_bfloat16>() : act.template operator()<__half>();
}
// act.operator()<W, Grad, Out>() by the form of a call with rows of T
template <typename T, typename Act>
void with_types(const CallForm& form, const Act& act) {
    if constexpr (std::is_same_v<T, float>) {
        if (form.out) {
            return with_out(form, [&]<typename Out>() { act.template operator()<T, T, Out>(); });
        }
    }
    if constexpr (sizeof(T) == 2) {
        if (form.fp32_weight) { return act.template operator()<float, float, T>(); }
        if (form.fp32_gradients) { return act.template operator()<T, float, T>(); }
    }
    act.template operator()<T, T, T>();
}

}  // namespace llmc
