// Tests of the CPU reference's backward functions against central differences of its forward ones, all in
// double, and of its optimizer. Gradients that are added to (+=) start from random numbers, those that are
// written (=) from NaN.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/test/support/compare.h"
#include "llmc/model/cpu/reference.h"

using namespace llmc;

namespace {

using Vector = std::vector<double>;
Vector random(int64_t n, uint64_t seed) { return random_vector<double>(n, seed); }
Vector zeros(int64_t n) { return Vector((size_t)n, 0.0); }

}  // namespace

// ---- encoder -----------------------------------------------------------------------------------

TEST_CASE("encoder_backward: central differences, repeated tokens, unused rows untouched") {
    ThreadCount one(1);
    struct {
        int B, T, C;
    } shapes[] = {{1, 1, 1}, {2, 17, 3}, {3, 1, 65}, {2, 5, 17}};
    for (auto [B, T, C] : shapes) {
        constexpr int V = 5;
        std::vector<int32_t> tokens = random_tokens(B * T, V - 1, 1);  // the last token never occurs
        Vector wte = random(V * C, 2), wpe = random((T + 2) * C, 3), dout = random(B * T * C, 4);
        Vector dwte0 = random(V * C, 5), dwpe0 = random((T + 2) * C, 6), dwte = dwte0, dwpe = dwpe0;
        encoder_backward_cpu(dwte.data(), dwpe.data(), dout.data(), tokens.data(), B, T, C);
        auto loss = [&] {
            Vector out = poisoned<double>(B * T * C);
            encoder_forward_cpu(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C);
            return Loss().add(out, dout);
        };
        std::string shape = fmt::format("B={} T={} C={}", B, T, C);
        check_gradient("encoder_backward dwte " + shape, wte, dwte, dwte0, loss);
        check_gradient("encoder_backward dwpe " + shape, wpe, dwpe, dwpe0, loss);
        check_same("encoder_backward dwte of an unused token " + shape, Vector(dwte.end() - C, dwte.end()),
                   Vector(dwte0.end() - C, dwte0.end()));
        check_same("encoder_backward dwpe past T " + shape, Vector(dwpe.end() - 2 * C, dwpe.end()),
                   Vector(dwpe0.end() - 2 * C, dwpe0.end()));
    }
}

// ---- layernorm ---------------------------------------------------------------------------------

namespace {

struct Norm {
    int64_t N;
    int C;
    Vector inp, weight, bias, dout;
    Vector out, mean, rstd;
    Norm(int64_t N, int C)
        : N(N),
          C(C),
          inp(random(N * C, 1)),
          weight(random(C, 2)),
          bias(random(C, 3)),
          dout(random(N * C, 4)),
          out(poisoned<double>(N * C)),
          mean(poisoned<double>(N)),
          rstd(poisoned<double>(N)) {
        forward(weight.data(), bias.data());
    }
    void forward(const double* w, const double* b) {
        layernorm_forward_cpu(out.data(), mean.data(), rstd.data(), inp.data(), w, b, N, C, kLayernormEps);
    }
    Loss loss(const double* w, const double* b) const {
        Vector y = poisoned<double>(N * C);
        layernorm_forward_cpu(y.data(), (double*)nullptr, (double*)nullptr, inp.data(), w, b, N, C,
                              kLayernormEps);
        return Loss().add(y, dout);
    }
    void backward(double* dinp, double* dweight, double* dbias, const double* w, bool accumulate) const {
        layernorm_backward_cpu(dinp, dweight, dbias, dout.data(), inp.data(), w, mean.data(), rstd.data(), N,
                               C, accumulate);
    }
    std::string named(const char* tensor) const {
        return fmt::format("layernorm_backward {} N={} C={}", tensor, (int)N, C);
    }
};

struct RowShape {
    int64_t N;
    int C;
};
constexpr RowShape kRowShapes[] = {{1, 1}, {1, 3}, {4, 1}, {3, 65}, {17, 3}, {2, 129}, {1, 64}};

}  // namespace

