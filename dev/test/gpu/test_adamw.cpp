// The optimizer on the GPU: the gradient's norm, the decision about a step, the update, stochastic rounding.
#include <bit>
#include <limits>

#include "dev/test/gpu/adamw_pieces.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/global_norm.h"
#include "llmc/ops/stochastic_rounding.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr uint64_t kRoundingSeed = 0x1234'5678'9abc'def0;

// A thread adds at most 8 squares, a vector's, in fp32: 8 roundings and the product's; the rest is double.
template <typename Grad>
void check_sum_of_squares(int64_t n) {
    DeviceArray<Grad> x(floats(n, 1, 0.1));
    DeviceArray<double> sum(1);
    Scratch scratch(sum_of_squares_scratch());
    sum_of_squares(sum.data(), scratch.data(), x.data(), n, kStream);
    double norm = global_norm_cpu(x.values().data(), n);
    std::string name = fmt::format("sum_of_squares sum {} n={}", type_name<Grad>(), n);
    expect_near(name, sum, {norm * norm}, [&](size_t) { return 9 * u * norm * norm; });
    check_guards(name + " scratch", scratch);
    expect_unchanged(name, x);
}

// ---- the decision --------------------------------------------------------------------------------

struct DecisionCase {
    double loss_sum, squares, clip;
    bool skipped;
    float largest_loss = std::numeric_limits<float>::infinity();
    float largest_norm = std::numeric_limits<float>::infinity();
};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN(),
                 kInf = std::numeric_limits<double>::infinity();
constexpr DecisionCase kDecisions[] = {
    {700, 4, 0, false},         {700, 4, 1, false},          {700, 0.25, 1, false}, {700, 1, 1, false},
    {kNan, 4, 1, true},         {kInf, 4, 1, true},          {700, kNan, 1, true},  {700, kInf, 0, true},
    {1e300, 4, 1, true},        {700, 1e100, 1, true},       {700, 9, 1e-3, false}, {-7, 1e-30, 1e-3, false},
    {700, 4, 1, true, 2.0f},    {700, 4, 1, false, 2.2f},  // outliers, and those that are none
    {700, 4, 1, true, 9, 1.9f}, {700, 4, 1, false, 9, 2.0f},
};

bool same_or_nan(float found, double expected, double relative) {
    if (!std::isfinite((float)expected)) { return !std::isfinite(found); }
    return std::fabs(found - expected) <= relative * std::fabs(expected);
}

// Everything is computed in double and rounded to float once: u, and as much again for double's part. As in
// cpu/gpt2.cpp, clipping divides by norm + 1e-6.
void check_decision(const DecisionCase& c, const StepDecision& before, DeviceArray<StepDecision>& decision) {
    constexpr int64_t kTargets = 333;
    const StepParams params{.step = 3,
                            .lr = 3e-4,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .clip = c.clip,
                            .largest_loss = c.largest_loss,
                            .largest_norm = c.largest_norm};
    DeviceArray<double> loss_sum(Vector{c.loss_sum}), squares(Vector{c.squares});
    DeviceArray<StepInputs> inputs(std::vector<StepInputs>{step_inputs(params, kTargets)});
    decide_step(decision.data(), loss_sum.data(), squares.data(), inputs.data(), kStream);
    StepDecision d = decision.download()[0];
    check_guards("decide_step", decision);
    expect_unchanged("decide_step", inputs, loss_sum, squares);
    std::string name = fmt::format("decide_step loss_sum={:g} squares={:g} clip={:g} largest={:g} {:g}",
                                   c.loss_sum, c.squares, c.clip, c.largest_loss, c.largest_norm);
    CHECK_MESSAGE((d.skipped != 0) == c.skipped, name);
    double norm = std::sqrt(c.squares);
    CHECK_MESSAGE(same_or_nan(d.loss, c.loss_sum / kTargets, 2 * u), name);
    CHECK_MESSAGE(same_or_nan(d.norm, norm, 2 * u), name);
    CHECK_MESSAGE(d.updates == before.updates + !c.skipped, name);
    if (c.skipped) { return; }
    double grad_scale = c.clip > 0 ? std::min(1.0, c.clip / (norm + 1e-6)) : 1;
    CHECK_MESSAGE(same_or_nan(d.grad_scale, grad_scale, 2 * u), name);
    CHECK_MESSAGE(same_or_nan(d.step_size, params.lr / (1 - std::pow(params.beta1, d.updates)), 2 * u), name);
    CHECK_MESSAGE(same_or_nan(d.correct2, 1 / std::sqrt(1 - std::pow(params.beta2, d.updates)), 2 * u), name);
}

