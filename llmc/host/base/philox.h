// Random numbers that are a function of what they are for: Philox4x32-10 (Salmon et al. 2011, "Parallel
// random numbers: as easy as 1, 2, 3"). Keyed by seed, purpose, step and the element's index, they do not
// depend on the number of threads, GPUs or restarts.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace llmc {

// 128 random bits for this counter under this key
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * counter[0];
        uint64_t b = (uint64_t)0xCD9E8D57u * counter[2];
        counter = {(uint32_t)(b >> 32) ^ counter[1] ^ key[0], (uint32_t)b,
                   (uint32_t)(a >> 32) ^ counter[3] ^ key[1], (uint32_t)a};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

// what a random number is used for: streams that never meet
enum class RandomUse : uint32_t { kInit = 0, kRounding = 32, kSampling = 64, kFixture = 96, kDropout = 128 };

// `use` + a small number (of initialisation, the tensor) and `step` are two counter words, index the others
constexpr std::array<uint32_t, 4> random_bits(uint64_t seed, RandomUse use, uint32_t which, uint32_t step,
                                              uint64_t index) {
    return philox4x32({(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)use + which, step},
                      {(uint32_t)seed, (uint32_t)(seed >> 32)});
}

// in [0, 1): 24 bits, so that 1 is never reached in float
constexpr double to_uniform(uint32_t bits) { return (bits >> 8) * 0x1p-24; }

// standard normal, by Box and Muller
inline double random_normal(uint64_t seed, RandomUse use, uint32_t which, uint32_t step, uint64_t index) {
    auto bits = random_bits(seed, use, which, step, index);
    double radius = std::sqrt(-2 * std::log(1 - to_uniform(bits[0])));
    return radius * std::cos(6.283185307179586 * to_uniform(bits[1]));
}

}  // namespace llmc
