// LayerNorm as problems for the harness, in three ops: forward, residual + forward, backward: their truth, that of
// reference.h in double and for fp64 in long double, and each element's bound. What is tried: layernorm_lists.h. Host only.
#pragma once
#include "dev/cuda/layernorm_lists.h"
#include "dev/cuda/problem.h"
#include "llmc/model/cpu/reference.h"

namespace llmc {

inline const double* data_of(const Values& values) { return values ? values->data() : nullptr; }

// ---- fp64: a truth that is wider than the kernels ---------------------------------------------------

// Arguments as in reference.h; out, mean and rstd are all wanted. long double has but 11 bits more: sums of x
// itself would lose them at thousands of columns, sums of x - x[0] do not.
inline void layernorm_forward_wide(double* out, double* mean, double* rstd, const double* inp,
                                   const double* weight, const double* bias, int64_t N, int C, double eps,
                                   bool rms) {
    using Wide = long double;
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        const double* x = inp + row * C;
        Wide shift = rms ? 0 : x[0], m = 0, squares = 0;
        for (int c = 0; c < C && !rms; c++) { m += x[c] - shift; }
        m /= C;
        auto centred = [&](int c) { return (x[c] - shift) - m; };
        for (int c = 0; c < C; c++) { squares += centred(c) * centred(c); }
        Wide s = 1 / std::sqrt(squares / C + eps);
        for (int c = 0; c < C; c++) {
            out[row * C + c] = (double)(centred(c) * s * (weight ? weight[c] : 1.0) + (bias ? bias[c] : 0.0));
        }
        mean[row] = (double)(shift + m);
        rstd[row] = (double)s;
    }
}

inline void layernorm_backward_wide(double* dinp, double* dweight, double* dbias, const double* dout,
                                    const double* inp, const double* weight, const double* mean,
                                    const double* rstd, int64_t N, int C, bool rms) {
    using Wide = long double;
    auto xhat = [&](int64_t row, int c) {
        return ((Wide)inp[row * C + c] - (rms ? 0 : mean[row])) * rstd[row];
    };
    auto g = [&](int64_t row, int c) { return (Wide)(weight ? weight[c] : 1.0) * dout[row * C + c]; };
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        Wide c1 = 0, c2 = 0;
        for (int c = 0; c < C; c++) {
            c1 += rms ? 0 : g(row, c) / C;
            c2 += g(row, c) * xhat(row, c) / C;
        }
        for (int c = 0; c < C; c++) {
            dinp[row * C + c] = (double)(rstd[row] * (g(row, c) - c1 - xhat(row, c) * c2));
        }
    }
#pragma omp parallel for
    for (int c = 0; c < C; c++) {
        Wide dw = 0, db = 0;
        for (int64_t row = 0; row < N; row++) {
            dw += dout[row * C + c] * xhat(row, c);
            db += dout[row * C + c];
        }
        dweight[c] = (double)dw;
        dbias[c] = (double)db;
    }
}

// ---- forward ------------------------------------------------------------------------------------

using Bound = std::function<double(const Sums& sums, int64_t row, int64_t col)>;

constexpr float kProblemEps = 1e-5f;  // what the kernels get: not quite kLayernormEps

// rows are spread_of() once, not once per element
struct ForwardTruth {
    std::vector<double> out, mean, rstd;
    std::vector<RowSpread> from_first, from_zero;  // with K = x[0], with K = 0