TEST_CASE("layernorm_backward: central differences, written and accumulated") {
    ThreadCount one(1);
    for (auto [N, C] : kRowShapes) {
        Norm n(N, C);
        auto loss = [&] { return n.loss(n.weight.data(), n.bias.data()); };
        for (bool accumulate : {false, true}) {
            auto start = [&](int64_t size, uint64_t seed) {
                return accumulate ? random(size, seed) : zeros(size);
            };
            Vector dinp0 = start(N * C, 5), dweight0 = start(C, 6), dbias0 = start(C, 7);
            Vector dinp = accumulate ? dinp0 : poisoned<double>(N * C);
            Vector dweight = accumulate ? dweight0 : poisoned<double>(C);
            Vector dbias = accumulate ? dbias0 : poisoned<double>(C);
            n.backward(dinp.data(), dweight.data(), dbias.data(), n.weight.data(), accumulate);
            INFO("accumulate ", accumulate);
            check_gradient(n.named("dinp"), n.inp, dinp, dinp0, loss);
            check_gradient(n.named("dweight"), n.weight, dweight, dweight0, loss);
            check_gradient(n.named("dbias"), n.bias, dbias, dbias0, loss);
        }
    }
}

TEST_CASE("layernorm_backward: no weight is a weight of 1; outputs that are not wanted change nothing else") {
    ThreadCount one(1);
    Norm n(3, 65);
    Vector ones(65, 1.0), dinp = poisoned<double>(3 * 65), dinp1 = dinp;
    n.backward(dinp.data(), nullptr, nullptr, nullptr, false);
    n.backward(dinp1.data(), nullptr, nullptr, ones.data(), false);
    check_near("layernorm_backward dinp, weight null, N=3 C=65", dinp, dinp1, [](size_t) { return 1e-14; });
    check_gradient("layernorm_backward dinp, weight null, N=3 C=65", n.inp, dinp, zeros(3 * 65),
                   [&] { return n.loss(nullptr, nullptr); });

    Vector dweight = poisoned<double>(65), dbias = dweight, dweight1 = dweight, dbias1 = dweight;
    n.backward(dinp.data(), dweight.data(), dbias.data(), n.weight.data(), false);
    n.backward(nullptr, dweight1.data(), nullptr, n.weight.data(), false);
    check_same("layernorm_backward dweight alone, N=3 C=65", dweight1, dweight);
    n.backward(nullptr, nullptr, dbias1.data(), n.weight.data(), false);
    check_same("layernorm_backward dbias alone, N=3 C=65", dbias1, dbias);
    n.backward(dinp1.data(), nullptr, nullptr, n.weight.data(), false);
    check_same("layernorm_backward dinp alone, N=3 C=65", dinp1, dinp);
}

TEST_CASE("residual_layernorm_backward: both addends get what the stream brought plus the layernorm's part") {
    ThreadCount one(1);
    for (auto [N, C] : kRowShapes) {
        Vector inp1 = random(N * C, 1), inp2 = random(N * C, 2), weight = random(C, 3), bias = random(C, 4);
        Vector dout = random(N * C, 5), stream = random(N * C, 6);  // the gradients of out and of residual
        Vector residual = poisoned<double>(N * C), out = residual, mean = poisoned<double>(N), rstd = mean;
        auto loss = [&] {
            residual_layernorm_forward_cpu(residual.data(), out.data(), mean.data(), rstd.data(), inp1.data(),
                                           inp2.data(), weight.data(), bias.data(), N, C, kLayernormEps);
            return Loss().add(out, dout).add(residual, stream);
        };
        loss();
        Vector dresidual = stream, dweight0 = random(C, 7), dbias0 = random(C, 8), dweight = dweight0,
               dbias = dbias0;
        residual_layernorm_backward_cpu(dresidual.data(), dweight.data(), dbias.data(), dout.data(),
                                        residual.data(), weight.data(), mean.data(), rstd.data(), N, C);
        std::string shape = fmt::format("N={} C={}", (int)N, C);
        check_gradient("residual_layernorm_backward dresidual by inp1 " + shape, inp1, dresidual,
                       zeros(N * C), loss);
        check_gradient("residual_layernorm_backward dresidual by inp2 " + shape, inp2, dresidual,
                       zeros(N * C), loss);
        check_gradient("residual_layernorm_backward dweight " + shape, weight, dweight, dweight0, loss);
        check_gradient("residual_layernorm_backward dbias " + shape, bias, dbias, dbias0, loss);
    }
}

