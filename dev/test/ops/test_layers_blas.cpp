// Tests of the CPU model's fast layers: matmul and attention through a BLAS against reference.h in double,
// and the vectorised exp. With u = 2^-24 a float sum of K products errs by at most (K + 2) u sum |a b|,
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

constexpr double u = kFloatRoundoff;

Floats floats(int64_t n, uint64_t seed) { return random_vector<float>(n, seed); }
Vector doubles(const Floats& x) { return convert<double>(x); }
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
            Vector expected(N * OC), terms(N * OC), b = doubles(bias), abs_b = absolute(bias);
            matmul_forward_cpu(expected.data(), doubles(inp).data(), doubles(weight).data(),
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
        Vector dinp_d(N * C), dweight_d = doubles(dweight), dbias_d = doubles(dbias);
        Vector dinp_terms(N * C), dweight_terms = absolute(dweight), dbias_terms = absolute(dbias);
        matmul_backward_cpu(dinp_d.data(), dweight_d.data(), dbias_d.data(), doubles(packed).data(),
                            doubles(inp).data(), doubles(weight).data(), N, C, OC);
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
        attention_forward_cpu(out_d.data(), lse_d.data(), doubles(qkv).data(), B, T, C, NH);
        AttentionBounds bounds = attention_bounds(s, kAttentionRounding<float>, doubles(qkv), doubles(dout),
                                                  doubles(out), doubles(lse));
        check_near("attention_forward_blas out " + s.text(), out, out_d,
                   [&](size_t i) { return bounds.out[i]; });
        check_near("attention_forward_blas lse " + s.text(), lse, lse_d,
                   [&](size_t i) { return bounds.lse[i]; });

        Floats dqkv = poisoned<float>(qkv.size());
        scratch = poisoned<float>(attention_scratch_blas(T));
        attention_backward_blas(dqkv.data(), scratch.data(), dout.data(), qkv.data(), out.data(), lse.data(),
                                B, T, C, NH);
        attention_backward_cpu(dqkv_d.data(), doubles(dout).data(), doubles(qkv).data(), doubles(out).data(),
                               doubles(lse).data(), B, T, C, NH);
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