// ---- the update ----------------------------------------------------------------------------------

struct UpdateCase {
    CopiedTensor tensor;
    int64_t updates;
    float grad_scale;
    double decay;
    std::string text() const {
        return fmt::format("size={} copies={} stride={} updates={} scale={:g} decay={:g}", tensor.size,
                           tensor.copies, tensor.stride, updates, grad_scale, decay);
    }
    int64_t elements() const { return (tensor.copies - 1) * tensor.stride + tensor.size; }
    // the element's place in its copy; -1 in the gaps between copies
    int64_t inside(int64_t i) const {
        int64_t place = tensor.copies > 1 ? i % tensor.stride : i;
        return place < tensor.size ? place : -1;
    }
    // and its number in the tensor, by which its random bits are drawn
    int64_t number(int64_t i) const {
        int64_t copy = tensor.copies > 1 ? i / tensor.stride : 0;
        return copy * tensor.size + inside(i);
    }
};
constexpr double kDecay = 0.1;  // of the cases that decay
constexpr UpdateCase kUpdates[] = {
    {{kLnfw, 1, 1, 0}, 1, 1, 0},
    {{kLn1b, 3, 1, 0}, 2, 0.5f, kDecay},
    {{kWpe, 65 * 17, 1, 0}, 1, 1, kDecay},
    {{kQkvb, 97, 5, 128}, 7, 0.3f, 0},
    {{kFcw, 769, 3, 1000}, 1000, 1, kDecay},
    {{kAttprojw, 64, 12, 64}, 3, 1, kDecay},
    {{kFcb, 33, 4, 35}, 4, 1, kDecay},
    {{kWte, 100003, 1, 0}, 100000, 1e-3f, kDecay},
};
constexpr StepParams kParams{
    .step = 1, .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = kDecay};

StepDecision make_decision(const UpdateCase& c, bool skipped) {
    return {.updates = c.updates,
            .loss = 1,
            .norm = 1,
            .grad_scale = c.grad_scale,
            .step_size = (float)(kParams.lr / (1 - std::pow(kParams.beta1, c.updates))),
            .correct2 = (float)(1 / std::sqrt(1 - std::pow(kParams.beta2, c.updates))),
            .skipped = skipped};
}

