// The 16-bit number formats of files: bf16 and fp16, to and from fp32.
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
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                       : exponent == 0 ? std::ldexp((float)fraction, -24)
                                       : std::ldexp((float)(1024 + fraction), exponent - 25);
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

}  // namespace llmc
