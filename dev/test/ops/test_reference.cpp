// The CPU's reference, which everything else is compared with. Forward: a second implementation that does the same in
// another arrangement. Backward: central differences of the forward, all in double. Gradients that are added to
// (+=) start from random numbers, those that are written (=) from NaN.
#include <array>

#include "dev/test/support/compare.h"
#include "llmc/model/cpu/reference.h"

using namespace llmc;

namespace {

using Vector = std::vector<double>;
Vector random(int64_t n, uint64_t seed) { return random_vector<double>(n, seed); }
Vector zeros(int64_t n) { return Vector((size_t)n, 0.0); }

// whole numbers from -8 to 8: sums of their products are exact in any order
template <typename Real>
std::vector<Real> whole_numbers(int64_t n, uint64_t seed) {
    std::vector<Real> x;
    for (int32_t k : random_tokens(n, 17, seed)) { x.push_back((Real)(k - 8)); }
    return x;
}

struct Tokens {
    int B, T, C;
    std::string text() const { return fmt::format("B={} T={} C={}", B, T, C); }
};
constexpr Tokens kTokens[] = {{1, 1, 1}, {2, 17, 3}, {3, 1, 65}};

struct Rows {
    int N, C;
    std::string text() const { return fmt::format("N={} C={}", N, C); }
};
constexpr Rows kRows[] = {{1, 1}, {1, 3}, {5, 1}, {3, 65}, {17, 3}, {2, 129}};

struct Product {
    int N, C, OC;
    bool with_bias;
    std::string text() const {
        return fmt::format("{}N={} C={} OC={}", with_bias ? "" : "without bias ", N, C, OC);
    }
};
constexpr Product kProducts[] = {{1, 1, 1, true},  {3, 65, 5, true},  {17, 3, 66, true}, {1, 300, 2, true},
                                 {1, 1, 1, false}, {3, 65, 5, false}, {17, 3, 66, false}};

struct Heads {
    int B, T, C, NH;
    int64_t elements() const { return (int64_t)B * T * C; }
    std::string text() const { return fmt::format("B={} T={} C={} NH={}", B, T, C, NH); }
};
constexpr Heads kHeads[] = {{1, 1, 3, 1}, {2, 17, 12, 3}, {1, 17, 1, 1}, {2, 5, 65, 1}};

// targets below V, every third of them ignored
std::vector<int32_t> some_targets(int N, int V) {
    std::vector<int32_t> targets = random_tokens(N, V, 1);
    for (int row = 2; row < N; row += 3) { targets[row] = kIgnoreTarget; }
    return targets;
}
// logits, whose padding is not to be read
Vector logits_of(int N, int V, int Vp, double scale) {
    Vector logits = random_vector<double>((int64_t)N * Vp, 2, scale);
    for (int row = 0; row < N; row++) {
        std::fill(logits.begin() + row * Vp + V, logits.begin() + (row + 1) * Vp, NAN);
    }
    return logits;
}

}  // namespace

// ---- encoder ------------------------------------------------------------------------------------

TEST_CASE("encoder_forward: the token's row plus the position's") {
    for (const Tokens& s : kTokens) {
        const auto [B, T, C] = s;
        std::vector<int32_t> tokens = random_tokens(B * T, 5, 1);
        auto wte = whole_numbers<float>(5 * C, 2), wpe = whole_numbers<float>(T * C, 3);
        std::vector<float> out = poisoned<float>(B * T * C), expected;
        for (int b = 0; b < B; b++) {
            for (int t = 0; t < T; t++) {
                for (int c = 0; c < C; c++) {
                    expected.push_back(wte[tokens[b * T + t] * C + c] + wpe[t * C + c]);
                }
            }
        }
        encoder_forward_cpu(out.data(), tokens.data(), wte.data(), wpe.data(), B, T, C);
        check_same("encoder_forward out " + s.text(), out, expected);
    }
}