// Device memory of one tensor; weights are param for fp32, and for bf16 split into param and low before an update, and joined
// after it.
template <typename T, typename Grad>
struct Tensors {
    DeviceArray<float> weights, m, v;
    DeviceArray<T> param;
    DeviceArray<uint16_t> low;
    DeviceArray<Grad> grad;
    explicit Tensors(int64_t n) : Tensors(n, squared(floats(n, 3, 0.01))) {}
    Tensors(int64_t n, const Floats& second)
        : weights(floats(n, 1)),
          m(floats(n, 2, 0.01)),
          v(second),
          param(floats(n, 4)),
          low(std::vector<uint16_t>(n, 0x1234)),
          grad(floats(n, 5, 0.01)) {}
    static Floats squared(Floats x) {
        for (float& y : x) { y *= y; }
        return x;
    }
    // second_stride: from one copy's second moments to the next one's
    void update(const UpdateCase& c, const DeviceArray<StepDecision>& decision, int64_t second_stride = 0) {
        constexpr bool single = std::is_same_v<T, float>;
        StepDecision before = decision.download()[0];
        before.updates -= !before.skipped;
        const DeviceArray<StepDecision> then(std::vector<StepDecision>{before});
        if constexpr (!single) {
            c.tensor.for_each_copy([&](const AdamWTensor& part, int64_t at) {
                split_weights(param.data() + at, low.data() + at, weights.data() + at, part, then.data(),
                              kRoundingSeed, kStream);
            });
        }
        T* weights_out = param.data();
        if constexpr (single) { weights_out = weights.data(); }
        DeviceArray<StepInputs> inputs(std::vector<StepInputs>{step_inputs(kParams, 1)});
        DeviceArray<AdamWPiece> pieces(
            adamw_pieces(c.tensor, c.decay > 0, second_stride ? second_stride : c.tensor.stride));
        adamw_update(weights_out, single ? nullptr : low.data(), m.data(), v.data(), grad.data(),
                     pieces.data(), pieces.size(), decision.data(), inputs.data(),
                     {kParams.beta1, kParams.beta2, kParams.eps}, kRoundingSeed, kStream);
        if constexpr (!single) {
            c.tensor.for_each_copy([&](const AdamWTensor& part, int64_t at) {
                join_weights(weights.data() + at, param.data() + at, low.data() + at, part, decision.data(),
                             kRoundingSeed, kStream);
            });
        }
        expect_unchanged("adamw_update", inputs, pieces);
    }
};

// m' = beta1 m + (1 - beta1) g, g = scale grad: at most 5 roundings in either term; v' likewise, 6.
// w' = keep w - step m' / (sqrt(v') correct2 + eps): the error of m', half of v's relative one, and 12
// roundings of the second term; 2 of the first; one of the sum.
struct UpdateTruth {
    Vector weights, m, v, weights_bound, m_bound;

    template <typename T, typename Grad>
    UpdateTruth(const UpdateCase& c, const Tensors<T, Grad>& t)
        : weights(t.weights.values()),
          m(t.m.values()),
          v(t.v.values()),
          weights_bound(weights.size()),
          m_bound(m.size()) {
        const Vector before = weights, m_before = m, grad = t.grad.values();
        const AdamWParams params{kParams.lr, kParams.beta1, kParams.beta2, kParams.eps,
                                 c.decay,    c.grad_scale,  c.updates};
        for (int copy = 0; copy < c.tensor.copies; copy++) {
            int64_t at = copy * c.tensor.stride;
            adamw_cpu(&weights[at], &m[at], &v[at], &grad[at], c.tensor.size, params);
        }
        for (size_t i = 0; i < m.size(); i++) {
            if (c.inside(i) < 0) { continue; }
            m_bound[i] = 5 * u * (std::fabs(0.9 * m_before[i]) + std::fabs(0.1 * c.grad_scale * grad[i]));
            double kept = (1 - kParams.lr * c.decay) * before[i], change = std::fabs(kept - weights[i]);
            double per_m = m[i] == 0 ? 0 : change / std::fabs(m[i]);
            weights_bound[i] =
                per_m * m_bound[i] + 15 * u * change + 2 * u * std::fabs(kept) + u * std::fabs(weights[i]);
        }
    }
};

template <typename T, typename Grad>
void check_update(const UpdateCase& c) {
    Tensors<T, Grad> t(c.elements());
    UpdateTruth truth(c, t);
    DeviceArray<StepDecision> decision(std::vector<StepDecision>{make_decision(c, false)});
    t.update(c, decision);
    std::string shape = type_names<T, Grad>() + " " + c.text();
    expect_near("adamw_update m " + shape, t.m, truth.m, [&](size_t i) { return truth.m_bound[i]; });
    expect_near("adamw_update v " + shape, t.v, truth.v,
                [&](size_t i) { return c.inside(i) < 0 ? 0 : 6 * u * truth.v[i]; });
    expect_near("adamw_update weights " + shape, t.weights, truth.weights,
                [&](size_t i) { return truth.weights_bound[i]; });
    expect_unchanged("adamw_update " + shape, t.grad, decision);
}

