// The GPU's whole model with --optimizer muon: each update against the reference, from the model's own
// gradients and moments; going on from a saved state; the memory that is planned.
#include "dev/test/gpu/gpu_model.h"
#include "dev/test/support/muon_bounds.h"
#include "dev/test/support/test_files.h"
#include "llmc/ops/adamw.h"

using namespace llmc;

namespace {

constexpr ModelSettings kMuon{.muon = true};
using Vector = std::vector<double>;

// A direction in bf16 is further from the exact one than its last rounding: rounding to 2^-8 of the size is
// enlarged in directions in which the gradient is next to nothing. All of the movement but a third is still
// determined.
template <typename Model>
constexpr double kDirectionError = kIsBf16<Model> ? 0.33 : 0.02;

template <typename Model>
struct Step {
    Model& model;
    std::vector<float> weights, moments, gradients;  // before the step, and those it was given
    StepResult result;

    Step(Model& m, int tensor, std::span<const Batch> batches, const StepParams& params)
        : model(m),
          weights(whole_tensor(m, State::kParameter, tensor)),
          moments(whole_tensor(m, State::kFirstMoment, tensor)),
          gradients((size_t)tensor_total(m.config(), tensor)),
          result(step(&m, batches, params)) {
        model.save_gradient(tensor, 0, gradients);
    }
};

// of each matrix: its mean to the rounding, its movement as a whole
template <typename Model>
void check_step(const std::string& name, const GPT2Config& c, int tensor, Step<Model>& s,
                const StepParams& params) {
    const BlockMatrices each = block_matrices(c, tensor);
    const int rows = each.rows, cols = each.cols;
    const auto n = (size_t)rows * cols;
    const double scale = params.clip > 0 ? std::min(1.0, params.clip / (s.result.grad_norm + 1e-6)) : 1;
    const std::vector<float> moments = whole_tensor(s.model, State::kFirstMoment, tensor),
                             weights = whole_tensor(s.model, State::kParameter, tensor);
    for (size_t at = 0; at < weights.size(); at += n) {
        const auto part = [&](const std::vector<float>& x) {
            return Vector(x.begin() + at, x.begin() + at + n);
        };
        Vector m = part(s.moments), u(n), due = part(s.weights);
        const Vector gradient = part(s.gradients), before = due;
        muon_momentum_cpu(u.data(), m.data(), gradient.data(), (int64_t)n, scale);
        const std::string which = fmt::format("{} {} at {}", name, kTensors[tensor].name, (int)at);
        const double longest = largest(convert<float>(m)) + largest(s.gradients);
        check_near(which + " mean", part(moments), m, [&](size_t) { return 8 * kFloatRoundoff * longest; });
        newton_schulz_cpu(u.data(), rows, cols);
        muon_step_cpu(due.data(), u.data(), (int64_t)n, muon_scale(rows, cols),
                      {params.lr, params.weight_decay, scale});
        double off = 0, moved = 0;
        const Vector found = part(weights);
        for (size_t i = 0; i < n; i++) {
            off += std::pow(found[i] - due[i], 2);
            moved += std::pow(due[i] - before[i], 2);
        }
        CHECK_MESSAGE(std::sqrt(off) <= kDirectionError<Model> * std::sqrt(moved),
                      fmt::format("{} moved {:.3g}, off by {:.3g}", which, std::sqrt(moved), std::sqrt(off)));
    }
}

std::vector<Batch> batches_of_step(const GPT2Config& c, int64_t k) {
    return two_batches(c, 4, 9, 100 + 10 * k);
}

}  // namespace

