// What the tests of the GPU's whole model share: the three models, their reference, and what may lie between
// them.
#pragma once
#include <cuda_bf16.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/model_tests.h"
#include "dev/test/support/reference_model.h"
#include "llmc/model/gpu/gpt2.cuh"

namespace llmc {

using Fp32Model = GPT2<float, float>;
using Bf16Model = GPT2<__nv_bfloat16, float>;
using NarrowModel = GPT2<__nv_bfloat16, __nv_bfloat16>;  // gradients in bf16 too

template <typename Model>
constexpr bool kIsBf16 = !std::is_same_v<Model, Fp32Model>;

template <typename Model>
ReferenceModel<double> reference_for(const GPT2Config& c, int B, int T) {
    return {c, B, T, kIsBf16<Model> ? Rounding::kBf16 : Rounding::kNone};
}

// gain as in bf16_tolerance(). Gradients kept in bf16 are rounded once more for every micro-batch, those of
// wte twice.
template <typename Model>
Tolerance tolerance_for(const GPT2Config& c, int64_t rows, double gain, int micro_batches = 1) {
    int extra = std::is_same_v<Model, NarrowModel> ? 2 * micro_batches : 0;
    return kIsBf16<Model> ? bf16_tolerance(c, gain, extra) : fp32_tolerance(c, rows);
}

constexpr double kInitialGain = 1, kLivelyGain = 3;

inline int64_t count_targets(std::span<const Batch> batches) {
    int64_t n = 0;
    for (const Batch& batch : batches) {
        n += (int64_t)batch.targets.size() - std::ranges::count(batch.targets, kIgnoreTarget);
    }
    return n;
}

// What evaluate() says, against the reference. A loss is a difference of two numbers of the logits' size.
template <typename Model>
void check_evaluation(const std::string& name, Model& model, ReferenceModel<double>& reference,
                      const Batch& batch, Tolerance tolerance) {
    int V = model.config().vocab_size;
    Evaluation found = model.evaluate(batch), expected = reference.evaluate(batch);
    REQUIRE(found.losses.size() == batch.targets.size());
    REQUIRE(found.predicted.size() == batch.targets.size());
    std::vector<float> losses(found.losses.begin(), found.losses.end()), logits = unpadded_logits(reference);
    check_close(name + " logits", unpadded_logits(model), logits, tolerance);
    double bound = 2 * tolerance.element * (largest(logits) + largest(expected.losses));
    check_near(name + " losses", losses, std::vector<float>(expected.losses.begin(), expected.losses.end()),
               [&](size_t) { return bound; });
    int64_t wrong = 0;
    for (size_t row = 0; row < losses.size(); row++) {
        wrong += batch.targets[row] == kIgnoreTarget && losses[row] != 0;
        bool inside = found.predicted[row] >= 0 && found.predicted[row] < V;
        // another token only where the two are as good as equal
        wrong += !inside || !(logits[row * V + found.predicted[row]] >=
                              logits[row * V + expected.predicted[row]] - bound);
    }
    CHECK_MESSAGE(wrong == 0, name, ": rows with a wrong prediction, or a loss where the target is ignored");
    std::vector<float> last(model.logits_last().begin(), model.logits_last().end()),
        all = unpadded_logits(model);
    check_same(name + " logits_last", last, std::vector<float>(all.end() - V, all.end()));
}

// loss and every gradient over all batches, then the evaluation of each
template <typename Model>
void check_model(const std::string& name, Model& model, ReferenceModel<double>& reference,
                 const std::vector<Batch>& batches, double gain) {
    int64_t rows = (int64_t)std::max(batches[0].tokens.size(), batches[1].tokens.size());
    Tolerance tolerance = tolerance_for<Model>(model.config(), rows, gain, (int)batches.size());
    double expected = reference.forward_backward(batches), loss = model.forward_backward(batches);
    check_close_gradients(name, model, reference, tolerance);
    for (size_t k = 0; k < batches.size(); k++) {
        check_evaluation(fmt::format("{} batch {}", name, (int)k), model, reference, batches[k], tolerance);
    }
    // the rows' errors are independent: their mean errs less
    double bound = 2 * tolerance.element * (largest(unpadded_logits(reference)) + expected) /
                   std::sqrt((double)count_targets(batches));
    CHECK_MESSAGE(
        std::fabs(loss - expected) <= bound,
        fmt::format("{} loss: found {:.9g} expected {:.9g} bound {:.3g}", name, loss, expected, bound));
}

}  // namespace llmc
