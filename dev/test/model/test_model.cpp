// The CPU model: initial values, load and save by ranges, micro-batches, ignored targets, evaluation, the
// optimizer step with decay, clipping and skipping, and that the same input gives the same bits.
#include <algorithm>
#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include "dev/test/support/any_model.h"
#include "dev/test/support/test_files.h"
#include "llmc/model/cpu/gpt2.h"

using namespace llmc;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

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

}  // namespace

// ---- what is in it -----------------------------------------------------------------------------

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
    GPT2Config deeper = tiny_config();
    deeper.num_layers++;
    GPT2Cpu deep(deeper, 1, 2);
    deep.init(5);
    std::vector<float> start((size_t)tensor_total(tiny_config(), kQkvw));
    deep.save(State::kParameter, kQkvw, 0, start);
    check_same("first layers of a deeper model", start, whole_tensor(one, State::kParameter, kQkvw));
}

TEST_CASE("model: init forgets an earlier training") {
    GPT2Cpu used = random_model(), fresh = random_model();
    Batch batch = random_batch(tiny_config(), 4, 9, 1);
    step(&used, {&batch, 1}, {.lr = 0.1});
    CHECK(used.updates() == 1);
    used.init(5);
    check_same_state("init after a step", used, fresh);
}

TEST_CASE("model: load and save by ranges") {
    GPT2Config c = tiny_config();
    GPT2Cpu model(c, 1, 2);
    float next = 1;  // every element of all three states has its own number
    for (State state : kStates) {
        for (int t = 0; t < kNumTensors; t++) {
            int64_t total = tensor_total(c, t);
            int64_t chunk = tensor_size(c, t) * 2 / 3 + 1;  // over the borders of layers
            for (int64_t first = 0; first < total; first += chunk) {
                std::vector<float> x((size_t)std::min(chunk, total - first));
                for (float& value : x) { value = next++; }
                model.load(state, t, first, x);
            }
        }
    }
    REQUIRE(next < 0x1p24f);  // exact in float
    next = 1;
    for (State state : kStates) {
        for (int t = 0; t < kNumTensors; t++) {
            int64_t total = tensor_total(c, t);
            std::vector<float> expected((size_t)total), found((size_t)total), pieces((size_t)total);
            for (float& value : expected) { value = next++; }
            model.save(state, t, 0, found);
            for (int64_t first = 0; first < total; first += 11) {
                model.save(state, t, first,
                           std::span(pieces).subspan(first, std::min<int64_t>(11, total - first)));
            }
            check_same(std::string("whole ") + kTensors[t].name, found, expected);
            check_same(std::string("pieces of ") + kTensors[t].name, pieces, expected);
        }
    }
}

TEST_CASE("model: ranges outside of a tensor are refused") {
    GPT2Cpu model = random_model();
    std::vector<float> x(3), before = whole_state(model, State::kParameter);
    int64_t total = tensor_total(tiny_config(), kFcw);
    for (int64_t first : {(int64_t)-1, total - 2, total, INT64_MAX - 1}) {
        check_error(error_of([&] { model.load(State::kParameter, kFcw, first, x); }), kExitUsage, {"range"});
        check_error(error_of([&] { model.save(State::kParameter, kFcw, first, x); }), kExitUsage, {"range"});
        check_error(error_of([&] { model.save_gradient(kFcw, first, x); }), kExitUsage, {"range"});
    }
    model.load(State::kParameter, kFcw, total, std::span(x).first(0));  // nothing, at the end
    check_same("after what was refused", whole_state(model, State::kParameter), before);
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
    GPT2Config c = tiny_config();
    GPT2Cpu at_once = random_model();
    Batch batch = random_batch(c, 4, 9, 7);
    // unequal numbers of targets: the mean is over all of them, not of the micro-batches' means
    std::fill(batch.targets.begin(), batch.targets.begin() + 7, kIgnoreTarget);
    double expected = at_once.forward_backward({&batch, 1});
    for (int rows : {1, 2}) {
        GPT2Cpu model(c, rows, 9);
        model.init(5);
        std::vector<Batch> parts;
        for (int first = 0; first < 4; first += rows) { parts.push_back(rows_of(batch, first, rows)); }
        double loss = model.forward_backward(parts);
        CHECK(std::fabs(loss - expected) <= reordering(c, 36) * expected);
        check_close_gradients(fmt::format("{} micro-batches", 4 / rows), model, at_once,
                              fp32_tolerance(c, 36));
    }
}

