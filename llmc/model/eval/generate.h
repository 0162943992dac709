// Writing text with a model: a token at a time, each drawn from what the model says may come next.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/decoder.h"

namespace llmc {

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
    void finish();                                     // passes on what was kept back
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
    std::vector<int32_t> ids;   // without the end of text; those of a stop text are there
    const char* ended = "";     // "tokens", "stop" or "end_of_text"
    double prompt_seconds = 0;  // until the first token could be drawn
    double seconds = 0;         // after that: drawing, passing on, computing
    int64_t computed = 0;       // tokens that the model was given after the prompt
};

// Adds the prompt (at least one token) and what the model writes after it, but for the last token of ids
// unless an end of text came, to the context; sink gets what the model writes. After a prompt that is
// nothing but the end of another text it writes at least one token. Throws as require_finite_results() does.
Sample write_sample(Context* context, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                    const SampleParams& params, const TextStream::Sink& sink);

}  // namespace llmc
