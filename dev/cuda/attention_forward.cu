// The attention forward ladder: every version checked against the CPU reference and timed against the roof.
//   make dev/cuda/attention_forward && dev/cuda/attention_forward           all versions
//   dev/cuda/attention_forward v5 v6 --shape 16x25x1024                     two of them, sequences x heads x
//   tokens dev/cuda/attention_forward --check                                      correctness only
// The mathematics: llmc/model/cpu/reference.h. Read llmc/ops/attention/ladder/forward/v0.h first, then up.
#include "dev/cuda/attention_problems.h"
#include "dev/cuda/attention_roof.cuh"
#include "dev/cuda/attention_rungs.h"
#include "dev/cuda/harness.cuh"
#include "llmc/ops/attention/ladder/forward/v0.h"

using namespace llmc;

Version rung(const char* name, const char* idea, AttentionForwardRung* launch, bool (*takes)(const Problem&),
             Scratch scratch = no_scratch) {
    auto run = [launch](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        launch(t.get<bf16>("out"), t.get<float>("lse"), t.scratch(), t.get<bf16>("qkv"), sequences_of(p), p.T,
               heads_of(p), stream);
    };
    return {.name = name,
            .idea = idea,
            .launch = run,
            .sums = any_sums,
            .scratch = std::move(scratch),
            .traits = {.blocks = {0}, .takes = takes}};
}

// v3: what trains where Hopper's kernels do not fit
void mma_sync(bf16* out, float* lse, void*, const bf16* qkv, int B, int T, int NH, cudaStream_t stream) {
    attention_forward_mma_sync({out, lse, nullptr, qkv, B, T, NH, kHeadColumns}, stream);
}

// v7
Version shipped() {
    auto run = [](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        attention_forward<bf16>({t.get<bf16>("out"), t.get<float>("lse"), (unsigned*)t.get<float>("counters"),
                                 t.get<bf16>("qkv"), sequences_of(p), p.T, heads_of(p), kHeadColumns},
                                stream);
    };
    return {.name = "v7",
            .idea = "blocks stay and take tiles: what trains",
            .launch = run,
            .sums = any_sums,
            .traits = {.blocks = {0}, .takes = takes_bf16, .every_form = true}};
}

std::vector<Version> ladder(Dtype, const ShootoutOptions&) {
    return {
        rung("v1", "the formula, a kernel a line", v1::attention_forward,
             takes_scores<v1::attention_forward_scratch>, scratch_for(v1::attention_forward_scratch)),
        rung("v2", "tiles, online softmax, CUDA cores", v2::attention_forward, takes_bf16),
        rung("v3", "tensor cores by mma.sync", mma_sync, takes_bf16),
        rung("v4", "wgmma and TMA, one stage", v4::attention_forward, takes_wgmma),
        rung("v5", "a producer warpgroup and a ring", v5::attention_forward, takes_wgmma),
        rung("v6", "scores ahead of the exponentials", v6::attention_forward, takes_wgmma),
        rung("v6-lazy", "and the largest moves rarely", v6::attention_forward_lazy, takes_wgmma),
        shipped(),
    };
}

void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    v0::attention_forward_cpu(out[0].data(), out[1].data(), in[0].data(), sequences_of(p), p.T, heads_of(p),
                              kHeadColumns);
}

int main(int argc, char** argv) {
    Shootout shootout{
        .op = "attention_forward",
        .cpu = {.name = "v0",
                .idea = "one CPU thread",
                .run = run_cpu,
                .sums = [](int64_t, int) { return Sums{}; },
                .shape = sequences(1, 2, 256)},
        .ladder = ladder,
        .problem = attention_forward_problem,
        .checks = attention_checks(),
        .races = attention_races(),
        .sweep = {},
        .latency = {},
        .sequences = true,
        .roof = attention_roof,
    };
    return shootout_main(shootout, argc, argv);
}