TEST_CASE("encoder_backward: central differences, repeated tokens, unused rows untouched") {
    for (const Tokens& s : kTokens) {
        const auto [B, T, C] = s;
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
        const std::string shape = s.text();
        check_gradient("encoder_backward dwte " + shape, wte, dwte, dwte0, loss);
        check_gradient("encoder_backward dwpe " + shape, wpe, dwpe, dwpe0, loss);
        check_same("encoder_backward dwte of an unused token " + shape, Vector(dwte.end() - C, dwte.end()),
                   Vector(dwte0.end() - C, dwte0.end()));
        check_same("encoder_backward dwpe past T " + shape, Vector(dwpe.end() - 2 * C, dwpe.end()),
                   Vector(dwpe0.end() - 2 * C, dwpe0.end()));
    }
}

// ---- layernorm ----------------------------------------------------------------------------------

namespace {

struct NormOut {
    Vector out, mean, rstd;
};
template <typename Real>
NormOut layernorm(const std::vector<Real>& inp, const Real* weight, const Real* bias, int N, int C,
                  double eps, bool rms = false) {
    std::vector<Real> out = poisoned<Real>(N * C), mean = poisoned<Real>(N), rstd = poisoned<Real>(N);
    layernorm_forward_cpu(out.data(), mean.data(), rstd.data(), inp.data(), weight, bias, N, C, eps, rms);
    return {convert<double>(out), convert<double>(mean), convert<double>(rstd)};
}

// The same in long double, whose own errors are 2^11 times smaller. `u` is the roundoff of the stored type;
// sums are made in double, eps = 2^-53: the mean errs by (C + 4) eps average|x|, which rstd and weight scale
// on its way to out; the variance, a sum of C squares, errs by (C + 8) eps of itself, twice what rstd then
// does, and by the square of the mean's error; storing costs u. RMSNorm's mean is 0, and has no error.
void check_layernorm(const char* layer, const NormOut& found, const Vector& x, const Vector& w,
                     const Vector& b, int N, int C, double eps, double u, bool rms = false) {
    NormOut expected, bound;
    for (int64_t row = 0; row < N; row++) {
        const double* xr = x.data() + row * C;
        long double m = 0, var = 0, average = 0;
        for (int c = 0; c < C && !rms; c++) {
            m += (long double)xr[c] / C;
            average += std::fabs((long double)xr[c]) / C;
        }
        for (int c = 0; c < C; c++) { var += (xr[c] - m) * (xr[c] - m) / C; }
        long double s = 1 / std::sqrt(var + (long double)eps);
        double mean_error = (C + 4) * kDoubleRoundoff * (double)average, relative = (C + 8) * kDoubleRoundoff;
        expected.mean.push_back((double)m);
        bound.mean.push_back(mean_error + u * std::fabs((double)m));
        expected.rstd.push_back((double)s);
        bound.rstd.push_back((relative + u + std::pow(mean_error * (double)s, 2)) * (double)s);
        for (int c = 0; c < C; c++) {
            double scaled = (double)((xr[c] - m) * s * w[c]), y = (double)((xr[c] - m) * s * w[c] + b[c]);
            expected.out.push_back(y);
            bound.out.push_back(2 * mean_error * std::fabs((double)s * w[c]) +
                                2 * relative * std::fabs(scaled) + 4 * kDoubleRoundoff * std::fabs(b[c]) +
                                (u + kDoubleRoundoff) * std::fabs(y));
        }
    }
    const std::string shape = Rows{N, C}.text(), prefix = layer;
    check_near(prefix + " mean " + shape, found.mean, expected.mean, bound.mean);
    check_near(prefix + " rstd " + shape, found.rstd, expected.rstd, bound.rstd);
    check_near(prefix + " out " + shape, found.out, expected.out, bound.out);
}

}  // namespace

