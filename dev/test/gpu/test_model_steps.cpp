// The GPU's whole model, training: the steps against the reference, that they repeat to the bit, clipping,
// skipping, the order of results, saving and loading, and the memory that was planned.
#include <cuda_runtime_api.h>

#include "dev/test/gpu/gpu_model.h"
#include "dev/test/support/test_files.h"

using namespace llmc;

namespace {

template <typename Model>
void train(Model* model, int64_t first, int64_t steps) {
    for (int64_t k = first; k < first + steps; k++) {
        CHECK_FALSE(step(model, batches_of_step(k), usual(k)).skipped);
    }
}

std::vector<float> difference(const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<float> d(a.size());
    std::ranges::transform(a, b, d.begin(), std::minus<float>());
    return d;
}

// bytes that the device has lost since `before`
int64_t taken_since(size_t before) {
    size_t free = 0, total = 0;
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
    return (int64_t)before - (int64_t)free;
}

}  // namespace

// ---- against the reference ---------------------------------------------------------------------

// With eps = 1 an update, lr m / (sqrt(v) + 1), follows the gradient smoothly. With GPT-2's eps an element
// whose gradient is rounding noise moves by lr in a direction that noise decides; that case is compared with
// PyTorch's losses in "agrees with PyTorch". What one update adds to the difference the next carries on,
// hence the 5 steps in the bounds; a second moment is a square, and in bf16 the weights are rounded up or
// down at random: 2.
TEST_CASE_TEMPLATE("gpu steps: losses, norms, moments and weights", Model, Fp32Model, Bf16Model,
                   NarrowModel) {
    GPT2Config c = tiny_config();
    constexpr int64_t kSteps = 5;
    for (double clip : {0.0, 0.25}) {
        CAPTURE(clip);
        Model model(c, 4, 9);
        ReferenceModel<double> reference = reference_for<Model>(c, 4, 9);
        reference.init(5);
        copy_states(&model, reference);
        std::vector<std::vector<float>> start;
        for (int t = 0; t < kNumTensors; t++) {
            start.push_back(whole_tensor(reference, State::kParameter, t));
        }
        Tolerance once = tolerance_for<Model>(c, 36, kInitialGain, 2);
        Tolerance bound = {2 * kSteps * once.element, 2 * (kIsBf16<Model> ? 1 : kSteps) * once.norm};
        for (int64_t k = 0; k < kSteps; k++) {
            StepParams params{k, 0.1, 0.9, 0.95, 1.0, 0.2, clip};
            StepResult found = step(&model, batches_of_step(k), params);
            StepResult expected = step(&reference, batches_of_step(k), params);
            CHECK(found.step == k);
            CHECK_FALSE(found.skipped);
            CHECK(expected.grad_norm > 2 * 0.25);  // the limit clips
            CHECK(std::fabs(found.loss - expected.loss) <= bound.norm * expected.loss);
            CHECK(std::fabs(found.grad_norm - expected.grad_norm) <= bound.norm * expected.grad_norm);
        }
        CHECK(model.updates() == kSteps);
        for (int t = 0; t < kNumTensors; t++) {
            for (State state : {State::kFirstMoment, State::kSecondMoment}) {
                check_close(fmt::format("moment {} of {}", (int)state, kTensors[t].name),
                            whole_tensor(model, state, t), whole_tensor(reference, state, t), bound);
            }
            // weights by how far they moved, less the rounding of each update to fp32
            std::vector<float> found = difference(whole_tensor(model, State::kParameter, t), start[t]);
            std::vector<float> expected = difference(whole_tensor(reference, State::kParameter, t), start[t]);
            double rounding = 2 * kSteps * kFloatRoundoff * (largest(start[t]) + largest(expected));
            double limit = bound.element * largest(expected) + rounding;
            check_near(std::string("moved ") + kTensors[t].name, found, expected,
                       [&](size_t) { return limit; });
        }
    }
}

TEST_CASE_TEMPLATE("gpu steps: a batch is learnt by heart, and padding rows stay zero", Model, Fp32Model,
                   Bf16Model, NarrowModel) {
    for (bool muon : {false, true}) { check_learns_by_heart<Model>({.muon = muon}); }
}

// Squares are added in fp32: each of the sqrt(n) that matter is rounded. The norm, scale, 1 - beta1 and three products are
// rounded; the last may be denormal.
TEST_CASE_TEMPLATE("gpu steps: a gradient of norm g is scaled to clip / (g + 1e-6)", Model, Fp32Model,
                   Bf16Model, NarrowModel) {
    check_clipping<Model>(std::sqrt((double)num_parameters(tiny_config())), 8, 0x1p-126);
}

// ---- to the bit --------------------------------------------------------------------------------

// Of the larger sizes there are many blocks, and no size is a multiple of a tile: each kernel but LayerNorm's, whose own
// tests are test_layernorm_repeats.cpp; with Hopper's attention and without.
TEST_CASE_TEMPLATE("gpu steps: the same run gives the same bits", Model, Fp32Model, Bf16Model, NarrowModel) {
    check_same_run<Model>(tiny_config(), 4, 9);
    for (const GPT2Config& c : {GPT2Config{301, 1031, 1088, 1, 5, 320}, {301, 1031, 1088, 1, 7, 301}}) {
        for (const ModelSettings& settings : {ModelSettings{}, {.tf32 = !kIsBf16<Model>, .muon = true}}) {
            check_same_run<Model>(c, 5, 301, settings);
        }
    }
    Tiny<Model> one, other;
    other.init(6);
    for (Tiny<Model>* model : {&one, &other}) { train(model, 0, 5); }
    CHECK(whole_tensor(other, State::kParameter, kFcw) != whole_tensor(one, State::kParameter, kFcw));
}