// What the device must have made of the weights, bit for bit; between the copies what was there. Update 0's rule is said here
// again: rounding_bits() has it from the code that is tested.
std::vector<bf16> rounded_as_due(const UpdateCase& c, const std::vector<float>& weights,
                                 std::vector<bf16> param, int64_t updates) {
    for (size_t i = 0; i < param.size(); i++) {
        if (c.inside(i) < 0) { continue; }
        const uint32_t random =
            updates == 0 ? kToNearest : rounding_bits(kRoundingSeed, c.tensor.tensor, updates, c.number(i));
        param[i] = std::bit_cast<bf16>(round_stochastically(std::bit_cast<uint32_t>(weights[i]), random));
    }
    return param;
}

void check_stochastic_rounding(const UpdateCase& c) {
    const DeviceArray<float> weights(floats(c.elements(), 1));
    const std::string shape = c.text();
    for (int64_t updates : {c.updates, (int64_t)0}) {
        StepDecision d = make_decision(c, false);
        d.updates = updates;
        DeviceArray<StepDecision> then(std::vector<StepDecision>{d});
        DeviceArray<bf16> param(floats(c.elements(), 4));
        DeviceArray<uint16_t> low(std::vector<uint16_t>(c.elements(), 0x1234));
        DeviceArray<float> joined(weights.uploaded());
        c.tensor.for_each_copy([&](const AdamWTensor& part, int64_t at) {
            split_weights(param.data() + at, nullptr, weights.data() + at, part, then.data(), kRoundingSeed,
                          kStream);
        });
        expect_same("split_weights param " + shape, param,
                    rounded_as_due(c, weights.uploaded(), param.uploaded(), updates));
        c.tensor.for_each_copy([&](const AdamWTensor& part, int64_t at) {
            split_weights(param.data() + at, low.data() + at, weights.data() + at, part, then.data(),
                          kRoundingSeed, kStream);
            join_weights(joined.data() + at, param.data() + at, low.data() + at, part, then.data(),
                         kRoundingSeed, kStream);
        });
        expect_same("join_weights weights " + shape, joined, weights.uploaded());
        check_guards("split_weights low " + shape, low);
    }
}

template <typename T, typename Grad>
void check_skipped(const UpdateCase& c) {
    Tensors<T, Grad> t(c.elements());
    DeviceArray<StepDecision> decision(std::vector<StepDecision>{make_decision(c, true)});
    t.update(c, decision);
    const std::string name = "adamw_update skipped " + type_names<T, Grad>() + " " + c.text();
    expect_unchanged(name, t.weights, t.m, t.v, t.grad);
    if constexpr (std::is_same_v<T, bf16>) {
        expect_same(name + " param", t.param,
                    rounded_as_due(c, t.weights.uploaded(), t.param.uploaded(), c.updates));
    } else {
        expect_unchanged(name, t.param);
    }
}

}  // namespace

TEST_CASE_TEMPLATE("sum_of_squares", Grad, float, bf16) {
    for (int64_t n : {1, 3, 17, 1000, 65537, (1 << 20) + 7}) { check_sum_of_squares<Grad>(n); }
}

TEST_CASE_TEMPLATE("sum_of_squares: NaN and infinity come through", Grad, float, bf16) {
    for (float bad : {NAN, INFINITY}) {
        for (int at : {0, 5000, 9999}) {
            Floats values = floats(10000, 1);
            values[at] = bad;
            DeviceArray<Grad> x(values);
            DeviceArray<double> sum(1);
            Scratch scratch(sum_of_squares_scratch());
            sum_of_squares(sum.data(), scratch.data(), x.data(), x.size(), kStream);
            double found = sum.download()[0];
            CHECK(std::isnan(bad) == std::isnan(found));
            CHECK(!std::isfinite(found));
        }
    }
}

