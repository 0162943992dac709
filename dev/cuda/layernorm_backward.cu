// The LayerNorm backward ladder: every version checked against the CPU reference and timed against the roof.
//   make dev/cuda/layernorm_backward && dev/cuda/layernorm_backward          all versions
//   dev/cuda/layernorm_backward v2 --shape 8192x768 --dtype fp32            one of them, one shape
//   dev/cuda/layernorm_backward ship --accumulate                          dinp += instead of =
//   dev/cuda/layernorm_backward --check                                     correctness only
// The mathematics: llmc/model/cpu/reference.h. Read llmc/layernorm/ladder/backward/v0.h first, then up, as in forward.
#include <algorithm>

#include "dev/cuda/layernorm_rungs.cuh"
#include "llmc/layernorm/ladder/backward/v0.h"
#include "llmc/layernorm/ladder/backward/v1.cuh"
#include "llmc/layernorm/ladder/backward/v2.cuh"
#include "llmc/layernorm/ladder/backward/v3.cuh"
#include "llmc/layernorm/ladder/backward/v4.cuh"
#include "llmc/layernorm/ladder/backward/v5.cuh"
#include "llmc/layernorm/ladder/backward/v6.cuh"
#include "llmc/layernorm/ladder/backward/v7.cuh"
#include "llmc/layernorm/ladder/backward/v8.cuh"
#include "llmc/layernorm/ladder/backward/v9.cuh"

using namespace llmc;

template <typename T>
Version rung(const char* name, const char* idea, auto launch, size_t (*scratch)(int64_t N, int C),
             Sums (*sums)(int64_t N, int C, int block), const Traits& traits = {}) {
    auto run = [launch](const TensorSet& t, const Problem& p, int block) {
        launch(t.get<T>("dinp"), t.get<T>("dweight"), t.get<T>("dbias"), t.scratch(), t.get<T>("dout"),
               t.get<T>("inp"), t.get<T>("weight"), t.get<acc_t<T>>("mean"), t.get<acc_t<T>>("rstd"), p.N,
               p.C, kStream, block);
    };
    return {.name = name,
            .idea = idea,
            .launch = run,
            .sums = sums,
            .scratch = scratch_of(scratch),
            .traits = traits};
}

// how each version adds (bounds.h), in additions that one element goes through
Sums sums_v1(int64_t N, int C, int) { return {.row = (double)C, .column = (double)N}; }

// each of the `parts` partial sums of a column takes N / parts rows, which `warps` warps share; then their sums
double column_additions(int64_t N, int64_t parts, int warps) {
    return (double)ceil_div(N, std::max<int64_t>(1, parts * warps)) + (double)parts;
}
Sums sums_v2(int64_t N, int C, int block) {
    int warps = block / kWarp;
    double rows_per_warp = (double)ceil_div(ceil_div(N, v2::kGroups), warps);
    return {.row = sums_of_warp(N, C, block).row, .column = rows_per_warp + warps + v2::kGroups};
}
Sums sums_v3(int64_t N, int C, int block) {
    int warps = block / kWarp;
    double column = column_additions(N, v3::partial_blocks(), warps) + warps;
    return {.row = sums_of_warp(N, C, block).row, .column = column};
}
// v4, and v5 with its own number of blocks
template <typename T, int (*partial_blocks)(int64_t)>
Sums sums_v4(int64_t N, int C, int block) {
    int warps = block / kWarp;
    double column = column_additions(N, partial_blocks(N), warps) + warps;
    return {.row = sums_of_warp_vectors<T>(N, C, block).row, .column = column};
}
template <typename T>
Sums sums_v6(int64_t N, int C, int block) {
    double column = column_additions(N, v6::partial_blocks(N, block), 1);
    return {.row = block_additions<T>(C, block), .column = column};
}

