// The functions that train (llmc/layernorm/layernorm.h) as the last line of the ladders, and the kernels among which they
// choose, which are run by name: adapters, and how they add.
#pragma once
#include "dev/cuda/layernorm_calls.h"
#include "dev/cuda/only.h"
#include "dev/cuda/shootout.cuh"
#include "llmc/layernorm/kernel.cuh"

namespace llmc {

// Rows are shared out to as many groups as there are multiprocessors, 132 on an H200, or the fallback's 128; to
// clusters from 4096 columns on: 30 of 4 blocks, 15 of 8, 7 of 16. Then come the groups: 128 at most are added.
inline double shipped_column_additions(int64_t N, int C) {
    int64_t groups = C <= 4096 ? 128 : C <= 8192 ? 30 : C <= 16384 ? 15 : 7;
    return (double)ceil_div(N, groups) + 2 * 128 + 32;
}

// forward's and backward's
template <typename T>
Sums shipped_sums(int64_t N, int C, int) {
    return {.row = shipped_row_additions(C, kDtypeOf<T>), .column = shipped_column_additions(N, C)};
}
inline size_t shipped_scratch(int64_t, int C) { return layernorm_backward_scratch(C); }

// Do its launches overlap? All kernels' do but the fallback's, which has fp64 and what the others leave to it.
inline bool forward_overlaps(const Problem& p) {
    bool whole = p.C % (16 / format_of(p.dtype).bytes) == 0, residual = p.reads > 1;
    int most = whole || !residual ? 262144 : p.dtype == Dtype::kFp32 ? 84480 : 100352;
    return p.dtype != Dtype::kFp64 && p.C <= most;
}
inline bool backward_overlaps(const Problem& p) {
    bool whole = p.C % (16 / format_of(p.dtype).bytes) == 0;
    return p.dtype != Dtype::kFp64 && p.C <= (whole ? 262144 : 131072);
}
inline bool always(const Problem&) { return true; }

// one kernel by itself; launch: false where it does not take the problem
template <typename T, typename Launch>
Version kernel_version(const char* name, const char* idea, const Launch& launch) {
    auto run = [launch](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        require(launch(t, p, stream), "this kernel is not for such rows: doc/layernorm.md, How to choose");
    };
    return {
        .name = name,
        .idea = idea,
        .launch = run,
        .sums = shipped_sums<T>,
        .traits = {
            .blocks = {0}, .overlaps = name == std::string("fallback") ? never : always, .when_named = true}};
}

// ---- forward, residual + forward ------------------------------------------------------------------

template <typename T>
Version shipped_forward() {
    auto run = [](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        if constexpr (sizeof(T) == 2) {
            if (p.form.fp32_weight) { return layernorm_forward(forward_call<T, float>(t, p), stream); }
        }
        layernorm_forward(forward_call<T, T>(t, p), stream);
    };
    return {.name = "ship",
            .idea = "the dispatcher that trains",
            .launch = run,
            .sums = shipped_sums<T>,
            .traits = {.blocks = {0}, .overlaps = forward_overlaps, .every_form = true}};
}

template <typename T>
void add_forward_kernels(std::vector<Version>& ladder) {
    auto add = [&](const char* name, const char* idea, layernorm::Kernel kernel) {
        ladder.push_back(kernel_version<T>(
            name, idea, [kernel](const TensorSet& t, const Problem& p, cudaStream_t stream) {
                return p.N == 0 || layernorm_forward_by(kernel, forward_call<T, T>(t, p), stream);
            }));
    };
    add("short_rows", "some lanes of a warp per row", layernorm::Kernel::kShortRows);
    add("row_in_registers", "rows in registers", layernorm::Kernel::kRowInRegisters);
    add("unaligned_rows", "rows at any address, rotated", layernorm::Kernel::kUnalignedRows);
    add("fallback", "any rows, any GPU", layernorm::Kernel::kFallback);
}

// the rungs, and what is linked with them unless one is built alone; fp64 has the fallback alone
template <typename T>
std::vector<Version> with_shipped_forward(std::vector<Version> ladder) {
    if constexpr (is_built("ship")) {
        if constexpr (sizeof(T) < 8) { add_forward_kernels<T>(ladder); }
        ladder.push_back(shipped_forward<T>());
    }
    return ladder;
}

// ---- backward ------------------------------------------------------------------------------------

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
    return {.name = "ship",
            .idea = "the dispatcher that trains",
            .launch = run,
            .sums = shipped_sums<T>,
            .scratch = scratch_of(shipped_scratch),
            .traits = {.blocks = {0}, .overlaps = backward_overlaps, .every_form = true}};
}

template <typename T>
void add_backward_kernels(std::vector<Version>& ladder) {
    auto add = [&](const char* name, const char* idea, layernorm::Kernel kernel) {
        auto launch = [kernel](const TensorSet& t, const Problem& p, cudaStream_t stream) {
            return layernorm_backward_by(kernel, backward_call<T, T, T>(t, p, t.scratch()), stream);
        };
        ladder.push_back(kernel_version<T>(name, idea, launch));
        ladder.back().scratch = scratch_of(shipped_scratch);
    };
    add("short_rows", "some lanes of a warp per row", layernorm::Kernel::kShortRows);
    add("team_ring", "teams of warps behind rings", layernorm::Kernel::kTeamRing);
    add("unaligned_rows", "rows at any address", layernorm::Kernel::kUnalignedRows);
    add("fallback", "any rows, any GPU", layernorm::Kernel::kFallback);
}

template <typename T>
std::vector<Version> with_shipped_backward(std::vector<Version> ladder) {
    if constexpr (is_built("ship")) {
        if constexpr (sizeof(T) < 8) { add_backward_kernels<T>(ladder); }
        ladder.push_back(shipped_backward<T>());
    }
    return ladder;
}

}  // namespace llmc
