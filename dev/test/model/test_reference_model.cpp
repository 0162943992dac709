// The reference model, which judges the GPU's: without rounding it is the CPU model, and with rounding to
// bf16 every tensor is rounded that should be, and nothing else.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/compare_state.h"
#include "dev/test/support/reference_model.h"
#include "llmc/model/cpu/gpt2.h"

using namespace llmc;

namespace {

using Array = std::vector<double>;

// two micro-batches of unequal size and number of targets
std::vector<Batch> two_batches(const GPT2Config& c, uint64_t seed) {
    std::vector<Batch> batches = {random_batch(c, 4, 9, seed), random_batch(c, 3, 7, seed + 1)};
    std::fill(batches[0].targets.begin(), batches[0].targets.begin() + 11, kIgnoreTarget);
    batches[1].targets[20] = kIgnoreTarget;
    return batches;
}

// the fraction of nonzero values that need at most `bits` significant bits
double fraction_within(const Array& x, int bits) {
    int64_t within = 0, all = 0;
    for (double value : x) {
        int exponent;
        double scaled = std::ldexp(std::frexp(value, &exponent), bits);
        within += value != 0 && scaled == std::nearbyint(scaled);
        all += value != 0;
    }
    REQUIRE(all > 0);
    return (double)within / (double)all;
}

// All values are rounded, or few: by chance a double has 8 significant bits with a probability of
// 2^-45, a sum of a few rounded numbers more often.
void check_rounded(const std::string& name, const Array& x, bool rounded, int bits = 8) {
    double within = fraction_within(x, bits);
    CHECK_MESSAGE((rounded ? within == 1 : within < 0.5), name, ": ", within);
}

template <typename Real>
void check_like_cpu_model(const std::string& name) {
    GPT2Config c = tiny_config();
    GPT2Cpu expected(c, 4, 9);
    ReferenceModel<Real> model(c, 4, 9);
    fill_lively(&expected, 3);
    copy_states(&model, expected);
    std::vector<Batch> batches = two_batches(c, 5);
    double bound = reordering(c, 36), loss = expected.forward_backward(batches);
    CHECK(std::fabs(model.forward_backward(batches) - loss) <= bound * loss);
    check_close_gradients(name, model, expected, fp32_tolerance(c, 36));
    Evaluation found = model.evaluate(batches[0]), theirs = expected.evaluate(batches[0]);
    check_close(name + " logits", unpadded_logits(model), unpadded_logits(expected), fp32_tolerance(c, 36));
    double loss_bound = 2 * bound * largest(unpadded_logits(expected));  // a loss is a difference of logits
    check_near(name + " losses", std::vector<float>(found.losses.begin(), found.losses.end()),
               std::vector<float>(theirs.losses.begin(), theirs.losses.end()),
               [&](size_t) { return loss_bound; });
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
        std::vector<Batch> batches = two_batches(c, 5 + k);
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
            double most = largest(whole_tensor(expected, state, t));
            check_near(name + fmt::format(" state {} {}", (int)state, kTensors[t].name),
                       whole_tensor(model, state, t), whole_tensor(expected, state, t),
                       [&](size_t) { return 2 * 3 * bound * most; });
        }
    }
}

}  // namespace

TEST_CASE("reference model: initial values are the CPU model's") {
    GPT2Cpu expected(tiny_config(), 2, 9);
    ReferenceModel<float> model(tiny_config(), 2, 9);
    ReferenceModel<double> wide(tiny_config(), 2, 9, Rounding::kBf16);
    expected.init(5);
    model.init(5);
    wide.init(5);
    for (State state : kStates) {
        check_same("float", whole_state(model, state), whole_state(expected, state));
        check_same("the master weights of bf16", whole_state(wide, state), whole_state(expected, state));
    }
}

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

TEST_CASE("reference model: a step that is not finite changes nothing") {
    ReferenceModel<float> model(tiny_config(), 4, 9), untouched = model;
    for (auto* m : {&model, &untouched}) {
        m->init(1);
        m->load(State::kParameter, kFcb, 3, std::vector<float>{INFINITY});
    }
    CHECK(step(&model, two_batches(tiny_config(), 5), {.lr = 0.1}).skipped);
    check_same_state("skipped", model, untouched);
}

