// The ladder of the LayerNorm that writes e4m3 and its transpose: every version checked against the CPU reference, in double,
// and timed against a roof of the same bytes; and of a step in FP8 what else writes both orders: a residual first, casts,
// GELU, its gradient.
//   make dev/cuda/layernorm_fp8 && dev/cuda/layernorm_fp8               all of it
//   dev/cuda/layernorm_fp8 --check                                      correctness only
#include "dev/cuda/layernorm_fp8_problems.h"
#include "dev/cuda/layernorm_rungs.cuh"
#include "llmc/layernorm/ladder/forward/v0.h"
#include "llmc/layernorm/ladder/fp8/v1.cuh"
#include "llmc/layernorm/ladder/fp8/v2.cuh"

using namespace llmc;
using bf16 = __nv_bfloat16;

// ---- versions -------------------------------------------------------------------------------------

Sums sums_of_fp8(int64_t N, int C, int) { return fp8_sums(N, C); }

std::vector<Version> ladder(Dtype) {
    auto rung = [](const char* name, const char* idea,
                   void (*launch)(const LayerNormForwardFp8<bf16>&, cudaStream_t)) {
        auto run = [launch](const TensorSet& t, const Problem& p, int) {
            launch(layernorm_fp8_call(t, p), kStream);
        };
        auto takes = [](const Problem& p) { return p.dtype == Dtype::kBf16 && p.op == "layernorm_fp8"; };
        return Version{.name = name,
                       .idea = idea,
                       .launch = run,
                       .sums = sums_of_fp8,
                       .traits = {.blocks = {0}, .takes = takes}};
    };
    auto hopper = [](const Problem& p) { return p.dtype == Dtype::kBf16 && device_facts().capability >= 90; };
    return {rung("v1", "two kernels, a thread a byte", v1::layernorm_forward_fp8<bf16>),
            rung("v2", "transposing through shared memory", v2::layernorm_forward_fp8<bf16>),
            {.name = "ship",
             .idea = "both orders from one read",
             .launch = [](const TensorSet& t, const Problem& p,
                          int) { launch_fp8(t, p, t.scratch(), kStream, device_dropout(p)); },
             .sums = sums_of_fp8,
             .scratch = scratch_of(fp8_sums_scratch),
             .traits = {.blocks = {0}, .takes = hopper, .overlaps = always, .every_form = true}}};
}

void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    v0::layernorm_forward_cpu(out[0].data(), out[3].data(), out[4].data(), in[0].data(), in[1].data(),
                              in[2].data(), 1, (int)p.N, p.C, p.eps);
    out[2][0] = 0;
    for (int64_t i = 0; i < p.N * p.C; i++) {
        out[2][0] = std::max(out[2][0], std::fabs(out[0][i]));
        out[0][i] = out[1][i % p.C * p.N + i / p.C] = from_e4m3(to_e4m3(out[0][i] * in[3][0]));
    }
}

// ---- what is tried --------------------------------------------------------------------------------

constexpr CallForm kResidual{.name = "residual_layernorm_fp8"};
constexpr CallForm kElementwise[] = {{.name = "cast_e4m3"},
                                     {.name = "cast_e5m2", .fp32_gradients = true},
                                     {.name = "gelu_e4m3"},
                                     {.name = "gelu_backward_e5m2", .fp32_gradients = true}};

std::vector<CheckItem> checks() {
    std::vector<CheckItem> list = {{Dtype::kFp32, {80, 784}}};
    for (const CallForm& form : {CallForm{}, kResidual}) {
        // the longest rows of layouts and some vectors more; tiles that are not whole, several a block
        static constexpr Shape kShapes[] = {{80, 16},   {80, 272},    {16, 768},  {272, 784},
                                            {80, 1040}, {80, 1280},   {80, 1600}, {80, 2064},
                                            {80, 4112}, {20000, 768}, {80, 6144}};
        for (Shape shape : kShapes) {
            list.push_back({.dtype = Dtype::kBf16, .shape = shape, .reruns = 20, .form = form});
        }
        for (Inputs kind : {Inputs::kOffset, Inputs::kOutlier, Inputs::kDenormal, Inputs::kNonFinite}) {
            for (Shape shape : {Shape{144, 768}, {80, 1600}}) {
                list.push_back({.dtype = Dtype::kBf16, .shape = shape, .inputs = kind, .form = form});
            }
        }
    }
    for (const CallForm& form : kElementwise) {
        for (Shape shape : {Shape{16, 16}, {80, 144}, {272, 768}, {8208, 1600}}) {
            list.push_back({.dtype = Dtype::kBf16, .shape = shape, .reruns = 20, .form = form});
        }
    }
    return list;
}

// of GPT-2 124M, 774M and 1558M; GELU has four times the channels
std::vector<RaceItem> races() {
    std::vector<RaceItem> list;
    for (const CallForm& form : {CallForm{}, kResidual}) {
        for (Shape shape : {Shape{65536, 768}, {16384, 1280}, {8192, 1600}}) {
            list.push_back({Dtype::kBf16, shape, form});
        }
    }
    for (const CallForm& form : kElementwise) {
        const bool gelu = std::string_view(form.name).starts_with("gelu");
        for (int C : {768, 1280, 1600}) {
            list.push_back({Dtype::kBf16, {gelu ? 8192 : 16384, gelu ? 4 * C : C}, form});
        }
    }
    return list;
}

int main(int argc, char** argv) {
    Shootout shootout{
        .op = "layernorm_fp8",
        .cpu = {.run = run_cpu,
                .sums = [](int64_t, int C) { return Sums{.row = (double)C, .from_first = false}; },
                .shape = {2048, 768}},
        .ladder = ladder,
        .problem = fp8_problem,
        .checks = checks(),
        .races = races(),
    };
    return shootout_main(shootout, argc, argv);
}
