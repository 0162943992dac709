// Floats beyond the C++ library: the 16-bit formats of files, and an exp for loops that must vectorise.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace llmc {

inline float from_bf16(uint16_t bits) { return std::bit_cast<float>((uint32_t)bits << 16); }

// to nearest, ties to even; NaN stays NaN
inline uint16_t to_bf16(float x) {
    uint32_t bits = std::bit_cast<uint32_t>(x);
    if (x != x) { return (uint16_t)((bits >> 16) | 0x40); }
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_fp16(uint16_t bits) {
    // the exponent stands 112 too low; of a subnormal number the product is exact, too
    float size = std::bit_cast<float>((uint32_t)(bits & 0x7fff) << 13) * 0x1p112f;
    if (size >= 0x1p16f) { size = (bits & 1023) == 0 ? INFINITY : NAN; }
    return bits >> 15 ? -size : size;
}

// to nearest, ties to even; beyond the range: infinity; NaN stays NaN
inline uint16_t to_fp16(float x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    if (x != x) { return sign | 0x7e00; }
    const float size = std::fabs(x);
    if (size >= 65520) { return sign | 0x7c00; }
    const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
    // 0 to 2048 units in the last place: from 1024 on they carry into the exponent
    const int units = (int)std::nearbyint(std::ldexp(size, 10 - exponent));
    return (uint16_t)(sign | ((exponent + 14) * 1024 + units));
}

inline double exp_simd(double x) { return std::exp(x); }

// exp(x) = 2^k exp(r), k = round(x / ln 2), |r| <= ln 2 / 2, exp(r) by its series to r^7 (the next term is
// below 6e-9). Within 2 ulp for -87 <= x <= 88, the largest x; below, a number under 1.7e-38; NaN for NaN.
inline float exp_simd(float x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: added, it rounds to an integer in the low bits
    constexpr float kLn2High = 0.693145752f, kLn2Low = 1.42860677e-6f;  // High is short: k * it is exact
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
