// What LayerNorm is tried on: random numbers, and the inputs that break careless kernels. Host only.
#pragma once
#include <functional>
#include <memory>

#include "dev/cuda/problem.h"
#include "llmc/host/base/philox.h"

namespace llmc {

constexpr uint64_t kSeed = 1607'06450;  // arXiv's number of the LayerNorm paper
// independent streams of random numbers
enum Draw : uint32_t { kDrawInp, kDrawWeight, kDrawBias, kDrawDout, kDrawInp2, kDrawBefore };

inline double normal_at(Draw draw, int64_t i) {
    return random_normal(kSeed, RandomUse::kFixture, draw, 0, i);
}
inline double uniform_at(Draw draw, int64_t i) {
    return to_uniform(random_bits(kSeed, RandomUse::kFixture, draw, 0, i)[0]);
}

// a few units of the smallest subnormal number
inline double denormal(const Format& f, double n) {
    return n * 64 * std::ldexp(1.0, f.min_exponent() - f.mantissa_bits());
}

inline double inp_at(Inputs kind, const Format& f, int64_t row, int col, int C) {
    double n = normal_at(kDrawInp, row * C + col);
    bool marked = col == (int)(row * 7 % C);  // one element of each row
    switch (kind) {
        case Inputs::kNormal:
            return -2.3 + 0.5 * n;
        case Inputs::kOffset:
            return f.precision >= 24 ? 1e4 + 1e-2 * n : 100 + n;
        case Inputs::kConstant:
            return normal_at(kDrawInp, row) * std::pow(10.0, (double)(row % 7) - 3);
        case Inputs::kOutlier:
            return marked ? 1e4 : 0.1 * n;
        case Inputs::kDenormal:
            return denormal(f, n);
        case Inputs::kInteger:
            return n > 0 ? 1 : -1;
        case Inputs::kNonFinite:
            break;
    }
    if (!marked || row % 4 == 0) { return -2.3 + 0.5 * n; }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return row % 4 == 1 ? kInfinity : row % 4 == 2 ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

// what the residual stream gets added: of the size of inp's deviations, so that the sum is of inp's kind
inline double inp2_at(Inputs kind, const Format& f, int64_t row, int col, int C) {
    double n = normal_at(kDrawInp2, row * C + col);
    switch (kind) {
        case Inputs::kOffset:
            return f.precision >= 24 ? 1e-2 * n : n;
        case Inputs::kConstant:
            return normal_at(kDrawInp2, row);
        case Inputs::kOutlier:
            return 0.1 * n;
        case Inputs::kDenormal:
            return denormal(f, n);
        case Inputs::kInteger:
            return n > 0 ? 1 : -1;
        case Inputs::kNormal:
        case Inputs::kNonFinite:
            break;
    }
    return 0.5 * n;
}

// For kInteger: -1, 0, 1; so few ones that a column's sum, at most 6 x 40 whatever N, fits bf16's 8 bits.
inline double dout_at(Inputs kind, int64_t row, int col, int64_t N, int C) {
    int64_t i = row * C + col;
    if (kind != Inputs::kInteger) { return 0.1 * normal_at(kDrawDout, i); }
    auto bits = random_bits(kSeed, RandomUse::kFixture, kDrawDout, 0, i);
    double ones = std::min(2.0 / 3, 1600.0 / (double)N);
    return to_uniform(bits[0]) >= ones ? 0 : bits[1] & 1 ? 1 : -1;
}

// what a += form finds: of the size of a gradient; for kInteger -8 .. 7, which leaves the sums above exact
inline double before_at(Inputs kind, int64_t i) {
    return kind == Inputs::kInteger ? std::floor(16 * uniform_at(kDrawBefore, i)) - 8
                                    : 0.3 * normal_at(kDrawBefore, i);
}

// rows x cols values, rounded to dtype
inline Values make_values(Dtype dtype, int64_t rows, int cols,
                          const std::function<double(int64_t row, int col)>& value_at) {
    std::vector<double> values(rows * cols);
#pragma omp parallel for collapse(2)
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
inline Values make_before(Inputs kind, Dtype dtype, int64_t rows, int cols) {
    return make_values(dtype, rows, cols,
                       [&](int64_t row, int col) { return before_at(kind, row * cols + col); });
}

inline Values share(std::vector<double>&& values) {
    return std::make_shared<const std::vector<double>>(std::move(values));
}

// the accumulators' type: mean and rstd are kept in it
inline Dtype statistics_of(Dtype dtype) { return dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32; }

}  // namespace llmc
