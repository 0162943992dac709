// Layers in single precision against the reference in double on the same inputs: the reference itself, which must also give
// the same bits whatever the number of threads, and the CPU model's fast matmul, attention and exp. Bounds are derived from
// the roundings: u = 2^-24 is one of them; where sums are made in double a result is rounded once, when it is stored
// (kStored has 1 % of slack for the double arithmetic before it); a float sum of K products errs by at most (K + 2) u sum |a b|,
// whatever its order.
#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "dev/cuda/attention_bounds.h"
#include "dev/test/support/compare.h"
#include "llmc/host/base/floats.h"
#include "llmc/model/cpu/blas.h"
#include "llmc/model/cpu/reference.h"

using namespace llmc;

namespace {

using Vector = std::vector<double>;
using Floats = std::vector<float>;

constexpr double u = kFloatRoundoff, kStored = 1.01 * u;

// every element is the double result, rounded
void check_rounded(const std::string& name, const Floats& found, const Vector& expected) {
    check_near(name, found, expected, [&](size_t i) { return kStored * std::fabs(expected[i]) + 1e-45; });
}

Floats floats(int64_t n, uint64_t seed) { return random_vector<float>(n, seed); }
// the same numbers in either type
template <typename Real>
std::vector<Real> numbers(int64_t n, uint64_t seed) {
    return convert<Real>(floats(n, seed));
}

// targets, every third of them ignored
std::vector<int32_t> some_targets(int N, int V) {
    std::vector<int32_t> targets = random_tokens(N, V, 9);
    for (int row = 2; row < N; row += 3) { targets[row] = kIgnoreTarget; }
    return targets;
}

template <typename Real>
using Outputs = std::vector<std::vector<Real>>;

template <typename Real>
struct Norm {
    const int N, C;
    std::vector<Real> inp = numbers<Real>(N * C, 1), weight = numbers<Real>(C, 2), bias = numbers<Real>(C, 3),
                      dout = numbers<Real>(N * C, 4), out = poisoned<Real>(N * C), mean = poisoned<Real>(N),
                      rstd = mean, dinp = numbers<Real>(N * C, 5), dweight = numbers<Real>(C, 6),
                      dbias = numbers<Real>(C, 7);
    Norm(int N, int C) : N(N), C(C) {
        layernorm_forward_cpu(out.data(), mean.data(), rstd.data(), inp.data(), weight.data(), bias.data(), N,
                              C, kLayernormEps);
    }
    void backward(bool accumulate) {
        layernorm_backward_cpu(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(),
                               weight.data(), mean.data(), rstd.data(), N, C, accumulate);
    }
    Outputs<Real> forward_outputs() const { return {out, mean, rstd}; }
    Outputs<Real> gradients() const { return {dinp, dweight, dbias}; }
};

template <typename Real>
struct Attention {
    const int B, T, C, NH;
    std::vector<Real> qkv = numbers<Real>(3 * B * T * C, 1), dout = numbers<Real>(B * T * C, 2),
                      out = poisoned<Real>(B * T * C), lse = poisoned<Real>(B * NH * T),
                      dqkv = poisoned<Real>(3 * B * T * C);
    Attention(int B, int T, int C, int NH) : B(B), T(T), C(C), NH(NH) {
        attention_forward_cpu(out.data(), lse.data(), qkv.data(), B, T, C, NH);
    }
    void backward() {
        attention_backward_cpu(dqkv.data(), dout.data(), qkv.data(), out.data(), lse.data(), B, T, C, NH);
    }
};

template <typename Real>
Outputs<Real> matmul(int N, int C, int OC) {
    auto inp = numbers<Real>(N * C, 1), weight = numbers<Real>(OC * C, 2), bias = numbers<Real>(OC, 3),
         dout = numbers<Real>(N * OC, 4), out = poisoned<Real>(N * OC), dinp = poisoned<Real>(N * C),
         dweight = numbers<Real>(OC * C, 5), dbias = numbers<Real>(OC, 6);
    matmul_forward_cpu(out.data(), inp.data(), weight.data(), bias.data(), N, C, OC);
    matmul_backward_cpu(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(), N,
                        C, OC);
    return {out, dinp, dweight, dbias};
}

// the same of several outputs
void check_rounded(const std::string& layer, std::initializer_list<const char*> names,
                   const std::string& shape, const Outputs<float>& found, const Outputs<double>& expected) {
    REQUIRE(found.size() == names.size());
    for (size_t i = 0; i < found.size(); i++) {
        check_rounded(fmt::format("{} {} {}", layer, names.begin()[i], shape), found[i], expected[i]);
    }
}

}  // namespace

