// LayerNorm with each sample's scale and shift (adaLN), alone and behind a gated residual, forward and backward: checked against
// the CPU reference, in double, and timed against a roof of the same bytes.
//   make dev/cuda/layernorm_modulate && dev/cuda/layernorm_modulate     all of it
//   dev/cuda/layernorm_modulate --check                                 correctness only
#include "dev/cuda/layernorm_modulate_problems.h"
#include "dev/cuda/shootout.cuh"

using namespace llmc;

template <typename T>
std::vector<Version> ladder() {
    auto launch = [](const TensorSet& set, const Problem& p, int) {
        launch_modulate<T>(set, p, set.scratch(), kStream);
    };
    return {{.name = "ship",
             .idea = "runs of rows by rings, what a sample has in registers",
             .launch = launch,
             .sums = [](int64_t N, int C, int) { return modulate_sums(N, C); },
             .scratch = scratch_of([](int64_t, int C) { return layernorm_modulate_backward_scratch(C); }),
             .traits = {.blocks = {0}, .overlaps = [](const Problem&) { return true; }, .every_form = true}}};
}
std::vector<Version> ladder_for(Dtype dtype) {
    if (dtype == Dtype::kBf16) { return ladder<__nv_bfloat16>(); }
    if (dtype == Dtype::kFp16) { return ladder<__half>(); }
    return dtype == Dtype::kFp32 ? ladder<float>() : std::vector<Version>{};
}

// the plain form is forward
void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    layernorm_modulate_forward_cpu(out[0].data(), out[1].data(), out[2].data(), (float*)nullptr, in[0].data(),
                                   (const float*)nullptr, in[1].data(), in[2].data(), (const float*)nullptr,
                                   p.samples, p.N / p.samples, p.C, p.eps);
}
Problem problem_of(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    if (shape.T == 0) { shape.T = (int)std::min<int64_t>(shape.N, 256); }
    return layernorm_modulate_problem(dtype, shape, kind, form);
}

constexpr CallForm kForms[] = {{.name = "forward"},        {.name = "gated forward"},
                               {.name = "backward"},       {.name = "backward, joined"},
                               {.name = "gated backward"}, {.name = "gated backward, joined"}};

std::vector<CheckItem> checks() {
    std::vector<CheckItem> list;
    for (const CallForm& form : kForms) {
        // 7 samples, of which blocks have parts; a row each; one sample; the layouts; what is no vectors
        static constexpr Shape kShapes[] = {{7 * 500, 1152, 500}, {300, 768, 1},    {4099, 384, 4099},
                                            {2048, 3072, 1024},   {640, 8192, 320}, {600, 1003, 200}};
        for (Shape shape : kShapes) {
            list.push_back({.dtype = Dtype::kBf16, .shape = shape, .reruns = 20, .form = form});
        }
        list.push_back({.dtype = Dtype::kFp32, .shape = {1200, 1152, 400}, .reruns = 20, .form = form});
        list.push_back({.dtype = Dtype::kFp16, .shape = {1200, 1152, 400}, .reruns = 20, .form = form});
    }
    return list;
}

int main(int argc, char** argv) {
    std::vector<RaceItem> races;
    for (const CallForm& form : {kForms[0], kForms[1], kForms[2], kForms[5]}) {
        for (Shape shape : {Shape{16384, 1152, 256}, {16384, 3072, 4096}}) {
            races.push_back({Dtype::kBf16, shape, form});
        }
    }
    Shootout shootout{
        .op = "layernorm_modulate",
        .cpu = {.run = run_cpu,
                .sums = [](int64_t N, int C) { return Sums{.row = (double)C, .column = (double)N}; },
                .shape = {2048, 1152}},
        .ladder = ladder_for,
        .problem = problem_of,
        .checks = checks(),
        .races = races,
    };
    return shootout_main(shootout, argc, argv);
}
