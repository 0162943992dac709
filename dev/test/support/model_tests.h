// What a model must do wherever it computes: the tests that the CPU's model (dev/test/model/test_model.cpp) and the GPU's
// (dev/test/gpu/test_model.cpp, test_model_steps.cpp) have in common.
#pragma once
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include "dev/test/support/any_model.h"
#include "dev/test/support/test_files.h"

namespace llmc {

// two micro-batches, the second smaller where it can be, with different numbers of ignored targets
inline std::vector<Batch> two_batches(const GPT2Config& c, int B, int T, uint64_t seed) {
    std::vector<Batch> batches = {random_batch(c, B, T, seed),
                                  random_batch(c, std::max(1, B - 1), std::max(1, T - 2), seed + 1)};
    std::fill_n(batches[0].targets.begin(), B * T / 3, kIgnoreTarget);
    if (batches[1].targets.size() > 2) { batches[1].targets[2] = kIgnoreTarget; }
    return batches;
}
inline std::vector<Batch> batches_of_step(int64_t k) {
    return two_batches(tiny_config(), 4, 9, 100 + 10 * k);
}

// as in training, with a rate that shows after a step
inline StepParams usual(int64_t k) { return {k, 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0}; }

template <typename Model>
struct Tiny : Model {
    explicit Tiny(int B = 4, const ModelSettings& settings = {}) : Model(tiny_config(), B, 9, settings) {
        this->init(5);
    }
};

// a model whose parameters can be read from where they are
template <typename Model>
class ModelInMemory : public ModelSource {
public:
    explicit ModelInMemory(const Model& model) : model_(model) {}
    const GPT2Config& config() const override { return model_.config(); }
    const std::string& path() const override { return path_; }
    void read(int tensor, int64_t first, std::span<float> values) const override {
        model_.save(State::kParameter, tensor, first, values);
    }
    FloatType type() const override { return FloatType::kFp32; }

private:
    std::string path_ = "memory";
    const Model& model_;
};

// ---- forward and backward ----------------------------------------------------------------------

template <typename Model>
void check_micro_batches(Tolerance tolerance) {
    Tiny<Model> at_once;
    Batch batch = random_batch(tiny_config(), 4, 9, 7);
    // unequal numbers of targets: the mean is over all of them, not of the micro-batches' means
    std::fill_n(batch.targets.begin(), 7, kIgnoreTarget);
    const double expected = at_once.forward_backward({&batch, 1});
    for (int rows : {1, 2}) {
        Tiny<Model> in_parts(rows), larger;
        std::vector<Batch> parts;
        for (int first = 0; first < 4; first += rows) { parts.push_back(rows_of(batch, first, rows)); }
        CHECK(std::fabs(in_parts.forward_backward(parts) - expected) <= tolerance.norm * expected);
        check_close_gradients(fmt::format("{} micro-batches", 4 / rows), in_parts, at_once, tolerance);
        larger.forward_backward(parts);
        check_same("micro-batches in a larger model", whole_gradient(larger), whole_gradient(in_parts));
    }
}

// of_wte: where a token's gradients are added in an order that depends on where else it stands; else exact zeros are added
template <typename Model>
void check_ignored_targets(Tolerance of_wte) {
    const GPT2Config c = tiny_config();
    Batch batch = random_batch(c, 4, 9, 3);
    for (int b = 0; b < 4; b++) { batch.targets[b * 9 + 8] = kIgnoreTarget; }
    Batch other = batch;
    for (int b = 0; b < 4; b++) {
        other.tokens[b * 9 + 8] = (batch.tokens[b * 9 + 8] + 1 + b) % c.vocab_size;
    }
    Tiny<Model> one, two;
    CHECK(one.forward_backward({&batch, 1}) == two.forward_backward({&other, 1}));
    for (int t = 0; t < kNumTensors; t++) {
        for (int l = 0; l < tensor_copies(c, t); l++) {
            check_close(kTensors[t].name, layer_gradient(two, t, l), layer_gradient(one, t, l),
                        t == kWte ? of_wte : Tolerance{0, 0});
        }
    }
    const std::vector<float> dwpe = layer_gradient(one, kWpe, 0);
    CHECK(std::count(dwpe.end() - c.channels, dwpe.end(), 0.0f) == c.channels);
}

template <typename Model>
void check_nothing_left() {
    Tiny<Model> used, fresh;
    const std::vector<float> good = whole_tensor(used, State::kParameter, kWpe), bad(good.size(), NAN);
    const Batch small = random_batch(tiny_config(), 1, 4, 2), large = random_batch(tiny_config(), 4, 9, 3);
    used.load(State::kParameter, kWpe, 0, bad);
    CHECK(std::isnan(used.evaluate(large).losses[0]));
    CHECK_FALSE(std::isfinite(used.forward_backward({&large, 1})));
    used.load(State::kParameter, kWpe, 0, good);
    const auto evaluated =
        [&](Model& model) {  // the CPU's model has the logits of a larger batch behind these
            const Evaluation e = model.evaluate(small);
            std::vector<float> all = unpadded_logits(model);
            all.resize(4 * 37);
            all.insert(all.end(), e.losses.begin(), e.losses.end());
            return all;
        };
    check_same("evaluation after a batch of NaN", evaluated(used), evaluated(fresh));
    CHECK(used.forward_backward({&small, 1}) == fresh.forward_backward({&small, 1}));
    check_same("gradients after a batch of NaN", whole_gradient(used), whole_gradient(fresh));
}

// before anything runs
template <typename Model>
void check_refused_batches() {
    const GPT2Config c = tiny_config();
    Tiny<Model> model, fresh;
    const Batch good = random_batch(c, 4, 9, 1);
    auto refused = [&](const Batch& batch, const std::string& why, bool to_learn_from = false) {
        const std::vector<Batch> second = {good, batch};
        for (std::span<const Batch> batches : {std::span(&batch, 1), std::span(second)}) {
            if (batches.size() > 1 && to_learn_from) { continue; }  // the good one has targets
            check_error([&] { model.enqueue_step(batches, {.lr = 0.1}); }, kExitUsage, {why});
        }
        if (!to_learn_from) {
            check_error([&] { model.evaluate(batch); }, kExitUsage, {why});
        }
    };
    for (auto [ids, least] : {std::pair{&Batch::tokens, -1}, {&Batch::targets, -2}}) {
        for (int32_t id : {least, c.vocab_size, c.padded_vocab_size - 1, INT32_MAX, INT32_MIN}) {
            Batch batch = random_batch(c, 2, 3, 1);
            (batch.*ids)[5] = id;
            refused(batch, "vocabulary");
        }
    }
    for (auto [B, T] : {std::pair{5, 9}, {4, 10}, {0, 3}, {3, 0}, {-2, -3}, {1 << 16, 1 << 16}}) {
        refused({B, T, {}, {}}, "larger");
    }
    Batch uneven = random_batch(c, 2, 3, 1), ignored = uneven;
    uneven.targets.pop_back();
    refused(uneven, "disagree");
    std::ranges::fill(ignored.targets, kIgnoreTarget);
    refused(ignored, "no target", true);
    model.finish();
    CHECK_FALSE(model.poll().has_value());
    check_same_state("after what was refused", model, fresh);
    const StepResult found = step(&model, {&good, 1}, {.lr = 0.1}),
                     expected = step(&fresh, {&good, 1}, {.lr = 0.1});
    CHECK_FALSE(found.skipped);
    CHECK(found.loss == expected.loss);
    check_same_state("the step after", model, fresh);
}

// with --fp8: of each gradient, how far it is from the reference's that rounds alike, of what rounding moves that by
template <typename Model, typename Reference>
void check_fp8_gradients(const Model& model, const Reference& rounded, const Reference& plain, double most) {
    const GPT2Config& c = model.config();
    for (int t = 0; t < kNumTensors; t++) {
        for (int l = 0; l < tensor_copies(c, t); l++) {
            const auto should = layer_gradient(rounded, t, l);
            const double found = relative_difference(layer_gradient(model, t, l), should),
                         moved = relative_difference(layer_gradient(plain, t, l), should);
            CHECK_MESSAGE(found < most * moved, fmt::format("d{}[{}]: off by {:.6f}; FP8 moves it by {:.4f}",
                                                            kTensors[t].name, l, found, moved));
        }
    }
}

inline std::vector<float> maxima_of(const Model& model) {
    std::vector<float> maxima((size_t)fp8_maxima(model.config()));
    model.save(State::kFp8Maxima, 0, 0, maxima);
    return maxima;
}

// ---- steps -------------------------------------------------------------------------------------

// Four rows of different first tokens leave nothing to guess. An even chance between two is ln 2.
template <typename Model>
void check_learns_by_heart(const ModelSettings& settings = {}) {
    Tiny<Model> model(4, settings);
    const Batch batch = random_batch(tiny_config(), 4, 9, 8);
    float first = 0, last = 0;
    for (int64_t k = 0; k < 120; k++) {
        last = step(&model, {&batch, 1}, {.step = k, .lr = 1e-2, .weight_decay = 0.01, .clip = 1}).loss;
        if (k == 0) { first = last; }
    }
    CHECK(std::fabs(first - std::log(37.0)) < 0.1);  // weights of 0.02 say next to nothing
    CHECK(last < 0.1);
    for (State state : kStates) {  // padding rows stay zero
        const std::vector<float> wte = whole_tensor(model, state, kWte);
        CHECK(std::count(wte.begin() + 37 * 14, wte.end(), 0.0f) == (64 - 37) * 14);
    }
}

// The first moment after one update is (1 - beta1) times the clipped gradient. In units of fp32's roundoff: what the norm is off
// by, and an element of the moment, which may be off by `smallest` as well.
template <typename Model>
void check_clipping(double norm_error, double error, double smallest) {
    const std::vector<Batch> batches = batches_of_step(0);
    for (double clip : {0.0, 0.01, 1e9}) {
        CAPTURE(clip);
        Tiny<Model> model;
        model.forward_backward(batches);
        const std::vector<float> gradients = whole_gradient(model);
        const double norm = norm_of(gradients);
        REQUIRE(norm > 0.01);
        const StepResult result = step(&model, batches, {.step = 17, .lr = 1e-3, .beta1 = 0.9, .clip = clip});
        CHECK(result.step == 17);
        CHECK_FALSE(result.skipped);
        check_same("the step's own gradients", whole_gradient(model), gradients);
        CHECK(std::fabs(result.grad_norm - norm) <= norm_error * kFloatRoundoff * norm);
        const double scale = clip == 0.01 ? clip / (result.grad_norm + 1e-6) : 1;
        std::vector<double> expected = convert<double>(gradients);
        for (double& g : expected) { g *= (1 - 0.9) * scale; }
        check_near("first moment", whole_state(model, State::kFirstMoment), expected,
                   [&](size_t i) { return error * kFloatRoundoff * std::fabs(expected[i]) + smallest; });
    }
}

template <typename Model>
void check_not_finite() {
    const std::vector<Batch> batches = batches_of_step(0);
    const int64_t token = batches[1].tokens[3];
    for (float poison : {INFINITY, -INFINITY, NAN}) {
        for (auto [tensor, at] : {std::pair{kWte, token * 14 + 5},
                                  {kLn1w, (int64_t)20},
                                  {kQkvw, (int64_t)3},
                                  {kFcprojb, (int64_t)2},
                                  {kLnfw, (int64_t)13}}) {
            INFO("poison ", poison, ", kTensors[tensor].name ", kTensors[tensor].name);
            Tiny<Model> model, untouched;
            for (Tiny<Model>* m : {&model, &untouched}) { step(m, batches, usual(0)); }
            std::vector<float> good(1), bad = {poison};
            model.save(State::kParameter, tensor, at, good);
            for (Tiny<Model>* m : {&model, &untouched}) { m->load(State::kParameter, tensor, at, bad); }
            model.enqueue_step(batches, usual(1));
            model.enqueue_step(batches, usual(2));  // queued before the first is known to be skipped
            model.finish();
            for (int64_t k : {1, 2}) {
                const StepResult result = model.poll().value();
                CHECK(result.skipped);
                CHECK(result.step == k);
                CHECK_FALSE((std::isfinite(result.loss) && std::isfinite(result.grad_norm)));
            }
            CHECK(model.updates() == 1);
            check_same_state("skipped", model, untouched);
            for (Tiny<Model>* m : {&model, &untouched}) {
                m->load(State::kParameter, tensor, at, good);
                CHECK_FALSE(step(m, batches_of_step(3), usual(3)).skipped);
            }
            CHECK(model.updates() == 2);
            check_same_state("after the repair", model, untouched);
        }
    }
}

// in memory of their own; an evaluation leaves no trace
template <typename Model>
void check_same_run(const GPT2Config& c, int B, int T, const ModelSettings& settings = {}) {
    Model one(c, B, T, settings), two(c, B, T, settings);
    for (Model* model : {&one, &two}) { model->init(5); }
    for (int64_t k = 0; k < 5; k++) {
        const std::vector<Batch> batches = two_batches(c, B, T, 100 + 10 * k);
        const StepResult a = step(&one, batches, usual(k));
        const Evaluation evaluated = two.evaluate(batches[1]);
        const std::vector<float> losses(evaluated.losses.begin(), evaluated.losses.end());
        const std::vector<int32_t> predicted(evaluated.predicted.begin(), evaluated.predicted.end());
        const Evaluation again = two.evaluate(batches[1]);
        CHECK(std::ranges::equal(again.losses, losses));
        CHECK(std::ranges::equal(again.predicted, predicted));
        const StepResult b = step(&two, batches, usual(k));
        CHECK_FALSE(a.skipped);
        CHECK(a.loss == b.loss);
        CHECK(a.grad_norm == b.grad_norm);
    }
    check_same_state("two runs", one, two);
}

// Nobody asks between the steps: their results come in order, once each, and say when each was done, not when it was asked for.
template <typename Model>
void check_late_results(Model* model, int64_t first) {
    auto last = std::chrono::steady_clock::now();
    for (int64_t k = first; k < first + 3; k++) { model->enqueue_step(batches_of_step(k), usual(k)); }
    model->finish();
    const auto end = std::chrono::steady_clock::now();
    for (int64_t k = first; k < first + 3; k++) {
        const std::optional<StepResult> result = model->poll();
        REQUIRE(result.has_value());
        CHECK(result->step == k);
        CHECK((result->done > last && result->done <= end));
        last = result->done;
    }
    CHECK_FALSE(model->poll().has_value());
    CHECK(model->updates() == first + 3);
}

// ---- saving and loading ------------------------------------------------------------------------

template <typename Model>
void check_ranges() {
    const GPT2Config c = tiny_config();
    Model model(c, 1, 2);
    model.init(1);
    std::vector<std::vector<float>> all;  // every element of all three states has its own number
    float next = 1;
    for (State state : kStates) {
        for (int t = 0; t < kNumTensors; t++) {
            const int64_t total = tensor_total(c, t),
                          chunk = tensor_size(c, t) * 2 / 3 + 1;  // over layers' borders
            std::vector<float>& x = all.emplace_back((size_t)total);
            std::iota(x.begin(), x.end(), next);
            next += (float)total;
            for (int64_t first = 0; first < total; first += chunk) {
                model.load(state, t, first, std::span(x).subspan(first, std::min(chunk, total - first)));
            }
        }
    }
    REQUIRE(next < 0x1p24f);  // exact in float
    for (size_t k = 0; k < all.size(); k++) {
        const State state = kStates[k / kNumTensors];
        const int t = (int)k % kNumTensors;
        std::vector<float> pieces(all[k].size());
        for (size_t first = 0; first < pieces.size(); first += 11) {
            model.save(state, t, (int64_t)first,
                       std::span(pieces).subspan(first, std::min<size_t>(11, pieces.size() - first)));
        }
        check_same(std::string("whole ") + kTensors[t].name, whole_tensor(model, state, t), all[k]);
        check_same(std::string("pieces of ") + kTensors[t].name, pieces, all[k]);
    }
    std::vector<float> x(3);
    const int64_t total = tensor_total(c, kFcw);
    for (int64_t first : {(int64_t)-1, total - 2, total, INT64_MAX - 1}) {
        check_error([&] { model.load(State::kParameter, kFcw, first, x); }, kExitUsage, {"range"});
        check_error([&] { model.save(State::kParameter, kFcw, first, x); }, kExitUsage, {"range"});
    }
    model.load(State::kParameter, kFcw, total, std::span(x).first(0));  // nothing, at the end
    check_same("after what was refused", whole_tensor(model, State::kParameter, kFcw), all[kFcw]);
}

}  // namespace llmc
