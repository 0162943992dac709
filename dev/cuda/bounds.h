// Number formats on the host, as data; and how far from the truth a correct LayerNorm may be: a bound for every single
// element, derived, never tuned.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "llmc/host/base/floats.h"
#include "llmc/host/base/fp8.h"

namespace llmc {

// ---- number formats: described rather than built in, so that everything but the launches is type-erased: a value is a
// double that the format can hold, a buffer is bytes

enum class Dtype { kFp32, kBf16, kFp16, kFp64, kE4m3, kE5m2 };  // the last two are results only

struct Format {
    const char* name;
    int bytes;
    int precision;     // bits of the significand, the hidden one included
    int max_exponent;  // of the largest finite value: 2^max_exponent <= it
    constexpr int min_exponent() const { return 1 - max_exponent; }  // of the normal numbers
    constexpr int mantissa_bits() const { return precision - 1; }
    double roundoff() const { return std::ldexp(1.0, -precision); }  // relative error of rounding
    // and absolute, near zero; fp64's, half of double's smallest number, is not itself a double
    double underflow() const { return std::ldexp(1.0, std::max(min_exponent() - precision, -1074)); }
};

inline constexpr Format kFormats[] = {{"fp32", 4, 24, 127},  {"bf16", 2, 8, 127}, {"fp16", 2, 11, 15},
                                      {"fp64", 8, 53, 1023}, {"e4m3", 1, 4, 8},   {"e5m2", 1, 3, 15}};
inline constexpr Dtype kDtypes[] = {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16, Dtype::kFp64};
inline const Format& format_of(Dtype dtype) { return kFormats[(int)dtype]; }

// what sums over elements of this type are held in
inline const Format& accumulator_of(Dtype dtype) {
    return format_of(dtype == Dtype::kFp64 ? Dtype::kFp64 : Dtype::kFp32);
}

// x rounded to the format: to nearest, ties to even, with its subnormal numbers; too large becomes infinite
inline double round_to(double x, const Format& f) {
    if (!std::isfinite(x) || x == 0 || f.precision == 53) { return x; }
    int exponent = (int)(std::bit_cast<uint64_t>(std::fabs(x)) >> 52) - 1023;
    int last_place = std::max(exponent, f.min_exponent()) - f.mantissa_bits();
    // adding 1.5 x 2^52 units of the last place leaves no room for smaller bits: the addition rounds
    double unit = std::bit_cast<double>((uint64_t)(last_place + 52 + 1023) << 52);
    double rounded = (x + 1.5 * unit) - 1.5 * unit;
    double limit = std::ldexp(2 - 2 * f.roundoff(), f.max_exponent);
    if (std::fabs(rounded) > limit) { rounded = std::numeric_limits<double>::infinity(); }
    return std::copysign(rounded, x);
}

// the bits of a value that the format holds exactly (see round_to)
inline uint64_t encode(double value, const Format& f) {
    if (f.bytes == 8) { return std::bit_cast<uint64_t>(value); }
    if (f.bytes == 4) { return std::bit_cast<uint32_t>((float)value); }
    return f.max_exponent == 127 ? to_bf16((float)value) : to_fp16((float)value);
}

inline double decode(uint64_t bits, const Format& f) {
    if (f.bytes == 8) { return std::bit_cast<double>(bits); }
    if (f.bytes == 4) { return std::bit_cast<float>((uint32_t)bits); }
    if (f.bytes == 1) { return f.precision == 4 ? from_e4m3((uint8_t)bits) : from_e5m2((uint8_t)bits); }
    return f.max_exponent == 127 ? from_bf16((uint16_t)bits) : from_fp16((uint16_t)bits);
}

inline uint64_t load_bits(const std::byte* raw, int64_t i, const Format& f) {
    uint64_t bits = 0;
    std::memcpy(&bits, raw + i * f.bytes, f.bytes);
    return bits;
}

inline std::vector<std::byte> encode_all(const std::vector<double>& values, const Format& f) {
    std::vector<std::byte> raw(values.size() * f.bytes);
#pragma omp parallel for
    for (size_t i = 0; i < values.size(); i++) {
        uint64_t bits = encode(values[i], f);
        std::memcpy(raw.data() + i * f.bytes, &bits, f.bytes);
    }
    return raw;
}

inline void round_all(std::vector<double>& values, const Format& f) {
#pragma omp parallel for
    for (size_t i = 0; i < values.size(); i++) { values[i] = round_to(values[i], f); }
}

// ---- bounds
//
// The truth is computed in double from the numbers the kernel reads, so only the kernel's roundings count:
//   fl(a op b) = (a op b)(1 + d) + t,  |d| <= u, |t| <= tiny;  fp32 accumulators: u = 2^-24, tiny = 2^-150
// and one more, by u_out, where a result is stored in T. Products of two errors are dropped; what the
// constants have to spare pays for them, and for other orders of the same operations.
//
// A sum through which a number passes n additions errs by at most n u sum|terms|: the strict bound, and the
// one used for sums over a row. There nothing else is safe: differences from x[0] of numbers with few bits
// all end in the same bits, so that one addition after another rounds the same way (fp16, C = 8192, a thread
// per row: seen at twice the statistical bound).
// Sums over a column of N rows have terms with unlike last bits, and chains so long that the strict bound
// would hide faults: at n = 65,536 it allows 0.4 % of sum|terms|. Theirs is min(n, 8 sqrt(n)) u sum|terms|,
// 0.012 %: roundings that are independent with mean zero exceed it with probability < 2 exp(-8^2 / 2) < 3e-14
// (Higham and Mary 2019, doi:10.1137/18M1226312). On inputs made to be nasty it is the strict one here too.

// how a version adds: the most additions that one number goes through
struct Sums {
    double row = 0;          // in a sum over the C elements of a row
    double column = 0;       // in a sum over the N rows of a column
    bool from_first = true;  // the row's sum is taken of x - x[0] (false: of x itself)
    bool strict = false;     // no statistics: the inputs are not ordinary ones

