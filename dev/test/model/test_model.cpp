// The CPU model and, apart from it, the reference that judges the GPU's: values, batches, steps, roundings, the same
// bits.
#include "dev/test/support/compare_state.h"
#include "dev/test/support/model_tests.h"
#include "dev/test/support/reference_model.h"
#include "llmc/model/cpu/gpt2.h"

using namespace llmc;

namespace {

// what a step changes, and what comes out of a model, is made of this
GPT2Cpu random_model(int B = 4, int T = 9, uint64_t seed = 5) {
    GPT2Cpu model(tiny_config(), B, T);
    model.init(seed);
    return model;
}

std::vector<float> losses_of(GPT2Cpu& model, const Batch& batch) {
    Evaluation e = model.evaluate(batch);
    return {e.losses.begin(), e.losses.end()};
}

// mean and standard deviation of n draws of N(0, sigma) err by sigma / sqrt(n) and sigma / sqrt(2n): five of
// them
void check_normal(const std::string& name, std::span<const float> x, double sigma) {
    double n = (double)x.size(), sum = 0, squares = 0;
    for (float value : x) {
        sum += value;
        squares += (double)value * value;
    }
    CHECK_MESSAGE(std::fabs(sum / n) < 5 * sigma / std::sqrt(n), name, " mean ", sum / n);
    CHECK_MESSAGE(std::fabs(std::sqrt(squares / n) - sigma) < 5 * sigma / std::sqrt(2 * n), name,
                  " deviation ", std::sqrt(squares / n));
}

// this step is skipped, and changes nothing
template <typename Model>
StepResult check_skips(Model* model, const Model& untouched, std::span<const Batch> batches,
                       const StepParams& params) {
    const StepResult result = step(model, batches, params);
    CHECK(result.skipped);
    CHECK(result.step == params.step);
    check_same_state("skipped", *model, untouched);
    return result;
}

}  // namespace

TEST_CASE("model: initial values are GPT-2's") {
    GPT2Config c{64, 300, 320, 3, 2, 64};  // positions, vocabulary, padded, layers, heads, channels
    GPT2Cpu model(c, 1, 4);
    model.init(42);
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> x = whole_tensor(model, State::kParameter, t);
        int64_t real = t == kWte ? (int64_t)c.vocab_size * c.channels : (int64_t)x.size();
        Init init = kTensors[t].init;
        if (init == Init::kNormal || init == Init::kResidual) {
            check_normal(kTensors[t].name, std::span(x).first(real),
                         init == Init::kNormal ? 0.02 : 0.02 / std::sqrt(2.0 * c.num_layers));
        } else {
            float value = init == Init::kOne ? 1.0f : 0.0f;
            CHECK_MESSAGE(std::count(x.begin(), x.end(), value) == (int64_t)x.size(), kTensors[t].name);
        }
        CHECK(std::count(x.begin() + real, x.end(), 0.0f) == (int64_t)x.size() - real);  // wte's padding rows
        if (kTensors[t].per_layer && init == Init::kNormal) {  // another layer, other numbers
            int64_t size = tensor_size(c, t);
            CHECK_FALSE(std::equal(x.begin(), x.begin() + size, x.begin() + size));
        }
    }
}

TEST_CASE("model: initial values depend on seed, tensor and index alone") {
    GPT2Cpu one = random_model(), two = random_model(), more(tiny_config(), 1, 2);
    for (int threads : {1, 2, 3}) {
        ThreadCount count(threads);
        two.init(5);
        check_same_state("init with " + std::to_string(threads) + " threads", two, one);
    }
    two.init(6);
    CHECK(whole_tensor(two, State::kParameter, kQkvw) != whole_tensor(one, State::kParameter, kQkvw));
    two.init(5 + (1ull << 40));  // the seed's high half counts
    CHECK(whole_tensor(two, State::kParameter, kQkvw) != whole_tensor(one, State::kParameter, kQkvw));
    step(&two, std::vector{random_batch(tiny_config(), 4, 9, 1)}, {.lr = 0.1});
    CHECK(two.updates() == 1);
    two.init(5);
    check_same_state("init after a training", two, one);
    GPT2Config deeper = tiny_config();
    deeper.num_layers++;
    GPT2Cpu deep(deeper, 1, 2);
    deep.init(5);
    std::vector<float> start((size_t)tensor_total(tiny_config(), kQkvw));
    deep.save(State::kParameter, kQkvw, 0, start);
    check_same("first layers of a deeper model", start, whole_tensor(one, State::kParameter, kQkvw));
}

