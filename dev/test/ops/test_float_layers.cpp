// Layers in single precision against the reference in double on the same inputs: the reference itself, which must also give
// the same bits whatever the number of threads, and the CPU model's fast matmul, attention and exp. Bounds are derived from
// the roundings: u = 2^-24 is one of them; where sums are made in double a result is rounded once, when it is stored
// (kStored has 1 % of slack for the double arithmetic before it); a float sum of K products errs by at most (K + 2) u sum |a b|,
// whatever its order.
#include <array>
#include <functional>

#include "dev/cuda/attention_problems.h"
#include "dev/test/support/compare.h"
#include "llmc/host/base/floats.h"
#include "llmc/model/cpu/blas.h"
#include "llmc/model/cpu/reference.h"

using namespace llmc;

namespace {

using Vector = std::vector<double>;
using Floats = std::vector<float>;

constexpr double u = kFloatRoundoff, kStored = 1.01 * u;

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

// What a layer makes of the same numbers in either type; its backward, of what the forward stores in float. A residual
// stream's rows are whole numbers, whose sums are exact.
template <typename Real>
Outputs<Real> layernorm(bool residual, bool accumulate) {
    constexpr int N = 7, C = 129;
    auto x = convert<Real>(random_tokens(N * C, 17, 1)), y = convert<Real>(random_tokens(N * C, 19, 2)),
         rows = poisoned<Real>(N * C), weight = numbers<Real>(C, 2), bias = numbers<Real>(C, 3),
         dout = numbers<Real>(N * C, 4), out = poisoned<Real>(N * C), mean = poisoned<Real>(N), rstd = mean,
         dinp = numbers<Real>(N * C, 5), dweight = numbers<Real>(C, 6), dbias = numbers<Real>(C, 7);
    if (residual) {
        residual_layernorm_forward_cpu(rows.data(), out.data(), mean.data(), rstd.data(), x.data(), y.data(),
                                       weight.data(), bias.data(), N, C, kLayernormEps);
    } else {
        rows = numbers<Real>(N * C, 1);
        layernorm_forward_cpu(out.data(), mean.data(), rstd.data(), rows.data(), weight.data(), bias.data(),
                              N, C, kLayernormEps);
    }
    const auto m = convert<Real>(convert<float>(mean)), s = convert<Real>(convert<float>(rstd));
    if (residual) {
        residual_layernorm_backward_cpu(dinp.data(), dweight.data(), dbias.data(), dout.data(), rows.data(),
                                        weight.data(), m.data(), s.data(), N, C);
    } else {
        layernorm_backward_cpu(dinp.data(), dweight.data(), dbias.data(), dout.data(), rows.data(),
                               weight.data(), m.data(), s.data(), N, C, accumulate);
    }
    return {rows, out, mean, rstd, dinp, dweight, dbias};
}

template <typename Real>
Outputs<Real> encoder() {
    const std::vector<int32_t> tokens = random_tokens(34, 5, 1);
    auto wte = numbers<Real>(5 * 33, 1), wpe = numbers<Real>(17 * 33, 2), out = poisoned<Real>(34 * 33);
    encoder_forward_cpu(out.data(), tokens.data(), wte.data(), wpe.data(), 2, 17, 33);
    return {out};
}

template <typename Real>
Outputs<Real> matmul() {
    constexpr int N = 17, C = 67, OC = 130;
    auto inp = numbers<Real>(N * C, 1), weight = numbers<Real>(OC * C, 2), bias = numbers<Real>(OC, 3),
         dout = numbers<Real>(N * OC, 4), out = poisoned<Real>(N * OC), dinp = poisoned<Real>(N * C),
         dweight = numbers<Real>(OC * C, 5), dbias = numbers<Real>(OC, 6);
    matmul_forward_cpu(out.data(), inp.data(), weight.data(), bias.data(), N, C, OC);
    matmul_backward_cpu(dinp.data(), dweight.data(), dbias.data(), dout.data(), inp.data(), weight.data(), N,
                        C, OC);
    return {out, dinp, dweight, dbias};
}

template <typename Real>
Outputs<Real> attention() {
    constexpr int B = 2, T = 17, C = 12, NH = 3;
    auto qkv = numbers<Real>(3 * B * T * C, 1), dout = numbers<Real>(B * T * C, 2),
         out = poisoned<Real>(B * T * C), lse = poisoned<Real>(B * NH * T),
         dqkv = poisoned<Real>(3 * B * T * C);
    attention_forward_cpu(out.data(), lse.data(), qkv.data(), B, T, C, NH);
    const auto o = convert<Real>(convert<float>(out)), l = convert<Real>(convert<float>(lse));
    attention_backward_cpu(dqkv.data(), dout.data(), qkv.data(), o.data(), l.data(), B, T, C, NH);
    return {out, lse, dqkv};
}

template <typename Real>
using Layers = std::vector<std::pair<const char*, std::function<Outputs<Real>()>>>;
template <typename Real>
const Layers<Real> kRounded = {{"layernorm", [] { return layernorm<Real>(false, false); }},
                               {"layernorm, accumulated", [] { return layernorm<Real>(false, true); }},
                               {"residual_layernorm", [] { return layernorm<Real>(true, true); }},
                               {"encoder_forward", encoder<Real>},
                               {"matmul", matmul<Real>},
                               {"attention", attention<Real>}};

}  // namespace

