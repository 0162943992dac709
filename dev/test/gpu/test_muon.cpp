// Muon's kernels on the GPU: mean, direction, update and its rounding. The products between them:
// test_newton_schulz.cpp.
#include <bit>

#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/ops/muon/muon.h"
#include "llmc/ops/stochastic_rounding.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr uint64_t kSeed = 0x1234'5678'9abc'def0;
constexpr StepParams kParams{.step = 1, .lr = 3e-3, .weight_decay = 0.1};

// The copies are those of the layers first, first + 2, ...; in param they lie twice as far apart as in the
// other arrays, as those of a rank of two.
struct Case {
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
const Case kCases[] = {{{kAttprojw, 8, 8, 1, kNone, 1}, 0, 64, 1, 1},
                       {{kQkvw, 7, 7, 3, kNone, 2}, 2, 192, 9, 0.5f},
                       {{kQkvw, 12, 12, 3, kNone, 2}, 1, 500, 100000, 1},
                       {{kFcw, 20, 5, 1, kNone, 3}, 0, 128, 3, 0.01f},
                       {{kFcprojw, 3, 11, 1, kNone, 2}, 4, 36, 7, 1},
                       {{kFcw, 384, 256, 1, kNone, 2}, 0, 384 * 256 + 64, 2, 0.25f}};

DeviceArray<StepDecision> decision_of(const Case& c, bool skipped = false) {
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
    explicit Directions(const Case& c, double size = 0.01)
        : m(floats(c.elements(), 1, size)),
          grad(floats(c.elements(), 2, 2 * size)),
          x(floats(c.directions(), 3)),
          scratch((int64_t)muon_scratch(c.shape.count())) {}
    void run(const Case& c, const DeviceArray<StepDecision>& decision) {
        const DeviceArray<MuonCopy> copies(c.copies());
        muon_direction(x.data(), scratch.data(), m.data(), grad.data(), c.with(copies), decision.data(),
                       kStream);
    }
};

// Mean and look ahead: at most 6 roundings in either term, and as much again where the second is made of the
// first. A sum of squares adds 4 in fp32, the rest in double; its root and its inverse are rounded once more.
template <typename T, typename Grad>
void check_direction(const Case& c) {
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
    explicit Weights(const Case& c)
        : weights(floats(kSingle ? c.param_elements() : c.elements(), 4)),
          param(floats(c.param_elements(), 5)),
          x(floats(c.directions(), 6, 1 / std::sqrt(c.shape.cols))),
          low(std::vector<uint16_t>(c.elements(), 0x1234)) {}
    // what param must be of weights, bit for bit
    std::vector<T> rounded(const Case& c) const {
        const std::vector<float> master = weights.download();
        std::vector<T> due = param.uploaded();
        for (int k = 0; k < c.shape.count(); k++) {
            for (int64_t i = 0; i < c.shape.size(); i++) {
                const uint32_t random = rounding_bits(kSeed, c.shape.tensor, c.updates, c.number(k) + i);
                const auto bits = std::bit_cast<uint32_t>(master[c.at(k) + i]);
                due[c.param(k) + i] = std::bit_cast<T>(round_stochastically(bits, random));
            }
        }
        return due;
    }
    // f(param, low, weights, shape) for each matrix
    template <typename Visit>
    void for_each_matrix(const Case& c, Visit visit) {
        for (int k = 0; k < c.shape.count(); k++) {
            visit(param.data() + c.param(k), low.data() + c.at(k), weights.data() + c.at(k),
                  AdamWTensor{c.shape.tensor, c.shape.size(), c.number(k)});
        }
    }
    void run(const Case& c, const DeviceArray<StepDecision>& decision) {
        DeviceArray<StepInputs> inputs(std::vector<StepInputs>{step_inputs(kParams, 1)});
        const DeviceArray<MuonCopy> copies(c.copies());
        if constexpr (kSingle) {
            muon_update<float>(weights.data(), nullptr, x.data(), c.with(copies), decision.data(),
                               inputs.data(), kSeed, kStream);
        } else {
            StepDecision before = decision.download()[0];
            before.updates -= !before.skipped;
            const DeviceArray<StepDecision> then(std::vector<StepDecision>{before});
            for_each_matrix(c, [&](bf16* p, uint16_t* l, float* w, const AdamWTensor& shape) {
                split_weights(p, l, w, shape, then.data(), kSeed, kStream);
            });
            muon_update(param.data(), low.data(), x.data(), c.with(copies), decision.data(), inputs.data(),
                        kSeed, kStream);
            for_each_matrix(c, [&](bf16* p, uint16_t* l, float* w, const AdamWTensor& shape) {
                join_weights(w, p, l, shape, decision.data(), kSeed, kStream);
            });
        }
        expect_unchanged("muon_update", inputs);
    }
    static int64_t at(const Case& c, int k) { return kSingle ? c.param(k) : c.at(k); }
};

// w' = keep w - step x: keep and step are rounded, so are both products and the sum
template <typename T>
void check_update(const Case& c) {
    Weights<T> t(c);
    const auto decision = decision_of(c);
    t.run(c, decision);
    const int64_t n = c.shape.size();
    const MuonParams params{kParams.lr, kParams.weight_decay, 1};
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
    for (const Case& c : kCases) {
        check_direction<float, float>(c);
        check_direction<bf16, float>(c);
        check_direction<bf16, bf16>(c);
    }
}

TEST_CASE("muon: update, and bf16 weights bit for bit") {
    for (const Case& c : kCases) {
        check_update<float>(c);
        check_update<bf16>(c);
    }
}

TEST_CASE("muon: nothing where the step is skipped") {
    for (const Case& c : kCases) {
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
    const Case c = kCases[2];
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

TEST_CASE("muon: run again, the same bits") {
    for (const Case& c : kCases) {
        check_rerun("muon_direction " + c.text(), [&] {
            Directions<bf16, bf16> t(c);
            t.run(c, decision_of(c));
            return bytes_of(t.m, t.x);
        });
    }
}