// ---- matmul ------------------------------------------------------------------------------------

TEST_CASE("matmul_backward: central differences, with and without bias") {
    ThreadCount one(1);
    struct {
        int N, C, OC;
    } shapes[] = {{1, 1, 1}, {3, 65, 5}, {17, 3, 66}, {4, 8, 8}, {1, 3, 1}};
    for (auto [N, C, OC] : shapes) {
        for (bool with_bias : {true, false}) {
            Vector inp = random(N * C, 1), weight = random(OC * C, 2), bias = random(OC, 3),
                   dout = random(N * OC, 4);
            Vector dweight0 = random(OC * C, 5), dbias0 = random(OC, 6), dweight = dweight0, dbias = dbias0;
            Vector dinp = poisoned<double>(N * C);
            matmul_backward_cpu(dinp.data(), dweight.data(), with_bias ? dbias.data() : nullptr, dout.data(),
                                inp.data(), weight.data(), N, C, OC);
            auto loss = [&] {
                Vector out = poisoned<double>(N * OC);
                matmul_forward_cpu(out.data(), inp.data(), weight.data(), with_bias ? bias.data() : nullptr,
                                   N, C, OC);
                return Loss().add(out, dout);
            };
            std::string shape = fmt::format("{}N={} C={} OC={}", with_bias ? "" : "without bias ", N, C, OC);
            check_gradient("matmul_backward dinp " + shape, inp, dinp, zeros(N * C), loss);
            check_gradient("matmul_backward dweight " + shape, weight, dweight, dweight0, loss);
            if (with_bias) { check_gradient("matmul_backward dbias " + shape, bias, dbias, dbias0, loss); }
        }
    }
}

TEST_CASE("bias_backward: rows further apart than they are long") {
    ThreadCount one(1);
    struct {
        int N, OC, stride;
    } shapes[] = {{1, 1, 1}, {17, 5, 8}, {3, 65, 65}, {5, 129, 200}};
    for (auto [N, OC, stride] : shapes) {
        Vector dout = poisoned<double>((int64_t)N * stride), start = random(OC, 1), dbias = start,
               expected = start;
        for (int row = 0; row < N; row++) {
            for (int o = 0; o < OC; o++) {  // whole numbers: exact in any order
                dout[row * stride + o] = (row * 7 + o * 3) % 11 - 5;
                expected[o] += dout[row * stride + o];
            }
        }
        bias_backward_cpu(dbias.data(), dout.data(), N, OC, stride);
        check_near(fmt::format("bias_backward dbias N={} OC={} stride={}", N, OC, stride), dbias, expected,
                   [&](size_t) { return 2 * N * kDoubleRoundoff * (5.0 * N + 4); });
    }
}

// ---- attention ---------------------------------------------------------------------------------

TEST_CASE("attention_backward: central differences") {
    ThreadCount one(1);
    struct {
        int B, T, C, NH;
    } shapes[] = {{1, 1, 3, 1}, {2, 17, 12, 3}, {1, 17, 1, 1}, {2, 5, 65, 1}, {1, 2, 6, 3}};
    for (auto [B, T, C, NH] : shapes) {
        int64_t n = (int64_t)B * T * C;
        Vector qkv = random(3 * n, 1), dout = random(n, 2), out = poisoned<double>(n),
               lse = poisoned<double>(B * NH * T);
        auto loss = [&] {
            attention_forward_cpu(out.data(), lse.data(), qkv.data(), B, T, C, NH);
            return Loss().add(out, dout);
        };
        loss();
        Vector dqkv = poisoned<double>(3 * n);
        attention_backward_cpu(dqkv.data(), dout.data(), qkv.data(), out.data(), lse.data(), B, T, C, NH);
        check_gradient(fmt::format("attention_backward dqkv B={} T={} C={} NH={}", B, T, C, NH), qkv, dqkv,
                       zeros(3 * n), loss);
    }
}

