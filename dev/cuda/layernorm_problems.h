// LayerNorm as problems for the harness: the inputs it is tried on, the truth (reference.h in double), the
// bounds (bounds.h), and which shapes --check goes through. Host only.
#pragma once
#include <memory>

#include "dev/cuda/problem.h"
#include "llmc/philox.h"
#include "llmc/reference.h"

namespace llmc {

// ---- inputs -------------------------------------------------------------------------------------

constexpr uint64_t kSeed = 1607'06450;  // arXiv's number of the LayerNorm paper
// independent streams of random numbers
enum Draw : uint32_t { kDrawInp, kDrawWeight, kDrawBias, kDrawDout };

inline double normal_at(Draw draw, int64_t i) {
    return random_normal(kSeed, RandomUse::kFixture, draw, 0, i);
}
inline double uniform_at(Draw draw, int64_t i) {
    return to_uniform(random_bits(kSeed, RandomUse::kFixture, draw, 0, i)[0]);
}

inline double inp_at(Inputs kind, const Format& f, int64_t row, int col, int C) {
    double n = normal_at(kDrawInp, row * C + col);
    bool marked = col == (int)(row * 7 % C);  // one element of each row
    switch (kind) {
        case Inputs::kNormal: return -2.3 + 0.5 * n;
        case Inputs::kOffset: return f.precision >= 24 ? 1e4 + 1e-2 * n : 100 + n;
        case Inputs::kConstant: return normal_at(kDrawInp, row) * std::pow(10.0, (double)(row % 7) - 3);
        case Inputs::kOutlier: return marked ? 1e4 : 0.1 * n;
        case Inputs::kDenormal: return n * 64 * std::ldexp(1.0, f.min_exponent() - f.mantissa_bits());
        case Inputs::kInteger: return n > 0 ? 1 : -1;
        case Inputs::kNonFinite: break;
    }
    if (!marked || row % 4 == 0) { return -2.3 + 0.5 * n; }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return row % 4 == 1 ? kInfinity : row % 4 == 2 ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

// For kInteger: -1, 0, 1; so few ones that a column's sum, at most 6 x 40 whatever N, fits bf16's 8 bits.
inline double dout_at(Inputs kind, int64_t row, int col, int64_t N, int C) {
    int64_t i = row * C + col;
    if (kind != Inputs::kInteger) { return 0.1 * normal_at(kDrawDout, i); }
    auto bits = random_bits(kSeed, RandomUse::kFixture, kDrawDout, 0, i);
    double ones = std::min(2.0 / 3, 1600.0 / (double)N);
    return to_uniform(bits[0]) >= ones ? 0 : bits[1] & 1 ? 1 : -1;
}

// rows x cols values, rounded to dtype
inline Values make_values(Dtype dtype, int64_t rows, int cols,
                          const std::function<double(int64_t row, int col)>& value_at) {
    std::vector<double> values(rows * cols);
    #pragma omp parallel for
    for (int64_t row = 0; row < rows; row++) {
        for (int col = 0; col < cols; col++) { values[row * cols + col] = value_at(row, col); }
    }
    round_all(values, format_of(dtype));
    return std::make_shared<const std::vector<double>>(std::move(values));
}

inline Values make_inp(Inputs kind, Dtype dtype, int64_t N, int C) {
    return make_values(dtype, N, C,
                       [&](int64_t row, int col) { return inp_at(kind, format_of(dtype), row, col, C); });
}
inline Values make_vector(Dtype dtype, int C, Draw draw) {
    return make_values(dtype, 1, C, [&](int64_t, int col) { return uniform_at(draw, col); });
}

inline Values share(std::vector<double>&& values) {
    return std::make_shared<const std::vector<double>>(std::move(values));
}

// the accumulators' type: mean and rstd are kept in it
inline Dtype statistics_of(Dtype dtype) { return dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32; }

// ---- forward ------------------------------------------------------------------------------------

// the truth, and what its bounds are made of; rows are spread_of() once, not once per element
struct ForwardTruth {
    int C;
    Roundings roundings, statistics;
    Values weight, bias, out, mean, rstd;
    std::vector<RowSpread> from_first, from_zero;  // with K = x[0], with K = 0

    ForwardTruth(Dtype dtype, int64_t N, int C, double eps, Values inp, Values weight, Values bias)
        : C(C), roundings(dtype), statistics(statistics_of(dtype)), weight(weight), bias(bias), from_first(N),
          from_zero(N) {
        std::vector<double> y(N * C), m(N), s(N);
        layernorm_forward_cpu(y.data(), m.data(), s.data(), inp->data(), weight->data(), bias->data(), N, C,
                              eps);
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
        return out_bound(roundings, sums, spread(sums, row), (*rstd)[row], (*weight)[c], (*bias)[c],
                         (*out)[row * C + c]);
    }
    double bound_of_mean(const Sums& sums, int64_t row) const {
        return mean_bound(statistics, sums, spread(sums, row), (*mean)[row]);
    }
    double bound_of_rstd(const Sums& sums, int64_t row) const {
        return rstd_bound(statistics, sums, spread(sums, row), (*rstd)[row]);
    }
};

// Useful streams: inp read, out written.
inline Problem layernorm_forward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal) {
    int64_t N = shape.N;
    int C = shape.C;
    constexpr float eps = 1e-5f;  // what the kernel gets: not quite kLayernormEps
    Values inp = make_inp(kind, dtype, N, C);
    Values weight = make_vector(dtype, C, kDrawWeight), bias = make_vector(dtype, C, kDrawBias);
    auto t = std::make_shared<const ForwardTruth>(dtype, N, C, eps, inp, weight, bias);
    Dtype statistics = statistics_of(dtype);
    bool exact = kind == Inputs::kConstant;  // out is bias, if the version's sums are of x - x[0]
    auto out = [t, exact](const Sums& sums, int64_t row, int64_t c) {
        return exact && sums.from_first ? 0 : t->bound_of_out(sums, row, c);
    };
    auto mean = [t](const Sums& sums, int64_t row, int64_t) { return t->bound_of_mean(sums, row); };
    auto rstd = [t](const Sums& sums, int64_t row, int64_t) { return t->bound_of_rstd(sums, row); };
    return {.op = "layernorm_forward", .dtype = dtype, .N = N, .C = C, .eps = eps,
            .inputs = kInputsNames[(int)kind], .reads = 1, .writes = 1,
            .in = {{"inp", dtype, inp}, {"weight", dtype, weight}, {"bias", dtype, bias}},
            .out = {{"out", dtype, N, C, t->out, out},
                    {"mean", statistics, N, 1, t->mean, mean},
                    {"rstd", statistics, N, 1, t->rstd, rstd}}};
}

// ---- backward -----------------------------------------------------------------------------------

struct BackwardTruth {
    int64_t N;
    int C;
    Roundings roundings;
    Values dout, inp, weight, mean, rstd, dinp, dweight, dbias;
    std::vector<RowGradient> rows;
    std::vector<double> abs_dweight, abs_dbias;  // sum over rows of |dy xhat|, of |dy|

