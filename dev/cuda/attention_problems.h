// Attention as problems for the harness, in two ops, forward and backward: bf16 (v0: fp32), causal, heads of 64 elements.
// The truth is the reference's. A shape is sequences x heads x tokens. Host only.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "dev/cuda/bounds.h"
#include "dev/cuda/problem.h"
#include "llmc/host/base/error.h"
#include "llmc/model/cpu/reference.h"

namespace llmc {

// ---- bounds
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
    AttentionBounds b{std::vector<double>(out.size()), std::vector<double>(lse.size()),
                      std::vector<double>(qkv.size())};
#pragma omp parallel for schedule(dynamic)
    for (int head = 0; head < s.B * s.NH; head++) {
        size_t inside = (size_t)(head % s.NH) * s.HS, batch = (size_t)(head / s.NH) * s.T * s.C();
        size_t in = 3 * batch + inside, here = batch + inside, row = (size_t)head * s.T;
        AttentionHead h{&qkv[in], &out[here], &dout[here], &lse[row], &b.out[here], &b.lse[row], &b.dqkv[in]};
        for (int i = 0; i < s.T; i++) { add_query_bounds(s, rounding, h, i); }
    }
    return b;
}

// ---- problems

// A problem's heads are those of up to seven, again and again: head i has the numbers of head i % 7. The
// truth of a batch of 64 would else take minutes. A kernel that takes another head's rows is still seen,
// unless it is 7 heads away.
constexpr int kDistinctHeads = 7;

inline double qkv_at(Inputs kind, int64_t i, int t, int which, int head, int c) {
    double n = normal_at(kDrawInp, i);
    constexpr double kSlopes[] = {0.02, -0.02, 0.5, -0.5};
    switch (kind) {
        case Inputs::
            kOutlier:  // scores rise from key to key, or fall: the largest moves at each tile, or never
            if (c == 0 && which < 2) { return which == 0 ? 8 : kSlopes[head % 4] * t; }
            return 0.1 * n;
        case Inputs::kConstant:  // keys are alike: a row's scores are equal
            return which == 1 ? normal_at(kDrawInp2, c) : n;
        default:
            return n;
    }
}

// Where element (row, col) of a (B T, count NH 64) tensor of a problem is among the distinct heads' (T, count
// distinct 64). Of lse, (B NH, T), it is at (row % distinct) T + col.
struct DistinctIndex {
    int T, NH, distinct, count;
    int64_t operator()(int64_t row, int64_t col) const {
        int64_t head = row / T * NH + col / kHeadColumns % NH, which = col / kHeadColumns / NH;
        return ((row % T * count + which) * distinct + head % distinct) * kHeadColumns + col % kHeadColumns;
    }
};

// The distinct heads as one sequence: their inputs, what attention makes of them in double, and how far off
// it may be.
struct DistinctHeads {
    AttentionShape shape;  // B = 1
    Values qkv, dout;
    std::vector<double> out, lse, dqkv, stored_out,
        stored_lse;  // stored_: as forward leaves them to backward
    AttentionBounds bounds;

    DistinctHeads(Dtype dtype, Shape s, Inputs kind)
        : shape{1, s.T, (int)std::min<int64_t>(s.N / s.T * (s.C / kHeadColumns), kDistinctHeads),
                kHeadColumns} {
        const int T = shape.T, NH = shape.NH, C = shape.C();
        qkv = make_values(dtype, T, 3 * C, [&](int64_t t, int col) {
            return qkv_at(kind, t * 3 * C + col, (int)t, col / C, col % C / kHeadColumns, col % kHeadColumns);
        });
        dout =
            make_values(dtype, T, C, [&](int64_t t, int col) { return normal_at(kDrawDout, t * C + col); });
        out.resize(shape.elements());
        lse.resize((size_t)NH * T);
        dqkv.resize(3 * shape.elements());
        attention_forward_cpu(out.data(), lse.data(), qkv->data(), 1, T, C, NH);
        stored_out = out;
        stored_lse = lse;
        round_all(stored_out, format_of(dtype));
        round_all(stored_lse, format_of(Dtype::kFp32));
        attention_backward_cpu(dqkv.data(), dout->data(), qkv->data(), stored_out.data(), stored_lse.data(),
                               1, T, C, NH);
        const auto& rounding = dtype == Dtype::kFp32 ? kRoundingOfFp32 : kRoundingOfBf16;
        bounds = attention_bounds(shape, rounding, *qkv, *dout, stored_out, stored_lse);
    }
};

// A problem without tensors, and what fills them.
struct AttentionProblem {
    Problem p;
    int heads;  // B NH
    std::shared_ptr<const DistinctHeads> few;

    AttentionProblem(const char* op, Dtype dtype, Shape shape, Inputs kind, int reads, int writes)
        : p(empty_problem(op, dtype, shape, kind, {}, reads, writes)),
          heads((int)(shape.N / shape.T * (shape.C / kHeadColumns))),
          few(std::make_shared<const DistinctHeads>(dtype, shape, kind)) {}

