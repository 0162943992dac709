// How far off causal attention by tiles may be, on the GPU or through a BLAS, element by element. For query i
// and key j of one head:
//   s_ij   scale (q . k): its sum of HS products errs by e_ij = scale (HS + 4) a sum |q k|, where an
//          addition in the product costs a = u in fp32, 2 u on tensor cores, which cut off
//   exp    ex2.approx is good to 4 u; its argument (s - m) log2(e), whatever m, is rounded about 4 times in
//          units of s and m
//   p_ij   forward, relative to the row's sum: e_ij, the sum's (at most max e), exp's for both, with s - m
//          at most the depth of the row's scores. When a tile brings a larger score, what was summed before
//          is rescaled: 8 u for each tile of at least 32 keys.
//          backward rebuilds it from lse as stored: e_ij + u (4 + 4 |s_ij| + 4 |lse_i|)
//          What is below 2^-126 may be 0 (exp2_approx), and so may its products: f = 2^-126 for each.
//   r      P and dS are rounded to bf16 (2^-8) to be multiplied on tensor cores; 0 in fp32
//   out_i  sum over j of p |v| (p's relative error + r + the sum's); dv_j likewise, over i, of p |dout|
//   ds_ij  = p (dp - dot) scale, with dp = dout . v and dot = dout . out: |ds| (p's relative error + 4 u)
//          + p scale ((HS + 2) a sum |dout v| + (HS + 2) u sum |dout out| + 2 u |dot|)
//   dq_i   sum over j of |k| (ds's error + (r + the sum's) |ds|); dk_j likewise, over i, of |q|
// The sum's error: T additions, at 2 u strictly on tensor cores.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "dev/cuda/bounds.h"
#include "llmc/host/base/error.h"

namespace llmc {

struct AttentionShape {
    int B, T, NH, HS;
    double scale = 1;  // of q, k and v
    int C() const { return NH * HS; }
    int64_t elements() const { return (int64_t)B * T * C(); }
    std::string text() const { return fmt::format("B={} T={} NH={} HS={} scale={:g}", B, T, NH, HS, scale); }
};

struct AttentionRounding {
    static constexpr double u = 0x1p-24, f = 0x1p-126;
    double a, r;  // as above
    double sum(int T) const {
        double added = a == u ? Sums{.column = (double)T}.column_error() : a / u * T;
        return u * (added + 4 + 8 * std::ceil(T / 32.0));
    }
};
constexpr AttentionRounding kRoundingOfFp32{AttentionRounding::u, 0},
    kRoundingOfBf16{2 * AttentionRounding::u, 0x1p-8};
template <typename Real>
constexpr AttentionRounding kAttentionRounding =
    std::is_same_v<Real, float> ? kRoundingOfFp32 : kRoundingOfBf16;

// the errors of the results in fp32, before they are stored
struct AttentionBounds {
    std::vector<double> out, lse, dqkv;
};

struct Dot {  // a sum of products, and of their absolute values
    double value = 0, terms = 0;
    Dot(const double* a, const double* b, int n) {
        for (int c = 0; c < n; c++) {
            value += a[c] * b[c];
            terms += std::fabs(a[c] * b[c]);
        }
    }
};

// One head of one sequence: pointers to its first token's q, out and dout, and to the bounds of the same
// elements.
struct AttentionHead {
    const double *q, *out, *dout, *lse;
    double *out_bound, *lse_bound, *dq;
};

// Adds the share of query i.
inline void add_query_bounds(const AttentionShape& s, const AttentionRounding& rounding,
                             const AttentionHead& h, int i) {
    constexpr double u = AttentionRounding::u, f = AttentionRounding::f;
    const int C = s.C(), HS = s.HS, stride = 3 * C;
    const auto [a, r] = rounding;
    const double *k = h.q + C, *v = h.q + 2 * C, *q = h.q + (int64_t)i * stride, *d = h.dout + (int64_t)i * C;
    double *dk = h.dq + C, *dv = h.dq + 2 * C, *dq = h.dq + (int64_t)i * stride;
    const double scale = 1 / std::sqrt((double)HS), sums = rounding.sum(s.T), lse = h.lse[i];
    const Dot dot(d, h.out + (int64_t)i * C, HS);
    std::vector<double> score(i + 1), e(i + 1);
    for (int j = 0; j <= i; j++) {
        Dot qk(q, k + (int64_t)j * stride, HS);
        score[j] = scale * qk.value;
        e[j] = scale * (HS + 4) * a * qk.terms;
    }
    const auto [lowest, largest] = std::minmax_element(score.begin(), score.end());
    const double worst = *std::max_element(e.begin(), e.end()), depth = *largest - *lowest;
    h.lse_bound[i] = worst + sums + u * (8 + 4 * depth + 4 * std::fabs(*largest) + 2 * std::fabs(lse));
    for (int j = 0; j <= i; j++) {
        const int64_t at = (int64_t)j * stride;
        const Dot dp(d, v + at, HS);
        double p = std::exp(score[j] - lse), forward = e[j] + worst + u * (12 + 8 * depth);
        double backward = e[j] + u * (4 + 4 * std::fabs(score[j]) + 4 * std::fabs(lse));
        double ds_of_p = std::fabs(dp.value - dot.value) * scale, ds = p * ds_of_p;
        double differ = (HS + 2) * (a * dp.terms + u * dot.terms) + 2 * u * std::fabs(dot.value);
        double ds_error = ds * (backward + 4 * u + r + sums) + p * scale * differ + f * (ds_of_p + 1);
        for (int c = 0; c < HS; c++) {
            h.out_bound[(int64_t)i * C + c] += std::fabs(v[at + c]) * (p * (forward + r + 2 * sums) + f);
            dq[c] += std::fabs(k[at + c]) * ds_error;
            dk[at + c] += std::fabs(q[c]) * ds_error;
            dv[at + c] += std::fabs(d[c]) * (p * (backward + r + sums) + f);
        }
    }
}

inline AttentionBounds attention_bounds(const AttentionShape& s, const AttentionRounding& rounding,
                                        const std::vector<double>& qkv, const std::vector<double>& dout,
                                        const std::vector<double>& out, const std::vector<double>& lse) {
    AttentionBounds b;
    b.out.resize(out.size());
    b.lse.resize(lse.size());
    b.dqkv.resize(qkv.size());
#pragma omp parallel for schedule(dynamic)
    for (int head = 0; head < s.B * s.NH; head++) {
        size_t inside = (size_t)(head % s.NH) * s.HS, batch = (size_t)(head / s.NH) * s.T * s.C();
        size_t in = 3 * batch + inside, here = batch + inside, row = (size_t)head * s.T;
        AttentionHead h{&qkv[in], &out[here], &dout[here], &lse[row], &b.out[here], &b.lse[row], &b.dqkv[in]};
        for (int i = 0; i < s.T; i++) { add_query_bounds(s, rounding, h, i); }
    }
    return b;
}

}  // namespace llmc
