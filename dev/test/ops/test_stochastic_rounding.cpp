// The random numbers of stochastic rounding, and the way back from what was rounded.
#include "llmc/ops/stochastic_rounding.h"

#include <cmath>

#include "dev/test/support/compare.h"
#include "llmc/model/gpt2_config.h"

using namespace llmc;

namespace {

constexpr uint64_t kRoundingSeed = 0x1234'5678'9abc'def0;

// One 16-bit number from the definition: Philox4x32-10 of the counter (index of 8 elements, its upper half,
// stream 32 + tensor, updates) under the seed; two elements a word, the low half first.
uint32_t bits_by_definition(uint64_t seed, uint32_t tensor, uint32_t updates, uint64_t element) {
    uint64_t index = element / 8;
    uint32_t x[4] = {(uint32_t)index, (uint32_t)(index >> 32), 32 + tensor, updates};
    for (uint32_t round = 0; round < 10; round++) {
        uint32_t key[2] = {(uint32_t)seed + round * 0x9E3779B9u,
                           (uint32_t)(seed >> 32) + round * 0xBB67AE85u};
        uint64_t left = 0xD2511F53ull * x[0], right = 0xCD9E8D57ull * x[2];
        x[0] = (uint32_t)(right >> 32) ^ x[1] ^ key[0];
        x[1] = (uint32_t)right;
        x[2] = (uint32_t)(left >> 32) ^ x[3] ^ key[1];
        x[3] = (uint32_t)left;
    }
    return x[element % 8 / 2] >> element % 2 * 16 & 0xffffu;
}

// The correlation of two streams of n numbers that are uniform in [0, 2^16): 0 for independent ones, with a
// standard deviation of 1 / sqrt(n).
template <typename First, typename Second>
double correlation(int64_t n, First first, Second second) {
    constexpr double mean = (0x1p16 - 1) / 2, variance = (0x1p32 - 1) / 12;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) { sum += (first(i) - mean) * (second(i) - mean); }
    return sum / (double)n / variance;
}

// as documented: of the numbers below the largest bfloat16, by less than a unit of it, those that were rounded up to it
bool comes_back_larger(uint32_t bits, uint32_t random) {
    return (bits >> 16 & 0x7fffu) == 0x7f7eu && (bits & 0xffffu) < 0x8000u &&
           (bits & 0xffffu) + random > 0xffffu;
}

}  // namespace

TEST_CASE("rounding_bits: known bits, and those of the definition") {
    constexpr uint32_t known[] = {0x67ba, 0xfac9, 0x1d3f, 0xe42c, 0x10c9, 0x4faf, 0xb759, 0x1893};
    for (int i = 0; i < 8; i++) {
        uint32_t found = rounding_bits(kRoundingSeed, kQkvw, 3, i);
        CHECK_MESSAGE(
            found == known[i],
            fmt::format("rounding_bits element {}: found 0x{:04x} expected 0x{:04x}", i, found, known[i]));
    }
    int64_t wrong = 0;
    for (int tensor : {(int)kWte, (int)kQkvw, (int)kLnfb}) {
        for (int64_t updates : {1, 2, 1000, 100000}) {
            for (int64_t first : {(int64_t)0, (int64_t)1000, (int64_t)INT32_MAX - 50, (int64_t)1 << 36}) {
                for (int64_t i = first; i < first + 100; i++) {
                    wrong += rounding_bits(kRoundingSeed, tensor, updates, i) !=
                             bits_by_definition(kRoundingSeed, tensor, updates, i);
                }
            }
        }
    }
    CHECK_MESSAGE(wrong == 0, fmt::format("rounding_bits: {} differ from the definition", (int)wrong));
}

TEST_CASE("rounding_bits: before the first update to the nearest") {
    for (int64_t i : {0, 1, 2, 3, 4, 5, 6, 7, 1001}) {
        CHECK(rounding_bits(kRoundingSeed, kQkvw, 0, i) == kToNearest);
    }
}

// 6 standard deviations: once in 5e8 times
TEST_CASE("rounding_bits: no correlation between neighbours, tensors, updates and seeds") {
    constexpr int64_t n = 1 << 16;
    auto bits = [](uint64_t seed, int tensor, int64_t updates, int64_t shift) {
        return [=](int64_t i) { return (double)rounding_bits(seed, tensor, updates, i + shift); };
    };
    auto check_against = [&](const std::string& name, auto second) {
        double found = correlation(n, bits(kRoundingSeed, kQkvw, 3, 0), second);
        CHECK_MESSAGE(std::fabs(found) <= 6 / std::sqrt((double)n),
                      fmt::format("rounding_bits and those of {}: correlation {:.4f}", name, found));
    };
    for (int shift : {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 768}) {
        check_against(fmt::format("the element {} on", shift), bits(kRoundingSeed, kQkvw, 3, shift));
    }
    check_against("the next tensor", bits(kRoundingSeed, kQkvw + 1, 3, 0));
    check_against("the next update", bits(kRoundingSeed, kQkvw, 4, 0));
    check_against("the next seed", bits(kRoundingSeed + 1, kQkvw, 3, 0));
}

// every upper half, with lower halves and random numbers at and around where the sum carries
TEST_CASE("unrounded: the float again, but below the largest bfloat16, and NaN as a NaN") {
    int64_t wrong = 0, larger = 0, nans = 0;
    for (uint32_t high = 0; high <= 0xffffu; high++) {
        for (uint32_t low : {0x0000u, 0x0001u, 0x3039u, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu}) {
            for (uint32_t random : {0x0000u, 0x0001u, 0x0002u, 0x7fffu, 0x8000u, 0x8001u, 0xcfc7u, 0xffffu}) {
                const uint32_t bits = high << 16 | low;
                const uint32_t back = unrounded(round_stochastically(bits, random), (uint16_t)low, random);
                const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
                nans += nan;
                larger += comes_back_larger(bits, random);
                wrong += nan                               ? (back & 0x7fffffffu) <= 0x7f800000u
                         : comes_back_larger(bits, random) ? back != bits + 0x10000u
                                                           : back != bits;
            }
        }
    }
    CHECK_MESSAGE(wrong == 0, fmt::format("unrounded: {} come back wrong", (int)wrong));
    CHECK(larger > 0);
    CHECK(nans > 0);
}
