// The functions that train (llmc/layernorm.h) as the last line of the ladders: adapters, and how they add.
#pragma once
#include "dev/cuda/shootout.cuh"
#include "llmc/layernorm.h"

namespace llmc {

// No path has a longer chain in a row than a warp alone with the whole of it: C / 32 elements a lane, up to a
// vector more, and the lanes; what several warps or blocks share is shorter by more than it takes to bring it
// together.
inline double shipped_row_additions(int C) { return (double)ceil_div(C, kWarp) + 16; }

// Rows are shared out to 128 groups at least (one a multiprocessor, or the general path's), except where a
// cluster of up to 16 blocks has a long row; then come the groups. Never more than one addition a row and one
// a group.
inline double shipped_column_additions(int64_t N, int C) {
    constexpr int kGroups = 128, kCluster = 16, kLongRow = 8192;
    int64_t groups = C > kLongRow ? kGroups / kCluster : kGroups;
    return (double)ceil_div(N, groups) + 2 * kGroups + 32;
}

template <typename T, typename W>
void ship_forward(const TensorSet& t, const Problem& p, cudaStream_t stream) {
    auto out = t.rows<T>("out"), residual = t.rows<T>("residual"), inp2 = t.rows<T>("inp2", "residual");
    auto inp = t.rows<T>("inp", residual.data ? "residual" : "out");
    LayerNormForward<T, W> call{.out = out.data,
                                .mean = t.find<acc_t<T>>("mean"),
                                .rstd = t.find<acc_t<T>>("rstd"),
                                .inp = inp.data,
                                .weight = t.find<W>("weight"),
                                .bias = t.find<W>("bias"),
                                .N = p.N,
                                .C = p.C,
                                .eps = p.eps,
                                .residual = residual.data,
                                .inp2 = inp2.data,
                                .out_stride = out.stride,
                                .inp_stride = inp.stride,
                                .residual_stride = residual.stride,
                                .inp2_stride = inp2.stride};
    layernorm_forward(call, stream);
}

template <typename T, typename Grad, typename W>
void ship_backward(const TensorSet& t, const Problem& p, cudaStream_t stream) {
    auto dinp = t.rows<T>("dinp"), dout = t.rows<T>("dout", "dinp"), inp = t.rows<T>("inp");
    LayerNormBackward<T, Grad, W> call{.dinp = dinp.data,
                                       .dweight = t.find<Grad>("dweight"),
                                       .dbias = t.find<Grad>("dbias"),
                                       .scratch = t.scratch(),
                                       .dout = dout.data,
                                       .inp = inp.data,
                                       .weight = t.find<W>("weight"),
                                       .mean = t.get<acc_t<T>>("mean"),
                                       .rstd = t.get<acc_t<T>>("rstd"),
                                       .N = p.N,
                                       .C = p.C,
                                       .accumulate_dinp = p.form.accumulate_dinp,
                                       .accumulate = p.form.accumulate,
                                       .dinp_stride = dinp.stride,
                                       .dout_stride = dout.stride,
                                       .inp_stride = inp.stride};
    layernorm_backward(call, stream);
}

// forward and residual + forward
template <typename T>
Version shipped_forward() {
    auto run = [](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        if constexpr (sizeof(T) == 2) {
            if (p.form.fp32_weight) { return ship_forward<T, float>(t, p, stream); }
        }
        ship_forward<T, T>(t, p, stream);
    };
    auto sums = [](int64_t, int C, int) { return Sums{.row = shipped_row_additions(C)}; };
    return {.name = "ship",
            .idea = "the dispatcher that trains",
            .launch = run,
            .sums = sums,
            .traits = {.blocks = {0}, .every_form = true}};
}

template <typename T>
Version shipped_backward() {
    auto run = [](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        if constexpr (sizeof(T) == 2) {
            if (p.form.fp32_weight) { return ship_backward<T, float, float>(t, p, stream); }
            if (p.form.fp32_gradients) { return ship_backward<T, float, T>(t, p, stream); }
        }
        ship_backward<T, T, T>(t, p, stream);
    };
    auto sums = [](int64_t N, int C, int) {
        return Sums{.row = shipped_row_additions(C), .column = shipped_column_additions(N, C)};
    };
    return {.name = "ship",
            .idea = "the dispatcher that trains",
            .launch = run,
            .sums = sums,
            .scratch = [](int64_t, int C) { return layernorm_backward_scratch(C); },
            .traits = {.blocks = {0}, .pdl = true, .every_form = true}};
}

}  // namespace llmc
