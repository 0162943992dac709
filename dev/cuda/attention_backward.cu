// The attention backward ladder: every version checked against the CPU reference and timed against the roof.
//   make dev/cuda/attention_backward && dev/cuda/attention_backward         all versions
//   dev/cuda/attention_backward v5 v6 --shape 16x25x1024                    two of them, sequences x heads x tokens
//   dev/cuda/attention_backward --check                                     correctness only
// The mathematics: llmc/model/cpu/reference.h. Read llmc/ops/attention/ladder/backward/v0.h first, then up.
#include "dev/cuda/attention_rungs.cuh"
#include "llmc/ops/attention/ladder/backward/v0.h"

using namespace llmc;

Version rung(const char* name, const char* idea, AttentionBackwardRung* launch, bool (*takes)(const Problem&),
             AttentionScratch* scratch = attention_backward_scratch) {
    auto run = [launch](const TensorSet& t, const Problem& p, int) {
        launch(t.get<bf16>("dqkv"), t.scratch(), t.get<bf16>("dout"), t.get<bf16>("qkv"), t.get<bf16>("out"),
               t.get<float>("lse"), sequences_of(p), p.T, heads_of(p), kStream);
    };
    return attention_rung(name, idea, run, takes, scratch_for(scratch));
}

// v3: what trains where Hopper's kernels do not fit
void mma_sync(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out, const float* lse,
              int B, int T, int NH, cudaStream_t stream) {
    attention_backward_mma_sync({dqkv, scratch, nullptr, dout, qkv, out, lse, B, T, NH, kHeadColumns},
                                stream);
}

// v7
Version shipped() {
    auto run = [](const TensorSet& t, const Problem& p, int) {
        attention_backward<bf16>({t.get<bf16>("dqkv"), t.scratch(), (unsigned*)t.get<float>("counters"),
                                  t.get<bf16>("dout"), t.get<bf16>("qkv"), t.get<bf16>("out"),
                                  t.get<float>("lse"), sequences_of(p), p.T, heads_of(p), kHeadColumns},
                                 kStream);
    };
    Version ship = attention_rung("v7", "blocks stay and take tiles: what trains", run, takes_bf16,
                                  scratch_for(attention_backward_scratch));
    ship.traits.every_form = true;
    return ship;
}

std::vector<Version> ladder(Dtype) {
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
    return shootout_main(
        attention_shootout("attention_backward", run_cpu, ladder, attention_backward_problem), argc, argv);
}