TEST_CASE("model: what follows an ignored target changes nothing") {
    GPT2Config c = tiny_config();
    Batch batch = random_batch(c, 4, 9, 3);
    for (int b = 0; b < 4; b++) { batch.targets[b * 9 + 8] = kIgnoreTarget; }
    Batch other = batch;
    for (int b = 0; b < 4; b++) {
        other.tokens[b * 9 + 8] = (batch.tokens[b * 9 + 8] + 1 + b) % c.vocab_size;
    }
    GPT2Cpu one = random_model(), two = random_model();
    CHECK(one.forward_backward({&batch, 1}) == two.forward_backward({&other, 1}));
    check_close_gradients("other tokens at ignored positions", two, one, {0, 0});  // those add exact zeros
    std::vector<float> dwpe = layer_gradient(one, kWpe, 0);
    CHECK(std::count(dwpe.end() - c.channels, dwpe.end(), 0.0f) == c.channels);

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
    check_error(error_of([&] { one.forward_backward({&batch, 1}); }), kExitUsage, {"no target"});
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
            std::vector<float> part(expected.begin() + first * 9, expected.begin() + (first + rows) * 9);
            check_near("rows of a larger batch", losses_of(model, rows_of(batch, first, rows)), part,
                       [&](size_t) { return bound; });
        }
    }
    auto five = [](const std::vector<int32_t>& x) { return std::vector<int32_t>(x.begin(), x.begin() + 5); };
    Batch shorter{1, 5, five(batch.tokens), five(batch.targets)};
    check_near("the first 5 tokens", losses_of(model, shorter),
               std::vector<float>(expected.begin(), expected.begin() + 5), [&](size_t) { return bound; });
    std::vector<float> logits(model.logits().begin() + 4 * c.padded_vocab_size,
                              model.logits().begin() + 4 * c.padded_vocab_size + c.vocab_size);
    std::span<const float> last = model.logits_last();
    check_same("logits_last", std::vector<float>(last.begin(), last.end()), logits);
    Evaluation e = model.evaluate(shorter);
    CHECK(e.losses.size() == 5);
    CHECK(e.predicted[4] == std::max_element(logits.begin(), logits.end()) - logits.begin());
}

TEST_CASE("model: nothing of an earlier batch is left in the next evaluation") {
    GPT2Cpu model = random_model(), fresh = random_model();
    Batch small = random_batch(tiny_config(), 1, 4, 2), large = random_batch(tiny_config(), 4, 9, 3);
    std::vector<float> good = whole_tensor(model, State::kParameter, kWpe), bad(good.size(), kNan);
    model.load(State::kParameter, kWpe, 0, bad);
    CHECK(std::isnan(model.evaluate(large).losses[0]));
    model.load(State::kParameter, kWpe, 0, good);
    check_same("after a batch of NaN", losses_of(model, small), losses_of(fresh, small));
    step(&model, {&large, 1}, {.lr = 0});
    check_same("after a step that changes nothing", losses_of(model, small), losses_of(fresh, small));
}

