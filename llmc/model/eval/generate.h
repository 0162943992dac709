// Writing text with a model: a token at a time, each drawn from what the model says may come next.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/host/base/floats.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/model.h"

namespace llmc {

// Sampling: one token from a row of logits, with temperature, top-k and top-p.

// What draws among tokens: exp(logit / temperature), temperature > 0, relative to the largest logit, so that nothing overflows;
// 0 for what is less likely than the largest by e^80.
inline std::vector<float> token_weights(std::span<const float> logits, float largest, double temperature) {
    const float scale = (float)std::min(1 / temperature, 1e30);
    std::vector<float> weights(logits.size());
#pragma omp simd
    for (size_t v = 0; v < logits.size(); v++) {
        const float z = (logits[v] - largest) * scale, weight = exp_simd(z > -80.0f ? z : -80.0f);
        weights[v] = z > -80.0f ? weight : 0.0f;
    }
    return weights;
}

inline double sum_of(std::span<const float> weights) {
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (size_t v = 0; v < weights.size(); v++) { total += weights[v]; }
    return total;
}

// The logit of the last of the most probable tokens that together have the share top_p. Those whose weight is
// below (1 - top_p) of the mean are not among them: all of them together have less than 1 - top_p.
inline float top_p_threshold(std::span<const float> logits, std::span<const float> weights, double top_p) {
    const double total = sum_of(weights), least = (1 - top_p) * total / (double)logits.size();
    std::vector<std::pair<float, float>> sorted;  // logit, weight
    for (size_t v = 0; v < logits.size(); v++) {
        if (weights[v] > 0 && weights[v] >= least) { sorted.emplace_back(logits[v], weights[v]); }
    }
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    double sum = 0;
    for (auto [logit, weight] : sorted) {
        sum += weight;
        if (sum >= top_p * total) { return logit; }
    }
    return -INFINITY;
}

// Token ids compete by exp(logit / temperature); temperature 0 takes the most probable; top_k > 0 keeps the
// k most probable (and their ties); top_p < 1 keeps of those the most probable that together have this
// share (and ties; Holtzman et al. 2019, arXiv:1904.09751). coin: uniform in [0, 1). never: a token not drawn, or -1.
inline int sample_token(std::span<const float> logits, double temperature, int top_k, double coin,
                        double top_p = 1, int never = -1) {
    if (never >= 0) {
        std::vector<float> others(logits.begin(), logits.end());
        others[(size_t)never] = -INFINITY;
        return sample_token(others, temperature, top_k, coin, top_p);
    }
    constexpr size_t kBlock = 512;  // tokens whose sum is found at once, before one of them is chosen
    const size_t V = logits.size();
    float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
    for (size_t v = 0; v < V; v++) { largest = logits[v] > largest ? logits[v] : largest; }
    if (temperature <= 0) {
        const auto at = std::find(logits.begin(), logits.end(), largest);
        return (int)(std::min(at, logits.end() - 1) - logits.begin());  // all NaN: any
    }
    std::vector<float> weights = token_weights(logits, largest, temperature);
    const auto keep_from = [&](float threshold) {
        for (size_t v = 0; v < V; v++) { weights[v] = logits[v] >= threshold ? weights[v] : 0; }
    };
    if (top_k > 0 && (size_t)top_k < V) {
        std::vector<float> sorted(logits.begin(), logits.end());
        std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater<float>());
        keep_from(sorted[(size_t)top_k - 1]);
    }
    if (top_p < 1) { keep_from(top_p_threshold(logits, weights, top_p)); }
    const auto block = [&](size_t first) {
        return std::span(weights).subspan(first, std::min(V - first, kBlock));
    };
    std::vector<double> cumulative;  // of whole blocks
    double total = 0;
    for (size_t first = 0; first < V; first += kBlock) {
        cumulative.push_back(total += sum_of(block(first)));
    }
    const auto found = std::upper_bound(cumulative.begin(), cumulative.end() - 1, coin * total);
    size_t v = (size_t)(found - cumulative.begin()) * kBlock, chosen = v;
    double sum = found == cumulative.begin() ? 0 : found[-1];
    for (const float weight : block(v)) {
        if (weight > 0) { chosen = v; }  // the last with a weight, should roundings leave the coin beyond it
        sum += weight;
        if (sum > coin * total) { break; }
        v++;
    }
    return (int)chosen;
}

struct SampleParams {
    int64_t tokens = 256;  // to write at most
    double temperature = 0.8, top_p = 1;
    int top_k = 0;
    uint64_t seed = 0;
    uint32_t number = 0;            // of the sample: each has random numbers of its own
    std::vector<std::string> stop;  // not empty ones: the text ends before the first of them
    std::vector<int> ends;          // tokens that end it, beside the tokenizer's
};

// A text that grows by the bytes of tokens and is passed on in pieces that may be printed: whole UTF-8
// characters, and nothing that may turn out to be the beginning of a stop text.
class TextStream {
public:
    using Sink = std::function<void(std::string_view)>;
    TextStream(std::vector<std::string> stop, Sink sink) : stop_(std::move(stop)), sink_(std::move(sink)) {}
    // false when a stop text has appeared: then nothing more may be added
    bool add(std::string_view bytes);
    void finish() { pass(kept_.size()); }              // passes on what was kept back
    const std::string& text() const { return text_; }  // all that was passed on

private:
    void pass(size_t bytes);
    std::vector<std::string> stop_;
    Sink sink_;
    std::string text_, kept_;
};

// The context of a decoder that may grow beyond what the model sees: then it goes on with the newer half.
class Context {
public:
    // slid: called with the number of tokens that are left each time that happens
    Context(Decoder* decoder, std::function<void(int)> slid) : decoder_(decoder), slid_(std::move(slid)) {
        decoder_->clear();
    }
    // adds at least one token; the logits of what follows, valid until the next call
    std::span<const float> add(std::span<const int32_t> tokens);

private:
    Decoder* decoder_;
    std::function<void(int)> slid_;
    std::vector<int32_t> seen_;  // what the decoder has
};

struct Sample {
    std::string text;
    std::vector<int32_t> ids;      // without the end of text; those of a stop text are there
    const char* ended = "tokens";  // "tokens", "stop" or "end_of_text"
    double prompt_seconds = 0;     // until the first token could be drawn
    double seconds = 0;            // after that: drawing, passing on, computing
    int64_t computed = 0;          // tokens that the model was given after the prompt
};

// Adds the prompt (at least one token) and what the model writes after it, but for the last token of ids
// unless an end of text came, to the context; sink gets what the model writes. After a prompt that is
// nothing but the end of another text it writes at least one token. Throws as require_finite_results() does.
Sample write_sample(Context* context, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                    const SampleParams& params, const TextStream::Sink& sink);

}  // namespace llmc
