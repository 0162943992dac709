// The samples of a run: which tokenizer it has, and texts that its model writes.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/options/options.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/model.h"
#include "llmc/model/run/plan.h"

namespace llmc {

class RunSamples {
public:
    // vocab_size: the data's. The tokenizer is --tokenizer, or the one in the model's folder ("": it has none), or bytes if the
    // vocabulary is theirs; without one, samples are printed as token ids. Throws Error(kExitBadInput) if it
    // or the model is not of the data's tokens, Error(kExitUsage) for a --prompt of samples that no tokenizer can read.
    RunSamples(const RunPlan& plan, int vocab_size);

    const std::optional<Tokenizer>& tokenizer() const { return tokenizer_; }
    // by convention the end of text is the last token, in GPT-2's vocabulary and in the byte-level one
    int end_of_text() const { return end_of_text_; }

    // a continuation of the prompt, up to --sample-tokens or the end of the text; without a prompt at least
    // one token. The same step and number give the same random numbers
    std::string text(Model& model, int64_t step, int number) const;
    // the tokenizer's, for a model of so many positions; none without a tokenizer
    TextFiles files(int positions) const { return tokenizer_ ? tokenizer_->files(positions) : TextFiles(); }

private:
    Options o_;
    std::optional<Tokenizer> tokenizer_;
    int vocab_size_ = 0, end_of_text_ = 0;
    bool has_ends_ = true;    // false: no token is known to end a text, and the last one stands in for it
    std::vector<int> start_;  // the end of another text, then the prompt
};

}  // namespace llmc
