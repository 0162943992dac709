// The attention forward ladder: every version checked against the CPU reference and timed against the roof.
//   make dev/cuda/attention_forward && dev/cuda/attention_forward           all versions
//   dev/cuda/attention_forward v5 v6 --shape 16x25x1024                     two of them, sequences x heads x tokens
//   dev/cuda/attention_forward --check                                      correctness only
// The mathematics: llmc/model/cpu/reference.h. Read llmc/ops/attention/ladder/forward/v0.h first, then up.
#include "dev/cuda/attention_rungs.cuh"
#include "llmc/ops/attention/ladder/forward/v0.h"

using namespace llmc;

Version rung(const char* name, const char* idea, AttentionForwardRung* launch, bool (*takes)(const Problem&),
             Scratch scratch = no_scratch) {
    auto run = [launch](const TensorSet& t, const Problem& p, int) {
        launch(t.get<bf16>("out"), t.get<float>("lse"), t.scratch(), t.get<bf16>("qkv"), sequences_of(p), p.T,
               heads_of(p), kStream);
    };
    return attention_rung(name, idea, run, takes, std::move(scratch));
}

// v3: what trains where Hopper's kernels do not fit
void mma_sync(bf16* out, float* lse, void*, const bf16* qkv, int B, int T, int NH, cudaStream_t stream) {
    attention_forward_mma_sync({out, lse, nullptr, qkv, B, T, NH, kHeadColumns}, stream);
}

// v7
Version shipped() {
    auto run = [](const TensorSet& t, const Problem& p, int) {
        attention_forward<bf16>({t.get<bf16>("out"), t.get<float>("lse"), (unsigned*)t.get<float>("counters"),
                                 t.get<bf16>("qkv"), sequences_of(p), p.T, heads_of(p), kHeadColumns},
                                kStream);
    };
    Version ship = attention_rung("v7", "blocks stay and take tiles: what trains", run, takes_bf16);
    ship.traits.every_form = true;
    return ship;
}

std::vector<Version> ladder(Dtype) {
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
    return shootout_main(attention_shootout("attention_forward", run_cpu, ladder, attention_forward_problem),
                         argc, argv);
}