TEST_CASE("layernorm_forward: every shape against long double") {
    CHECK(kLayernormEps == 1e-5);
    std::vector<Rows> shapes(std::begin(kRows), std::end(kRows));
    shapes.insert(shapes.end(), {{2, 768}, {1, 4097}});
    for (auto [N, C] : shapes) {
        Vector x = random(N * C, 1), w = random(C, 2), b = random(C, 3), ones(C, 1.0);
        check_layernorm("layernorm_forward", layernorm(x, w.data(), b.data(), N, C, kLayernormEps), x, w, b,
                        N, C, kLayernormEps, kDoubleRoundoff);
        check_layernorm("layernorm_forward, nulls,", layernorm<double>(x, nullptr, nullptr, N, C, 1e-3), x,
                        ones, zeros(C), N, C, 1e-3, kDoubleRoundoff);
        check_layernorm("layernorm_forward, rms,",
                        layernorm(x, w.data(), b.data(), N, C, kLayernormEps, true), x, w, b, N, C,
                        kLayernormEps, kDoubleRoundoff, true);
        Vector out = poisoned<double>(N * C);
        layernorm_forward_cpu(out.data(), (double*)nullptr, (double*)nullptr, x.data(), w.data(), b.data(), N,
                              C, kLayernormEps);
        check_same("layernorm_forward out, statistics null, " + Rows{N, C}.text(), out,
                   layernorm(x, w.data(), b.data(), N, C, kLayernormEps).out);
    }
}

TEST_CASE("layernorm_forward: a mean a million standard deviations away does not cancel") {
    // mean 1e4, sigma 1e-2: E[x^2] - mean^2 would lose 12 of double's 16 digits, and all of float's
    for (int C : {3, 65, 768}) {
        std::vector<float> x = random_vector<float>(3 * C, 1, 1e-2);
        for (float& v : x) { v += 1e4f; }
        Vector xd = convert<double>(x), ones(C, 1.0);
        check_layernorm("layernorm_forward, mean 1e4,", layernorm<float>(x, nullptr, nullptr, 3, C, 1e-5), xd,
                        ones, zeros(C), 3, C, 1e-5, kFloatRoundoff);
        check_layernorm("layernorm_forward, mean 1e4,", layernorm<double>(xd, nullptr, nullptr, 3, C, 1e-5),
                        xd, ones, zeros(C), 3, C, 1e-5, kDoubleRoundoff);
    }
}

TEST_CASE("layernorm_forward: a constant row gives the bias, exactly") {
    for (int C : {1, 3, 65, 768}) {
        for (float value : {0.0f, 1.0f, -1e4f, 3e-30f, 1e30f}) {  // a sum of C of them is exact in double
            std::vector<float> x(2 * C, value), w = random_vector<float>(C, 1, 100),
                                                b = random_vector<float>(C, 2);
            NormOut y = layernorm(x, w.data(), b.data(), 2, C, kLayernormEps);
            Vector expected = convert<double>(b), bias = expected;
            expected.insert(expected.end(), bias.begin(), bias.end());
            check_same(fmt::format("layernorm_forward out N=2 C={}, rows of {:g}", C, value), y.out,
                       expected);
        }
    }
}

