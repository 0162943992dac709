// Dropout (Srivastava et al. 2014): of the embeddings and of what a block adds to the residual stream each element becomes 0
// with probability P, and what stays is divided by 1 - P. Which ones is a function of seed, step, place, row and column
// alone: backward and recomputation make the mask again, and neither batches, nor ranks, nor a resume change it.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

#include "llmc/host/base/philox.h"

namespace llmc {

// All that differs from micro-batch to micro-batch. On a GPU it is in device memory, so that a recorded launch can be repeated.
struct DropoutRows {
    // of the micro-batch, the first row's number in the step: sample x sequence length + position
    int64_t first = 0;
    uint32_t step = 0;
};

struct Dropout {
    const DropoutRows* rows = nullptr;  // null: nothing is dropped
    uint64_t seed = 0;
    uint32_t below = 0;  // 2^16 P: an element is dropped whose 16 random bits are below it
    float scale = 1;     // of what stays
    uint32_t place = 0;  // in the model: the number of the layernorm that follows

    Dropout() = default;
    Dropout(double p, uint64_t seed)
        : seed(seed), below((uint32_t)std::lround(p * 0x1p16)), scale((float)(0x1p16 / (0x1p16 - below))) {}
};

// One row of C columns. A call of Philox is for 8 of them.
class DropoutRow {
public:
    constexpr DropoutRow(const Dropout& dropout, int64_t row, int C)
        : dropout_(dropout),
          step_(dropout.rows != nullptr ? dropout.rows->step : 0),
          begin_(((dropout.rows != nullptr ? dropout.rows->first : 0) + row) * ((C + 7) / 8)) {}

    // by what n columns from c on are multiplied: 0 or the scale. n is 1, 2, 4 or 8 and divides c
    template <int n>
    constexpr std::array<float, n> factors(int c) const {
        std::array<float, n> all{};
        const auto bits = random_bits(dropout_.seed, RandomUse::kDropout, dropout_.place, step_,
                                      (uint64_t)(begin_ + c / 8));
        for (int j = 0; j < n; j++) {
            const int at = n == 8 ? j : c % 8 + j;  // its word without an index, which registers do not have
            const uint32_t word = at < 4 ? (at < 2 ? bits[0] : bits[1]) : (at < 6 ? bits[2] : bits[3]);
            all[j] = (at % 2 == 0 ? word & 0xffffu : word >> 16) < dropout_.below ? 0.0f : dropout_.scale;
        }
        return all;
    }

private:
    const Dropout& dropout_;
    uint32_t step_;
    int64_t begin_;
};

}  // namespace llmc
