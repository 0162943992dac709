// The random parameters of a new model. Each value depends on the seed, the tensor and its index in file
// order alone.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>

#include "llmc/host/base/philox.h"
#include "llmc/model/gpt2_config.h"

namespace llmc {

// values = those of a tensor from `first` on, in file order; the padding rows of wte are 0
inline void initial_values(const GPT2Config& config, uint64_t seed, int tensor, int64_t first,
                           std::span<float> values) {
    int64_t real =
        tensor == kWte ? (int64_t)config.vocab_size * config.channels : tensor_total(config, tensor);
    Init init = kTensors[tensor].init;
    double sigma = init == Init::kResidual ? 0.02 / std::sqrt(2.0 * config.num_layers) : 0.02;
    bool random = init == Init::kNormal || init == Init::kResidual;
#pragma omp parallel for
    for (int64_t k = 0; k < (int64_t)values.size(); k++) {
        int64_t i = first + k;
        double x = random ? sigma * random_normal(seed, RandomUse::kInit, tensor, 0, i) : 0.0;
        values[k] = init == Init::kOne ? 1.0f : (i < real ? (float)x : 0.0f);
    }
}

}  // namespace llmc