// ---- gelu --------------------------------------------------------------------------------------

TEST_CASE("gelu_backward: central differences; dinp may be dout; finite far out") {
    ThreadCount one(1);
    for (int n : {1, 2, 17, 241}) {
        Vector inp(n), dout = random(n, 1), dinp = poisoned<double>(n);
        for (int i = 0; i < n; i++) { inp[i] = 0.05 * (i - n / 2); }  // -6 to 6, 0 among them
        gelu_backward_cpu(dinp.data(), dout.data(), inp.data(), n);
        auto loss = [&] {
            Vector out = poisoned<double>(n);
            gelu_forward_cpu(out.data(), inp.data(), n);
            return Loss().add(out, dout);
        };
        check_gradient(fmt::format("gelu_backward dinp n={}", n), inp, dinp, zeros(n), loss);
        Vector in_place = dout;
        gelu_backward_cpu(in_place.data(), in_place.data(), inp.data(), n);
        check_same(fmt::format("gelu_backward dinp in place n={}", n), in_place, dinp);
    }
    for (float x : {1e3f, 1e10f, -1e3f, -1e6f}) {
        float one_f = 1, dinp = NAN;
        gelu_backward_cpu(&dinp, &one_f, &x, 1);
        CHECK_MESSAGE(std::fabs(dinp - (x > 0)) < 1e-15,
                      fmt::format("gelu_backward dinp n=1: found {:g} for x = {:g}", dinp, x));
    }
}

// ---- classifier --------------------------------------------------------------------------------

TEST_CASE("classifier_backward: central differences, ignored rows, padded columns") {
    ThreadCount one(1);
    struct {
        int N, V, Vp;
    } shapes[] = {{1, 5, 8}, {17, 5, 8}, {3, 1, 1}, {4, 65, 65}, {2, 33, 64}};
    for (auto [N, V, Vp] : shapes) {
        constexpr double kLossWeight = 0.25;
        std::vector<int32_t> targets = random_tokens(N, V, 1);
        for (int row = 2; row < N; row += 3) { targets[row] = kIgnoreTarget; }
        Vector logits = random((int64_t)N * Vp, 2), dlogits = poisoned<double>((int64_t)N * Vp);
        for (int row = 0; row < N; row++) {  // what is in the padding must not be read
            std::fill(logits.begin() + row * Vp + V, logits.begin() + (row + 1) * Vp, NAN);
        }
        classifier_backward_cpu(dlogits.data(), logits.data(), targets.data(), kLossWeight, N, V, Vp);
        auto loss = [&] {
            Vector losses = poisoned<double>(N);
            classifier_forward_cpu(losses.data(), nullptr, logits.data(), targets.data(), N, V, Vp);
            return Loss().add(losses, Vector(N, kLossWeight));
        };
        std::string name = fmt::format("classifier_backward dlogits N={} V={} Vp={}", N, V, Vp);
        check_gradient(name, logits, dlogits, zeros((int64_t)N * Vp), loss);
        for (int row = 0; row < N; row++) {  // exactly zero where nothing can be learnt
            int first = targets[row] == kIgnoreTarget ? 0 : V;
            check_same(fmt::format("{} row {} from column {}", name, row, first),
                       Vector(dlogits.begin() + row * Vp + first, dlogits.begin() + (row + 1) * Vp),
                       zeros(Vp - first));
        }
        Vector in_place = logits;
        classifier_backward_cpu(in_place.data(), in_place.data(), targets.data(), kLossWeight, N, V, Vp);
        check_same(name + " in place", in_place, dlogits);
    }
}

TEST_CASE("classifier_backward: logits of 1e4 give probabilities, not overflow") {
    ThreadCount one(1);
    std::vector<float> logits = {1e4f, -1e4f, 1e4f}, dlogits = poisoned<float>(3);
    std::vector<int32_t> targets = {1};
    classifier_backward_cpu(dlogits.data(), logits.data(), targets.data(), 1.0, 1, 3, 3);
    check_near("classifier_backward dlogits N=1 V=3 Vp=3", dlogits, Vector{0.5, -1, 0.5},
               [](size_t) { return 4 * kFloatRoundoff; });
}