TEST_CASE("model: load and save by ranges, and ranges outside of a tensor are refused") {
    check_ranges<GPT2Cpu>();
    const GPT2Cpu model = random_model();
    std::vector<float> x(3);
    const int64_t total = tensor_total(tiny_config(), kFcw);
    for (int64_t first : {(int64_t)-1, total - 2, total, INT64_MAX - 1}) {
        check_error([&] { model.save_gradient(kFcw, first, x); }, kExitUsage, {"range"});
    }
}

TEST_CASE("model: sizes that cannot be are refused, absurd ones are planned as too much") {
    GPT2Config c = tiny_config();
    for (auto [B, T] : {std::pair{0, 4}, {-1, 4}, {1, 0}, {1, 10}, {1 << 30, 9}}) {
        CHECK(error_of([&] { GPT2Cpu(c, B, T); }).exit_code == kExitUsage);
    }
    for (int heads : {0, -1, 3, 15}) {
        GPT2Config wrong = c;
        wrong.num_heads = heads;
        CHECK(error_of([&] { GPT2Cpu(wrong, 1, 4); }).exit_code == kExitUsage);
    }
    GPT2Config huge{1 << 20, 1 << 16, 1 << 16, 1024, 1024, 65536};
    MemoryPlan plan = GPT2Cpu::plan(huge, 1 << 20, 1 << 20);
    CHECK(plan.activations >= int64_t{1} << 59);
    CHECK(plan.total() > plan.activations);
    MemoryPlan small = GPT2Cpu::plan(c, 4, 9);
    CHECK(small.parameters == ParameterLayout(c).size() * 4);
    CHECK(small.optimizer == 2 * small.parameters);
    CHECK(GPT2Cpu::plan(c, 8, 9).activations > small.activations);
}

// ---- forward and backward ----------------------------------------------------------------------

TEST_CASE("model: micro-batches add up to one batch") {
    check_micro_batches<GPT2Cpu>(fp32_tolerance(tiny_config(), 36));
}

TEST_CASE("model: what follows an ignored target changes nothing") {
    check_ignored_targets<GPT2Cpu>({0, 0});
    GPT2Config c = tiny_config();
    Batch batch = random_batch(c, 4, 9, 3);
    for (int b = 0; b < 4; b++) { batch.targets[b * 9 + 8] = kIgnoreTarget; }
    GPT2Cpu one = random_model();
    Batch longer = batch;  // two more rows, of which nothing is predicted: padding of a validation batch
    longer.B = 6;
    std::vector<int32_t> more = random_tokens(18, c.vocab_size, 9);
    longer.tokens.insert(longer.tokens.end(), more.begin(), more.end());
    longer.targets.resize(54, kIgnoreTarget);
    GPT2Cpu padded = random_model(6);
    double expected = one.forward_backward({&batch, 1}), loss = padded.forward_backward({&longer, 1});
    CHECK(std::fabs(loss - expected) <= reordering(c, 54) * expected);
    check_close_gradients("rows of ignored targets", padded, one, fp32_tolerance(c, 54));
    std::fill(batch.targets.begin(), batch.targets.end(), kIgnoreTarget);
    check_error([&] { one.forward_backward({&batch, 1}); }, kExitUsage, {"no target"});
}