TEST_CASE("residual_layernorm_forward: normalises the rounded sum; residual may be one of the addends") {
    // 1 + 2^-25 rounds to 1 in float, so the rounded row is constant and gives the bias
    std::vector<float> inp1 = {1, 1, 1}, inp2 = {0, 0x1p-25f, -0x1p-26f}, bias = {3, 4, 5};
    std::vector<float> residual = poisoned<float>(3), out = residual, mean = poisoned<float>(1), rstd = mean;
    residual_layernorm_forward_cpu(residual.data(), out.data(), mean.data(), rstd.data(), inp1.data(),
                                   inp2.data(), (float*)nullptr, bias.data(), 1, 3, 1e-30);
    check_same("residual_layernorm_forward residual N=1 C=3", residual, {1, 1, 1});
    check_same("residual_layernorm_forward out N=1 C=3", out, bias);

    auto a = whole_numbers<double>(3 * 65, 1), b = whole_numbers<double>(3 * 65, 2), sum = a;
    for (size_t i = 0; i < sum.size(); i++) { sum[i] += b[i]; }
    NormOut expected = layernorm<double>(sum, nullptr, nullptr, 3, 65, 1e-5);
    for (Vector* in_place : {&a, &b}) {
        Vector before = *in_place, y = poisoned<double>(3 * 65), m = poisoned<double>(3), s = m;
        residual_layernorm_forward_cpu(in_place->data(), y.data(), m.data(), s.data(), a.data(), b.data(),
                                       (double*)nullptr, (double*)nullptr, 3, 65, 1e-5);
        check_same("residual_layernorm_forward residual N=3 C=65", *in_place, sum);
        check_same("residual_layernorm_forward out N=3 C=65", y, expected.out);
        check_same("residual_layernorm_forward mean N=3 C=65", m, expected.mean);
        check_same("residual_layernorm_forward rstd N=3 C=65", s, expected.rstd);
        *in_place = before;
    }
}

namespace {

struct Norm {
    const int N, C;
    const bool rms;
    Vector inp = random(N * C, 1), weight = random(C, 2), bias = random(C, 3), dout = random(N * C, 4);
    NormOut y = forward(weight.data(), bias.data());
    explicit Norm(Rows s, bool rms = false) : N(s.N), C(s.C), rms(rms) {}
    NormOut forward(const double* w, const double* b) const {
        return layernorm(inp, w, b, N, C, kLayernormEps, rms);
    }
    Loss loss(const double* w, const double* b) const { return Loss().add(forward(w, b).out, dout); }
    void backward(double* dinp, double* dweight, double* dbias, const double* w, bool accumulate) const {
        layernorm_backward_cpu(dinp, dweight, dbias, dout.data(), inp.data(), w,
                               rms ? nullptr : y.mean.data(), y.rstd.data(), N, C, accumulate, rms);
    }
    std::string named(const char* tensor) const {
        return fmt::format("layernorm_backward {} N={} C={}{}", tensor, N, C, rms ? " rms" : "");
    }
};

}  // namespace

