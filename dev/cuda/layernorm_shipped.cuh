// The functions that train (llmc/layernorm.h) as the last line of the ladders, and the regimes among which they choose,
// for who names one: adapters, and how they add.
#pragma once
#include "dev/cuda/layernorm_calls.h"
#include "dev/cuda/shootout.cuh"
#include "llmc/layernorm_backward/regimes.h"
#include "llmc/layernorm_forward/regimes.h"

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

// ---- regimes -------------------------------------------------------------------------------------

inline bool always(const Problem&) { return true; }
// of one by itself; that of general is launched plainly
inline Traits regime_traits(bool is_general) {
    return {.blocks = {0}, .overlaps = is_general ? never : always, .when_named = true};
}
inline const char* const kNotTaken =
    "this kernel is not for such rows: dev/cuda/README.md, Which kernel takes a call";

// forward and residual + forward
template <typename T>
void add_forward_regimes(std::vector<Version>& ladder) {
    using Call = LayerNormForward<T, T>;
    auto add = [&](const char* name, const char* idea, bool (*regime)(const Call&, cudaStream_t)) {
        auto run = [regime](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
            require(p.N == 0 || regime(forward_call<T, T>(t, p), stream), kNotTaken);
        };
        auto sums = [](int64_t, int C, int) { return Sums{.row = shipped_row_additions(C, kDtypeOf<T>)}; };
        bool is_general = name == std::string("general");
        ladder.push_back(
            {.name = name, .idea = idea, .launch = run, .sums = sums, .traits = regime_traits(is_general)});
    };
    auto general = [](const Call& call, cudaStream_t stream) {
        layernorm_forward_general(call, stream);
        return true;
    };
    add("narrow", "some lanes of a warp per row", layernorm_forward_narrow<T, T>);
    add("registers", "rows in registers", layernorm_forward_registers<T, T>);
    add("ring", "clusters that stay, behind a ring", layernorm_forward_ring<T, T>);
    add("odd", "rows at any address, rotated", layernorm_forward_odd<T, T>);
    add("general", "any rows, any GPU", general);
}

template <typename T>
void add_backward_regimes(std::vector<Version>& ladder) {
    using Regime = LayerNormBackwardRegime<T, T>;
    auto add = [&](const char* name, const char* idea, Regime* regime) {
        auto run = [regime](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
            auto call = backward_call<T, T, T>(t, p, t.scratch());
            require(layernorm_backward_by(regime, call, stream), kNotTaken);
        };
        auto sums = [](int64_t N, int C, int) {
            return Sums{.row = shipped_row_additions(C, kDtypeOf<T>),
                        .column = shipped_column_additions(N, C)};
        };
        bool is_general = name == std::string("general");
        ladder.push_back({.name = name,
                          .idea = idea,
                          .launch = run,
                          .sums = sums,
                          .scratch = [](int64_t, int C) { return layernorm_backward_scratch(C); },
                          .traits = regime_traits(is_general)});
    };
    Regime* general = [](const LayerNormBackwardRows<T, T>& call, cudaStream_t stream) {
        return layernorm_backward_general(call, true, stream);
    };
    add("narrow", "some lanes of a warp per row", layernorm_backward_narrow<T, T>);
    add("ring", "teams of warps behind rings", layernorm_backward_ring<T, T>);
    add("odd", "rows at any address", layernorm_backward_odd<T, T>);
    add("long", "16 blocks share a row", layernorm_backward_long<T, T>);
    add("general", "any rows, any GPU", general);
}

// ---- the functions that train --------------------------------------------------------------------

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
