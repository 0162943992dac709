// The functions that train (llmc/layernorm/layernorm.h) as the last line of the ladders, and the kernels among which they
// choose, which are run by name: adapters, and how they add.
#pragma once
#include "dev/cuda/layernorm_calls.h"
#include "dev/cuda/layernorm_explain.h"
#include "dev/cuda/layernorm_problems.h"
#include "dev/cuda/only.h"
#include "dev/cuda/problem.h"
#include "dev/cuda/shootout.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/kernel.cuh"

namespace llmc {

constexpr int kShuffles = 5;  // log2 of a warp: additions that bring its lanes together

// additions of a thread that takes every `threads`-th 16-byte vector of a row of C
template <typename T>
double vector_additions(int C, int threads) {
    constexpr int V = Vec<T>::size;
    return (double)ceil_div(C, threads * V) * V;
}

// a warp has a row: element by element, or in vectors
inline Sums sums_of_warp(int64_t, int C, int) { return {.row = (double)ceil_div(C, kWarp) + kShuffles}; }
template <typename T>
Sums sums_of_warp_vectors(int64_t, int C, int) {
    return {.row = vector_additions<T>(C, kWarp) + kShuffles};
}

// additions of a block that has a row: its threads, the lanes of each warp, its warps in one warp's lanes
template <typename T>
double block_additions(int C, int block) {
    return vector_additions<T>(C, block) + 2 * kShuffles;
}

// Additions of a cluster that has a row, each block an equal part of its vectors: as a block, then a lane
// takes every 32nd of all the warps.
template <typename T>
double cluster_additions(int C, int block, int cluster) {
    constexpr int V = Vec<T>::size;
    int columns = ceil_div(C / V, cluster) * V, warps = cluster * (block / kWarp);
    return block_additions<T>(columns, block) + ceil_div(warps, kWarp);
}

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
    if (p.form.out) { return p.C % 4 == 0 && p.C > 256 && p.C <= 16384; }
    bool whole = p.C % (16 / format_of(p.dtype).bytes) == 0, residual = p.reads > 1;
    int most = whole || !residual ? 262144 : p.dtype == Dtype::kFp32 ? 84480 : 100352;
    return p.dtype != Dtype::kFp64 && p.C <= most;
}
inline bool backward_overlaps(const Problem& p) {
    if (p.form.out) { return p.C % 8 == 0 && p.C <= 16384; }
    bool whole = p.C % (16 / format_of(p.dtype).bytes) == 0;
    return p.dtype != Dtype::kFp64 && p.C <= (whole ? 262144 : 131072);
}
inline bool always(const Problem&) { return true; }

// one kernel by itself; launch: false where it does not take the problem
template <typename T, typename Launch>
Version kernel_version(const char* name, const char* idea, const Launch& launch) {
    auto run = [launch](const TensorSet& t, const Problem& p, int) {
        require(launch(t, p), "this kernel is not for such rows: doc/layernorm.md, How to choose");
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

// with the step's first rows in device memory
inline Dropout device_dropout(const Problem& p) {
    static const DeviceMemory rows(sizeof(DropoutRows));
    static const bool first = (check(cudaMemset(rows.data(), 0, sizeof(DropoutRows))), true);
    return dropout_of(p, first ? (const DropoutRows*)rows.data() : nullptr);
}

template <typename T>
Version shipped_forward() {
    auto run = [](const TensorSet& t, const Problem& p, int) {
        with_types<T>(p.form, [&]<typename W, typename Grad, typename Out>() {
            layernorm_forward(forward_call<T, W, Out>(t, p), kStream, device_dropout(p));
        });
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
        ladder.push_back(kernel_version<T>(name, idea, [kernel](const TensorSet& t, const Problem& p) {
            return p.N == 0 || layernorm_forward_by(kernel, forward_call<T, T>(t, p), kStream);
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
    auto run = [](const TensorSet& t, const Problem& p, int) {
        with_types<T>(p.form, [&]<typename W, typename Grad, typename Out>() {
            auto call = backward_call<T, Grad, W, Out>(t, p, t.scratch());
            call.dropout = device_dropout(p);
            layernorm_backward(call, kStream);
        });
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
        auto launch = [kernel](const TensorSet& t, const Problem& p) {
            return layernorm_backward_by(kernel, backward_call<T, T, T>(t, p, t.scratch()), kStream);
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

// ---- the shootouts --------------------------------------------------------------------------------

// v0 adds a row, and of backward a column, in one chain.
inline Shootout layernorm_shootout(LayerNormOp op, const char* cpu_idea, decltype(CpuVersion::run) run_cpu,
                                   decltype(Shootout::ladder) ladder, decltype(Shootout::problem) problem) {
    static constexpr const char* kNames[] = {"layernorm_forward", "residual_layernorm_forward",
                                             "layernorm_backward"};
    const bool backward = op == LayerNormOp::kBackward;
    auto chains = [](int64_t N, int C) {
        return Sums{.row = (double)C, .column = (double)N, .from_first = false};
    };
    return {.op = kNames[(int)op],
            .cpu = {.idea = cpu_idea, .run = run_cpu, .sums = chains, .shape = {2048, 768}},
            .ladder = ladder,
            .problem = problem,
            .checks = all_layernorm_checks(backward, op == LayerNormOp::kResidual),
            .races = layernorm_races(),
            .sweep = layernorm_sweep(),
            .latency = layernorm_latency(),
            .accumulates = backward,
            .mixes = op != LayerNormOp::kResidual,
            .drops = op != LayerNormOp::kForward,
            .explain = [op](const ShootoutOptions& o) { return explained(op, o); },
            .only = kOnly};
}

}  // namespace llmc