// ---- float against double ----------------------------------------------------------------------

TEST_CASE("float against double: encoder, layernorm, residual") {
    const int N = 7, C = 65;
    Norm<float> f(N, C);
    Norm<double> d(N, C);
    check_rounded("layernorm_forward<float>", {"out", "mean", "rstd"}, "N=7 C=65", f.forward_outputs(),
                  d.forward_outputs());
    for (bool accumulate : {true, false}) {
        d.mean = convert<double>(f.mean);  // both read the statistics that float has stored
        d.rstd = convert<double>(f.rstd);
        d.dinp = convert<double>(f.dinp);
        d.dweight = convert<double>(f.dweight);
        d.dbias = convert<double>(f.dbias);
        f.backward(accumulate);
        d.backward(accumulate);
        check_rounded("layernorm_backward<float>", {"dinp", "dweight", "dbias"}, "N=7 C=65", f.gradients(),
                      d.gradients());
    }
    std::vector<int32_t> tokens = random_tokens(6, 5, 1);
    Floats wte = floats(5 * C, 1), wpe = floats(3 * C, 2), out(6 * C);
    Vector wte_d = convert<double>(wte), wpe_d = convert<double>(wpe), out_d(6 * C);
    encoder_forward_cpu(out.data(), tokens.data(), wte.data(), wpe.data(), 2, 3, C);
    encoder_forward_cpu(out_d.data(), tokens.data(), wte_d.data(), wpe_d.data(), 2, 3, C);
    check_rounded("encoder_forward<float> out B=2 T=3 C=65", out, out_d);
    Floats residual(6 * C), y(6 * C), mean(6), rstd(6);
    residual_layernorm_forward_cpu(residual.data(), y.data(), mean.data(), rstd.data(), out.data(),
                                   f.dout.data(), (float*)nullptr, (float*)nullptr, 6, C, kLayernormEps);
    for (int i = 0; i < 6 * C; i++) { out_d[i] = (double)out[i] + f.dout[i]; }
    check_rounded("residual_layernorm_forward<float> residual N=6 C=65", residual, out_d);
    Vector rounded = convert<double>(residual), y_d(6 * C);
    layernorm_forward_cpu(y_d.data(), (double*)nullptr, (double*)nullptr, rounded.data(), (double*)nullptr,
                          (double*)nullptr, 6, C, kLayernormEps);
    check_rounded("residual_layernorm_forward<float> out N=6 C=65", y, y_d);
}

TEST_CASE("float against double: matmul and attention") {
    check_rounded("matmul<float>", {"out", "dinp", "dweight", "dbias"}, "N=17 C=65 OC=5",
                  matmul<float>(17, 65, 5), matmul<double>(17, 65, 5));
    Attention<float> a(2, 17, 12, 3);
    Attention<double> b(2, 17, 12, 3);
    check_rounded("attention_forward<float>", {"out", "lse"}, "B=2 T=17 C=12 NH=3", {a.out, a.lse},
                  {b.out, b.lse});
    b.out = convert<double>(a.out);
    b.lse = convert<double>(a.lse);
    a.backward();
    b.backward();
    check_rounded("attention_backward<float> dqkv B=2 T=17 C=12 NH=3", a.dqkv, b.dqkv);
}