    BackwardTruth(Dtype dtype, int64_t N, int C, Values dout, Values inp, Values weight, Values mean,
                  Values rstd)
        : N(N), C(C), roundings(dtype), dout(dout), inp(inp), weight(weight), mean(mean), rstd(rstd), rows(N),
          abs_dweight(C), abs_dbias(C) {
        std::vector<double> dx(N * C), dw(C), db(C);
        layernorm_backward_cpu(dx.data(), dw.data(), db.data(), dout->data(), inp->data(), weight->data(),
                               mean->data(), rstd->data(), N, C, false);
        dinp = share(std::move(dx));
        dweight = share(std::move(dw));
        dbias = share(std::move(db));
        sum_rows();
        sum_columns();
    }

    double xhat(int64_t row, int64_t c) const { return ((*inp)[row * C + c] - (*mean)[row]) * (*rstd)[row]; }
    double g(int64_t row, int64_t c) const { return (*weight)[c] * (*dout)[row * C + c]; }

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

// Useful streams: inp and dout read, dinp written.
inline Problem layernorm_backward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal) {
    int64_t N = shape.N;
    int C = shape.C;
    Values inp = make_inp(kind, dtype, N, C), weight = make_vector(dtype, C, kDrawWeight);
    Values dout =
        make_values(dtype, N, C, [&](int64_t row, int col) { return dout_at(kind, row, col, N, C); });
    auto [mean, rstd] = saved_statistics(kind, dtype, N, C, inp);
    auto t = std::make_shared<const BackwardTruth>(dtype, N, C, dout, inp, weight, mean, rstd);
    Dtype statistics = statistics_of(dtype);
    bool exact = kind == Inputs::kInteger;  // sums over rows are small integers: no rounding, in any order
    auto dinp = [t](const Sums& sums, int64_t row, int64_t c) { return t->bound_of_dinp(sums, row, c); };
    auto dweight = [t, exact](const Sums& sums, int64_t c, int64_t) {
        return exact ? 0 : t->bound_of_dweight(sums, c);
    };
    auto dbias = [t, exact](const Sums& sums, int64_t c, int64_t) {
        return exact ? 0 : t->bound_of_dbias(sums, c);
    };
    return {.op = "layernorm_backward", .dtype = dtype, .N = N, .C = C, .eps = 0,
            .inputs = kInputsNames[(int)kind], .reads = 2, .writes = 1,
            .in = {{"dout", dtype, dout}, {"inp", dtype, inp}, {"weight", dtype, weight},
                   {"mean", statistics, mean}, {"rstd", statistics, rstd}},
            .out = {{"dinp", dtype, N, C, t->dinp, dinp},
                    {"dweight", dtype, C, 1, t->dweight, dweight},
                    {"dbias", dtype, C, 1, t->dbias, dbias}}};
}

// ---- which of them ------------------------------------------------------------------------------

// every type: N, C of one, odd, beside powers of two, GPT-2's widths; then inputs that break careless kernels
inline std::vector<CheckItem> layernorm_checks(bool backward) {
    std::vector<CheckItem> list;
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
        for (Shape shape : {Shape{0, 768}, {1, 1}, {1, 768}, {2, 3}, {2, 65}, {131, 1}, {131, 64}, {131, 769},
                            {1023, 65}, {1023, 1600}, {8192, 3}, {8192, 768}, {8192, 1024}}) {
            list.push_back({dtype, shape});
        }
        list.push_back({.dtype = dtype, .shape = {1023, 769}, .reruns = 50});
        for (Inputs inputs :
             {Inputs::kOffset, Inputs::kConstant, Inputs::kOutlier, Inputs::kDenormal, Inputs::kNonFinite}) {
            list.push_back({dtype, {131, 769}, inputs});
        }
        if (!backward) { continue; }
        for (Shape shape : {Shape{131, 3}, {1023, 769}, {8192, 64}}) {
            list.push_back({dtype, shape, Inputs::kInteger});
        }
    }
    // Triton's tutorial tests its LayerNorm so
    list.push_back({.dtype = Dtype::kFp16, .shape = {1151, 8192}, .atol = 1e-2});
    return list;
}

inline std::vector<RaceItem> layernorm_races() {
    return {{Dtype::kBf16, {65536, 768}}, {Dtype::kFp32, {8192, 768}},
            {Dtype::kBf16, {8192, 768}}, {Dtype::kFp16, {4096, 8192}}};
}

}  // namespace llmc
