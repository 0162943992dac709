// With --fp8 the products of the blocks' linear layers are of tensors in FP8: which there are, in which order their scales and
// largest magnitudes lie, and what they are called.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "llmc/model/gpt2_config.h"
#include "llmc/ops/fp8_scales.h"

namespace llmc {

constexpr std::array kFp8Weights = {kQkvw, kAttprojw, kFcw, kFcprojw};
constexpr int kFp8Linears = kFp8Weights.size();
constexpr int fp8_linear(int weight) {
    return (int)(std::ranges::find(kFp8Weights, weight) - kFp8Weights.begin());
}

// of a linear layer its input and its weight, in e4m3, and the gradient of its output, in e5m2
enum class Fp8Role { kInput, kWeight, kGradient };

constexpr int64_t fp8_tensors(const GPT2Config& c) { return (int64_t)3 * c.num_layers * kFp8Linears; }
constexpr int64_t fp8_place(const GPT2Config& c, Fp8Role role, int weight, int l) {
    return ((int64_t)role * c.num_layers + l) * kFp8Linears + fp8_linear(weight);
}
constexpr int64_t fp8_gradients_from(const GPT2Config& c) {
    return fp8_place(c, Fp8Role::kGradient, kQkvw, 0);
}
inline std::string fp8_tensor_name(const GPT2Config& c, int64_t place) {
    constexpr const char* kRoles[] = {"input of", "weights", "gradient behind"};
    const int64_t layer = place / kFp8Linears;
    return fmt::format("{} {} in layer {}", kRoles[layer / c.num_layers],
                       kTensors[kFp8Weights[place % kFp8Linears]].name, layer % c.num_layers);
}

// The largest magnitudes of the steps before, as a checkpoint has them: (roles,layers,linears,kFp8History), the last step
// first, 0 where there was none.
constexpr int64_t fp8_maxima(const GPT2Config& c) { return fp8_tensors(c) * kFp8History; }

// Scales where nothing is known yet: an input is mostly below 56, and the gradient of the mean loss of these rows, times them,
// below 112. What is larger is that for one step.
constexpr float first_fp8_scale(Fp8Role role, int64_t rows) {
    return role == Fp8Role::kGradient ? power_of_two(9 + exponent_of((float)rows)) : 8;
}

}  // namespace llmc
