// FP8 numbers on the CPU.
#pragma once
#include <cmath>
#include <cstdint>

#include "llmc/host/base/floats.h"

namespace llmc {

// FP8 as Hopper's tensor cores read it (arXiv:2209.05433): an exponent of 4 bits and a fraction of 3, or 5 and 2. e4m3 has
// no infinity; its NaN is what would be 480.
inline float from_e4m3(uint8_t bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const float size = exponent == 0         ? (float)fraction * 0x1p-9f
                       : (bits & 127) == 127 ? NAN
                                             : std::ldexp((float)(8 + fraction), exponent - 10);
    return bits >> 7 ? -size : size;
}
inline float from_e5m2(uint8_t bits) { return from_fp16((uint16_t)(bits << 8)); }

// To nearest, ties to even; beyond the largest number, 448 or 57344, that one, for infinity, too; NaN stays NaN. The smallest
// exponent of a whole unit is that of subnormal numbers.
inline uint8_t to_fp8(float x, int fraction_bits, int least_exponent, float largest) {
    const uint8_t sign = std::signbit(x) ? 0x80 : 0;
    if (x != x) { return sign | 0x7f; }
    const float size = std::fmin(std::fabs(x), largest);
    const int exponent = size < std::ldexp(1.0f, least_exponent) ? least_exponent : std::ilogb(size);
    const int units = (int)std::nearbyint(std::ldexp(size, fraction_bits - exponent));
    return (uint8_t)(sign | (((exponent - least_exponent) << fraction_bits) + units));
}
inline uint8_t to_e4m3(float x) { return to_fp8(x, 3, -6, 448); }
inline uint8_t to_e5m2(float x) { return to_fp8(x, 2, -14, 57344); }

}  // namespace llmc