    // in units of u sum|terms|
    double row_error() const { return row; }
    double column_error() const { return strict ? column : std::min(column, 8 * std::sqrt(column)); }
};

// Of layernorm_forward() and layernorm_backward() a row's: a lane's share and 16 for its last vector, the lanes,
// the warps. Few lanes have a short row, 4, 8 or 16 at least. No lane adds up more than 128 numbers one after the
// other (the fallback, a warp to 4096 columns), whatever the row's length: longer ones go to more warps and blocks, or
// in pieces, whose moments are merged, three roundings each. Pieces have 4096 columns at least, of fp64 2048.
inline double shipped_row_additions(int C, Dtype dtype) {
    int lanes = C <= 128 ? 4 : C <= 520 ? 8 : C <= 1040 ? 16 : 32;
    double pieces = C / (dtype == Dtype::kFp64 ? 2048.0 : 4096.0);
    return std::min(std::ceil((double)C / lanes) + 16, 160 + 3 * pieces);
}

struct Roundings {
    double u, tiny;          // of the accumulators
    double u_out, tiny_out;  // of the stored result
    explicit Roundings(Dtype dtype)
        : u(accumulator_of(dtype).roundoff()),
          tiny(accumulator_of(dtype).underflow()),
          u_out(format_of(dtype).roundoff()),
          tiny_out(format_of(dtype).underflow()) {}
    // an error made in the accumulators, and then the result y is stored
    double stored(double error, double y) const {
        return error * (1 + u_out) + u_out * std::fabs(y) + tiny_out;
    }
};

// ---- forward ------------------------------------------------------------------------------------

// What a row's bounds need, with K = x[0] or 0, whichever the version's sum is relative to.
struct RowSpread {
    double radius;   // max |x - mean|
    double average;  // mean |x - K|
    double rms;      // sqrt(mean (x - K)^2)
};

// mean = K + sum(x - K) / C: the roundings of each x - K, of the sum, of the division, of the last addition
inline double mean_bound(const Roundings& r, const Sums& sums, const RowSpread& row, double mean) {
    double g = sums.row_error();
    return r.u * (std::fabs(mean) + (g + 4) * row.average) + 2 * r.tiny;
}

// rstd = 1 / sqrt(var + eps), rsqrtf being good to 2 ulp = 4 u. Relative: half of var's error, which is the
// sum's (g), that of x - K in each term (rms rstd), and the mean's, squared, since sum(x - mean) is 0.
inline double rstd_bound(const Roundings& r, const Sums& sums, const RowSpread& row, double rstd) {
    double g = sums.row_error();
    double mean_off = r.u * (g + 2) * row.average * rstd;  // in standard deviations
    return rstd * (r.u * (g + 8 + row.rms * rstd) + mean_off * mean_off / 2);
}

// y = (x - mean) rstd w + b: the errors of x - K, of the mean and of rstd all scale with radius + average
inline double out_bound(const Roundings& r, const Sums& sums, const RowSpread& row, double rstd, double w,
                        double b, double y) {
    double g = sums.row_error();
    double mean_off = r.u * (g + 2) * row.average * rstd;
    double scale = std::fabs(w) * rstd * (row.radius + row.average);
    double error =
        4 * r.u * ((g + 4) * scale + std::fabs(b) + std::fabs(y)) + scale * mean_off * mean_off / 2;
    return r.stored(error + 2 * r.tiny * (std::fabs(w) * (1 + rstd) + 1), y);
}

// ---- backward -----------------------------------------------------------------------------------
// mean and rstd are given, so the truth uses the very same numbers: the error that storing the mean in fp32
// puts into xhat, u |mean| rstd, belongs to the forward and is 0 here.

// of a row, with g = w dy
struct RowGradient {
    double c1, c2;          // mean g, mean g xhat
    double abs_c1, abs_c2;  // mean |g|, mean |g xhat|: what the errors of the two sums scale with
};

// dx = rstd (g - c1 - xhat c2): at most 5 roundings touch each of the three terms; then the two sums' errors
inline double dinp_bound(const Roundings& r, const Sums& sums, const RowGradient& row, double rstd,
                         double xhat, double g, double dx) {
    double n = sums.row_error() + 8;
    double terms = std::fabs(g) + std::fabs(row.c1) + std::fabs(xhat * row.c2);
    double error = r.u * rstd * (8 * terms + n * (row.abs_c1 + std::fabs(xhat) * row.abs_c2));
    double lost = r.tiny * (1 + rstd) * (4 + row.abs_c1) * (1 + std::fabs(xhat));
    return r.stored(error + lost, dx);
}

// dw = sum dy xhat: 3 roundings in each term (x - mean, rstd, dy), then the sum's. abs_terms = sum |dy xhat|
inline double dweight_bound(const Roundings& r, const Sums& sums, double abs_terms, double abs_dout,
                            int64_t N, double dw) {
    double error = r.u * (sums.column_error() + 4) * abs_terms + r.tiny * ((double)N + abs_dout);
    return r.stored(error, dw);
}

// db = sum dy: nothing but the sum's. abs_dout = sum |dy|
inline double dbias_bound(const Roundings& r, const Sums& sums, double abs_dout, double db) {
    return r.stored(r.u * (sums.column_error() + 1) * abs_dout, db);
}

}  // namespace llmc
