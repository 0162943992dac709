// Softmax, cross-entropy and its gradient on the GPU against the reference.
#include "dev/test/gpu/classifier_problem.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/classifier/classifier.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

struct ClassifierShape {
    int N, V, Vp, offset;  // offset: elements off the alignment of the logits
    float scale;           // of the logits
    std::string text() const {
        return fmt::format("N={} V={} Vp={} offset={} scale={:g}", N, V, Vp, offset, scale);
    }
};
constexpr ClassifierShape kShapes[] = {
    {1, 1, 1, 0, 1},
    {1, 97, 128, 0, 1},
    {3, 97, 97, 1, 1},
    {17, 257, 320, 0, 10},
    {1000, 257, 257, 1, 1},
    {1023, 65, 65, 0, 100},
    {17, 50257, 50304, 0, 1},
    {17, 50257, 50257, 1, 3},
    {3, 50257, 50257, 0, 0},
    {3, 4097, 4104, 1, 1000},
    // whole 16-byte vectors: in shared memory on Hopper, of one block or several; more rows than fit at once
    {2100, 8200, 8256, 0, 1},
    {5, 53241, 53248, 0, 100},
    {7, 128000, 128256, 0, 3},
    {3, 420001, 420032, 0, 1},
};

// The logits' columns from V on are NaN: they do not count. Row 1 has a single large logit.
Floats make_logits(const ClassifierShape& s) {
    Floats x = floats((int64_t)s.N * s.Vp, 1, s.scale);
    for (int row = 0; row < s.N; row++) {
        for (int v = s.V; v < s.Vp; v++) { x[(size_t)row * s.Vp + v] = NAN; }
    }
    if (s.N > 1) { x[s.Vp + s.V / 2] = 50 * s.scale; }
    return x;
}

// every third is ignored; the others include the first and the last token
std::vector<int32_t> make_targets(const ClassifierShape& s) {
    std::vector<int32_t> targets = random_tokens(s.N, s.V, 2);
    for (int row = 2; row < s.N; row += 3) { targets[row] = kIgnoreTarget; }
    targets[0] = s.V - 1;
    if (s.N > 3) { targets[3] = 0; }
    return targets;
}

struct Truth {
    Vector logits;  // as the kernel reads them
    std::vector<int32_t> targets;
    std::vector<SoftmaxRow> rows;

    template <typename T>
    Truth(const ClassifierShape& s, const DeviceArray<T>& uploaded)
        : logits(uploaded.values()), targets(make_targets(s)), rows(s.N, SoftmaxRow(nullptr, 0, 0)) {
#pragma omp parallel for
        for (int row = 0; row < s.N; row++) {
            rows[row] = SoftmaxRow(&logits[(size_t)row * s.Vp], s.V, additions(row_additions(s.V)));
        }
    }
    Vector losses(const ClassifierShape& s, std::vector<int32_t>& predicted) const {
        Vector x(s.N);
        predicted.resize(s.N);
        classifier_forward_cpu(x.data(), predicted.data(), logits.data(), targets.data(), s.N, s.V, s.Vp);
        return x;
    }
    double loss_bound(const ClassifierShape& s, size_t row) const {
        bool ignored = targets[row] == kIgnoreTarget;
        return ignored ? 0 : rows[row].loss_error(logits[row * s.Vp + targets[row]]);
    }
};

template <typename T>
void check_forward(const ClassifierShape& s) {
    DeviceArray<T> logits(make_logits(s), s.offset);
    Truth p(s, logits);
    DeviceArray<int32_t> targets(p.targets), predicted(s.N);
    DeviceArray<float> losses(s.N);
    classifier_forward(losses.data(), predicted.data(), logits.data(), targets.data(), s.N, s.V, s.Vp,
                       kStream);
    std::vector<int32_t> expected_predicted;
    Vector expected = p.losses(s, expected_predicted);
    std::string shape = fmt::format("{} ", type_name<T>()) + s.text();
    expect_near("classifier_forward losses " + shape, losses, expected,
                [&](size_t i) { return p.loss_bound(s, i); });
    expect_same("classifier_forward predicted " + shape, predicted, expected_predicted);
    expect_unchanged("classifier_forward " + shape, logits, targets);
}

