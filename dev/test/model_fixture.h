// What tests of the model and of its files share: a tiny configuration, random batches, a model's state.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dev/test/compare.h"
#include "llmc/checkpoint.h"
#include "llmc/gpt2_cpu.h"

namespace llmc {

constexpr State kStates[] = {State::kParameter, State::kFirstMoment, State::kSecondMoment};

// sizes that share no factor by accident: a swapped index shows
inline GPT2Config tiny_config() {
    return {9, 37, 64, 3, 2, 14};  // positions, vocabulary, padded, layers, heads, channels
}

inline Batch random_batch(const GPT2Config& c, int B, int T, uint64_t seed) {
    int64_t n = (int64_t)B * T;
    return {B, T, random_tokens(n, c.vocab_size, seed), random_tokens(n, c.vocab_size, seed + 1000)};
}

// rows [first, first + B) of a batch
inline Batch rows_of(const Batch& batch, int first, int B) {
    auto part = [&](const std::vector<int32_t>& x) {
        return std::vector<int32_t>(x.begin() + first * batch.T, x.begin() + (first + B) * batch.T);
    };
    return {B, batch.T, part(batch.tokens), part(batch.targets)};
}

inline std::vector<float> whole_tensor(const GPT2Cpu& model, State state, int tensor) {
    std::vector<float> values((size_t)tensor_total(model.config(), tensor));
    model.save(state, tensor, 0, values);
    return values;
}

// all of a state, in file order
inline std::vector<float> whole_state(const GPT2Cpu& model, State state) {
    std::vector<float> all;
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> one = whole_tensor(model, state, t);
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

inline void check_same_state(const std::string& name, const GPT2Cpu& found, const GPT2Cpu& expected) {
    CHECK_MESSAGE(found.updates() == expected.updates(), name);
    for (State state : kStates) {
        std::string which = name + (state == State::kParameter ? " parameters" : " moments");
        check_same(which, whole_state(found, state), whole_state(expected, state));
    }
}

// parameters and moments, all different from each other and from 0, none of them special
inline void fill_states(GPT2Cpu* model, uint64_t seed) {
    for (State state : kStates) {
        for (int t = 0; t < kNumTensors; t++) {
            std::vector<float> x = random_vector<float>(tensor_total(model->config(), t), seed++, 0.05);
            if (state == State::kSecondMoment) {
                for (float& v : x) { v *= v; }
            }
            model->load(state, t, 0, x);
        }
    }
}

// The same mathematics in another order of the sums. Each of K terms is rounded by u = 2^-24 of its size,
// which adds up to about sqrt(K) u; from the tokens to a gradient 2 (4L + 2) such sums follow each other,
// whose errors add in quadrature; 2 because both sides err. Relative to the largest value, which is the size
// of what was added.
inline double reordering(const GPT2Config& c, int64_t rows) {
    double longest = std::max<double>(4.0 * c.channels, (double)rows), sums = 2 * (4.0 * c.num_layers + 2);
    return 2 * kFloatRoundoff * std::sqrt(longest * sums);
}

inline double largest(std::span<const float> x) {
    double most = 0;
    for (float value : x) { most = std::max(most, (double)std::fabs(value)); }
    return most;
}

inline ReadTensor reader(const GPT2Cpu& model) {
    return [&](State s, int t, int64_t first, std::span<float> x) { model.save(s, t, first, x); };
}
inline WriteTensor writer(GPT2Cpu* model) {
    return [=](State s, int t, int64_t first, std::span<const float> x) { model->load(s, t, first, x); };
}

inline StepResult step(GPT2Cpu* model, std::span<const Batch> batches, const StepParams& params) {
    model->enqueue_step(batches, params);
    model->finish();
    return model->poll().value();
}

}  // namespace llmc