// ---- float against double ----------------------------------------------------------------------

TEST_CASE("float against double: encoder, layernorm, residual, matmul and attention") {
    for (size_t i = 0; i < kRounded<float>.size(); i++) {
        const auto& [name, run] = kRounded<float>[i];
        const Outputs<float> found = run();
        const Outputs<double> expected = kRounded<double>[i].second();
        for (size_t k = 0; k < expected.size(); k++) {
            check_near(fmt::format("{}<float>, output {}", name, k), found[k], expected[k],
                       [&](size_t at) { return kStored * std::fabs(expected[k][at]) + 1e-45; });
        }
    }
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
                        .keep = 1 - 0.1 * 0.1,
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

TEST_CASE_TEMPLATE("any number of threads gives the same bits", Real, float, double) {
    Layers<Real> layers = kRounded<Real>;
    layers.emplace_back("encoder_backward", [] {
        auto wte = numbers<Real>(5 * 33, 1), wpe = numbers<Real>(17 * 33, 2), out = numbers<Real>(34 * 33, 3);
        encoder_backward_cpu(wte.data(), wpe.data(), out.data(), random_tokens(34, 5, 1).data(), 2, 17, 33);
        return Outputs<Real>{wte, wpe};
    });
    layers.emplace_back("gelu", [] {
        auto inp = numbers<Real>(1003, 1), dout = numbers<Real>(1003, 2), out = inp;
        gelu_forward_cpu(out.data(), inp.data(), 1003);
        gelu_backward_cpu(dout.data(), dout.data(), inp.data(), 1003);
        return Outputs<Real>{out, dout};
    });
    layers.emplace_back("classifier", [] {
        std::vector<int32_t> targets = some_targets(17, 65);
        auto logits = numbers<Real>(17 * 80, 1), losses = poisoned<Real>(17);
        classifier_forward_cpu(losses.data(), nullptr, logits.data(), targets.data(), 17, 65, 80);
        classifier_backward_cpu(logits.data(), logits.data(), targets.data(), 0.1, 17, 65, 80);
        return Outputs<Real>{losses, logits};
    });
    layers.emplace_back("adamw", [] {
        auto param = numbers<Real>(1003, 1), m = numbers<Real>(1003, 2), grad = numbers<Real>(1003, 3), v = m;
        for (Real& x : v) { x *= x; }
        adamw_cpu(param.data(), m.data(), v.data(), grad.data(), 1003, {0.1, 0.9, 0.95, 1e-8, 0.99, 0.5, 2});
        return Outputs<Real>{param, m, v};
    });
    layers.emplace_back("global_norm, its bits in three numbers", [] {
        const auto bits = std::bit_cast<uint64_t>(global_norm_cpu(numbers<Real>(200000, 1).data(), 200000));
        return Outputs<Real>{{(Real)(bits >> 44), (Real)(bits >> 22 & 0x3fffff), (Real)(bits & 0x3fffff)}};
    });
    for (const auto& [name, run] : layers) {
        Outputs<Real> alone;
        for (int threads : {1, 2, 3}) {
            ThreadCount count(threads);
            const Outputs<Real> found = run();
            if (threads == 1) { alone = found; }
            for (size_t k = 0; k < alone.size(); k++) {
                check_same(fmt::format("{} with {} threads, output {}", name, threads, k), found[k],
                           alone[k]);
            }
        }
    }
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
    for (auto [N, C, OC, ldo] :
         {std::array{1, 1, 1, 1}, {3, 65, 5, 8}, {17, 3, 66, 66}, {64, 128, 97, 128}, {1, 300, 7, 9}}) {
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
    for (auto [N, C, OC, ldo] :
         {std::array{1, 1, 1, 1}, {3, 65, 5, 8}, {17, 3, 66, 66}, {64, 128, 97, 128}, {300, 7, 1, 2}}) {
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
        check_near("attention_forward_blas out " + s.text(), out, out_d, bounds.out);
        check_near("attention_forward_blas lse " + s.text(), lse, lse_d, bounds.lse);

        Floats dqkv = poisoned<float>(qkv.size());
        scratch = poisoned<float>(attention_scratch_blas(T));
        attention_backward_blas(dqkv.data(), scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(),
                                B, T, C, NH);
        attention_backward_cpu(dqkv_d.data(), convert<double>(dout).data(), convert<double>(qkv).data(),
                               convert<double>(out).data(), convert<double>(lse).data(), B, T, C, NH);
        check_near("attention_backward_blas dqkv " + s.text(), dqkv, dqkv_d, bounds.dqkv);
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
    Vector expected;
    for (float v : x) { expected.push_back(std::exp((double)v)); }
    check_near("exp_simd", y, expected,
               [&](size_t i) { return 2 * std::ldexp(1.0, std::ilogb(expected[i]) - 23); });
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