TEST_CASE("model: batches that do not fit are refused") {
    GPT2Config c = tiny_config();
    GPT2Cpu model = random_model();
    check_error(error_of([&] { model.logits_last(); }), kExitUsage, {"evaluate"});
    auto refused = [&](const Batch& batch, const std::string& why) {
        check_error(error_of([&] { model.evaluate(batch); }), kExitUsage, {why});
        check_error(error_of([&] { model.enqueue_step({&batch, 1}, {.lr = 0.1}); }), kExitUsage, {why});
    };
    for (int32_t id : {-1, c.vocab_size, c.padded_vocab_size - 1, INT32_MAX, INT32_MIN}) {
        Batch batch = random_batch(c, 2, 3, 1);
        batch.tokens[5] = id;
        refused(batch, "vocabulary");
    }
    for (int32_t id : {-2, c.vocab_size, c.padded_vocab_size - 1, INT32_MAX, INT32_MIN}) {
        Batch batch = random_batch(c, 2, 3, 1);
        batch.targets[5] = id;
        refused(batch, "vocabulary");
    }
    for (auto [B, T] : {std::pair{5, 9}, {4, 10}, {0, 3}, {3, 0}, {-2, -3}, {1 << 16, 1 << 16}}) {
        refused({B, T, {}, {}}, "larger");
    }
    Batch uneven = random_batch(c, 2, 3, 1);
    uneven.targets.pop_back();
    refused(uneven, "disagree");
    check_same_state("after what was refused", model, random_model());
    CHECK_FALSE(model.poll().has_value());
}

// ---- the optimizer step ------------------------------------------------------------------------

TEST_CASE("model: a batch is learnt by heart, and padding rows stay zero") {
    GPT2Cpu model = random_model();
    Batch batch = random_batch(tiny_config(), 4, 9, 8);
    float first = 0, last = 0;
    for (int64_t k = 0; k < 120; k++) {
        last = step(&model, {&batch, 1}, {.step = k, .lr = 1e-2, .weight_decay = 0.01, .clip = 1}).loss;
        if (k == 0) { first = last; }
    }
    // weights of 0.02 say next to nothing: the uniform distribution
    CHECK(std::fabs(first - std::log(37.0)) < 0.1);
    // Four rows of different first tokens leave nothing to guess. An even chance between two is ln 2.
    CHECK(last < 0.1);
    for (State state : kStates) {
        std::vector<float> wte = whole_tensor(model, state, kWte);
        CHECK(std::count(wte.begin() + 37 * 14, wte.end(), 0.0f) == (64 - 37) * 14);
    }
}

TEST_CASE("model: weight decay pulls on matrices only") {
    GPT2Cpu start(tiny_config(), 2, 9), plain(tiny_config(), 2, 9), decayed(tiny_config(), 2, 9);
    for (GPT2Cpu* model : {&start, &plain, &decayed}) { fill_states(model, 77); }
    Batch batch = random_batch(tiny_config(), 2, 9, 4);
    StepParams params{.lr = 0.01, .weight_decay = 0};
    step(&plain, {&batch, 1}, params);
    params.weight_decay = 0.5;
    step(&decayed, {&batch, 1}, params);
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> before = whole_tensor(start, State::kParameter, t);
        std::vector<float> expected = whole_tensor(plain, State::kParameter, t);
        std::vector<float> found = whole_tensor(decayed, State::kParameter, t);
        if (!kTensors[t].matrix) {
            check_same(kTensors[t].name, found, expected);
            continue;
        }
        std::vector<double> pulled(found.size());
        for (size_t i = 0; i < found.size(); i++) { pulled[i] = expected[i] - 0.01 * 0.5 * before[i]; }
        // 1 - lr decay, its product and two sums are rounded
        check_near(kTensors[t].name, found, pulled, [&](size_t i) {
            return 4 * kFloatRoundoff * (std::fabs(before[i]) + std::fabs(expected[i]));
        });
    }
}

TEST_CASE("model: a gradient of norm g is scaled to clip / (g + 1e-6)") {
    Batch batch = random_batch(tiny_config(), 4, 9, 4);
    for (double clip : {0.0, 0.01, 1e9}) {
        GPT2Cpu model = random_model();
        StepResult result = step(&model, {&batch, 1}, {.step = 17, .lr = 1e-3, .beta1 = 0.9, .clip = clip});
        CHECK(result.step == 17);
        CHECK_FALSE(result.skipped);
        std::vector<float> g = whole_gradient(model);
        double norm = norm_of(g), scale = clip == 0.01 ? clip / (norm + 1e-6) : 1;
        REQUIRE(norm > 0.01);
        CHECK(std::fabs(result.grad_norm - norm) <= 2 * kFloatRoundoff * norm);
        // the first moment after one update: (1 - beta1) scaled gradients
        std::vector<double> expected = convert<double>(g);
        for (double& x : expected) { x *= (1 - 0.9) * scale; }
        check_near("first moment", whole_state(model, State::kFirstMoment), expected,
                   // scale, 1 - beta1 and two products are rounded; the last may be denormal
                   [&](size_t i) { return 4 * kFloatRoundoff * std::fabs(expected[i]) + 0x1p-149; });
    }
}