TEST_CASE("layernorm_backward: central differences, written and accumulated") {
    for (const Rows& s : kRows) {
        const auto [N, C] = s;
        for (int i = 0; i < 4; i++) {
            const bool accumulate = i % 2;
            Norm n(s, i >= 2);
            auto loss = [&] { return n.loss(n.weight.data(), n.bias.data()); };
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
    Norm n({3, 65});
    Vector ones(65, 1.0), dinp = poisoned<double>(3 * 65), dinp1 = dinp;
    n.backward(dinp.data(), nullptr, nullptr, nullptr, false);
    n.backward(dinp1.data(), nullptr, nullptr, ones.data(), false);
    check_near("layernorm_backward dinp, weight null, N=3 C=65", dinp, dinp1, 1e-14);
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
    for (const Rows& s : kRows) {
        const auto [N, C] = s;
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
        const std::string layer = "residual_layernorm_backward ", shape = s.text();
        check_gradient(layer + "dresidual by inp1 " + shape, inp1, dresidual, zeros(N * C), loss);
        check_gradient(layer + "dresidual by inp2 " + shape, inp2, dresidual, zeros(N * C), loss);
        check_gradient(layer + "dweight " + shape, weight, dweight, dweight0, loss);
        check_gradient(layer + "dbias " + shape, bias, dbias, dbias0, loss);
    }
}

// ---- layernorm with each sample's scale and shift ----

// forward by the formula, backward by central differences: without a gate, and with one, where residual has other uses, too
TEST_CASE("layernorm_modulate: the formula, and central differences") {
    for (const Tokens& s : kTokens) {
        for (bool gated : {false, true}) {
            const auto [B, T, C] = s;
            const int64_t n = (int64_t)B * T * C;
            Vector x = random(n, 1), h = random(n, 2), scale = random(B * C, 3), shift = random(B * C, 4);
            Vector gate = random(B * C, 5), dout = random(n, 6), dresidual = random(n, 7);
            Vector out(n), mean(B * T), rstd(B * T), residual = x;
            auto forward = [&] {
                layernorm_modulate_forward_cpu(
                    out.data(), mean.data(), rstd.data(), gated ? residual.data() : nullptr, x.data(),
                    h.data(), scale.data(), shift.data(), gate.data(), B, T, C, kLayernormEps);
            };
            auto loss = [&] {
                forward();
                return gated ? Loss().add(out, dout).add(residual, dresidual) : Loss().add(out, dout);
            };
            forward();
            const std::string name = fmt::format("layernorm_modulate {}{} ", gated ? "gated " : "", s.text());
            Vector expected, size;  // of what is rounded, a handful of times
            for (int64_t i = 0; i < n; i++) {
                const int64_t row = i / C, at = row / T * C + i % C;
                const double r = gated ? x[i] + gate[at] * h[i] : x[i], w = 1 + scale[at];
                expected.push_back((r - mean[row]) * rstd[row] * w + shift[at]);
                size.push_back((std::fabs(r) + std::fabs(mean[row])) * rstd[row] * std::fabs(w) +
                               std::fabs(shift[at]));
            }
            check_near(name + "out", out, expected, [&](size_t i) { return 8 * kDoubleRoundoff * size[i]; });
            auto poison = [](int64_t count) { return poisoned<double>(count); };
            Vector dx = poison(n), dh = poison(n), dscale = poison(B * C), dshift = dscale, dgate = dscale;
            layernorm_modulate_backward_cpu(dx.data(), dscale.data(), dshift.data(), dh.data(), dgate.data(),
                                            dout.data(), gated ? dresidual.data() : nullptr,
                                            (gated ? residual : x).data(), gated ? h.data() : nullptr,
                                            mean.data(), rstd.data(), scale.data(), gate.data(), B, T, C);
            check_gradient(name + "dinp", x, dx, zeros(n), loss);
            check_gradient(name + "dscale", scale, dscale, zeros(B * C), loss);
            check_gradient(name + "dshift", shift, dshift, zeros(B * C), loss);
            if (gated) {
                check_gradient(name + "dinp2", h, dh, zeros(n), loss);
                check_gradient(name + "dgate", gate, dgate, zeros(B * C), loss);
            }
        }
    }
}

// ---- matmul -------------------------------------------------------------------------------------

TEST_CASE("matmul_forward: whole numbers give whole numbers, with and without bias") {
    for (const Product& s : kProducts) {
        const auto [N, C, OC, with_bias] = s;
        auto inp = whole_numbers<float>(N * C, 1), weight = whole_numbers<float>(OC * C, 2);
        auto bias = whole_numbers<float>(OC, 3), out = poisoned<float>(N * OC);
        std::vector<float> expected(N * OC);
        for (int c = 0; c < C; c++) {
            for (int i = 0; i < N * OC; i++) { expected[i] += inp[i / OC * C + c] * weight[i % OC * C + c]; }
        }
        for (int i = 0; i < N * OC && with_bias; i++) { expected[i] += bias[i % OC]; }
        matmul_forward_cpu(out.data(), inp.data(), weight.data(), with_bias ? bias.data() : nullptr, N, C,
                           OC);
        check_same("matmul_forward out " + s.text(), out, expected);
    }
}

TEST_CASE("matmul_backward: central differences, with and without bias") {
    for (const Product& s : kProducts) {
        const auto [N, C, OC, with_bias] = s;
        Vector inp = random(N * C, 1), weight = random(OC * C, 2), bias = random(OC, 3),
               dout = random(N * OC, 4);
        Vector dweight0 = random(OC * C, 5), dbias0 = random(OC, 6), dweight = dweight0, dbias = dbias0;
        Vector dinp = poisoned<double>(N * C);
        matmul_backward_cpu(dinp.data(), dweight.data(), with_bias ? dbias.data() : nullptr, dout.data(),
                            inp.data(), weight.data(), N, C, OC);
        auto loss = [&] {
            Vector out = poisoned<double>(N * OC);
            matmul_forward_cpu(out.data(), inp.data(), weight.data(), with_bias ? bias.data() : nullptr, N, C,
                               OC);
            return Loss().add(out, dout);
        };
        check_gradient("matmul_backward dinp " + s.text(), inp, dinp, zeros(N * C), loss);
        check_gradient("matmul_backward dweight " + s.text(), weight, dweight, dweight0, loss);
        if (with_bias) { check_gradient("matmul_backward dbias " + s.text(), bias, dbias, dbias0, loss); }
    }
}

TEST_CASE("bias_backward: rows further apart than they are long") {
    for (auto [N, OC, stride] : {std::array{1, 1, 1}, {17, 5, 8}, {3, 65, 65}, {5, 129, 200}}) {
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
                   2 * N * kDoubleRoundoff * (5.0 * N + 4));
    }
}

// ---- attention ----------------------------------------------------------------------------------

namespace {

struct AttentionOut {
    Vector out, lse;
};
AttentionOut attention(const Vector& qkv, const Heads& s) {
    AttentionOut y{poisoned<double>(s.elements()), poisoned<double>(s.B * s.NH * s.T)};
    attention_forward_cpu(y.out.data(), y.lse.data(), qkv.data(), s.B, s.T, s.C, s.NH);
    return y;
}

// whole matrices: all T x T scores, exponentials without a maximum taken off, the future multiplied by 0
AttentionOut attention_by_matrices(const Vector& qkv, const Heads& s) {
    const int B = s.B, T = s.T, C = s.C, NH = s.NH, HS = C / NH;
    AttentionOut y{Vector((size_t)B * T * C), Vector((size_t)B * NH * T)};
    for (int bh = 0; bh < B * NH; bh++) {
        auto at = [&](int which, int t, int c) {
            return qkv[(size_t)(bh / NH * T + t) * 3 * C + which * C + bh % NH * HS + c];
        };
        Vector e((size_t)T * T), sums(T);
        for (int ij = 0; ij < T * T; ij++) {
            double dot = 0;
            for (int c = 0; c < HS; c++) { dot += at(0, ij / T, c) * at(1, ij % T, c); }
            e[ij] = ij % T > ij / T ? 0.0 : std::exp(dot / std::sqrt((double)HS));
            sums[ij / T] += e[ij];
        }
        for (int c = 0; c < HS; c++) {
            for (int i = 0; i < T; i++) {
                double sum = 0;
                for (int j = 0; j < T; j++) { sum += e[i * T + j] * at(2, j, c); }
                y.out[(size_t)(bh / NH * T + i) * C + bh % NH * HS + c] = sum / sums[i];
            }
        }
        for (int i = 0; i < T; i++) { y.lse[(size_t)bh * T + i] = std::log(sums[i]); }
    }
    return y;
}

}  // namespace

TEST_CASE("attention_forward: against whole matrices") {
    for (const Heads& s : kHeads) {
        Vector qkv = random(3 * s.elements(), 1);
        AttentionOut found = attention(qkv, s), expected = attention_by_matrices(qkv, s);
        // |q|, |k|, |v| < 5: scores err by HS eps 25 sqrt(HS), probabilities by that much of themselves, sums
        // by T eps
        double HS = s.C / s.NH, bound = 8 * kDoubleRoundoff * (25 * HS * std::sqrt(HS) + s.T + 8);
        check_near("attention_forward out " + s.text(), found.out, expected.out, 5 * bound);
        check_near("attention_forward lse " + s.text(), found.lse, expected.lse, bound);
    }
}

TEST_CASE("attention_forward: scores of 1e4 do not overflow") {
    Vector qkv = {1e4, 1, 7, 1e4, 1e4, -3};  // T=2, HS=1: scores 1e4 | 1e4, 1e8
    AttentionOut y = attention(qkv, {1, 2, 1, 1});
    check_same("attention_forward out B=1 T=2 C=1 NH=1", y.out, {7, -3});
    check_same("attention_forward lse B=1 T=2 C=1 NH=1", y.lse, {1e4, 1e8});
}

TEST_CASE("attention_backward: central differences") {
    for (const Heads& s : kHeads) {
        Vector qkv = random(3 * s.elements(), 1), dout = random(s.elements(), 2),
               dqkv = poisoned<double>(qkv.size());
        auto loss = [&] { return Loss().add(attention(qkv, s).out, dout); };
        const AttentionOut y = attention(qkv, s);
        attention_backward_cpu(dqkv.data(), dout.data(), qkv.data(), y.out.data(), y.lse.data(), s.B, s.T,
                               s.C, s.NH);
        check_gradient("attention_backward dqkv " + s.text(), qkv, dqkv, zeros(qkv.size()), loss);
    }
}

// ---- gelu ---------------------------------------------------------------------------------------

TEST_CASE("gelu_forward: the tanh formula, in place too") {
    Vector inp, expected;
    for (int i = -400; i <= 400; i++) {
        double x = i * 0.025, pi = std::acos(-1.0);
        inp.push_back(x);
        expected.push_back(0.5 * x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x))));
    }
    // 1 + tanh cancels for x < 0, so it errs by a few eps of 1; exp(z) has z's error, eps |z|, and |z| <= 90
    auto bound = [&](size_t i) {
        return kDoubleRoundoff * (8 * std::fabs(inp[i]) + 200 * std::fabs(expected[i]));
    };
    for (int n : {1, 3, 17, 801}) {
        Vector out = poisoned<double>(n), x(inp.begin(), inp.begin() + n);
        gelu_forward_cpu(out.data(), x.data(), n);
        check_near(fmt::format("gelu_forward out n={}", n), out,
                   Vector(expected.begin(), expected.begin() + n), bound);
        gelu_forward_cpu(x.data(), x.data(), n);
        check_same(fmt::format("gelu_forward out in place n={}", n), x, out);
    }
}

