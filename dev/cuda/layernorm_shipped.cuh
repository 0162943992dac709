// The functions that train (llmc/layernorm.h) as the last line of the ladders: adapters, and how they add.
#pragma once
#include "dev/cuda/layernorm_calls.h"
#include "dev/cuda/shootout.cuh"

namespace llmc {

// Rows are shared out to as many groups as there are multiprocessors, 132 on an H200, or the general path's 128; to
// clusters from 4096 columns on: 30 of 4 blocks, 15 of 8, 7 of 16. Then come the groups: 128 at most are added.
inline double shipped_column_additions(int64_t N, int C) {
    int64_t groups = C <= 4096 ? 128 : C <= 8192 ? 30 : C <= 16384 ? 15 : 7;
    return (double)ceil_div(N, groups) + 2 * 128 + 32;
}

// Do its launches overlap? All regimes' do but general's, which has fp64 and what the others leave to it.
inline bool forward_overlaps(const Problem& p) {
    bool whole = p.C % (16 / format_of(p.dtype).bytes) == 0;
    return p.dtype != Dtype::kFp64 && p.C <= (whole ? 262144 : 16640);
}
inline bool backward_overlaps(const Problem& p) {
    bool whole = p.C % (16 / format_of(p.dtype).bytes) == 0;
    return p.dtype != Dtype::kFp64 && (whole ? p.C <= 262144 : p.C >= 128 && p.C <= 8192);
}

// forward and residual + forward
template <typename T>
Version shipped_forward() {
    auto run = [](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        if constexpr (sizeof(T) == 2) {
            if (p.form.fp32_weight) { return layernorm_forward(forward_call<T, float>(t, p), stream); }
        }
        layernorm_forward(forward_call<T, T>(t, p), stream);
    };
    auto sums = [](int64_t, int C, int) { return Sums{.row = shipped_row_additions(C, kDtypeOf<T>)}; };
    return {.name = "ship",
            .idea = "the dispatcher that trains",
            .launch = run,
            .sums = sums,
            .traits = {.blocks = {0}, .overlaps = forward_overlaps, .every_form = true}};
}

template <typename T>
Version shipped_backward() {
    auto run = [](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        if constexpr (sizeof(T) == 2) {
            if (p.form.fp32_weight) {
                return layernorm_backward(backward_call<T, float, float>(t, p, t.scratch()), stream);
            }
            if (p.form.fp32_gradients) {
                return layernorm_backward(backward_call<T, float, T>(t, p, t.scratch()), stream);
            }
        }
        layernorm_backward(backward_call<T, T, T>(t, p, t.scratch()), stream);
    };
    auto sums = [](int64_t N, int C, int) {
        return Sums{.row = shipped_row_additions(C, kDtypeOf<T>), .column = shipped_column_additions(N, C)};
    };
    return {.name = "ship",
            .idea = "the dispatcher that trains",
            .launch = run,
            .sums = sums,
            .scratch = [](int64_t, int C) { return layernorm_backward_scratch(C); },
            .traits = {.blocks = {0}, .overlaps = backward_overlaps, .every_form = true}};
}

}  // namespace llmc