TEST_CASE("model: a step whose loss is not finite changes nothing") {
    Batch batch = random_batch(tiny_config(), 4, 9, 4);
    for (float poison : {kInf, -kInf, kNan, 3e38f}) {
        for (int tensor : {kWte, kLn1w, kQkvw, kFcprojb, kLnfw}) {
            CAPTURE(poison);
            CAPTURE(tensor);
            GPT2Cpu model = random_model(), untouched = random_model();
            for (GPT2Cpu* m : {&model, &untouched}) { step(m, {&batch, 1}, {.step = 0, .lr = 1e-2}); }
            std::vector<float> good = whole_tensor(model, State::kParameter, tensor);
            std::vector<float> bad(good.size(), poison);
            for (GPT2Cpu* m : {&model, &untouched}) { m->load(State::kParameter, tensor, 0, bad); }
            StepResult result =
                step(&model, {&batch, 1}, {.step = 1, .lr = 1e-2, .weight_decay = 0.1, .clip = 1});
            // where it does not overflow it is just a number
            if (poison == 3e38f && !result.skipped) { continue; }
            CHECK(result.skipped);
            CHECK(result.step == 1);
            check_same_state("skipped", model, untouched);
            for (GPT2Cpu* m : {&model, &untouched}) {
                m->load(State::kParameter, tensor, 0, good);
                CHECK_FALSE(step(m, {&batch, 1}, {.step = 2, .lr = 1e-2}).skipped);
            }
            CHECK(model.updates() == 2);
            check_same_state("after the repair", model, untouched);
        }
    }
}

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
    StepResult result = step(&model, {&batch, 1}, {.lr = 1e-2, .clip = 1});
    CHECK(std::isfinite(result.loss));
    CHECK_FALSE(std::isfinite(result.grad_norm));
    CHECK(result.skipped);
    check_same_state("skipped", model, untouched);
}

TEST_CASE("model: the same run gives the same bits") {
    GPT2Cpu one = random_model(2), two = random_model(2);
    for (int64_t k = 0; k < 4; k++) {
        Batch batches[] = {random_batch(tiny_config(), 2, 9, 10 * k),
                           random_batch(tiny_config(), 2, 9, 10 * k + 1)};
        StepParams params{.step = k, .lr = 1e-2, .weight_decay = 0.1, .clip = 1};
        StepResult a = step(&one, batches, params);
        two.evaluate(batches[1]);  // must leave no trace
        StepResult b = step(&two, batches, params);
        CHECK(a.loss == b.loss);
        CHECK(a.grad_norm == b.grad_norm);
    }
    check_same_state("two runs", one, two);
}

TEST_CASE("model: results come in order, once each") {
    GPT2Cpu model = random_model();
    CHECK_FALSE(model.poll().has_value());
    model.finish();
    CHECK_FALSE(model.poll().has_value());
    Batch batch = random_batch(tiny_config(), 4, 9, 4);
    auto last = std::chrono::steady_clock::now();
    for (int64_t k : {0, 1, 2}) { model.enqueue_step({&batch, 1}, {.step = k, .lr = 1e-2}); }
    model.finish();
    auto end = std::chrono::steady_clock::now();
    for (int64_t k : {0, 1, 2}) {
        std::optional<StepResult> result = model.poll();
        REQUIRE(result.has_value());
        CHECK(result->step == k);
        CHECK((result->done > last && result->done <= end));
        last = result->done;
    }
    CHECK_FALSE(model.poll().has_value());
    CHECK(model.updates() == 3);
}