// Of the second model the logits have room for all layers at once, of the first for one after the other; of
// the last the heads are not whole vectors.
TEST_CASE_TEMPLATE("gpu muon: every matrix moves as the reference's", Model, Fp32Model, Bf16Model,
                   NarrowModel) {
    for (const GPT2Config& c :
         {GPT2Config{9, 37, 64, 3, 2, 32}, {9, 8000, 8000, 3, 2, 32}, tiny_config(), {9, 37, 64, 2, 1, 7}}) {
        for (int groups : {1, 2}) {
            for (int tensor : {kQkvw, kAttprojw, kFcw, kFcprojw}) {
                Model model(c, 4, 9, {.muon = true, .groups = groups});
                model.init(5);
                fill_lively(&model, 3);
                for (int64_t k = 0; k < 2; k++) {
                    const StepParams params{k, 0.01, 0.9, 0.95, 1e-8, 0.1, k == 0 ? 0.0 : 0.25};
                    Step<Model> s(model, tensor, batches_of_step(c, k), params);
                    CHECK_FALSE(s.result.skipped);
                    // of groups the gradients' sum is not kept as one model's gradients are
                    if (groups == 1) {
                        check_step(fmt::format("channels {}", c.channels), c, tensor, s, params);
                    }
                }
                if (groups == 1) { continue; }
                Model whole(c, 4, 9, kMuon);
                whole.init(5);
                fill_lively(&whole, 3);
                for (int64_t k = 0; k < 2; k++) {
                    step(&whole, batches_of_step(c, k), {k, 0.01, 0.9, 0.95, 1e-8, 0.1, k == 0 ? 0.0 : 0.25});
                }
                const double difference = relative_difference(whole_tensor(model, State::kParameter, tensor),
                                                              whole_tensor(whole, State::kParameter, tensor));
                CHECK(difference < 0.05);  // of weights of about 0.2 that have moved by 2 lr 0.2 at most
            }
        }
    }
}

TEST_CASE_TEMPLATE("gpu muon: a run that goes on from a saved state has the same bits", Model, Fp32Model,
                   Bf16Model, NarrowModel) {
    const GPT2Config c = tiny_config();
    Model whole(c, 4, 9, kMuon), before(c, 4, 9, kMuon), after(c, 4, 9, kMuon);
    for (Model* m : {&whole, &before, &after}) { m->init(5); }
    auto train = [&](Model* m, int64_t first, int64_t end) {
        for (int64_t k = first; k < end; k++) {
            CHECK_FALSE(step(m, batches_of_step(c, k), {k, 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0}).skipped);
        }
    };
    train(&whole, 0, 6);
    train(&before, 0, 3);
    copy_states(&after, before);
    train(&after, 3, 6);
    check_same_state("gone on", after, whole);
    StepParams outlier{.step = 6, .lr = 1e-2, .largest_loss = 0.01f};
    CHECK(step(&after, batches_of_step(c, 6), outlier).skipped);
    check_same_state("skipped", after, whole);
}

TEST_CASE_TEMPLATE("gpu muon: a batch is learnt by heart", Model, Fp32Model, Bf16Model, NarrowModel) {
    Model model(tiny_config(), 4, 9, kMuon);
    model.init(5);
    const Batch batch = random_batch(tiny_config(), 4, 9, 8);
    float last = 0;
    for (int64_t k = 0; k < 120; k++) {
        last = step(&model, {&batch, 1}, {.step = k, .lr = 1e-2, .weight_decay = 0.01, .clip = 1}).loss;
    }
    CHECK(last < 0.1);
}

TEST_CASE("gpu muon: the plan has one moment of the blocks' matrices, and room for their directions") {
    const GPT2Config c{1024, 50257, 50304, 12, 12, 768}, narrow{8, 37, 64, 12, 12, 768};
    const MemoryPlan adamw = Bf16Model::plan(c, 8, 1024), muon = Bf16Model::plan(c, 8, 1024, kMuon);
    const int64_t less = 12ll * 12 * 768 * 768;  // of AdamW's pieces, too
    CHECK(adamw.optimizer - muon.optimizer >= less * 4);
    CHECK(adamw.optimizer - muon.optimizer < less * 4 + less / kNormChunk * 2 * (int64_t)sizeof(AdamWPiece));
    CHECK(muon.activations == adamw.activations);  // in the logits' place
    // there they have no room: a layer of q, k and v is given it
    const int64_t more =
        Bf16Model::plan(narrow, 1, 8, kMuon).activations - Bf16Model::plan(narrow, 1, 8).activations;
    CHECK(more > 2 * 3 * (1 + 1 + 1 + 1) * 768ll * 768 - 1024);
    CHECK(more < 2 * 3 * (1 + 1 + 1 + 1) * 768ll * 768 + 4096);
    CHECK_FALSE(Bf16Model(tiny_config(), 1, 2, kMuon).holds(State::kSecondMoment, kFcw));
    // of two ranks each has its share of weights and moments
    const MemoryPlan two = Bf16Model::plan(c, 8, 1024, {.muon = true, .ranks = 2, .groups = 2});
    CHECK(two.optimizer > muon.optimizer / 2);
    CHECK(two.optimizer < muon.optimizer / 2 + muon.optimizer / 20);
    CHECK(two.activations == muon.activations);
}
