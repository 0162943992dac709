// The residual + LayerNorm forward ladder: residual = inp + inp2, rounded; out = LayerNorm of it. Every
// version checked against the CPU reference and timed against the roof, 2R2W.
//   make dev/cuda/residual_layernorm_forward && dev/cuda/residual_layernorm_forward     all versions
//   dev/cuda/residual_layernorm_forward --check                                         correctness only
// Read llmc/layernorm/ladder/residual/v0.h first. v1 is what it costs without the fusion.
#include "dev/cuda/layernorm_rungs.cuh"
#include "llmc/layernorm/ladder/residual/v0.h"
#include "llmc/layernorm/ladder/residual/v1.cuh"
#include "llmc/layernorm/ladder/residual/v2.cuh"
#include "llmc/layernorm/ladder/residual/v3.cuh"

using namespace llmc;

// the problem's core contract; a colleague of rung<T>() in layernorm_forward.cu
template <typename T>
Version rung(const char* name, const char* idea, auto launch, Sums (*sums)(int64_t N, int C, int block),
             const Traits& traits = {}) {
    auto run = [launch](const TensorSet& t, const Problem& p, int block) {
        launch(t.get<T>("residual"), t.get<T>("out"), t.get<acc_t<T>>("mean"), t.get<acc_t<T>>("rstd"),
               t.get<T>("inp"), t.get<T>("inp2"), t.get<T>("weight"), t.get<T>("bias"), p.N, p.C, p.eps,
               kStream, block);
    };
    return {.name = name, .idea = idea, .launch = run, .sums = sums, .traits = traits};
}

template <typename T>
std::vector<Version> ladder() {
    std::vector<Version> ladder;
    auto add = [&](auto&&... said) { ladder.push_back(rung<T>(said...)); };
    if constexpr (is_built("v1")) {
        add("v1", "two kernels: add, then forward's v2", v1::residual_layernorm_forward<T>, sums_of_warp);
    }
    if constexpr (is_built("v2")) {
        add("v2", "one kernel, warp per row", v2::residual_layernorm_forward<T>, sums_of_warp);
    }
    if constexpr (is_built("v3")) {
        add("v3", "16-byte vectors, row in registers", v3::residual_layernorm_forward<T>,
            sums_of_warp_vectors<T>, Traits{.blocks = {32, 64, 128, 256}});
    }
    return with_shipped_forward<T>(std::move(ladder));
}

// rows as (B, T): 8 sequences where N allows it
void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    int B = p.N % 8 == 0 ? 8 : 1;
    v0::residual_layernorm_forward_cpu(out[3].data(), out[0].data(), out[1].data(), out[2].data(),
                                       in[0].data(), in[1].data(), in[2].data(), in[3].data(), B,
                                       (int)p.N / B, p.C, p.eps);
}

std::vector<Version> ladder_for(Dtype dtype) {
    if (dtype == Dtype::kFp64) { return with_shipped_forward<double>({}); }
    if (dtype == Dtype::kFp32) { return ladder<float>(); }
    return dtype == Dtype::kBf16 ? ladder<__nv_bfloat16>() : ladder<__half>();
}

int main(int argc, char** argv) {
    return shootout_main(layernorm_shootout(LayerNormOp::kResidual, "one CPU thread, float sums", run_cpu,
                                            ladder_for, residual_layernorm_forward_problem),
                         argc, argv);
}