TEST_CASE("float against double: gelu") {
    const int n = 2001;
    Floats x(n), out(n), dinp(n), dout = floats(n, 1);
    for (int i = 0; i < n; i++) { x[i] = 0.012f * (float)(i - n / 2); }  // -12 to 12
    Vector xd = convert<double>(x), yd(n), dinp_d(n), dout_d = convert<double>(dout);
    gelu_forward_cpu(out.data(), x.data(), n);
    gelu_forward_cpu(yd.data(), xd.data(), n);
    gelu_backward_cpu(dinp.data(), dout.data(), x.data(), n);
    gelu_backward_cpu(dinp_d.data(), dout_d.data(), xd.data(), n);
    // z takes 8 roundings, e = exp(z) hands on |z| times their size and adds 4u; s = 1 / (1 + e) takes
    // (1 - s) of e's error and 2 roundings more
    auto of_z = [&](size_t i) {
        return std::min(80.0, kGeluScale * (std::fabs(xd[i]) + kGeluCubic * std::pow(std::fabs(xd[i]), 3)));
    };
    auto of_e = [&](size_t i) { return u * (8 * of_z(i) + 4); };
    auto s_of = [&](size_t i) { return 1 / (1 + std::exp(xd[i] < 0 ? of_z(i) : -of_z(i))); };
    auto of_s = [&](size_t i) { return (1 - s_of(i)) * of_e(i) + 2 * u; };
    check_near("gelu_forward<float> out n=2001", out, yd,
               [&](size_t i) { return std::fabs(yd[i]) * (of_s(i) + u) + 1e-37; });
    // the slope: s plus a product of s twice, e and 8 roundings; the two can cancel
    check_near("gelu_backward<float> dinp n=2001", dinp, dinp_d, [&](size_t i) {
        double s = s_of(i), slope = kGeluScale * (1 + 3 * kGeluCubic * xd[i] * xd[i]);
        double second = std::fabs(xd[i]) * s * (1 - s) * slope;
        return std::fabs(dout_d[i]) * (s * of_s(i) + second * (2 * of_s(i) + of_e(i) + 8 * u)) +
               2 * u * std::fabs(dinp_d[i]) + 1e-37;
    });
}

TEST_CASE("float against double: classifier") {
    const int N = 9, V = 65, Vp = 128;
    constexpr double kLossWeight = 0.125;
    std::vector<int32_t> targets = some_targets(N, V);
    Floats logits = random_vector<float>(N * Vp, 1, 5), losses(N), dlogits(N * Vp);
    Vector logits_d = convert<double>(logits), losses_d(N), dlogits_d(N * Vp), off(N), p(N * Vp),
           delta(N * Vp);
    classifier_forward_cpu(losses.data(), nullptr, logits.data(), targets.data(), N, V, Vp);
    classifier_forward_cpu(losses_d.data(), nullptr, logits_d.data(), targets.data(), N, V, Vp);
    classifier_backward_cpu(dlogits.data(), logits.data(), targets.data(), kLossWeight, N, V, Vp);
    classifier_backward_cpu(dlogits_d.data(), logits_d.data(), targets.data(), kLossWeight, N, V, Vp);
    // exp(x - largest): the difference rounds, exp costs 4u; the sum errs by the p-weighted average of that
    for (int row = 0; row < N; row++) {
        const double* x = logits_d.data() + row * Vp;
        double largest = *std::max_element(x, x + V), total = 0;
        for (int v = 0; v < V; v++) { total += std::exp(x[v] - largest); }
        for (int v = 0; v < V; v++) {
            p[row * Vp + v] = std::exp(x[v] - largest) / total;
            delta[row * Vp + v] = u * (largest - x[v] + 4);
            off[row] += p[row * Vp + v] * delta[row * Vp + v];
        }
    }
    check_near("classifier_forward<float> losses N=9 V=65 Vp=128", losses, losses_d,
               [&](size_t row) { return 1.01 * off[row] + kStored * std::fabs(losses_d[row]); });
    check_near("classifier_backward<float> dlogits N=9 V=65 Vp=128", dlogits, dlogits_d, [&](size_t i) {
        double target = targets[i / Vp] == (int)(i % Vp) ? 2 * u : 0;
        return kLossWeight * (1.01 * p[i] * (delta[i] + off[i / Vp] + 2 * u) + target);
    });
}