TEST_CASE("gelu_forward: far out x or 0, and NaN stays NaN") {
    std::vector<float> inp = {100, 1e10f, 1e30f, -100, -1e5f, 0, NAN}, out = poisoned<float>(7);
    gelu_forward_cpu(out.data(), inp.data(), 7);
    for (int i = 0; i < 6; i++) {
        float expected = std::max(inp[i], 0.0f);
        CHECK_MESSAGE(std::fabs(out[i] - expected) < 1e-29f,
                      fmt::format("gelu_forward out n=7 at {}: found {:g}", i, out[i]));
    }
    CHECK(std::isnan(out[6]));
}

TEST_CASE("gelu_backward: central differences; dinp may be dout; finite far out") {
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

TEST_CASE("attention_forward: a token changes nothing before it; the first one sees only itself") {
    const Heads s{1, 9, 6, 2};
    const int T = s.T, C = s.C;
    Vector qkv = random(T * 3 * C, 1);
    AttentionOut before = attention(qkv, s);
    check_near("attention_forward out of the first token " + s.text(),
               Vector(before.out.begin(), before.out.begin() + C),
               Vector(qkv.begin() + 2 * C, qkv.begin() + 3 * C), 1e-15);
    for (int t = 0; t < T; t++) {
        Vector changed = qkv;
        for (int i = 0; i < 3 * C; i++) { changed[(size_t)t * 3 * C + i] += 1; }
        Vector after = attention(changed, s).out;
        for (int i = 0; i < T; i++) {
            bool same =
                std::equal(after.begin() + i * C, after.begin() + (i + 1) * C, before.out.begin() + i * C);
            CHECK_MESSAGE(same == (i < t),
                          fmt::format("attention_forward out {}: position {} {} with token {}", s.text(), i,
                                      same ? "does not change" : "changes", t));
        }
    }
}

// ---- classifier ---------------------------------------------------------------------------------

TEST_CASE("classifier_forward: -log softmax of the target, ignored rows, padded columns") {
    for (auto [N, V, Vp, scale] :
         {std::array{1, 5, 8, 1}, {17, 5, 8, 3}, {3, 1, 1, 1}, {4, 65, 65, 10}, {6, 33, 64, 1000}}) {
        std::vector<int32_t> targets = some_targets(N, V), predicted(N, -7), best(N, 0);
        Vector logits = logits_of(N, V, Vp, scale), losses = poisoned<double>(N), expected(N);
        for (int row = 0; row < N; row++) {
            const double* x = logits.data() + row * Vp;
            long double total = 0;  // relative to the target: a long double reaches exp(11356)
            for (int v = 0; v < V && targets[row] != kIgnoreTarget; v++) {
                total += expl(x[v] - x[targets[row]]);
            }
            expected[row] = targets[row] == kIgnoreTarget ? 0 : (double)logl(total);
            best[row] = (int)(std::max_element(x, x + V) - x);
        }
        classifier_forward_cpu(losses.data(), predicted.data(), logits.data(), targets.data(), N, V, Vp);
        std::string shape = fmt::format("N={} V={} Vp={}", N, V, Vp);
        check_near("classifier_forward losses " + shape, losses, expected,
                   kDoubleRoundoff * (V + 8 + 20 * scale));  // logits below 5 scale
        CHECK_MESSAGE(predicted == best, ("classifier_forward predicted " + shape));
    }
}

TEST_CASE("classifier_forward: logits of 1e4, and ties go to the lowest index") {
    std::vector<float> logits = {-1e4f, 1e4f, 0, 1e4f, 0, 0, 0, 0, 2, 2, 2, 2, 1, 2, 3, 3},
                       losses = poisoned<float>(4);
    std::vector<int32_t> targets = {1, 0, 3, 0}, predicted(4, -1);
    targets[1] = 2;
    classifier_forward_cpu(losses.data(), predicted.data(), logits.data(), targets.data(), 4, 4, 4);
    CHECK(predicted == std::vector<int32_t>{1, 0, 0, 2});
    double last = std::log(2 + std::exp(-1.0) + std::exp(-2.0)) + 2;
    check_near("classifier_forward losses N=4 V=4 Vp=4", losses,
               Vector{std::log(2), std::log(4), std::log(4), last}, 1e-6);
    targets[0] = 0;  // the least probable of all: 2e4 nats and no infinity
    classifier_forward_cpu(losses.data(), nullptr, logits.data(), targets.data(), 1, 4, 4);
    CHECK(std::fabs(losses[0] - 20000.693f) < 0.01f);
}

TEST_CASE("classifier_forward: a loss beside logits near the largest float is not lost, or not finite") {
    for (float logit : {3e38f, -3e38f, 1e18f, -1e18f}) {
        std::vector<float> logits = {logit, logit, logit, logit, 3e38f, -3e38f, 3e38f, -3e38f},
                           losses = poisoned<float>(2);
        const std::vector<int32_t> targets = {2, 1};
        classifier_forward_cpu(losses.data(), nullptr, logits.data(), targets.data(), 2, 4, 4);
        CHECK(std::fabs(losses[0] - std::log(4.0f)) < 1e-6f);
        CHECK(losses[1] == INFINITY);
    }
}

TEST_CASE("classifier_backward: central differences, ignored rows, padded columns") {
    for (auto [N, V, Vp, scale] : {std::array{1, 5, 8, 1},
                                   {17, 5, 8, 1},
                                   {3, 1, 1, 1},
                                   {4, 65, 65, 1},
                                   {2, 33, 64, 1},
                                   {2, 3, 3, 10000}}) {
        constexpr double kLossWeight = 0.25;
        std::vector<int32_t> targets = some_targets(N, V);
        Vector logits = logits_of(N, V, Vp, scale), dlogits = poisoned<double>((int64_t)N * Vp);
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
