// The true answers of LayerNorm (reference.h in double; for fp64 below, in long double) and the bound of
// every element (bounds.h). Host only.
#pragma once
#include "dev/cuda/layernorm_inputs.h"
#include "llmc/model/cpu/reference.h"

namespace llmc {

inline const double* data_of(const Values& values) { return values ? values->data() : nullptr; }

// ---- fp64: a truth that is wider than the kernels ---------------------------------------------------

// Arguments as in reference.h; out, mean and rstd are all wanted. long double has but 11 bits more: sums of x
// itself would lose them at thousands of columns, sums of x - x[0] do not.
inline void layernorm_forward_wide(double* out, double* mean, double* rstd, const double* inp,
                                   const double* weight, const double* bias, int64_t N, int C, double eps) {
    using Wide = long double;
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        const double* x = inp + row * C;
        Wide shift = x[0], m = 0, squares = 0;
        for (int c = 0; c < C; c++) { m += x[c] - shift; }
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
                                    const double* rstd, int64_t N, int C) {
    using Wide = long double;
    auto xhat = [&](int64_t row, int c) { return ((Wide)inp[row * C + c] - mean[row]) * rstd[row]; };
    auto g = [&](int64_t row, int c) { return (Wide)(weight ? weight[c] : 1.0) * dout[row * C + c]; };
#pragma omp parallel for
    for (int64_t row = 0; row < N; row++) {
        Wide c1 = 0, c2 = 0;
        for (int c = 0; c < C; c++) {
            c1 += g(row, c) / C;
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

inline void backward_in_double(double* dinp, double* dweight, double* dbias, const double* dout,
                               const double* inp, const double* weight, const double* mean,
                               const double* rstd, int64_t N, int C) {
    layernorm_backward_cpu(dinp, dweight, dbias, dout, inp, weight, mean, rstd, N, C, false);
}

// ---- forward ------------------------------------------------------------------------------------

// The truth, and what its bounds are made of; rows are spread_of() once, not once per element.
// weight, bias: null = 1, 0
struct ForwardTruth {
    int C;
    Roundings roundings, statistics;
    Values weight, bias, out, mean, rstd;
    std::vector<RowSpread> from_first, from_zero;  // with K = x[0], with K = 0

    ForwardTruth(Dtype dtype, int64_t N, int C, double eps, Values inp, Values weight, Values bias)
        : C(C),
          roundings(dtype),
          statistics(statistics_of(dtype)),
          weight(weight),
          bias(bias),
          from_first(N),
          from_zero(N) {
        std::vector<double> y(N * C), m(N), s(N);
        auto reference = dtype == Dtype::kFp64 ? layernorm_forward_wide : layernorm_forward_cpu<double>;
        reference(y.data(), m.data(), s.data(), inp->data(), data_of(weight), data_of(bias), N, C, eps);
#pragma omp parallel for
        for (int64_t row = 0; row < N; row++) {
            const double* x = inp->data() + row * C;
            from_first[row] = spread_of(x, C, m[row], x[0]);
            from_zero[row] = spread_of(x, C, m[row], 0);
        }
        out = share(std::move(y));
        mean = share(std::move(m));
        rstd = share(std::move(s));
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

    double bound_of_out(const Sums& sums, int64_t row, int64_t c) const {
        double w = weight ? (*weight)[c] : 1, b = bias ? (*bias)[c] : 0;
        return out_bound(roundings, sums, spread(sums, row), (*rstd)[row], w, b, (*out)[row * C + c]);
    }
    double bound_of_mean(const Sums& sums, int64_t row) const {
        return mean_bound(statistics, sums, spread(sums, row), (*mean)[row]);
    }
    double bound_of_rstd(const Sums& sums, int64_t row) const {
        return rstd_bound(statistics, sums, spread(sums, row), (*rstd)[row]);
    }
};

// ---- backward -----------------------------------------------------------------------------------

struct BackwardTruth {
    Dtype dtype;  // of the rows, and of the results whose bounds are asked for
    int64_t N;
    int C;
    Roundings roundings;
    Values dout, inp, weight, mean, rstd, dinp, dweight, dbias;
    std::vector<RowGradient> rows;
    std::vector<double> abs_dweight, abs_dbias;  // sum over rows of |dy xhat|, of |dy|

    BackwardTruth(Dtype dtype, int64_t N, int C, Values dout, Values inp, Values weight, Values mean,
                  Values rstd)
        : dtype(dtype),
          N(N),
          C(C),
          roundings(dtype),
          dout(dout),
          inp(inp),
          weight(weight),
          mean(mean),
          rstd(rstd),
          rows(N),
          abs_dweight(C),
          abs_dbias(C) {
        std::vector<double> dx(N * C), dw(C), db(C);
        auto reference = dtype == Dtype::kFp64 ? layernorm_backward_wide : backward_in_double;
        reference(dx.data(), dw.data(), db.data(), dout->data(), inp->data(), data_of(weight), mean->data(),
                  rstd->data(), N, C);
        dinp = share(std::move(dx));
        dweight = share(std::move(dw));
        dbias = share(std::move(db));
        sum_rows();
        sum_columns();
    }

    double xhat(int64_t row, int64_t c) const { return ((*inp)[row * C + c] - (*mean)[row]) * (*rstd)[row]; }
    double g(int64_t row, int64_t c) const { return (weight ? (*weight)[c] : 1) * (*dout)[row * C + c]; }
    // the same, its results stored in another type
    std::shared_ptr<const BackwardTruth> stored_in(Dtype other_dtype) const {
        auto other = std::make_shared<BackwardTruth>(*this);
        other->roundings = Roundings(other_dtype);
        return other;
    }

    void sum_rows() {
#pragma omp parallel for
        for (int64_t row = 0; row < N; row++) {
            RowGradient r{};
            for (int c = 0; c < C; c++) {
                r.c1 += g(row, c) / C;
                r.c2 += g(row, c) * xhat(row, c) / C;
                r.abs_c1 += std::fabs(g(row, c)) / C;
                r.abs_c2 += std::fabs(g(row, c) * xhat(row, c)) / C;
            }
            rows[row] = r;
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

    double bound_of_dinp(const Sums& sums, int64_t row, int64_t c) const {
        return dinp_bound(roundings, sums, rows[row], (*rstd)[row], xhat(row, c), g(row, c),
                          (*dinp)[row * C + c]);
    }
    double bound_of_dweight(const Sums& sums, int64_t c) const {
        return dweight_bound(roundings, sums, abs_dweight[c], abs_dbias[c], N, (*dweight)[c]);
    }
    double bound_of_dbias(const Sums& sums, int64_t c) const {
        return dbias_bound(roundings, sums, abs_dbias[c], (*dbias)[c]);
    }
};

// mean and rstd of inp, rounded as a kernel would save them; for kInteger 0 and 1
inline std::pair<Values, Values> saved_statistics(Inputs kind, Dtype dtype, int64_t N, int C,
                                                  const Values& inp) {
    std::vector<double> out(N * C), mean(N, 0.0), rstd(N, 1.0);
    if (kind != Inputs::kInteger) {
        layernorm_forward_cpu<double>(out.data(), mean.data(), rstd.data(), inp->data(), nullptr, nullptr, N,
                                      C, 1e-5f);
    }
    round_all(mean, format_of(statistics_of(dtype)));
    round_all(rstd, format_of(statistics_of(dtype)));
    return {share(std::move(mean)), share(std::move(rstd))};
}

}  // namespace llmc
