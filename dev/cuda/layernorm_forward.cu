// The LayerNorm forward ladder: every version checked against the CPU reference and timed against the roof.
//   make dev/cuda/layernorm_forward && dev/cuda/layernorm_forward            all versions
//   dev/cuda/layernorm_forward v2 --shape 8192x768 --dtype fp32             one of them, one shape
//   dev/cuda/layernorm_forward --check                                      correctness only
// Read llmc/layernorm/ladder/forward/v0.h first, then `make diff-layernorm_forward-1-2`, and so on up.
#include <bit>

#include "dev/cuda/layernorm_rungs.cuh"
#include "llmc/layernorm/ladder/forward/v0.h"
#include "llmc/layernorm/ladder/forward/v1.cuh"
#include "llmc/layernorm/ladder/forward/v2.cuh"
#include "llmc/layernorm/ladder/forward/v3.cuh"
#include "llmc/layernorm/ladder/forward/v4.cuh"
#include "llmc/layernorm/ladder/forward/v5.cuh"
#include "llmc/layernorm/ladder/forward/v6.cuh"
#include "llmc/layernorm/ladder/forward/v7.cuh"
#include "llmc/layernorm/ladder/forward/v8.cuh"

using namespace llmc;

template <typename T>
Version rung(const char* name, const char* idea, auto launch, Sums (*sums)(int64_t N, int C, int block),
             const Traits& traits = {}) {
    auto run = [launch](const TensorSet& t, const Problem& p, int block) {
        launch(t.get<T>("out"), t.get<acc_t<T>>("mean"), t.get<acc_t<T>>("rstd"), t.get<T>("inp"),
               t.get<T>("weight"), t.get<T>("bias"), p.N, p.C, p.eps, kStream, block);
    };
    return {.name = name, .idea = idea, .launch = run, .sums = sums, .traits = traits};
}

// how each version adds (bounds.h), in additions that one element goes through
Sums sums_v1(int64_t, int C, int) { return {.row = (double)C}; }

// Each part's squares are about its own mean, and the parts' distances from the row's mean are added: an
// error of a part's sum counts once more.
[[maybe_unused]] constexpr int kOwnMeans = 2;
template <typename T>
Sums sums_v4(int64_t, int C, int block) {
    return {.row = kOwnMeans * block_additions<T>(C, block)};
}
template <typename T>
Sums sums_v8(int64_t, int C, int block) {
    return {.row = kOwnMeans * cluster_additions<T>(C, block, v8::default_cluster<T>(C, block))};
}

// one vector a lane, as many lanes as hold the row, in powers of two
template <typename T>
Sums sums_v5(int64_t, int C, int) {
    constexpr int V = Vec<T>::size;
    return {.row = (double)V + std::bit_width((unsigned)ceil_div(C, V) - 1)};
}

template <typename T>
std::vector<Version> ladder() {
    Traits to_256{.blocks = {32, 64, 128, 256}}, to_512{.blocks = {64, 128, 256, 512}};
    std::vector<Version> ladder;
    auto add = [&](auto&&... said) { ladder.push_back(rung<T>(said...)); };
    if constexpr (is_built("v1")) {
        add("v1", "thread per row, as llm.c's kernel 1", v1::layernorm_forward<T>, sums_v1);
    }
    if constexpr (is_built("v2")) { add("v2", "warp per row", v2::layernorm_forward<T>, sums_of_warp); }
    if constexpr (is_built("v3")) {
        add("v3", "16-byte vectors, row in registers", v3::layernorm_forward<T>, sums_of_warp_vectors<T>,
            to_256);
    }
    if constexpr (is_built("v4")) {
        add("v4", "block per row, one barrier", v4::layernorm_forward<T>, sums_v4<T>, to_512);
    }
    if constexpr (is_built("v5")) {
        add("v5", "several short rows per warp", v5::layernorm_forward<T>, sums_v5<T>, to_512);
    }
    if constexpr (is_built("v6")) {
        add("v6", "blocks stay, next row by cp.async", v6::layernorm_forward<T>, sums_of_warp_vectors<T>,
            to_256);
    }
    if constexpr (is_built("v7")) {
        add("v7", "rings filled by TMA", v7::layernorm_forward<T>, sums_of_warp_vectors<T>, to_256);
    }
    if constexpr (is_built("v8")) {  // the lambda: a cluster as v8 chooses it
        add(
            "v8", "cluster per row", [](auto... arguments) { v8::layernorm_forward<T>(arguments...); },
            sums_v8<T>, Traits{.blocks = {256, 512}});
    }
    return with_shipped_forward<T>(std::move(ladder));
}

// rows as (B, T): 8 sequences where N allows it
void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    int B = p.N % 8 == 0 ? 8 : 1;
    v0::layernorm_forward_cpu(out[0].data(), out[1].data(), out[2].data(), in[0].data(), in[1].data(),
                              in[2].data(), B, (int)p.N / B, p.C, p.eps);
}

std::vector<Version> ladder_for(Dtype dtype) {
    if (dtype == Dtype::kFp64) { return with_shipped_forward<double>({}); }
    if (dtype == Dtype::kFp32) { return ladder<float>(); }
    return dtype == Dtype::kBf16 ? ladder<__nv_bfloat16>() : ladder<__half>();
}

int main(int argc, char** argv) {
    return shootout_main(layernorm_shootout(LayerNormOp::kForward, "one CPU thread, as in llm.c's article",
                                            run_cpu, ladder_for, layernorm_forward_problem),
                         argc, argv);
}