TEST_CASE("reference model: nearest bf16") {
    for (auto [x, expected] : {std::pair{1.0f, 1.0f},
                               {0x1.01p0f, 1.0f},
                               {0x1.03p0f, 0x1.04p0f},
                               {-0x1.03p0f, -0x1.04p0f},
                               {0x1.010002p0f, 0x1.02p0f},
                               {0x1.ffp0f, 2.0f},
                               {INFINITY, INFINITY},
                               {3.4e38f, INFINITY}}) {
        CHECK_MESSAGE(nearest_bf16(x) == expected, x);
    }
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
        const Array* stream = &model.encoded();
        for (int l = 0; l < c.num_layers; l++) {
            const auto& a = model.layer(l);
            for (const Array* x :
                 {&a.ln1.out, &a.qkv, &a.atty, &a.residual2, &a.ln2.out, &a.fch, &a.gelu, &a.residual3}) {
                check_rounded("activation of layer " + std::to_string(l), *x, rounded);
            }
            for (const Array* x : {&a.ln1.mean, &a.ln1.rstd, &a.lse, &a.ln2.mean, &a.ln2.rstd}) {
                check_rounded("statistic of layer " + std::to_string(l), *x, false);
            }
            // GELU of the sum before it is rounded is not GELU of the rounded one
            Array gelu(a.fch.size());
            gelu_forward_cpu(gelu.data(), a.fch.data(), (int64_t)gelu.size());
            for (double& x : gelu) { x = rounded ? nearest_bf16((float)x) : x; }
            CHECK((gelu == a.gelu) == !rounded);
            // the branch is rounded before it is added: attention's and the MLP's
            for (auto [inp, weight, before, after] : {std::tuple{&a.atty, kAttprojw, stream, &a.residual2},
                                                      {&a.gelu, kFcprojw, &a.residual2, &a.residual3}}) {
                int OC = kTensors[weight].rows(c), C = kTensors[weight].cols(c);
                std::vector<float> w((size_t)OC * C), bias(OC);
                model.save(State::kParameter, weight, (int64_t)l * OC * C, w);
                model.save(State::kParameter, weight + 1, (int64_t)l * OC, bias);
                auto round = [&](double x) { return rounded ? nearest_bf16((float)x) : x; };
                Array exact(36 * OC), wide(w.begin(), w.end()), add(bias.begin(), bias.end());
                std::ranges::transform(wide, wide.begin(), round);  // from the master weights
                std::ranges::transform(add, add.begin(), round);
                matmul_forward_cpu(exact.data(), inp->data(), wide.data(), add.data(), 36, C, OC);
                for (size_t i = 0; i < exact.size(); i++) {
                    exact[i] = round((*before)[i] + round(exact[i]));
                }
                CHECK(exact == *after);
            }
            stream = &a.residual3;
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
        std::vector<float> dlnfb = layer_gradient(model, kLnfb, 0), dwte = layer_gradient(model, kWte, 0);
        std::vector<float> dwpe = layer_gradient(model, kWpe, 0);
        auto token = dwte.begin() + one.tokens[0] * c.channels;  // this row is a sum of two
        std::fill(token, token + c.channels, 0.0f);
        check_rounded("lnfb", convert<double>(dlnfb), rounded);
        check_rounded("wte", convert<double>(dwte), rounded, 16);
        check_rounded("wpe", convert<double>(dwpe), rounded);
        std::vector<Batch> batches = two_batches(c, 5);
        model.forward_backward(batches);
        for (int t = 0; t < kNumTensors; t++) {
            check_rounded(kTensors[t].name, convert<double>(layer_gradient(model, t, 0)), false);
        }
    }
}