TEST_CASE("decide_step: clipped, not clipped, skipped, one after the other") {
    StepDecision before{.updates = 5,
                        .loss = -1,
                        .norm = -1,
                        .grad_scale = -1,
                        .step_size = -1,
                        .correct2 = -1,
                        .skipped = 1};
    DeviceArray<StepDecision> decision(std::vector<StepDecision>{before});
    int64_t updates = before.updates;
    for (const DecisionCase& c : kDecisions) {
        check_decision(c, before, decision);
        before = decision.download()[0];
        updates += c.skipped ? 0 : 1;
    }
    CHECK(before.updates == updates);
}

TEST_CASE("adamw_update: weights and moments") {
    for (const UpdateCase& c : kUpdates) {
        check_update<float, float>(c);
        check_update<bf16, float>(c);
        check_update<bf16, bf16>(c);
    }
}

// as beside Muon, where some tensors have none
TEST_CASE("adamw_update: second moments that lie closer give the same bits") {
    for (const UpdateCase& c : kUpdates) {
        if (c.tensor.copies == 1) { continue; }
        DeviceArray<StepDecision> decision(std::vector<StepDecision>{make_decision(c, false)});
        auto without_gaps = [&](const Floats& x) {
            Floats y;
            for (int64_t i = 0; i < c.elements(); i++) {
                if (c.inside(i) >= 0) { y.push_back(x[i]); }
            }
            return y;
        };
        Tensors<bf16, float> apart(c.elements());
        Tensors<bf16, float> closer(c.elements(), without_gaps(apart.v.uploaded()));
        apart.update(c, decision);
        closer.update(c, decision, c.tensor.size);
        const std::string name = "adamw_update closer " + c.text();
        expect_same(name + " weights", closer.weights, apart.weights.download());
        expect_same(name + " param", closer.param, apart.param.download());
        expect_same(name + " m", closer.m, apart.m.download());
        expect_same(name + " v", closer.v, without_gaps(apart.v.download()));
    }
}

TEST_CASE("adamw_update: nothing where the step is skipped") {
    for (const UpdateCase& c : kUpdates) {
        check_skipped<float, float>(c);
        check_skipped<bf16, float>(c);
        check_skipped<bf16, bf16>(c);
    }
}

TEST_CASE("stochastic rounding: bf16 weights and what comes back after loading, bit for bit") {
    for (const UpdateCase& c : kUpdates) { check_stochastic_rounding(c); }
}

// A number at fraction f of the way between two neighbours is rounded up with probability f (a multiple of
// 2^-16, as x has 16 bits below them): over n elements the mean is off by at most 6 standard deviations,
// sqrt(f (1 - f) / n), once in 5e8 times.
TEST_CASE("stochastic rounding: the mean is the number") {
    constexpr int64_t n = 1 << 18;
    for (double fraction : {0.0, 0x1p-10, 0.25, 0.5, 0.9}) {
        for (float base : {1.0f, -0.03125f}) {
            float x = base * (1 + (float)fraction * 0x1p-7f);  // the next bf16 after 1 is 1 + 2^-7
            DeviceArray<float> master(Floats(n, x));
            DeviceArray<bf16> param(n);
            DeviceArray<StepDecision> decision(std::vector<StepDecision>{{9, 0, 0, 1, 0, 1, 0}});
            AdamWTensor tensor{kWte, n};
            split_weights(param.data(), nullptr, master.data(), tensor, decision.data(), kRoundingSeed,
                          kStream);
            double up = 0, exact = (x / base - 1.0) * 0x1p7;
            bool neighbours = true;
            for (bf16 y : param.download()) {
                double place = ((double)(float)y / base - 1) * 0x1p7;
                neighbours = neighbours && (place == 0 || place == 1);
                up += place;
            }
            CHECK(neighbours);
            std::string name =
                fmt::format("stochastic rounding of {:.9g}: rounded up {:g} of {:g} times", x, up, (double)n);
            CHECK_MESSAGE(std::fabs(up / n - exact) <= 6 * std::sqrt(exact * (1 - exact) / n), name);
        }
    }
}