    // pairs of a query and a key
    double pairs() const { return (double)heads * p.T * (p.T + 1.0) / 2; }
    DistinctIndex index(int count) const { return {p.T, p.C / kHeadColumns, few->shape.NH, count}; }
    int64_t lse_index(int64_t row, int64_t col) const { return row % few->shape.NH * p.T + col; }

    // (B T, count C) from the few heads' tensor
    Values spread(const std::vector<double>& tensor, int count) const {
        return make_values(
            Dtype::kFp64, p.N, count * p.C,
            [at = index(count), &tensor](int64_t row, int col) { return tensor[at(row, col)]; });
    }
    Values spread_lse(const std::vector<double>& tensor) const {
        return make_values(Dtype::kFp64, heads, p.T,
                           [&](int64_t row, int col) { return tensor[lse_index(row, col)]; });
    }
    void add_input(const char* name, Dtype dtype, Values values) {
        p.in.push_back({name, dtype, std::move(values), Extent::kRows});
    }
    void add_output(const char* name, const std::vector<double>& truth, const std::vector<double>& bounds,
                    int count) {
        auto bound = [few = few, &truth, &bounds, at = index(count), r = Roundings(p.dtype)](
                         const Sums&, int64_t row, int64_t col) {
            int64_t i = at(row, col);
            return r.stored(bounds[i], truth[i]);
        };
        p.out.push_back({name, p.dtype, p.N, count * p.C, spread(truth, count), bound, Extent::kRows});
    }
    // attention.h's counters: 0 before each call, and after it
    void add_counters() { add_input("counters", Dtype::kFp32, share(std::vector<double>(4, 0.0))); }
};

// Useful streams: q, k, v read, out written.
inline Problem attention_forward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                         const CallForm& = {}) {
    AttentionProblem a("attention_forward", dtype, shape, kind, 3, 1);
    a.p.flops = 4 * kHeadColumns * a.pairs();
    a.add_input("qkv", dtype, a.spread(*a.few->qkv, 3));
    a.add_counters();
    a.add_output("out", a.few->out, a.few->bounds.out, 1);
    auto bound = [few = a.few, T = shape.T, r = Roundings(Dtype::kFp32)](const Sums&, int64_t row,
                                                                         int64_t col) {
        int64_t i = row % few->shape.NH * T + col;
        return r.stored(few->bounds.lse[i], few->lse[i]);
    };
    a.p.out.push_back(
        {"lse", Dtype::kFp32, a.heads, shape.T, a.spread_lse(a.few->lse), bound, Extent::kRows});
    return a.p;
}

// Useful streams: q, k, v, out, dout read, dq, dk, dv written.
inline Problem attention_backward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                          const CallForm& = {}) {
    AttentionProblem a("attention_backward", dtype, shape, kind, 5, 3);
    a.p.flops = 10 * kHeadColumns * a.pairs();
    a.add_input("dout", dtype, a.spread(*a.few->dout, 1));
    a.add_input("qkv", dtype, a.spread(*a.few->qkv, 3));
    a.add_input("out", dtype, a.spread(a.few->stored_out, 1));
    a.add_input("lse", Dtype::kFp32, a.spread_lse(a.few->stored_lse));
    a.add_counters();
    a.add_output("dqkv", a.few->dqkv, a.few->bounds.dqkv, 3);
    return a.p;
}

// ---- what is tried --------------------------------------------------------------------------------------------------

constexpr Shape sequences(int B, int NH, int T) { return {(int64_t)B * T, NH * kHeadColumns, T}; }

// v0's type, then what trains: T around tiles of 16, 64, 128, 192 and 256 rows
inline std::vector<CheckItem> attention_checks() {
    std::vector<CheckItem> list;
    for (int T : {1, 17, 65, 257}) { list.push_back({.dtype = Dtype::kFp32, .shape = sequences(2, 2, T)}); }
    for (int T : {1, 17, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 320, 1000, 1024, 2048}) {
        list.push_back({.dtype = Dtype::kBf16, .shape = sequences(2, 3, T)});
    }
    for (Inputs kind : {Inputs::kOutlier, Inputs::kConstant}) {
        for (int T : {65, 520}) { list.push_back({Dtype::kBf16, sequences(1, 4, T), kind}); }
    }
    // more tiles than multiprocessors, and the same bits
    list.push_back({.dtype = Dtype::kBf16, .shape = sequences(8, 12, 1024), .reruns = 5});
    return list;
}

inline std::vector<RaceItem> attention_races() {
    std::vector<RaceItem> list;
    for (Shape shape :
         {sequences(64, 12, 1024), sequences(16, 25, 1024), sequences(8, 12, 1024), sequences(4, 12, 8192)}) {
        list.push_back({Dtype::kBf16, shape});
    }
    return list;
}

}  // namespace llmc
