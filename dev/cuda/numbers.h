// Number formats on the host, described rather than built in, so that everything but the launches is
// type-erased: a value is a double that the format can hold, a buffer is bytes.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace llmc {

enum class Dtype { kFp32, kBf16, kFp16, kFp64 };

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

inline constexpr Format kFormats[] = {
    {"fp32", 4, 24, 127}, {"bf16", 2, 8, 127}, {"fp16", 2, 11, 15}, {"fp64", 8, 53, 1023}};
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
    uint64_t sign = (uint64_t)std::signbit(value) << (8 * f.bytes - 1);
    uint64_t infinity = (uint64_t)(2 * f.max_exponent + 1) << f.mantissa_bits();
    if (std::isnan(value)) { return sign | infinity | 1ull << (f.mantissa_bits() - 1); }
    if (std::isinf(value)) { return sign | infinity; }
    if (value == 0) { return sign; }
    int exponent = std::max(std::ilogb(value), f.min_exponent());
    uint64_t units = (uint64_t)std::ldexp(std::fabs(value), f.mantissa_bits() - exponent);
    // a normal number's hidden bit carries into the exponent field and makes it exponent + max_exponent
    return sign | (((uint64_t)(exponent + f.max_exponent - 1) << f.mantissa_bits()) + units);
}

inline double decode(uint64_t bits, const Format& f) {
    if (f.bytes == 8) { return std::bit_cast<double>(bits); }
    if (f.bytes == 4) { return std::bit_cast<float>((uint32_t)bits); }
    if (f.max_exponent == 127) { return std::bit_cast<float>((uint32_t)bits << 16); }
    double sign = bits >> (8 * f.bytes - 1) ? -1 : 1;
    int field = (int)(bits >> f.mantissa_bits()) & (2 * f.max_exponent + 1);
    uint64_t mantissa = bits & ((1ull << f.mantissa_bits()) - 1);
    if (field == 2 * f.max_exponent + 1) {
        return mantissa ? std::numeric_limits<double>::quiet_NaN()
                        : sign * std::numeric_limits<double>::infinity();
    }
    uint64_t hidden = field > 0 ? 1ull << f.mantissa_bits() : 0;
    return sign *
           std::ldexp((double)(mantissa | hidden), std::max(field, 1) - f.max_exponent - f.mantissa_bits());
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

}  // namespace llmc
