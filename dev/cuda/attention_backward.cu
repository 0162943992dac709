// The attention backward ladder: every version checked against the CPU reference and timed against the roof.
//   make dev/cuda/attention_backward && dev/cuda/attention_backward         all versions
//   dev/cuda/attention_backward v5 v6 --shape 16x25x1024                    two of them, sequences x heads x
//   tokens dev/cuda/attention_backward --check                                     correctness only
// The mathematics: llmc/model/cpu/reference.h. Read llmc/ops/attention/ladder/backward/v0.h first, then up.
#include "dev/cuda/attention_problems.h"
#include "dev/cuda/attention_roof.cuh"
#include "dev/cuda/attention_rungs.h"
#include "dev/cuda/harness.cuh"
#include "llmc/ops/attention/ladder/backward/v0.h"

using namespace llmc;

Version rung(const char* name, const char* idea, AttentionBackwardRung* launch, bool (*takes)(const Problem&),
             AttentionScratch* scratch = attention_backward_scratch) {
    auto run = [launch](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        launch(t.get<bf16>("dqkv"), t.scratch(), t.get<bf16>("dout"), t.get<bf16>("qkv"), t.get<bf16>("out"),
               t.get<float>("lse"), sequences_of(p), p.T, heads_of(p), stream);
    };
    return {.name = name,
            .idea = idea,
            .launch = run,
            .sums = any_sums,
            .scratch = scratch_for(scratch),
            .traits = {.blocks = {0}, .takes = takes}};
}

// v3: what trains where Hopper's kernels do not fit
void mma_sync(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out, const float* lse,
              int B, int T, int NH, cudaStream_t stream) {
    attention_backward_mma_sync({dqkv, scratch, nullptr, dout, qkv, out, lse, B, T, NH, kHeadColumns},
                                stream);
}

// v7
Version shipped() {
    auto run = [](const TensorSet& t, const Problem& p, int, cudaStream_t stream) {
        attention_backward<bf16>({t.get<bf16>("dqkv"), t.scratch(), (unsigned*)t.get<float>("counters"),
                                  t.get<bf16>("dout"), t.get<bf16>("qkv"), t.get<bf16>("out"),
                                  t.get<float>("lse"), sequences_of(p), p.T, heads_of(p), kHeadColumns},
                                 stream);
    };
    return {.name = "v7",
            .idea = "blocks stay and take tiles: what trains",
            .launch = run,
            .sums = any_sums,
            .scratch = scratch_for(attention_backward_scratch),
            .traits = {.blocks = {0}, .takes = takes_bf16, .every_form = true}};
}

std::vector<Version> ladder(Dtype, const ShootoutOptions&) {
    return {
        rung("v1", "the formulas, a kernel a line", v1::attention_backward,
             takes_scores<v1::attention_backward_scratch>, v1::attention_backward_scratch),
        rung("v2", "tiles, p and ds computed twice, CUDA cores", v2::attention_backward, takes_bf16),
        rung("v3", "tensor cores by mma.sync", mma_sync, takes_bf16),
        rung("v4", "wgmma and TMA, one stage", v4::attention_backward, takes_wgmma),
        rung("v5", "producer warpgroups and rings", v5::attention_backward, takes_wgmma),
        rung("v6", "products under way behind the arithmetic", v6::attention_backward, takes_wgmma),
        shipped(),
    };
}

void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    v0::attention_backward_cpu(out[0].data(), in[0].data(), in[1].data(), in[2].data(), in[3].data(),
                               sequences_of(p), p.T, heads_of(p), kHeadColumns);
}

int main(int argc, char** argv) {
    Shootout shootout{
        .op = "attention_backward",
        .cpu = {.name = "v0",
                .idea = "one CPU thread",
                .run = run_cpu,
                .sums = [](int64_t, int) { return Sums{}; },
                .shape = sequences(1, 2, 256)},
        .ladder = ladder,
        .problem = attention_backward_problem,
        .checks = attention_checks(),
        .races = attention_races(),
        .sweep = {},
        .latency = {},
        .sequences = true,
        .roof = attention_roof,
    };
    return shootout_main(shootout, argc, argv);
}