TEST_CASE("float against double: adamw and global_norm") {
    const int n = 1000;
    Floats param = floats(n, 1), m = floats(n, 2), v(n), grad = floats(n, 4);
    for (int i = 0; i < n; i++) { v[i] = m[i] * m[i] + 0.01f; }
    Vector param_d = convert<double>(param), m_d = convert<double>(m), v_d = convert<double>(v),
           grad_d = convert<double>(grad);
    Vector before = param_d, m_before = m_d;
    AdamWParams options{.lr = 0.1,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1,
                        .grad_scale = 0.3,
                        .update = 3};
    adamw_cpu(param.data(), m.data(), v.data(), grad.data(), n, options);
    adamw_cpu(param_d.data(), m_d.data(), v_d.data(), grad_d.data(), n, options);
    // each term of m takes at most 5 roundings, of v (positive) 8; the step m / sqrt(v) takes 4 + 8 more
    auto m_bound = [&](size_t i) {
        return 5 * u * (0.9 * std::fabs(m_before[i]) + 0.1 * 0.3 * std::fabs(grad_d[i]));
    };
    check_near("adamw<float> m n=1000", m, m_d, m_bound);
    check_near("adamw<float> v n=1000", v, v_d, [&](size_t i) { return 8 * u * v_d[i]; });
    check_near("adamw<float> param n=1000", param, param_d, [&](size_t i) {
        double step = 0.1 / (1 - std::pow(0.9, 3)) / std::sqrt(v_d[i] / (1 - std::pow(0.95, 3)));
        return step * (m_bound(i) + 12 * u * std::fabs(m_d[i])) + 4 * u * std::fabs(before[i]);
    });
    CHECK(global_norm_cpu(grad.data(), n) ==
          doctest::Approx(global_norm_cpu(grad_d.data(), n)).epsilon(1e-14));
}

// ---- threads -----------------------------------------------------------------------------------

namespace {

// run() returns every output; it must not depend on the number of threads by a single bit
template <typename Run>
void check_threads(const char* name, Run run) {
    auto with = [&](int threads) {
        ThreadCount count(threads);
        return run();
    };
    auto alone = with(1);
    for (int threads : {2, 3}) {
        auto together = with(threads);
        REQUIRE(together.size() == alone.size());
        for (size_t k = 0; k < alone.size(); k++) {
            check_same(fmt::format("{} with {} threads, output {}", name, threads, (int)k), together[k],
                       alone[k]);
        }
    }
}

}  // namespace

TEST_CASE_TEMPLATE("any number of threads gives the same bits: matrix layers", Real, float, double) {
    check_threads("layernorm", [] {
        Norm<Real> n(7, 129);
        n.backward(true);
        return Outputs<Real>{n.out, n.mean, n.rstd, n.dinp, n.dweight, n.dbias};
    });
    check_threads("residual_layernorm", [] {
        Norm<Real> n(7, 129);
        std::vector<Real> residual(7 * 129);
        residual_layernorm_forward_cpu(residual.data(), n.out.data(), n.mean.data(), n.rstd.data(),
                                       n.inp.data(), n.dout.data(), n.weight.data(), n.bias.data(), 7, 129,
                                       kLayernormEps);
        residual_layernorm_backward_cpu(n.dinp.data(), n.dweight.data(), n.dbias.data(), n.dout.data(),
                                        residual.data(), n.weight.data(), n.mean.data(), n.rstd.data(), 7,
                                        129);
        return Outputs<Real>{residual, n.out, n.mean, n.rstd, n.dinp, n.dweight, n.dbias};
    });
    check_threads("matmul", [] { return matmul<Real>(5, 67, 130); });
    check_threads("attention", [] {
        Attention<Real> a(2, 17, 12, 3);
        a.backward();
        return Outputs<Real>{a.out, a.lse, a.dqkv};
    });
}

