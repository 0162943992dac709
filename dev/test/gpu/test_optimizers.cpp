// The optimizers on the GPU: the decision about a step; AdamW's update, and stochastic rounding; Muon's own kernels: mean,
// direction, update and its rounding. The gradient's norm: test_sums.cpp; Muon's products: test_muon_model.cpp.
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/muon/muon.h"
#include "llmc/ops/stochastic_rounding.h"

using namespace llmc;
using namespace llmc::gpu_test;

// ---- AdamW ---------------------------------------------------------------------------------------

namespace {

constexpr uint64_t kRoundingSeed = 0x1234'5678'9abc'def0;

// A tensor in all its copies (layers), which lie `stride` elements apart: `size` elements each.
struct CopiedTensor {
    int tensor;
    int64_t size;
    int copies;
    int64_t stride;  // any value if copies is 1

    // act(part, at) for each copy, which begins at element `at`
    template <typename Act>
    void for_each_copy(const Act& act) const {
        for (int copy = 0; copy < copies; copy++) {
            act(AdamWTensor{tensor, size, copy * size}, copy * stride);
        }
    }
};

// The pieces in which adamw_update() takes a tensor whose arrays are all whole; second_stride: from one copy's second
// moments to the next one's.
std::vector<AdamWPiece> adamw_pieces(const CopiedTensor& tensor, bool decays, int64_t second_stride) {
    std::vector<AdamWPiece> pieces;
    for (int copy = 0; copy < tensor.copies; copy++) {
        for (int64_t i = 0; i < tensor.size; i += kNormChunk) {
            const int64_t at = copy * tensor.stride + i, number = copy * tensor.size + i;
            const int64_t second = copy * second_stride + i;
            const auto size = (int32_t)std::min(kNormChunk, tensor.size - i);
            pieces.push_back({at, at, second, number, size, (int16_t)tensor.tensor, decays});
        }
    }
    return pieces;
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
        const AdamWParams params{
            kParams.lr,   kParams.beta1, kParams.beta2, kParams.eps, 1 - kParams.lr * c.decay,
            c.grad_scale, c.updates};
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

// ---- Muon ----------------------------------------------------------------------------------------

namespace {

constexpr StepParams kMuonParams{.step = 1, .lr = 3e-3, .weight_decay = 0.1};

// The copies are those of the layers first, first + 2, ...; in param they lie twice as far apart as in the
// other arrays, as those of a rank of two.
struct MuonCase {
    MuonTensor shape;  // without its copies
    int first;
    int64_t stride;  // a multiple of 4
    int64_t updates;
    float grad_scale;
    std::string text() const {
        return fmt::format("rows={} cols={} matrices={} copies={} first={}", shape.rows, shape.cols,
                           shape.matrices, shape.num_copies, first);
    }
    std::vector<MuonCopy> copies() const {
        std::vector<MuonCopy> all;
        for (int k = 0; k < shape.num_copies; k++) {
            all.push_back({2 * k * stride, k * stride, first + 2 * k});
        }
        return all;
    }
    MuonTensor with(const DeviceArray<MuonCopy>& copies) const {
        MuonTensor all = shape;
        all.copies = copies.data();
        return all;
    }
    // of the k-th matrix: in param, among what is kept, its number in the tensor, among the directions
    int64_t in_copy(int k) const { return k % shape.matrices * shape.size(); }
    int64_t param(int k) const { return 2 * (k / shape.matrices) * stride + in_copy(k); }
    int64_t at(int k) const { return k / shape.matrices * stride + in_copy(k); }
    int64_t number(int k) const {
        return (first + 2 * (k / shape.matrices)) * shape.matrices * shape.size() + in_copy(k);
    }
    int64_t direction(int k) const { return k * muon_stride(shape.size()); }
    int64_t elements() const { return at(shape.count() - 1) + shape.size(); }
    int64_t param_elements() const { return param(shape.count() - 1) + shape.size(); }
    int64_t directions() const { return direction(shape.count()); }
};
// whole vectors and odd sizes; more elements than one round of a row of blocks
constexpr const MuonCopy* kNone = nullptr;
const MuonCase kMuonCases[] = {{{kAttprojw, 8, 8, 1, kNone, 1}, 0, 64, 1, 1},
                               {{kQkvw, 7, 7, 3, kNone, 2}, 2, 192, 9, 0.5f},
                               {{kQkvw, 12, 12, 3, kNone, 2}, 1, 500, 100000, 1},
                               {{kFcw, 20, 5, 1, kNone, 3}, 0, 128, 3, 0.01f},
                               {{kFcprojw, 3, 11, 1, kNone, 2}, 4, 36, 7, 1},
                               {{kFcw, 384, 256, 1, kNone, 2}, 0, 384 * 256 + 64, 2, 0.25f}};

DeviceArray<StepDecision> decision_of(const MuonCase& c, bool skipped = false) {
    StepDecision d{};
    d.updates = c.updates, d.grad_scale = c.grad_scale, d.skipped = skipped;
    return DeviceArray<StepDecision>(std::vector<StepDecision>{d});
}

template <typename T, typename Grad>
struct Directions {
    DeviceArray<float> m;
    DeviceArray<Grad> grad;
    DeviceArray<T> x;
    Scratch scratch;
    explicit Directions(const MuonCase& c, double size = 0.01)
        : m(floats(c.elements(), 1, size)),
          grad(floats(c.elements(), 2, 2 * size)),
          x(floats(c.directions(), 3)),
          scratch((int64_t)muon_scratch(c.shape.count())) {}
    void run(const MuonCase& c, const DeviceArray<StepDecision>& decision) {
        const DeviceArray<MuonCopy> copies(c.copies());
        muon_direction(x.data(), scratch.data(), m.data(), grad.data(), c.with(copies), decision.data(),
                       kStream);
    }
};

// Mean and look ahead: at most 6 roundings in either term, and as much again where the second is made of the
// first. A sum of squares adds 4 in fp32, the rest in double; its root and its inverse are rounded once more.
template <typename T, typename Grad>
void check_direction(const MuonCase& c) {
    Directions<T, Grad> t(c);
    const auto decision = decision_of(c);
    t.run(c, decision);
    const int64_t n = c.shape.size();
    Vector m = t.m.values(), x = t.x.values(), m_terms = absolute(m), x_bounds(x.size());
    const Vector grad = t.grad.values(), grad_terms = absolute(grad);
    for (int k = 0; k < c.shape.count(); k++) {
        Vector ahead(n), terms(n);
        muon_momentum_cpu(ahead.data(), &m[c.at(k)], &grad[c.at(k)], n, c.grad_scale);
        muon_momentum_cpu(terms.data(), &m_terms[c.at(k)], &grad_terms[c.at(k)], n, c.grad_scale);
        const double inverse = 1 / (global_norm_cpu(ahead.data(), n) + kNewtonSchulzEps);
        for (int64_t i = 0; i < n; i++) {
            double& due = x[c.direction(k) + i];
            due = inverse * ahead[i];
            x_bounds[c.direction(k) + i] =
                stored<T>(12 * u * inverse * terms[i] + 24 * u * std::fabs(due), due);
        }
    }
    const std::string name = type_names<T, Grad>() + " " + c.text();
    expect_near("muon_direction m " + name, t.m, m, [&](size_t i) { return 6 * u * m_terms[i]; });
    expect_near("muon_direction x " + name, t.x, x, [&](size_t i) { return x_bounds[i]; });
    check_guards("muon_direction scratch " + name, t.scratch);
    expect_unchanged("muon_direction " + name, t.grad, decision);
}

template <typename T>
struct Weights {
    static constexpr bool kSingle = std::is_same_v<T, float>;
    DeviceArray<float>
        weights;  // in fp32 these are param; in bf16 split before an update, and joined after it
    DeviceArray<T> param, x;
    DeviceArray<uint16_t> low;
    explicit Weights(const MuonCase& c)
        : weights(floats(kSingle ? c.param_elements() : c.elements(), 4)),
          param(floats(c.param_elements(), 5)),
          x(floats(c.directions(), 6, 1 / std::sqrt(c.shape.cols))),
          low(std::vector<uint16_t>(c.elements(), 0x1234)) {}
    // what param must be of weights, bit for bit
    std::vector<T> rounded(const MuonCase& c) const {
        const std::vector<float> master = weights.download();
        std::vector<T> due = param.uploaded();
        for (int k = 0; k < c.shape.count(); k++) {
            for (int64_t i = 0; i < c.shape.size(); i++) {
                const uint32_t random =
                    rounding_bits(kRoundingSeed, c.shape.tensor, c.updates, c.number(k) + i);
                const auto bits = std::bit_cast<uint32_t>(master[c.at(k) + i]);
                due[c.param(k) + i] = std::bit_cast<T>(round_stochastically(bits, random));
            }
        }
        return due;
    }
    // f(param, low, weights, shape) for each matrix
    template <typename Visit>
    void for_each_matrix(const MuonCase& c, Visit visit) {
        for (int k = 0; k < c.shape.count(); k++) {
            visit(param.data() + c.param(k), low.data() + c.at(k), weights.data() + c.at(k),
                  AdamWTensor{c.shape.tensor, c.shape.size(), c.number(k)});
        }
    }
    void run(const MuonCase& c, const DeviceArray<StepDecision>& decision) {
        DeviceArray<StepInputs> inputs(std::vector<StepInputs>{step_inputs(kMuonParams, 1)});
        const DeviceArray<MuonCopy> copies(c.copies());
        if constexpr (kSingle) {
            muon_update<float>(weights.data(), nullptr, x.data(), c.with(copies), decision.data(),
                               inputs.data(), kRoundingSeed, kStream);
        } else {
            StepDecision before = decision.download()[0];
            before.updates -= !before.skipped;
            const DeviceArray<StepDecision> then(std::vector<StepDecision>{before});
            for_each_matrix(c, [&](bf16* p, uint16_t* l, float* w, const AdamWTensor& shape) {
                split_weights(p, l, w, shape, then.data(), kRoundingSeed, kStream);
            });
            muon_update(param.data(), low.data(), x.data(), c.with(copies), decision.data(), inputs.data(),
                        kRoundingSeed, kStream);
            for_each_matrix(c, [&](bf16* p, uint16_t* l, float* w, const AdamWTensor& shape) {
                join_weights(w, p, l, shape, decision.data(), kRoundingSeed, kStream);
            });
        }
        expect_unchanged("muon_update", inputs);
    }
    static int64_t at(const MuonCase& c, int k) { return kSingle ? c.param(k) : c.at(k); }
};

// w' = keep w - step x: keep and step are rounded, so are both products and the sum
template <typename T>
void check_muon_update(const MuonCase& c) {
    Weights<T> t(c);
    const auto decision = decision_of(c);
    t.run(c, decision);
    const int64_t n = c.shape.size();
    const MuonParams params{kMuonParams.lr, 1 - kMuonParams.lr * kMuonParams.weight_decay, 1};
    Vector weights = t.weights.values(), bounds(weights.size());
    const Vector x = t.x.values();
    for (int k = 0; k < c.shape.count(); k++) {
        const double step = params.lr * muon_scale(c.shape.rows, c.shape.cols);
        const int64_t at = t.at(c, k);
        for (int64_t i = 0; i < n; i++) {
            const double moved = std::fabs(step * x[c.direction(k) + i]);
            bounds[at + i] = 4 * u * (std::fabs(weights[at + i]) + moved);
        }
        muon_step_cpu(&weights[at], &x[c.direction(k)], n, muon_scale(c.shape.rows, c.shape.cols), params);
    }
    const std::string name = std::string(type_name<T>()) + " " + c.text();
    expect_near("muon_update weights " + name, t.weights, weights, [&](size_t i) { return bounds[i]; });
    expect_unchanged("muon_update " + name, t.x, decision);
    if constexpr (std::is_same_v<T, bf16>) {
        expect_same("muon_update param " + name, t.param, t.rounded(c));
    }
}

}  // namespace

TEST_CASE("muon: mean and direction") {
    for (const MuonCase& c : kMuonCases) {
        check_direction<float, float>(c);
        check_direction<bf16, float>(c);
        check_direction<bf16, bf16>(c);
    }
}

TEST_CASE("muon: update, and bf16 weights bit for bit") {
    for (const MuonCase& c : kMuonCases) {
        check_muon_update<float>(c);
        check_muon_update<bf16>(c);
    }
}

TEST_CASE("muon: nothing where the step is skipped") {
    for (const MuonCase& c : kMuonCases) {
        const auto decision = decision_of(c, true);
        Directions<bf16, float> directions(c);
        directions.run(c, decision);
        expect_unchanged("muon_direction skipped " + c.text(), directions.m, directions.x, directions.grad);
        Weights<bf16> weights(c);
        weights.run(c, decision);
        expect_unchanged("muon_update skipped " + c.text(), weights.weights, weights.x);
        expect_same("muon_update skipped param " + c.text(), weights.param, weights.rounded(c));
    }
}

TEST_CASE("muon: a gradient of zeros is the direction zero, and a long one does not overflow") {
    const MuonCase c = kMuonCases[2];
    for (double size : {0.0, 1e17}) {
        Directions<float, float> t(c, size);
        t.run(c, decision_of(c));
        for (int k = 0; k < c.shape.count(); k++) {
            const Vector x = DeviceArray<float>::widened(t.x.download(c.direction(k), c.shape.size()));
            const double norm = global_norm_cpu(x.data(), c.shape.size());
            CHECK(std::fabs(norm - (size == 0 ? 0 : 1)) <= 1e-5);
        }
    }
}