template <typename T>
void check_forward_backward(const ClassifierShape& s) {
    const float dloss = 1.0f / (float)(s.N + 1);
    DeviceArray<T> logits(make_logits(s), s.offset);
    Truth p(s, logits);
    DeviceArray<int32_t> targets(p.targets);
    DeviceArray<float> losses(s.N), weight(Floats{dloss});
    classifier_forward_backward(logits.data(), losses.data(), targets.data(), weight.data(), s.N, s.V, s.Vp,
                                kStream);
    std::vector<int32_t> unused;
    Vector expected = p.losses(s, unused), gradient(logits.size());
    classifier_backward_cpu(gradient.data(), p.logits.data(), p.targets.data(), (double)dloss, s.N, s.V,
                            s.Vp);
    std::string shape = fmt::format("{} ", type_name<T>()) + s.text();
    expect_near("classifier_forward_backward losses " + shape, losses, expected,
                [&](size_t i) { return p.loss_bound(s, i); });
    expect_near("classifier_forward_backward dlogits " + shape, logits, gradient, [&](size_t i) {
        size_t row = i / s.Vp, v = i % s.Vp;
        if ((int)v >= s.V || p.targets[row] == kIgnoreTarget) { return 0.0; }
        return stored<T>(p.rows[row].gradient_error(p.logits[i], p.targets[row] == (int)v, dloss),
                         gradient[i]);
    });
    expect_unchanged("classifier_forward_backward " + shape, targets, weight);
}

}  // namespace

TEST_CASE_TEMPLATE("classifier_forward: losses and predictions", T, float, bf16) {
    for (const ClassifierShape& s : kShapes) { check_forward<T>(s); }
}

TEST_CASE_TEMPLATE("classifier_forward_backward: losses and gradients", T, float, bf16) {
    for (const ClassifierShape& s : kShapes) { check_forward_backward<T>(s); }
}

// else one GPU and several would train to other bits
TEST_CASE_TEMPLATE("classifier: a row by itself has the bits that it has in a batch", T, float, bf16) {
    for (const ClassifierShape& s :
         {ClassifierShape{17, 257, 320, 0, 10}, {17, 50257, 50304, 0, 1}, {7, 128000, 128256, 0, 3}}) {
        auto last_row = [&](int first) {  // of a call for the rows from the first on
            DeviceArray<T> logits(make_logits(s), s.offset);
            DeviceArray<int32_t> targets(make_targets(s));
            DeviceArray<float> losses(s.N), weight(Floats{0.5f});
            classifier_forward_backward(logits.data() + (int64_t)first * s.Vp, losses.data() + first,
                                        targets.data() + first, weight.data(), s.N - first, s.V, s.Vp,
                                        kStream);
            const auto all = logits.download();
            std::vector<float> row(all.end() - s.Vp, all.end());
            row.push_back(losses.download().back());
            return row;
        };
        CAPTURE(s.text());
        CHECK(last_row(0) == last_row(s.N - 1));
    }
}

// GPT-2's vocabulary is a block's row in bf16, two blocks' in fp32
TEST_CASE_TEMPLATE("classifier on Hopper: its kernel is used there, and nowhere else", T, float, bf16) {
    int major = 0;
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    for (int Vp : {8256, 50304, 128256}) {
        DeviceArray<T> logits(floats(Vp, 1), 0);
        DeviceArray<int32_t> targets(std::vector<int32_t>{0});
        DeviceArray<float> losses(1), dloss(Floats{1});
        bool used = classifier_forward_backward_rows(logits.data(), losses.data(), targets.data(),
                                                     dloss.data(), 1, Vp, Vp, kStream);
        CAPTURE(Vp);
        CHECK(used == (major == 9));
    }
}

// N additions in double, in any order
TEST_CASE("sum_losses") {
    for (int64_t N : {1, 3, 17, 1000, 100003}) {
        DeviceArray<float> losses(floats(N, 1));
        Vector x = losses.values(), start = {0.125};
        for (bool accumulate : {false, true}) {
            DeviceArray<double> sum(start);
            sum_losses(sum.data(), losses.data(), N, accumulate, kStream);
            double expected = accumulate ? start[0] : 0, terms = expected;
            for (double v : x) {
                expected += v;
                terms += std::fabs(v);
            }
            expect_near(fmt::format("sum_losses sum {} N={}", accumulate ? "+=" : "=", (int)N), sum,
                        {expected}, [&](size_t) { return 2 * (double)N * kDoubleRoundoff * terms; });
        }
        expect_unchanged("sum_losses", losses);
    }
}