    // weight, bias: null = 1, 0
    ForwardTruth(const Problem& p, const Values& inp, const Values& weight, const Values& bias)
        : out(p.N * p.C), mean(p.N), rstd(p.N), from_first(p.N), from_zero(p.N) {
        auto reference = p.dtype == Dtype::kFp64 ? layernorm_forward_wide : layernorm_forward_cpu<double>;
        reference(out.data(), mean.data(), rstd.data(), inp->data(), data_of(weight), data_of(bias), p.N, p.C,
                  p.eps, p.form.rms);
#pragma omp parallel for
        for (int64_t row = 0; row < p.N; row++) {
            const double* x = inp->data() + row * p.C;
            from_first[row] = spread_of(x, p.C, mean[row], p.form.rms ? 0 : x[0]);
            from_zero[row] = spread_of(x, p.C, mean[row], 0);
            // no mean is worked out, and none is off
            if (p.form.rms) { from_first[row].average = from_zero[row].average = 0; }
        }
    }
    static RowSpread spread_of(const double* x, int C, double mean, double K) {
        RowSpread s{};
        double squares = 0;
        for (int c = 0; c < C; c++) {
            s.radius = std::max(s.radius, std::fabs(x[c] - mean));
            s.average += std::fabs(x[c] - K) / C;
            squares += (x[c] - K) * (x[c] - K) / C;
        }
        s.rms = std::sqrt(squares);
        return s;
    }
    const RowSpread& spread(const Sums& sums, int64_t row) const {
        return (sums.from_first ? from_first : from_zero)[row];
    }
};

// What forward makes of rows x, alone or behind a residual: weight and bias in; out, mean and rstd out.
inline void add_forward(Problem& p, const Values& x, Inputs kind) {
    const CallForm& form = p.form;
    Dtype weights = form.fp32_weight ? Dtype::kFp32 : p.dtype, statistics = statistics_of(p.dtype);
    Values weight = form.no_weight ? nullptr : make_vector(weights, p.C, kDrawWeight);
    Values bias = form.no_bias ? nullptr : make_vector(weights, p.C, kDrawBias);
    const Dtype type = form.out.value_or(p.dtype);
    auto t = std::make_shared<const ForwardTruth>(p, x, weight, bias);
    bool exact =
        kind == Inputs::kConstant && !form.rms;  // out is bias, if the version's sums are of x - x[0]
    Values truth(t, &t->out);
    if (exact) {  // as it is stored: bias may be wider
        truth = make_values(type, p.N, p.C, [&](int64_t, int col) { return bias ? (*bias)[col] : 0.0; });
    }
    Bound out = [=, C = p.C, r = Roundings(form.fp8 ? Dtype::kFp32 : type)](const Sums& sums, int64_t row,
                                                                            int64_t c) {
        if (exact && sums.from_first) { return 0.0; }
        return out_bound(r, sums, t->spread(sums, row), t->rstd[row], weight ? (*weight)[c] : 1,
                         bias ? (*bias)[c] : 0, t->out[row * C + c]);
    };
    Bound mean = [t, r = Roundings(statistics)](const Sums& sums, int64_t row, int64_t) {
        return mean_bound(r, sums, t->spread(sums, row), t->mean[row]);
    };
    Bound rstd = [t, r = Roundings(statistics)](const Sums& sums, int64_t row, int64_t) {
        return rstd_bound(r, sums, t->spread(sums, row), t->rstd[row]);
    };
    if (weight) { p.in.push_back({"weight", weights, weight, Extent::kColumns}); }
    if (bias) { p.in.push_back({"bias", weights, bias, Extent::kColumns}); }
    p.out.push_back({"out", type, p.N, p.C, truth, out});
    if (form.no_statistics) { return; }
    p.out.push_back({"mean", statistics, p.N, 1, {t, &t->mean}, mean, Extent::kRows});
    p.out.push_back({"rstd", statistics, p.N, 1, {t, &t->rstd}, rstd, Extent::kRows});
}

// Useful streams: inp read, out written. in_place: out takes inp's place.
inline Problem layernorm_forward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                         const CallForm& form = {}) {
    Problem p = empty_problem("layernorm_forward", dtype, shape, kind, form, 1, 1);
    p.eps = kProblemEps;
    Values inp = make_inp(kind, dtype, p.N, p.C);
    if (!form.in_place) { p.in.push_back({"inp", dtype, inp}); }
    add_forward(p, inp, kind);
    if (form.in_place) { p.out[0].initial = inp; }
    return p;
}

