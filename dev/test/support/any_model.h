// What tests of any model with the interface of model.h share: configurations, random batches, a model's
// state, and how far two computations of the same thing may be apart.
#pragma once
#include <span>

#include "dev/test/support/compare.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"

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

template <typename Model>
std::vector<float> whole_tensor(const Model& model, State state, int tensor) {
    std::vector<float> values((size_t)tensor_total(model.config(), tensor));
    model.save(state, tensor, 0, values);
    return values;
}

// all of a state, in file order
template <typename Model>
std::vector<float> whole_state(const Model& model, State state) {
    std::vector<float> all;
    for (int t = 0; t < kNumTensors; t++) {
        if (!model.holds(state, t)) { continue; }
        std::vector<float> one = whole_tensor(model, state, t);
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

template <typename Model>
void check_same_state(const std::string& name, const Model& found, const Model& expected) {
    CHECK_MESSAGE(found.updates() == expected.updates(), name);
    for (State state : kStates) {
        std::string which = name + (state == State::kParameter ? " parameters" : " moments");
        check_same(which, whole_state(found, state), whole_state(expected, state));
    }
}

// parameters and moments, all different from each other and from 0, none of them special
template <typename Model>
void fill_states(Model* model, uint64_t seed) {
    for (State state : kStates) {
        for (int t = 0; t < kNumTensors; t++) {
            if (!model->holds(state, t)) { continue; }
            std::vector<float> x = random_vector<float>(tensor_total(model->config(), t), seed++, 0.05);
            if (state == State::kSecondMoment) {
                for (float& v : x) { v *= v; }
            }
            model->load(state, t, 0, x);
        }
    }
}

// the padding rows of the vocabulary, as every model has them
template <typename Model>
void zero_padding(Model* model) {
    const GPT2Config& c = model->config();
    const std::vector<float> zero((size_t)(c.padded_vocab_size - c.vocab_size) * c.channels);
    for (State state : kStates) { model->load(state, kWte, (int64_t)c.vocab_size * c.channels, zero); }
}

// what a checkpoint notes
inline RunRecord record_of(int64_t step, int64_t updates, uint64_t seed) {
    RunRecord record;
    record.state = {step, updates, seed};
    return record;
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

template <typename Model>
StepResult step(Model* model, std::span<const Batch> batches, const StepParams& params) {
    model->enqueue_step(batches, params);
    model->finish();
    return model->poll().value();
}

// ---- comparing two models ----------------------------------------------------------------------

template <typename To, typename From>
void copy_states(To* to, const From& from) {
    to->set_updates(from.updates());
    for (State state : kStates) {
        for (int t = 0; t < kNumTensors; t++) {
            if (from.holds(state, t)) { to->load(state, t, 0, whole_tensor(from, state, t)); }
        }
    }
}

// Weights so large that every part of a model counts: scores, pre-activations and logits are about 1, biases
// 0.3, layernorm weights 1 +- 0.2. GPT-2's initial weights leave attention uniform and its gradients next to
// nothing.
template <typename Model>
void fill_lively(Model* model, uint64_t seed) {
    const GPT2Config& c = model->config();
    for (int t = 0; t < kNumTensors; t++) {
        bool one = kTensors[t].init == Init::kOne;
        double scale = one ? 0.2 : kTensors[t].matrix ? 1 / std::sqrt((double)kTensors[t].cols(c)) : 0.3;
        std::vector<float> x = random_vector<float>(tensor_total(c, t), seed++, scale);
        for (float& v : x) { v += one ? 1 : 0; }
        if (t == kWte) {
            std::fill(x.begin() + (int64_t)c.vocab_size * c.channels, x.end(), 0.0f);
        }  // padding rows
        model->load(State::kParameter, t, 0, x);
    }
}

// one layer's part of a tensor's gradient
template <typename Model>
std::vector<float> layer_gradient(const Model& model, int tensor, int layer) {
    std::vector<float> values((size_t)tensor_size(model.config(), tensor));
    model.save_gradient(tensor, tensor_size(model.config(), tensor) * layer, values);
    return values;
}

// every gradient, in file order
template <typename Model>
std::vector<float> whole_gradient(const Model& model) {
    std::vector<float> all;
    for (int t = 0; t < kNumTensors; t++) {
        std::vector<float> one((size_t)tensor_total(model.config(), t));
        model.save_gradient(t, 0, one);
        all.insert(all.end(), one.begin(), one.end());
    }
    return all;
}

// the first V of each row of Vp logits of the last evaluate()
template <typename Model>
std::vector<float> unpadded_logits(const Model& model) {
    int V = model.config().vocab_size, Vp = model.config().padded_vocab_size;
    auto padded = model.logits();
    std::vector<float> logits;
    for (size_t at = 0; at < padded.size(); at += Vp) {
        logits.insert(logits.end(), padded.begin() + at, padded.begin() + at + V);
    }
    return logits;
}

// How far a tensor may be from another computation of it: each element relative to the largest one, and the
// difference as a whole, ||found - expected|| / ||expected||.
struct Tolerance {
    double element, norm;
};

inline double norm_of(std::span<const float> x) {
    double squares = 0;
    for (float value : x) { squares += (double)value * value; }
    return std::sqrt(squares);
}

// ||found - expected|| / ||expected||; 0 if both are 0 throughout
inline double relative_difference(std::span<const float> found, std::span<const float> expected) {
    double squares = 0;
    for (size_t i = 0; i < expected.size(); i++) { squares += std::pow((double)found[i] - expected[i], 2); }
    return squares == 0 ? 0 : std::sqrt(squares) / norm_of(expected);
}

inline void check_close(const std::string& name, const std::vector<float>& found,
                        const std::vector<float>& expected, Tolerance tolerance) {
    double bound = tolerance.element * largest(expected);
    check_near(name, found, expected, bound);
    // the root of the mean square of n independent errors scatters by 1 / sqrt(2 n) of itself: four times
    // that
    double norm = tolerance.norm * (1 + 4 / std::sqrt(2.0 * (double)expected.size()));
    double difference = relative_difference(found, expected);
    CHECK_MESSAGE(difference <= norm,
                  fmt::format("{} as a whole: found {:.3g} bound {:.3g}", name, difference, norm));
}

// every gradient, layer by layer
template <typename Found, typename Expected>
void check_close_gradients(const std::string& name, const Found& found, const Expected& expected,
                           Tolerance tolerance) {
    for (int t = 0; t < kNumTensors; t++) {
        for (int l = 0; l < tensor_copies(expected.config(), t); l++) {
            check_close(fmt::format("{} d{}[{}]", name, kTensors[t].name, l), layer_gradient(found, t, l),
                        layer_gradient(expected, t, l), tolerance);
        }
    }
}

// the same mathematics in fp32, in another order: see reordering()
inline Tolerance fp32_tolerance(const GPT2Config& c, int64_t rows) {
    return {reordering(c, rows), reordering(c, rows)};
}

// What rounding to bf16 does to a result: a rounding is off by at most 2^-9 of the value's binade, and
// independent errors add in quadrature. Two computations that round alike are apart by less than that, but
// not by much: a value that falls on the other side of a tie, or a probability rounded inside attention, and
// what follows is rounded afresh. `gain` is how much the layers enlarge an error: up to 1 with GPT-2's
// initial weights, 3 with fill_lively's (logits and scores far from 0, where exp turns a difference into a
// factor). The largest of many elements is off by twice the mean. extra: roundings beyond the model's own. Of
// these 9 a layer follow each other forward and 7 backward (reference_model.h); the encoder's, two at the end
// of forward and three at the start of backward.
inline Tolerance bf16_tolerance(const GPT2Config& c, double gain, int extra = 0) {
    double norm = gain * 0x1p-9 * std::sqrt(16.0 * c.num_layers + 6 + extra);
    return {2 * norm, norm};
}

}  // namespace llmc
