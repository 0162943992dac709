// Stochastic rounding of float to bfloat16, for the device and for what checks it: x is rounded up with the
// probability of its place between its two neighbours, so that updates too small for a bfloat16 weight still
// count on average. Its random bits are a function of the element and the update alone.
#pragma once
#include <array>
#include <cstdint>

#include "llmc/host/base/philox.h"

namespace llmc {

// the bfloat16 beside the float: random16, in [0, 2^16), is added to the half that is then cut off. Infinity
// and NaN stay; what would round to the largest bfloat16 rounds to it, never to infinity.
constexpr uint16_t round_stochastically(uint32_t float_bits, uint32_t random16) {
    uint32_t high = float_bits >> 16;
    bool finite = (float_bits & 0x7f800000u) != 0x7f800000u;
    bool nan = !finite && (float_bits & 0x007fffffu) != 0;
    bool stays = (float_bits & 0x7fff8000u) == 0x7f7f0000u;  // nearest to the largest bfloat16 from above
    if (nan) { return (uint16_t)(high | 0x40u); }            // cut off, its payload could be 0: infinity
    return (uint16_t)(finite && !stays ? (float_bits + random16) >> 16 : high);
}

// Added in place of a random number, it rounds to the nearest bfloat16, ties away from zero: with ties to even, unrounded()
// could not tell whether the sum carried.
constexpr uint32_t kToNearest = 0x8000;

// The float again, from what it was rounded to, its own lower half, and the same random number. NaN comes back as a NaN; what
// was rounded up to the largest bfloat16 from less than half a step above the one before comes back one step larger.
constexpr uint32_t unrounded(uint16_t rounded, uint16_t low, uint32_t random16) {
    const bool stays = (rounded & 0x7fffu) == 0x7f7fu && low < 0x8000u;
    const uint32_t high = rounded - (!stays && low + random16 > 0xffffu ? 1u : 0u);
    return high << 16 | low;
}

// random16 of the elements 8 pair ... 8 pair + 7 of a tensor, counted in file order over all layers, after `updates` updates,
// two a word, low half first; before the first update, kToNearest
constexpr std::array<uint32_t, 4> rounding_bits8(uint64_t seed, int tensor, int64_t updates, int64_t pair) {
    auto bits = random_bits(seed, RandomUse::kRounding, (uint32_t)tensor, (uint32_t)updates, (uint64_t)pair);
    if (updates == 0) { bits.fill(kToNearest << 16 | kToNearest); }
    return bits;
}

// of the elements 4 quad ... 4 quad + 3
constexpr std::array<uint32_t, 4> rounding_bits4(uint64_t seed, int tensor, int64_t updates, int64_t quad) {
    auto bits = rounding_bits8(seed, tensor, updates, quad / 2);
    bool second = quad % 2 != 0;
    uint32_t a = second ? bits[2] : bits[0], b = second ? bits[3] : bits[1];
    return {a & 0xffffu, a >> 16, b & 0xffffu, b >> 16};
}

constexpr uint32_t rounding_bits(uint64_t seed, int tensor, int64_t updates, int64_t element) {
    return rounding_bits4(seed, tensor, updates, element / 4)[element % 4];
}

}  // namespace llmc