TEST_CASE("model: a row's loss does not depend on its neighbours, nor on what comes after") {
    GPT2Config c = tiny_config();
    GPT2Cpu model = random_model();
    Batch batch = random_batch(c, 4, 9, 21);
    batch.targets[4] = kIgnoreTarget;
    std::vector<float> expected = losses_of(model, batch);
    CHECK(expected[4] == 0);
    double bound = 2 * reordering(c, 36) * largest(model.logits());  // a loss is a difference of logits
    for (int rows : {1, 2, 3}) {
        for (int first = 0; first + rows <= 4; first++) {
            const auto part = std::span(expected).subspan(first * 9, rows * 9);
            check_near("rows of a larger batch", losses_of(model, rows_of(batch, first, rows)), part, bound);
        }
    }
    Batch shorter = rows_of(batch, 0, 1);
    shorter.T = 5, shorter.tokens.resize(5), shorter.targets.resize(5);
    check_near("the first 5 tokens", losses_of(model, shorter), std::span(expected).first(5), bound);
    const std::vector<float> all = unpadded_logits(model),
                             logits(&all[4 * c.vocab_size], &all[5 * c.vocab_size]);
    std::span<const float> last = model.logits_last();
    check_same("logits_last", std::vector<float>(last.begin(), last.end()), logits);
    Evaluation e = model.evaluate(shorter);
    CHECK(e.losses.size() == 5);
    CHECK(e.predicted[4] == std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST_CASE("model: nothing of an earlier batch is left in the next") {
    check_nothing_left<GPT2Cpu>();
    GPT2Cpu model = random_model(), fresh = random_model();
    const Batch small = random_batch(tiny_config(), 1, 4, 2), large = random_batch(tiny_config(), 4, 9, 3);
    step(&model, {&large, 1}, {.lr = 0});
    check_same("after a step that changes nothing", losses_of(model, small), losses_of(fresh, small));
}

TEST_CASE("model: batches that do not fit are refused") {
    check_refused_batches<GPT2Cpu>();
    check_error([] { random_model().logits_last(); }, kExitUsage, {"evaluate"});
}

// ---- the optimizer step ------------------------------------------------------------------------

TEST_CASE("model: a batch is learnt by heart, and padding rows stay zero") {
    check_learns_by_heart<GPT2Cpu>();
}

// scale, 1 - beta1 and two products are rounded; the last may be denormal
TEST_CASE("model: a gradient of norm g is scaled to clip / (g + 1e-6)") {
    check_clipping<GPT2Cpu>(2, 4, 0x1p-149);
}

TEST_CASE("model: a step whose loss is not finite changes nothing") { check_not_finite<GPT2Cpu>(); }

TEST_CASE("model: a step whose loss is finite but whose gradient is not changes nothing") {
    GPT2Cpu model = random_model(), untouched = random_model();
    std::vector<float> wte = whole_tensor(model, State::kParameter, kWte), lnfw(14, 1e-36f);
    for (float& w : wte) { w = w < 0 ? -3e38f : 3e38f; }
    for (GPT2Cpu* m : {&model, &untouched}) {
        m->load(State::kParameter, kWte, 0, wte);
        m->load(State::kParameter, kLnfw, 0, lnfw);
    }
    // The logits are some hundreds. With one wrong target the gradient of its input is the difference of two
    // rows of wte, 6e38 where their signs differ: more than a float holds.
    Batch batch = random_batch(tiny_config(), 4, 9, 4);
    int wrong = model.evaluate(batch).predicted[35] == 0;
    std::fill(batch.targets.begin(), batch.targets.end(), kIgnoreTarget);
    batch.targets[35] = wrong;
    const StepResult result = check_skips(&model, untouched, {&batch, 1}, {.lr = 1e-2, .clip = 1});
    CHECK(std::isfinite(result.loss));
    CHECK_FALSE(std::isfinite(result.grad_norm));
}

TEST_CASE("model: a gradient whose square overflows changes nothing, unless it is clipped") {
    GPT2Cpu model = random_model(), untouched = random_model();
    const std::vector<float> lnfw(14, 1e21f);
    for (GPT2Cpu* m : {&model, &untouched}) { m->load(State::kParameter, kLnfw, 0, lnfw); }
    Batch batch = random_batch(tiny_config(), 2, 9, 3);
    const StepResult result = check_skips(&model, untouched, {&batch, 1}, {.lr = 1e-3, .clip = 0});
    CHECK(std::isfinite(result.loss));
    CHECK(std::isfinite(result.grad_norm));
    CHECK(result.grad_norm > kLongestGradient);
    CHECK_FALSE(step(&model, {&batch, 1}, {.lr = 1e-3, .clip = 1}).skipped);
}

TEST_CASE("model: what only the GPU's has is refused") {
    for (const ModelSettings& settings : {ModelSettings{.recompute = Recompute::kGelu}, {.tf32 = true}}) {
        CHECK(error_of([&] { GPT2Cpu(tiny_config(), 1, 2, settings); }).exit_code == kExitUsage);
    }
}

TEST_CASE("model: the same run gives the same bits") {
    for (bool muon : {false, true}) { check_same_run<GPT2Cpu>(tiny_config(), 4, 9, {.muon = muon}); }
}

TEST_CASE("model: results come in order, once each") {
    GPT2Cpu model = random_model();
    for (int k = 0; k < 2; k++, model.finish()) { CHECK_FALSE(model.poll().has_value()); }
    check_late_results(&model, 0);
}

// ---- the reference -----------------------------------------------------------------------------

namespace {

// All nonzero values need at most so many significant bits, or few do: by chance a double has 8 with a probability
// of 2^-45, a sum of a few rounded numbers more often.
void check_rounded(const std::string& name, const std::vector<double>& x, bool rounded, int bits = 8) {
    int64_t within = 0, all = 0;
    for (double value : x) {
        int exponent;
        double scaled = std::ldexp(std::frexp(value, &exponent), bits);
        within += value != 0 && scaled == std::nearbyint(scaled);
        all += value != 0;
    }
    REQUIRE(all > 0);
    CHECK_MESSAGE((rounded ? within == all : 2 * within < all), name, ": ", within, " of ", all);
}

template <typename Real>
void check_like_cpu_model(const std::string& name) {
    GPT2Config c = tiny_config();
    GPT2Cpu expected(c, 4, 9);
    ReferenceModel<Real> model(c, 4, 9);
    fill_lively(&expected, 3);
    copy_states(&model, expected);
    std::vector<Batch> batches = two_batches(c, 4, 9, 5);
    double bound = reordering(c, 36), loss = expected.forward_backward(batches);
    CHECK(std::fabs(model.forward_backward(batches) - loss) <= bound * loss);
    check_close_gradients(name, model, expected, fp32_tolerance(c, 36));
    Evaluation found = model.evaluate(batches[0]), theirs = expected.evaluate(batches[0]);
    check_close(name + " logits", unpadded_logits(model), unpadded_logits(expected), fp32_tolerance(c, 36));
    double loss_bound = 2 * bound * largest(unpadded_logits(expected));  // a loss is a difference of logits
    check_near(name + " losses", found.losses, theirs.losses, loss_bound);
    CHECK(std::ranges::equal(found.predicted, theirs.predicted));
    CHECK(model.logits_last().size() == 37);
    CHECK(std::fabs(model.logits_last()[36] - expected.logits_last()[36]) <= loss_bound);
}

// Three updates with eps = 1: update = lr m / (sqrt(v) + 1) follows a gradient of norm 1 or less smoothly.
// With GPT-2's eps an element whose gradient is rounding noise moves by lr in a direction that noise decides.
template <typename Real>
void check_steps(const std::string& name, double clip) {
    GPT2Config c = tiny_config();
    GPT2Cpu expected(c, 4, 9);
    ReferenceModel<Real> model(c, 4, 9);
    fill_lively(&expected, 3);
    copy_states(&model, expected);
    double bound = reordering(c, 36);
    for (int64_t k = 0; k < 3; k++) {
        std::vector<Batch> batches = two_batches(c, 4, 9, 5 + 2 * k);
        StepParams params{k, 0.1, 0.9, 0.95, 1.0, 0.2, clip};
        StepResult found = step(&model, batches, params), theirs = step(&expected, batches, params);
        CHECK(found.step == k);
        CHECK(found.skipped == theirs.skipped);
        CHECK(theirs.grad_norm > 2 * 0.25);  // the smaller limit clips
        // what one update adds to the difference, the next carries on
        CHECK(std::fabs(found.loss - theirs.loss) <= (double)(1 + k) * bound * theirs.loss);
        CHECK(std::fabs(found.grad_norm - theirs.grad_norm) <= (double)(1 + k) * bound * theirs.grad_norm);
    }
    CHECK(model.updates() == 3);
    for (State state : kStates) {
        for (int t = 0; t < kNumTensors; t++) {
            const std::vector<float> due = whole_tensor(expected, state, t);
            check_near(name + fmt::format(" state {} {}", (int)state, kTensors[t].name),
                       whole_tensor(model, state, t), due, 2 * 3 * bound * largest(due));
        }
    }
}

}  // namespace

TEST_CASE("reference model: agrees with PyTorch") {
    const std::string folder = "dev/test/fixture/";
    CHECK(compare_with_state<ReferenceModel<float>>(folder + "model.bin", folder + "state.bin",
                                                    folder + "losses.txt") == 0);
}

TEST_CASE("reference model: agrees with the CPU model") {
    check_like_cpu_model<float>("float");
    check_like_cpu_model<double>("double");
    check_steps<float>("float", 0);
    check_steps<double>("double", 0);
    check_steps<double>("clipped", 0.25);
}

// Both limits: no result comes from fewer roundings than one, none is off by more than bf16_tolerance().
TEST_CASE("reference model: rounding to bf16 moves every result by about its roundings") {
    GPT2Config c = tiny_config();
    ReferenceModel<double> exact(c, 4, 9), rounded(c, 4, 9, Rounding::kBf16);
    fill_lively(&exact, 3);
    copy_states(&rounded, exact);
    std::vector<Batch> batches = two_batches(c, 4, 9, 5);
    double expected = exact.forward_backward(batches), loss = rounded.forward_backward(batches);
    double most = bf16_tolerance(c, 3).norm;
    auto check_moved = [&](const char* name, const std::vector<float>& found, const std::vector<float>& was) {
        const double moved = relative_difference(found, was);
        CHECK_MESSAGE((moved > 0x1p-9 && moved < most), name, " ", moved);
    };
    CHECK(std::fabs(loss - expected) <= most * expected);
    for (int t = 0; t < kNumTensors; t++) {
        for (int l = 0; l < tensor_copies(c, t); l++) {
            check_moved(kTensors[t].name, layer_gradient(rounded, t, l), layer_gradient(exact, t, l));
        }
    }
    exact.evaluate(batches[0]);
    rounded.evaluate(batches[0]);
    check_moved("logits", unpadded_logits(rounded), unpadded_logits(exact));
}

TEST_CASE("reference model: nearest bf16") {
    const float rows[][2] = {{1.0f, 1.0f},
                             {0x1.01p0f, 1.0f},
                             {0x1.03p0f, 0x1.04p0f},
                             {-0x1.03p0f, -0x1.04p0f},
                             {0x1.010002p0f, 0x1.02p0f},
                             {0x1.ffp0f, 2.0f},
                             {INFINITY, INFINITY},
                             {3.4e38f, INFINITY}};
    for (auto [x, expected] : rows) { CHECK_MESSAGE(nearest_bf16(x) == expected, x); }
    CHECK(std::isnan(nearest_bf16(NAN)));
}

TEST_CASE("reference model: in bf16 every activation is rounded, no statistic is") {
    GPT2Config c = tiny_config();
    for (Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
        bool rounded = rounding == Rounding::kBf16;
        ReferenceModel<double> model(c, 4, 9, rounding);
        fill_lively(&model, 3);
        model.evaluate(random_batch(c, 4, 9, 5));
        check_rounded("encoded", model.encoded(), rounded);
        check_rounded("logits", {model.logits().begin(), model.logits().end()}, rounded);
        check_rounded("lnf", model.lnf().out, rounded);
        for (int l = 0; l < c.num_layers; l++) {
            const auto& a = model.layer(l);
            for (const std::vector<double>* x :
                 {&a.ln1.out, &a.qkv, &a.atty, &a.residual2, &a.ln2.out, &a.fch, &a.gelu, &a.residual3}) {
                check_rounded("activation of layer " + std::to_string(l), *x, rounded);
            }
            for (const std::vector<double>* x :
                 {&a.ln1.mean, &a.ln1.rstd, &a.lse, &a.ln2.mean, &a.ln2.rstd}) {
                check_rounded("statistic of layer " + std::to_string(l), *x, false);
            }
        }
    }
}

// With one token the gradient of a bias is the gradient of the activation it was added to, and that of a
// weight the product of that and the activation it multiplied: 16 significant bits, if both were rounded
// to 8.
TEST_CASE("reference model: in bf16 every activation's gradient is rounded, no parameter's is") {
    GPT2Config c = tiny_config();
    for (Rounding rounding : {Rounding::kNone, Rounding::kBf16}) {
        bool rounded = rounding == Rounding::kBf16;
        ReferenceModel<double> model(c, 4, 9, rounding);
        fill_lively(&model, 3);
        Batch one = random_batch(c, 1, 1, 5);
        model.forward_backward({&one, 1});
        for (int l = 0; l < c.num_layers; l++) {
            for (int t = kLn1w; t <= kFcprojb; t++) {
                std::vector<float> g = layer_gradient(model, t, l);
                bool scale = t == kLn1w || t == kLn2w;  // times xhat, which is not rounded
                int bits = kTensors[t].matrix ? 16 : 8;
                check_rounded(fmt::format("{}[{}]", kTensors[t].name, l), convert<double>(g),
                              rounded && !scale, bits);
            }
        }
        std::vector<float> dwte = layer_gradient(model, kWte, 0);
        auto token = dwte.begin() + one.tokens[0] * c.channels;  // this row is a sum of two
        std::fill(token, token + c.channels, 0.0f);
        check_rounded("lnfb", convert<double>(layer_gradient(model, kLnfb, 0)), rounded);
        check_rounded("wte", convert<double>(dwte), rounded, 16);
        check_rounded("wpe", convert<double>(layer_gradient(model, kWpe, 0)), rounded);
        std::vector<Batch> batches = two_batches(c, 4, 9, 5);
        model.forward_backward(batches);
        for (int t = 0; t < kNumTensors; t++) {
            check_rounded(kTensors[t].name, convert<double>(layer_gradient(model, t, 0)), false);
        }
    }
}

TEST_CASE("reference model: in bf16 weights are the rounded master weights") {
    GPT2Config c = tiny_config();
    ReferenceModel<float> model(c, 4, 9, Rounding::kBf16), copy = model;
    fill_lively(&model, 3);
    std::vector<float> master = whole_state(model, State::kParameter), weights = master;
    check_rounded("master weights", convert<double>(master), false);
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> x = whole_tensor(model, State::kParameter, t);
        std::ranges::transform(x, x.begin(), nearest_bf16);
        copy.load(State::kParameter, t, 0, x);
    }
    std::vector<Batch> batches = two_batches(c, 4, 9, 5);
    CHECK(model.forward_backward(batches) == copy.forward_backward(batches));
    // an update smaller than half a step of bf16 is not lost: the master keeps it
    step(&model, batches, {.lr = 1e-6, .eps = 1e-8});
    std::vector<float> after = whole_state(model, State::kParameter);
    int64_t moved = 0;
    for (size_t i = 0; i < after.size(); i++) { moved += after[i] != master[i]; }
    CHECK(moved > (int64_t)after.size() / 2);
}