// Half of all elements, as a factor of 2 has no roundings, of a step's first rows; rows: null for the truth, which has its own
inline Dropout dropout_of(const Problem& p, const DropoutRows* rows) {
    static const DropoutRows first{};
    Dropout dropout(0.5, kSeed);
    dropout.place = 3;
    dropout.rows = !p.form.drops ? nullptr : rows != nullptr ? rows : &first;
    return dropout;
}
// 0, 1 or 2
inline double dropout_factor(const Dropout& dropout, int64_t row, int col, int C) {
    return dropout.rows == nullptr ? 1 : DropoutRow(dropout, row, C).factors<1>(col)[0];
}

// ---- residual + forward -------------------------------------------------------------------------

// Useful streams: inp, inp2 read, residual, out written. The sum of two numbers of T, rounded to double and
// then to T, is the sum rounded to T (double has more than twice T's bits, and two), and so it is by way of
// fp32: residual is exact. in_place: residual takes inp's (1) or inp2's (2) place.
inline Problem residual_layernorm_forward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                                  const CallForm& form = {}) {
    Problem p = empty_problem("residual_layernorm_forward", dtype, shape, kind, form, 2, 2);
    p.eps = kProblemEps;
    Values inp = make_inp(kind, dtype, p.N, p.C);
    Values inp2 = make_values(dtype, p.N, p.C, [&](int64_t row, int col) {
        return inp2_at(kind, format_of(dtype), row, col, p.C);
    });
    const Dropout dropout = dropout_of(p, nullptr);
    Values residual = make_values(dtype, p.N, p.C, [&](int64_t row, int col) {
        return (*inp)[row * p.C + col] + dropout_factor(dropout, row, col, p.C) * (*inp2)[row * p.C + col];
    });
    if (form.in_place != 1) { p.in.push_back({"inp", dtype, inp}); }
    if (form.in_place != 2) { p.in.push_back({"inp2", dtype, inp2}); }
    add_forward(p, residual, kind);
    Bound none = [](const Sums&, int64_t, int64_t) { return 0.0; };
    p.out.push_back({"residual", dtype, p.N, p.C, residual, none});
    if (form.in_place) { p.out.back().initial = form.in_place == 1 ? inp : inp2; }
    return p;
}

// ---- backward -----------------------------------------------------------------------------------

struct BackwardTruth {
    int64_t N;
    int C;
    Values dout, inp, weight, mean, rstd;  // weight: null = 1; mean: null = 0, of RMSNorm
    std::vector<double> dinp = std::vector<double>(N * C), dweight = std::vector<double>(C), dbias = dweight;
    std::vector<RowGradient> rows = std::vector<RowGradient>(N);
    std::vector<double> abs_dweight = dweight, abs_dbias = dbias;  // sum over rows of |dy xhat|, of |dy|

    BackwardTruth(Dtype dtype, int64_t N, int C, Values dout, Values inp, Values weight, Values mean,
                  Values rstd)
        : N(N),
          C(C),
          dout(std::move(dout)),
          inp(std::move(inp)),
          weight(std::move(weight)),
          mean(std::move(mean)),
          rstd(std::move(rstd)) {
        auto compute = [&](auto reference, auto... more) {
            reference(dinp.data(), dweight.data(), dbias.data(), this->dout->data(), this->inp->data(),
                      data_of(this->weight), data_of(this->mean), this->rstd->data(), N, C, more...,
                      this->mean == nullptr);
        };
        if (dtype == Dtype::kFp64) {
            compute(layernorm_backward_wide);
        } else {
            compute(layernorm_backward_cpu<double>, false);
        }
        sum_rows();
        sum_columns();
    }

    double xhat(int64_t row, int64_t c) const {
        return ((*inp)[row * C + c] - (mean ? (*mean)[row] : 0)) * (*rstd)[row];
    }
    double g(int64_t row, int64_t c) const { return (weight ? (*weight)[c] : 1) * (*dout)[row * C + c]; }