TEST_CASE_TEMPLATE("any number of threads gives the same bits: elementwise layers and sums", Real, float,
                   double) {
    check_threads("encoder", [] {
        std::vector<int32_t> tokens = random_tokens(34, 5, 1);
        auto wte = numbers<Real>(5 * 33, 1), wpe = numbers<Real>(17 * 33, 2), out = numbers<Real>(34 * 33, 3);
        encoder_backward_cpu(wte.data(), wpe.data(), out.data(), tokens.data(), 2, 17, 33);
        encoder_forward_cpu(out.data(), tokens.data(), wte.data(), wpe.data(), 2, 17, 33);
        return Outputs<Real>{out, wte, wpe};
    });
    check_threads("gelu", [] {
        auto inp = numbers<Real>(1003, 1), dout = numbers<Real>(1003, 2), out = inp;
        gelu_forward_cpu(out.data(), inp.data(), 1003);
        gelu_backward_cpu(dout.data(), dout.data(), inp.data(), 1003);
        return Outputs<Real>{out, dout};
    });
    check_threads("classifier", [] {
        std::vector<int32_t> targets = some_targets(17, 65);
        auto logits = numbers<Real>(17 * 80, 1), losses = poisoned<Real>(17);
        classifier_forward_cpu(losses.data(), nullptr, logits.data(), targets.data(), 17, 65, 80);
        classifier_backward_cpu(logits.data(), logits.data(), targets.data(), 0.1, 17, 65, 80);
        return Outputs<Real>{losses, logits};
    });
    check_threads("adamw", [] {
        auto param = numbers<Real>(1003, 1), m = numbers<Real>(1003, 2), grad = numbers<Real>(1003, 3), v = m;
        for (Real& x : v) { x *= x; }
        adamw_cpu(param.data(), m.data(), v.data(), grad.data(), 1003, {0.1, 0.9, 0.95, 1e-8, 0.1, 0.5, 2});
        return Outputs<Real>{param, m, v};
    });
    check_threads("global_norm", [x = numbers<Real>(200000, 1)] {
        return Outputs<double>{{global_norm_cpu(x.data(), (int64_t)x.size())}};
    });
}

// ---- through a BLAS ----------------------------------------------------------------------------

namespace {

Vector absolute(const Floats& x) {
    Vector y;
    for (float v : x) { y.push_back(std::fabs(v)); }
    return y;
}

// (N,OC) out of rows `stride` apart; all that lies between the rows must still be NaN
Floats without_gaps(const std::string& name, const Floats& x, int N, int OC, int stride) {
    Floats y;
    bool untouched = true;
    for (int row = 0; row < N; row++) {
        y.insert(y.end(), x.begin() + row * stride, x.begin() + row * stride + OC);
        for (int o = OC; o < stride; o++) { untouched = untouched && std::isnan(x[row * stride + o]); }
    }
    CHECK_MESSAGE(untouched, (name + " writes between the rows"));
    return y;
}

}  // namespace

// ---- matmul ------------------------------------------------------------------------------------