// Steps that are queued behind each other, as in training, are the steps that are waited for.
TEST_CASE_TEMPLATE("gpu steps: results come in order, at most one step late", Model, Fp32Model, Bf16Model) {
    Tiny<Model> model, waited;
    CHECK_FALSE(model.poll().has_value());
    model.finish();
    CHECK_FALSE(model.poll().has_value());
    std::vector<StepResult> results;
    auto collect = [&] {
        while (auto result = model.poll()) { results.push_back(*result); }
    };
    for (int64_t k = 0; k < 6; k++) {
        model.enqueue_step(batches_of_step(k), usual(k));
        collect();
        CHECK((int64_t)results.size() >= k);  // all but the one just queued
        CHECK((int64_t)results.size() <= k + 1);
    }
    model.finish();
    collect();
    REQUIRE(results.size() == 6);
    for (int64_t k = 0; k < 6; k++) {
        StepResult expected = step(&waited, batches_of_step(k), usual(k));
        CHECK(results[k].step == k);
        CHECK(results[k].loss == expected.loss);
        CHECK(results[k].grad_norm == expected.grad_norm);
    }
    CHECK(model.updates() == 6);
    check_same_state("queued and waited for", model, waited);
    check_late_results(&model, 6);
}

TEST_CASE_TEMPLATE("gpu steps: a step that is not finite changes nothing", Model, Fp32Model, Bf16Model,
                   NarrowModel) {
    check_not_finite<Model>();
}

// ---- saving and loading ------------------------------------------------------------------------

TEST_CASE_TEMPLATE("gpu steps: load and save by ranges", Model, Fp32Model, Bf16Model, NarrowModel) {
    check_ranges<Model>();
}

// In bf16 too: the weights that the loaded model computes with are the master weights rounded as the first
// model rounded them, a function of seed and update alone.
TEST_CASE_TEMPLATE("gpu steps: a run that is saved and loaded goes on to the bit", Model, Fp32Model,
                   Bf16Model, NarrowModel) {
    for (bool muon : {false, true}) {
        Tiny<Model> whole(4, {.muon = muon}), resumed(4, {.muon = muon});
        train(&whole, 0, 3);
        train(&resumed, 50, 1);  // something else before
        resumed.init(5);
        copy_states(&resumed, whole);
        check_same_state("loaded", resumed, whole);
        Batch batch = random_batch(tiny_config(), 4, 9, 1);
        whole.evaluate(batch);
        resumed.evaluate(batch);
        check_same("logits of what was loaded", unpadded_logits(resumed), unpadded_logits(whole));
        train(&whole, 3, 3);
        train(&resumed, 3, 3);
        check_same_state("three steps on", resumed, whole);
        CHECK(step(&resumed, batches_of_step(6), {.step = 6, .lr = 1e-2, .largest_loss = 0.01f}).skipped);
        check_same_state("skipped", resumed, whole);
    }
}

// Their rounding depends on the number of updates; fp32 weights are what they are.
TEST_CASE_TEMPLATE("gpu steps: weights are loaded after set_updates()", Model, Fp32Model, Bf16Model,
                   NarrowModel) {
    Tiny<Model> model, other;
    Batch batch = random_batch(tiny_config(), 4, 9, 1);
    model.evaluate(batch);
    std::vector<float> nearest = unpadded_logits(model);
    model.set_updates(5);
    CHECK(model.updates() == 5);
    if (kIsBf16<Model>) {
        CHECK(error_of([&] { model.evaluate(batch); }).exit_code == kExitUsage);
    }
    auto load = [&] {
        for (int t = 0; t < kNumTensors; t++) {
            model.load(State::kParameter, t, 0, whole_tensor(other, State::kParameter, t));
        }
    };
    load();
    model.evaluate(batch);
    CHECK_MESSAGE((unpadded_logits(model) != nearest) == kIsBf16<Model>,
                  "set_updates(5): the logits of other roundings");
    model.set_updates(0);
    load();
    model.evaluate(batch);
    check_same("logits after set_updates(0)", unpadded_logits(model), nearest);
}

// ---- memory ------------------------------------------------------------------------------------

// The plan is what is taken from the device, give or take the granularity of allocations and what CUDA keeps
// for kernels and streams.
TEST_CASE_TEMPLATE("gpu steps: a model takes the memory that was planned", Model, Fp32Model, Bf16Model,
                   NarrowModel) {
    {
        Tiny<Model> first;  // CUDA's own: context, kernels, cuBLASLt's handle
        train(&first, 0, 1);
    }
    GPT2Config c{256, 50257, 50304, 4, 12, 768};
    int B = 4, T = 256;
    INFO("the device's free memory is watched: what other processes take of it meanwhile counts too");
    for (Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
        size_t free = 0, total = 0;
        REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
        int64_t planned = Model::plan(c, B, T, {.recompute = recompute}).total();
        double slack = 0x1p26 + 0.01 * (double)planned;
        {
            Model model(c, B, T, {.recompute = recompute});
            CHECK(std::fabs((double)(taken_since(free) - planned)) <= slack);
            model.init(1);
            std::vector<Batch> batches = {random_batch(c, B, T, 1), random_batch(c, B, T, 2)};
            CHECK_FALSE(step(&model, batches, usual(0)).skipped);
            model.evaluate(batches[0]);
            CHECK(std::fabs((double)(taken_since(free) - planned)) <=
                  slack);  // nothing is allocated on the way
        }
        CHECK(taken_since(free) <= (int64_t)0x1p26);  // and all is given back
    }
}