    void sum_rows() {
#pragma omp parallel for
        for (int64_t row = 0; row < N; row++) {
            RowGradient& r = rows[row];
            for (int c = 0; c < C; c++) {
                r.c1 += g(row, c) / C;
                r.c2 += g(row, c) * xhat(row, c) / C;
                r.abs_c1 += std::fabs(g(row, c)) / C;
                r.abs_c2 += std::fabs(g(row, c) * xhat(row, c)) / C;
            }
            if (!mean) { r.c1 = r.abs_c1 = 0; }
        }
    }
    void sum_columns() {
        constexpr int kChunk = 64;  // columns a thread owns
#pragma omp parallel for
        for (int begin = 0; begin < C; begin += kChunk) {
            for (int64_t row = 0; row < N; row++) {
                for (int c = begin; c < std::min(C, begin + kChunk); c++) {
                    abs_dweight[c] += std::fabs((*dout)[row * C + c] * xhat(row, c));
                    abs_dbias[c] += std::fabs((*dout)[row * C + c]);
                }
            }
        }
    }
};

// mean and rstd of inp, rounded as a kernel would save them; for kInteger 0 and 1; of RMSNorm no mean
inline std::pair<Values, Values> saved_statistics(Inputs kind, Dtype dtype, int64_t N, int C,
                                                  const Values& inp, bool rms) {
    std::vector<double> out(N * C), mean(N, 0.0), rstd(N, 1.0);
    if (kind != Inputs::kInteger) {
        layernorm_forward_cpu<double>(out.data(), mean.data(), rstd.data(), inp->data(), nullptr, nullptr, N,
                                      C, kProblemEps, rms);
    }
    round_all(mean, format_of(statistics_of(dtype)));
    round_all(rstd, format_of(statistics_of(dtype)));
    return {rms ? nullptr : share(std::move(mean)), share(std::move(rstd))};
}

// An output to which `sum` is written (=), or added (+=) where something was there before; stored in dtype.
// bound_in(type): the bound of the sum alone, stored in that type.
inline Output written_or_added(const Problem& p, Output out, const Values& before,
                               const std::function<Bound(Dtype)>& bound_in) {
    if (!before) {
        out.bound = bound_in(out.dtype);
        return out;
    }
    std::vector<double> total(out.truth->size());
    for (size_t i = 0; i < total.size(); i++) { total[i] = (*before)[i] + (*out.truth)[i]; }
    out.truth = share(std::move(total));
    out.initial = before;
    // the sum in the accumulators' type, the addition there, the store
    out.bound = [r = Roundings(out.dtype), sum = bound_in(statistics_of(p.dtype)), truth = out.truth,
                 cols = out.cols](const Sums& sums, int64_t row, int64_t col) {
        double y = (*truth)[row * cols + col];
        return r.stored(sum(sums, row, col) + r.u * std::fabs(y), y);
    };
    return out;
}

