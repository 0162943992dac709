// exp for loops that must vectorise: std::exp(float) is a library call, which keeps a whole loop scalar.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace llmc {

inline double exp_simd(double x) { return std::exp(x); }

// exp(x) = 2^k exp(r), k = round(x / ln 2), |r| <= ln 2 / 2, exp(r) by its series to r^7 (the next term is
// below 6e-9). Within 2 ulp for -87 <= x <= 88, a number below 1.7e-38 under that, NaN for NaN; x must not be
// over 88.
inline float exp_simd(float x) {
    constexpr float kRound =
        12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low mantissa bits
    constexpr float kLn2High = 0.693145752f,
                    kLn2Low = 1.42860677e-6f;  // ln 2 in two parts, the first short: k * it is exact
    x = x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504f + kRound;
    float k = shifted - kRound;
    float r = x - k * kLn2High - k * kLn2Low;
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    int32_t power = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
    return series * std::bit_cast<float>((power + 127) << 23);
}

}  // namespace llmc
