// The classifier's ladder: softmax, cross-entropy and its gradient in the logits' place, every version checked against the
// CPU reference and timed against the roof, 1R1W.
//   make dev/cuda/classifier && dev/cuda/classifier              all versions
//   dev/cuda/classifier --check                                  correctness only
// A launch after the first works on what the one before left: other numbers, the same work.
#include "dev/cuda/classifier_problem.h"
#include "dev/cuda/shootout.cuh"
#include "llmc/ops/classifier/classifier.h"
#include "llmc/ops/classifier/ladder/v0.h"
#include "llmc/ops/classifier/ladder/v1.cuh"

using namespace llmc;

template <typename T>
Version rung(const char* name, const char* idea, auto launch, const Traits& traits) {
    auto run = [launch](const TensorSet& t, const Problem& p, int block) {
        if (p.N == 0) { return; }
        auto* targets = reinterpret_cast<const int32_t*>(t.get<float>("targets"));
        launch(t.get<T>("logits"), t.get<float>("losses"), targets, t.get<float>("dloss"), p.N,
               vocabulary_of(p.C), p.C, kStream, block);
    };
    return {.name = name,
            .idea = idea,
            .launch = run,
            .sums = [](int64_t, int, int) { return Sums{}; },
            .traits = traits};
}

template <typename T>
std::vector<Version> ladder() {
    Traits no_knob{.blocks = {0}}, shipped{.blocks = {0}, .every_form = true};
    return {
        rung<T>("v1", "block per row, a pass for each result", v1::classifier_forward_backward<T>,
                {.blocks = {256, 512, 1024}}),
        rung<T>(
            "general", "maximum and sum in one pass, vectors",
            [](auto* logits, auto* losses, auto* targets, auto* dloss, int64_t N, int V, int Vp, auto stream,
               int) {
                classifier_forward_backward_general(logits, losses, targets, dloss, N, V, Vp, stream);
            },
            no_knob),
        rung<T>(
            "ship", "row in shared memory where it fits",
            [](auto* logits, auto* losses, auto* targets, auto* dloss, int64_t N, int V, int Vp, auto stream,
               int) { classifier_forward_backward(logits, losses, targets, dloss, N, V, Vp, stream); },
            shipped),
    };
}

std::vector<Version> ladder_for(Dtype dtype) {
    if (dtype == Dtype::kFp32) { return ladder<float>(); }
    return dtype == Dtype::kBf16 ? ladder<__nv_bfloat16>() : std::vector<Version>{};
}

void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    std::copy(p.out[0].initial->begin(), p.out[0].initial->end(), out[0].begin());
    std::vector<int32_t> targets(p.N);
    for (int64_t row = 0; row < p.N; row++) { targets[row] = from_subnormal(in[0][row]); }
    v0::classifier_forward_backward_cpu(out[0].data(), out[1].data(), targets.data(), kProblemDloss, p.N,
                                        vocabulary_of(p.C), p.C);
}

std::vector<CheckItem> checks() {
    std::vector<CheckItem> list;
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        static constexpr Shape kShapes[] = {{0, 320},    {1, 1},       {3, 63},     {131, 320},
                                            {1023, 257}, {2100, 8256}, {67, 50304}, {17, 50257},
                                            {9, 128256}, {3, 420032},  {2, 500032}};
        for (Shape shape : kShapes) {
            list.push_back({.dtype = dtype, .shape = shape, .reruns = shape.N > 1 ? 20 : 0});
        }
        for (Inputs inputs : {Inputs::kOffset, Inputs::kConstant, Inputs::kOutlier}) {
            for (Shape shape : {Shape{35, 257}, {35, 50304}, {5, 128256}}) {
                list.push_back({dtype, shape, inputs});
            }
        }
        for (Shape shape : {Shape{600, 50304}, {67, 128256}}) {
            list.push_back({.dtype = dtype, .shape = shape, .batches = true});
        }
    }
    return list;
}

int main(int argc, char** argv) {
    Shootout shootout{
        .op = "classifier",
        .cpu = {.run = run_cpu, .sums = [](int64_t, int) { return Sums{}; }, .shape = {64, 8256}},
        .ladder = ladder_for,
        .problem = classifier_problem,
        .checks = checks(),
        .races = {{Dtype::kBf16, {4096, 50304}},
                  {Dtype::kBf16, {1024, 128256}},
                  {Dtype::kFp32, {1024, 50304}}},
    };
    return shootout_main(shootout, argc, argv);
}