// the three results, those that are wanted
inline void add_gradients(Problem& p, const std::shared_ptr<const BackwardTruth>& t, Inputs kind) {
    const CallForm& form = p.form;
    Dtype gradients = form.fp32_gradients ? Dtype::kFp32 : p.dtype;
    bool exact = kind == Inputs::kInteger;  // sums over rows are small integers: no rounding, in any order
    auto dinp = [t](Dtype dtype) -> Bound {
        return [t, r = Roundings(dtype)](const Sums& sums, int64_t row, int64_t c) {
            return dinp_bound(r, sums, t->rows[row], (*t->rstd)[row], t->xhat(row, c), t->g(row, c),
                              t->dinp[row * t->C + c]);
        };
    };
    auto dweight = [t, exact](Dtype dtype) -> Bound {
        return [t, exact, r = Roundings(dtype)](const Sums& sums, int64_t c, int64_t) {
            return exact ? 0
                         : dweight_bound(r, sums, t->abs_dweight[c], t->abs_dbias[c], t->N, t->dweight[c]);
        };
    };
    auto dbias = [t, exact](Dtype dtype) -> Bound {
        return [t, exact, r = Roundings(dtype)](const Sums& sums, int64_t c, int64_t) {
            return exact ? 0 : dbias_bound(r, sums, t->abs_dbias[c], t->dbias[c]);
        };
    };
    auto add = [&](Output out, bool left_out, bool added, const std::function<Bound(Dtype)>& bound_in) {
        if (left_out) { return; }
        Values before = added ? make_before(kind, out.dtype, out.rows, (int)out.cols) : nullptr;
        p.out.push_back(written_or_added(p, std::move(out), before, bound_in));
    };
    add({"dinp", p.dtype, p.N, p.C, {t, &t->dinp}, {}}, form.no_dinp, form.accumulate_dinp, dinp);
    if (form.copy) {  // of dinp as it is stored
        Output copy = p.out.back();
        copy.name = "copy";
        copy.dtype = *form.out;
        copy.initial = nullptr;
        copy.bound = [r = Roundings(copy.dtype), dinp = copy.bound, truth = copy.truth, C = p.C](
                         const Sums& sums, int64_t row, int64_t c) {
            return r.stored(dinp(sums, row, c), (*truth)[row * C + c]);
        };
        p.out.push_back(copy);
    }
    if (form.drops) {  // likewise
        Output dropped = p.out.back();
        const auto factor = [d = dropout_of(p, nullptr), C = p.C](int64_t row, int64_t c) {
            return dropout_factor(d, row, (int)c, C);
        };
        std::vector<double> truth(*dropped.truth);
        for (size_t i = 0; i < truth.size(); i++) { truth[i] *= factor((int64_t)i / p.C, (int64_t)i % p.C); }
        dropped.name = "dropped";
        dropped.truth = share(std::move(truth));
        dropped.initial = nullptr;
        dropped.bound = [factor, dinp = dropped.bound](const Sums& sums, int64_t row, int64_t c) {
            return factor(row, c) * dinp(sums, row, c);
        };
        p.out.push_back(dropped);
    }
    add({"dweight", gradients, p.C, 1, {t, &t->dweight}, {}, Extent::kColumns}, form.no_dweight,
        form.accumulate, dweight);
    add({"dbias", gradients, p.C, 1, {t, &t->dbias}, {}, Extent::kColumns}, form.no_dbias, form.accumulate,
        dbias);
}

// Useful streams: inp and dout read, dinp written (and read, if added to). in_place: dinp takes dout's place.
inline Problem layernorm_backward_of(const Values& inp, Dtype dtype, Shape shape, Inputs kind,
                                     const CallForm& form) {
    int64_t N = shape.N;
    int C = shape.C;
    Dtype weights = form.fp32_weight ? Dtype::kFp32 : dtype, statistics = statistics_of(dtype);
    Values weight = form.no_weight ? nullptr : make_vector(weights, C, kDrawWeight);
    Values dout = make_values(form.out.value_or(dtype), N, C,
                              [&](int64_t row, int col) { return dout_at(kind, row, col, N, C); });
    auto [mean, rstd] = saved_statistics(kind, dtype, N, C, inp, form.rms);
    auto t = std::make_shared<const BackwardTruth>(dtype, N, C, dout, inp, weight, mean, rstd);
    Problem p = empty_problem("layernorm_backward", dtype, shape, kind, form, form.accumulate_dinp ? 3 : 2,
                              form.drops ? 2 : 1);
    if (!form.in_place) { p.in.push_back({"dout", form.out.value_or(dtype), dout}); }
    p.in.push_back({"inp", dtype, inp});
    if (weight) { p.in.push_back({"weight", weights, weight, Extent::kColumns}); }
    if (mean) { p.in.push_back({"mean", statistics, mean, Extent::kRows}); }
    p.in.push_back({"rstd", statistics, rstd, Extent::kRows});
    add_gradients(p, t, kind);
    if (form.in_place) { p.out[0].initial = dout; }
    return p;
}
inline Problem layernorm_backward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                          const CallForm& form = {}) {
    return layernorm_backward_of(make_inp(kind, dtype, shape.N, shape.C), dtype, shape, kind, form);
}

}  // namespace llmc