// a lane's columns, the lanes, the warps of a team; then a column's rows in each team, the teams of a block
template <typename T>
Sums sums_v7(int64_t N, int C, int) {
    return v7::with_layout<T>(C, [&](auto layout) {
        using L = decltype(layout);
        return Sums{.row = L::kVectors * L::kVector + kShuffles + L::kWarps,
                    .column = column_additions(N, v7::partial_blocks(N), L::kTeams) + L::kTeams};
    });
}
// the warps are those of a cluster, if many added by the lanes of one
template <typename T>
Sums sums_v8(int64_t N, int C, int block) {
    if (C <= v8::kFewColumns) { return sums_v7<T>(N, C, block); }
    return v8::with_layout<T>(C, [&](auto layout) {
        using L = decltype(layout);
        return Sums{.row = L::kVectors * L::kVector + kShuffles + std::min(L::kPairs, kWarp),
                    .column = column_additions(N, v8::partial_groups<T>(N, C), L::kTeams) + L::kTeams};
    });
}
// of the partial sums a warp adds every 32nd, and the warps are added up
template <typename T>
Sums sums_v9(int64_t N, int C, int block) {
    int groups = v8::partial_groups<T>(N, C);
    Sums sums = sums_v8<T>(N, C, block);
    sums.column += ceil_div(groups, v9::kTile) + kShuffles - groups;
    return sums;
}

template <typename T>
std::vector<Version> ladder() {
    Traits to_256{.blocks = {64, 128, 256}}, to_512{.blocks = {64, 128, 256, 512}}, no_knob{.blocks = {0}};
    std::vector<Version> ladder;
    auto add = [&](auto&&... said) { ladder.push_back(rung<T>(said...)); };
    if constexpr (is_built("v1")) {
        add("v1", "thread per row, thread per column", v1::layernorm_backward<T>,
            v1::layernorm_backward_scratch<T>, sums_v1);
    }
    if constexpr (is_built("v2")) {
        add("v2", "warp per row, tiles of columns", v2::layernorm_backward<T>,
            v2::layernorm_backward_scratch<T>, sums_v2);
    }
    if constexpr (is_built("v3")) {
        add("v3", "one kernel, columns in shared memory", v3::layernorm_backward<T>,
            v3::layernorm_backward_scratch<T>, sums_v3, to_512);
    }
    if constexpr (is_built("v4")) {
        add("v4", "rows and columns in registers", v4::layernorm_backward<T>,
            v4::layernorm_backward_scratch<T>, sums_v4<T, v4::partial_blocks>, to_256);
    }
    if constexpr (is_built("v5")) {
        add("v5", "a ring per warp, by TMA", v5::layernorm_backward<T>, v5::layernorm_backward_scratch<T>,
            sums_v4<T, v5::partial_blocks>, to_256);
    }
    if constexpr (is_built("v6")) {
        add("v6", "block per row behind one ring", v6::layernorm_backward<T>,
            v6::layernorm_backward_scratch<T>, sums_v6<T>, Traits{.blocks = {128, 256, 512}});
    }
    if constexpr (is_built("v7")) {
        add("v7", "teams of warps, layout known", v7::layernorm_backward<T>,
            v7::layernorm_backward_scratch<T>, sums_v7<T>, no_knob);
    }
    if constexpr (is_built("v8")) {
        add("v8", "cluster per long row", v8::layernorm_backward<T>, v8::layernorm_backward_scratch<T>,
            sums_v8<T>, no_knob);
    }
    if constexpr (is_built("v9")) {
        add("v9", "columns by many, launched early", v9::layernorm_backward<T>,
            v9::layernorm_backward_scratch<T>, sums_v9<T>, no_knob);
    }
    return with_shipped_backward<T>(std::move(ladder));
}

// rows as (B, T): 8 sequences where N allows it
void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    int B = p.N % 8 == 0 ? 8 : 1;
    v0::layernorm_backward_cpu(out[0].data(), out[1].data(), out[2].data(), in[0].data(), in[1].data(),
                               in[2].data(), in[3].data(), in[4].data(), B, (int)p.N / B, p.C);
}

std::vector<Version> ladder_for(Dtype dtype) {
    if (dtype == Dtype::kFp64) { return with_shipped_backward<double>({}); }
    if (dtype == Dtype::kFp32) { return ladder<float>(); }
    return dtype == Dtype::kBf16 ? ladder<__nv_bfloat16>() : ladder<__half>();
}

int main(int argc, char** argv) {
    return shootout_main(layernorm_shootout(LayerNormOp::kBackward, "one CPU thread, as in llm.c's article",
                                            run_cpu, ladder_for, layernorm_backward_problem),
                         argc, argv);
}