TEST_CASE("matmul_forward_blas: against the reference, rows of out further apart too") {
    struct {
        int N, C, OC, ldo;
    } shapes[] = {{1, 1, 1, 1}, {3, 65, 5, 8}, {17, 3, 66, 66}, {64, 128, 97, 128}, {1, 300, 7, 9}};
    for (auto [N, C, OC, ldo] : shapes) {
        Floats inp = floats(N * C, 1), weight = floats(OC * C, 2), bias = floats(OC, 3);
        for (bool with_bias : {true, false}) {
            Floats out = poisoned<float>(N * ldo);
            matmul_forward_blas(out.data(), ldo, inp.data(), weight.data(), with_bias ? bias.data() : nullptr,
                                N, C, OC);
            Vector expected(N * OC), terms(N * OC), b = convert<double>(bias), abs_b = absolute(bias);
            matmul_forward_cpu(expected.data(), convert<double>(inp).data(), convert<double>(weight).data(),
                               with_bias ? b.data() : nullptr, N, C, OC);
            matmul_forward_cpu(terms.data(), absolute(inp).data(), absolute(weight).data(),
                               with_bias ? abs_b.data() : nullptr, N, C, OC);
            std::string name = fmt::format("matmul_forward_blas out {}N={} C={} OC={}",
                                           with_bias ? "" : "without bias ", N, C, OC);
            check_near(name, without_gaps(name, out, N, OC, ldo), expected,
                       [&](size_t i) { return (C + 2) * u * terms[i]; });
        }
    }
}

TEST_CASE("matmul_backward_blas: against the reference, rows of dout further apart too") {
    struct {
        int N, C, OC, ldo;
    } shapes[] = {{1, 1, 1, 1}, {3, 65, 5, 8}, {17, 3, 66, 66}, {64, 128, 97, 128}, {300, 7, 1, 2}};
    for (auto [N, C, OC, ldo] : shapes) {
        Floats inp = floats(N * C, 1), weight = floats(OC * C, 2), packed = floats(N * OC, 4);
        Floats dout = poisoned<float>(N * ldo), dinp = poisoned<float>(N * C);
        for (int row = 0; row < N; row++) {
            std::copy_n(packed.begin() + row * OC, OC, dout.begin() + row * ldo);
        }
        Floats dweight = floats(OC * C, 5), dbias = floats(OC, 6), dweight_alone = dweight;
        Vector dinp_d(N * C), dweight_d = convert<double>(dweight), dbias_d = convert<double>(dbias);
        Vector dinp_terms(N * C), dweight_terms = absolute(dweight), dbias_terms = absolute(dbias);
        matmul_backward_cpu(dinp_d.data(), dweight_d.data(), dbias_d.data(), convert<double>(packed).data(),
                            convert<double>(inp).data(), convert<double>(weight).data(), N, C, OC);
        matmul_backward_cpu(dinp_terms.data(), dweight_terms.data(), dbias_terms.data(),
                            absolute(packed).data(), absolute(inp).data(), absolute(weight).data(), N, C, OC);
        matmul_backward_blas(dinp.data(), dweight.data(), dbias.data(), dout.data(), ldo, inp.data(),
                             weight.data(), N, C, OC);
        std::string shape = fmt::format("N={} C={} OC={}", N, C, OC);
        check_near("matmul_backward_blas dinp " + shape, dinp, dinp_d,
                   [&](size_t i) { return (OC + 2) * u * dinp_terms[i]; });
        auto dweight_bound = [&](size_t i) { return (N + 2) * u * dweight_terms[i]; };
        check_near("matmul_backward_blas dweight " + shape, dweight, dweight_d, dweight_bound);
        check_near("matmul_backward_blas dbias " + shape, dbias, dbias_d,
                   [&](size_t i) { return 2 * u * dbias_terms[i]; });
        matmul_backward_blas(dinp.data(), dweight_alone.data(), nullptr, dout.data(), ldo, inp.data(),
                             weight.data(), N, C, OC);
        check_near("matmul_backward_blas dweight, dbias null, " + shape, dweight_alone, dweight_d,
                   dweight_bound);
    }
}

// ---- attention ---------------------------------------------------------------------------------