// Attention's gradients, in the last layer, from two tokens of which the second alone has a target: its
// gradient is then that of the projection's bias, from which the rest follows.
TEST_CASE("reference model: in bf16 the gradients before and behind attention are rounded") {
    GPT2Config c = tiny_config();
    int C = c.channels, l = c.num_layers - 1;
    ReferenceModel<double> model(c, 4, 9, Rounding::kBf16);
    fill_lively(&model, 3);
    Batch two = random_batch(c, 1, 2, 5);
    two.targets[0] = kIgnoreTarget;
    model.forward_backward({&two, 1});
    auto rounded = [](Array x) {
        for (double& value : x) { value = nearest_bf16((float)value); }
        return x;
    };
    std::vector<float> master((size_t)C * C), dresidual = layer_gradient(model, kAttprojb, l);
    model.save(State::kParameter, kAttprojw, (int64_t)l * C * C, master);
    Array weight = rounded(convert<double>(master)), dout(C, 0.0), ignored((size_t)C * C), datty(2 * C),
          dqkv(6 * C);
    dout.insert(dout.end(), dresidual.begin(), dresidual.end());  // (2,C)
    const auto& a = model.layer(l);
    matmul_backward_cpu(datty.data(), ignored.data(), (double*)nullptr, dout.data(), a.atty.data(),
                        weight.data(), 2, C, C);
    datty = rounded(datty);
    attention_backward_cpu(dqkv.data(), datty.data(), a.qkv.data(), a.atty.data(), a.lse.data(), 1, 2, C,
                           c.num_heads);
    dqkv = rounded(dqkv);
    std::vector<float> expected(3 * C);
    for (int i = 0; i < 3 * C; i++) { expected[i] = (float)(dqkv[i] + dqkv[3 * C + i]); }
    check_same("gradient of qkvb", layer_gradient(model, kQkvb, l), expected);
}

// Both limits: no result comes from fewer roundings than one, none is off by more than bf16_tolerance().
TEST_CASE("reference model: rounding to bf16 moves every result by about its roundings") {
    GPT2Config c = tiny_config();
    ReferenceModel<double> exact(c, 4, 9), rounded(c, 4, 9, Rounding::kBf16);
    fill_lively(&exact, 3);
    copy_states(&rounded, exact);
    std::vector<Batch> batches = two_batches(c, 5);
    double expected = exact.forward_backward(batches), loss = rounded.forward_backward(batches);
    double most = bf16_tolerance(c, 3).norm;
    CHECK(std::fabs(loss - expected) <= most * expected);
    for (int t = 0; t < kNumTensors; t++) {
        for (int l = 0; l < tensor_copies(c, t); l++) {
            double moved = relative_difference(layer_gradient(rounded, t, l), layer_gradient(exact, t, l));
            CHECK_MESSAGE((moved > 0x1p-9 && moved < most),
                          fmt::format("{}[{}] {:.3g}", kTensors[t].name, l, moved));
        }
    }
    exact.evaluate(batches[0]);
    rounded.evaluate(batches[0]);
    double moved = relative_difference(unpadded_logits(rounded), unpadded_logits(exact));
    CHECK((moved > 0x1p-9 && moved < most));
}

TEST_CASE("reference model: in bf16 weights are the rounded master weights") {
    GPT2Config c = tiny_config();
    ReferenceModel<float> model(c, 4, 9, Rounding::kBf16), copy = model;
    fill_lively(&model, 3);
    std::vector<float> master = whole_state(model, State::kParameter), weights = master;
    CHECK(fraction_within(convert<double>(master), 8) < 0.5);
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> x = whole_tensor(model, State::kParameter, t);
        std::ranges::transform(x, x.begin(), nearest_bf16);
        copy.load(State::kParameter, t, 0, x);
    }
    std::vector<Batch> batches = two_batches(c, 5);
    CHECK(model.forward_backward(batches) == copy.forward_backward(batches));
    // an update smaller than half a step of bf16 is not lost: the master keeps it
    step(&model, batches, {.lr = 1e-6, .eps = 1e-8});
    std::vector<float> after = whole_state(model, State::kParameter);
    int64_t moved = 0;
    for (size_t i = 0; i < after.size(); i++) { moved += after[i] != master[i]; }
    CHECK(moved > (int64_t)after.size() / 2);
}