// ---- optimizer ---------------------------------------------------------------------------------

TEST_CASE("adamw: several updates against the paper's order of operations") {
    ThreadCount one(1);
    for (int n : {1, 17, 100}) {
        Vector param = random_vector<double>(n, 1), m(n, 0.0), v(n, 0.0), p = param, m2 = m, v2 = v;
        AdamWParams options{.lr = 0.01,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .eps = 1e-8,
                            .weight_decay = 0.1,
                            .grad_scale = 0.5,
                            .update = 0};
        for (int update = 1; update <= 5; update++) {
            Vector grad = random_vector<double>(n, 10 + update);
            options.update = update;
            adamw_cpu(param.data(), m.data(), v.data(), grad.data(), n, options);
            for (int i = 0; i < n; i++) {
                double g = grad[i] * 0.5;
                p[i] -= 0.01 * 0.1 * p[i];
                m2[i] += (1 - 0.9) * (g - m2[i]);
                v2[i] += (1 - 0.95) * (g * g - v2[i]);
                double first = m2[i] / (1 - std::pow(0.9, update));
                double second = v2[i] / (1 - std::pow(0.95, update));
                p[i] -= 0.01 * first / (std::sqrt(second) + 1e-8);
            }
        }
        auto bound = [](size_t) { return 100 * kDoubleRoundoff; };  // 5 updates of 20 roundings
        check_near(fmt::format("adamw param n={}", n), param, p, bound);
        check_near(fmt::format("adamw m n={}", n), m, m2, bound);
        check_near(fmt::format("adamw v n={}", n), v, v2, bound);
    }
}

TEST_CASE("adamw: the first update moves every parameter by the learning rate, against its gradient's sign") {
    ThreadCount one(1);
    Vector grad = {1e-3, -5, 100, -1e-4, 0}, param(5, 1.0), m(5, 0.0), v(5, 0.0);
    AdamWParams options{.lr = 0.01,
                        .beta1 = 0.9,
                        .beta2 = 0.999,
                        .eps = 1e-12,
                        .weight_decay = 0,
                        .grad_scale = 1,
                        .update = 1};
    adamw_cpu(param.data(), m.data(), v.data(), grad.data(), 5, options);
    check_near("adamw param n=5", param, Vector{0.99, 1.01, 0.99, 1.01, 1},
               [](size_t) { return 0.01 * 2e-8; });
    options.weight_decay = 0.5;  // decoupled: the same pull whatever the gradient
    Vector decayed = {2.0}, zero = {0.0}, m1 = {0.0}, v1 = {0.0};
    adamw_cpu(decayed.data(), m1.data(), v1.data(), zero.data(), 1, options);
    check_near("adamw param, decay alone, n=1", decayed, Vector{2 * (1 - 0.01 * 0.5)},
               [](size_t) { return 1e-15; });
}

TEST_CASE("global_norm: 3-4-5, nothing, and many chunks") {
    ThreadCount one(1);
    std::vector<float> three_four = {3, -4};
    CHECK(global_norm_cpu(three_four.data(), 2) == 5);
    CHECK(global_norm_cpu(three_four.data(), 0) == 0);
    for (int64_t n : {65535, 65536, 65537, 200000}) {
        std::vector<float> x((size_t)n, 2.0f);
        x.back() = 1000;  // the sum of squares is a whole number: exact
        double expected = std::sqrt(4.0 * (double)(n - 1) + 1e6), found = global_norm_cpu(x.data(), n);
        CHECK_MESSAGE(found == expected, fmt::format("global_norm n={}: found {:.17g} expected {:.17g}",
                                                     (int)n, found, expected));
    }
    std::vector<float> bad = {1, INFINITY, 1};
    CHECK(std::isinf(global_norm_cpu(bad.data(), 3)));
    bad[1] = NAN;
    CHECK(std::isnan(global_norm_cpu(bad.data(), 3)));
}