TEST_CASE("attention_blas: against the reference, around the blocks of 128 queries") {
    const AttentionShape shapes[] = {{2, 1, 2, 32},   {1, 17, 3, 1},   {1, 127, 1, 64},
                                     {2, 128, 1, 32}, {1, 129, 2, 80}, {1, 300, 1, 64}};
    for (const AttentionShape& s : shapes) {
        int B = s.B, T = s.T, C = s.C(), NH = s.NH;
        Floats qkv = floats(3 * s.elements(), 1), dout = floats(s.elements(), 2);
        Floats out = poisoned<float>(s.elements()), lse = poisoned<float>(B * NH * T);
        Floats scratch = poisoned<float>(attention_scratch_blas(T));
        attention_forward_blas(out.data(), lse.data(), scratch.data(), qkv.data(), B, T, C, NH);
        Vector out_d = poisoned<double>(out.size()), lse_d = poisoned<double>(lse.size()),
               dqkv_d = poisoned<double>(qkv.size());
        attention_forward_cpu(out_d.data(), lse_d.data(), convert<double>(qkv).data(), B, T, C, NH);
        AttentionBounds bounds =
            attention_bounds(s, kAttentionRounding<float>, convert<double>(qkv), convert<double>(dout),
                             convert<double>(out), convert<double>(lse));
        check_near("attention_forward_blas out " + s.text(), out, out_d,
                   [&](size_t i) { return bounds.out[i]; });
        check_near("attention_forward_blas lse " + s.text(), lse, lse_d,
                   [&](size_t i) { return bounds.lse[i]; });

        Floats dqkv = poisoned<float>(qkv.size());
        scratch = poisoned<float>(attention_scratch_blas(T));
        attention_backward_blas(dqkv.data(), scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(),
                                B, T, C, NH);
        attention_backward_cpu(dqkv_d.data(), convert<double>(dout).data(), convert<double>(qkv).data(),
                               convert<double>(out).data(), convert<double>(lse).data(), B, T, C, NH);
        check_near("attention_backward_blas dqkv " + s.text(), dqkv, dqkv_d,
                   [&](size_t i) { return bounds.dqkv[i]; });
    }
}

// ---- exp ---------------------------------------------------------------------------------------

TEST_CASE("exp_simd(float): within 2 ulp from -87 to 88") {
    Floats x;
    for (float v = -87; v <= 88; v += 1.7e-4f) { x.push_back(v); }
    for (int k = -125; k <= 126; k++) {  // around the places where k = round(x / ln 2) changes
        float v = (float)((k + 0.5) * std::log(2.0));
        for (float w : {std::nextafter(v, -100.0f), v, std::nextafter(v, 100.0f)}) { x.push_back(w); }
    }
    for (float v = 1; v > 1e-40f; v /= 3) { x.insert(x.end(), {v, -v}); }
    x.insert(x.end(), {-87.0f, 88.0f, 0.0f, -0.0f});
    Floats y(x.size());
#pragma omp simd
    for (size_t i = 0; i < x.size(); i++) { y[i] = exp_simd(x[i]); }
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < x.size(); i++) {
        double expected = std::exp((double)x[i]), ulp = std::ldexp(1.0, std::ilogb(expected) - 23);
        double off = std::fabs(y[i] - expected) / ulp;
        if (!(off <= worst)) {
            worst = off;
            at = i;
        }
    }
    CHECK_MESSAGE(worst <= 2, fmt::format("exp_simd at {:.9g}: found {:.9g} expected {:.9g}, {:.2f} ulp",
                                          x[at], y[at], std::exp((double)x[at]), worst));
    CHECK(x.size() > 1000000);
}

TEST_CASE("exp_simd(float): the ends, 0 and NaN") {
    CHECK(exp_simd(0.0f) == 1);
    CHECK(exp_simd(-0.0f) == 1);
    CHECK(std::isnan(exp_simd(NAN)));
    for (float x : {-87.1f, -100.0f, -1e30f, -INFINITY}) {
        CHECK(exp_simd(x) >= 0);
        CHECK(exp_simd(x) < 1.7e-38f);
    }
    CHECK(exp_simd(1.0) == std::exp(1.0));
}
