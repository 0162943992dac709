// The samples of a run: see run/samples.h.
#include "llmc/model/run/samples.h"

#include <algorithm>

#include "llmc/host/base/error.h"
#include "llmc/host/base/philox.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/eval/generate.h"

namespace llmc {

namespace {

std::optional<Tokenizer> tokenizer_of_run(const Options& o, const std::string& model_folder, int vocab_size) {
    std::optional<Tokenizer> found;
    // the run keeps a copy
    const bool gone = o.resume != "none" && file_kind(o.tokenizer) == FileKind::kMissing;
    if ((o.tokenizer.empty() || gone) && !model_folder.empty()) { found = Tokenizer::find(model_folder); }
    if (!found && !o.tokenizer.empty()) { found = Tokenizer::load(o.tokenizer); }
    if (!found && vocab_size == kByteVocabSize) { return Tokenizer::bytes(); }
    if (found && !found->made_shards_of(vocab_size)) {
        throw Error(kExitBadInput,
                    "{} has {} tokens, {} a vocabulary of {}. Give the tokenizer that made the shards.",
                    o.tokenizer.empty() ? model_folder : o.tokenizer, found->vocab_size(), o.train_data,
                    vocab_size);
    }
    return found;
}

}  // namespace

RunSamples::RunSamples(const RunPlan& plan, int vocab_size)
    : o_(plan.options),
      tokenizer_(tokenizer_of_run(o_, plan.model_folder, vocab_size)),
      vocab_size_(vocab_size) {
    const int rows = plan.config.vocab_size;
    throw_if(!same_ids(tokenizer_, rows, vocab_size), kExitBadInput,
             "{} has a vocabulary of {} tokens, {} of {}: they cannot be used together. Make the shards with "
             "the model's tokenizer, or train a new model (--model d12).",
             plan.model_from, rows, o_.train_data, vocab_size);
    if (rows != vocab_size) {
        std::fprintf(stderr, "%s has %d rows for the %d tokens of %s: the rest is taken for padding\n",
                     plan.model_from.c_str(), rows, vocab_size, o_.train_data.c_str());
    }
    end_of_text_ = llmc::end_of_text(tokenizer_, vocab_size);
    has_ends_ = tokenizer_ || o_.raw_tokens == 0 || o_.raw_tokens == kGpt2VocabSize;
    start_ = {end_of_text_};
    if (o_.sample_every <= 0 || o_.prompt.empty()) { return; }
    throw_if(!tokenizer_, kExitUsage,
             "--prompt: {} has a vocabulary of {}, and only bytes ({}) are known without a tokenizer. Give "
             "--tokenizer, or leave --prompt out.",
             o_.train_data, vocab_size, kByteVocabSize);
    for (int id : tokenizer_->encode_prompt(o_.prompt, rows)) { start_.push_back(id); }
}

std::string RunSamples::text(Model& model, int64_t step, int number) const {
    std::vector<int> text = start_;
    for (int k = 0; k < o_.sample_tokens && !stop_requested; k++) {
        Batch batch;
        batch.B = 1;
        batch.T = (int)std::min<size_t>(text.size(), (size_t)o_.seq_len);
        batch.tokens.assign(text.end() - batch.T, text.end());
        batch.targets.assign(batch.T, kIgnoreTarget);
        model.evaluate(batch);
        const double coin =
            to_uniform(random_bits(o_.seed, RandomUse::kSampling, (uint32_t)number, (uint32_t)step, k)[0]);
        const int never = has_ends_ && text.size() == 1 ? end_of_text_ : -1;
        const auto logits = model.logits_last().first((size_t)vocab_size_);  // not the model's padding
        text.push_back(sample_token(logits, o_.temperature, o_.top_k, coin, 1, never));
        if (has_ends_ && text.back() == end_of_text_) { break; }
    }
    if (has_ends_ && text.back() == end_of_text_) { text.pop_back(); }
    if (!text.empty()) { text.erase(text.begin()); }
    if (tokenizer_) { return tokenizer_->printable(text); }
    std::string ids;
    for (int id : text) { ids += fmt::format("{} ", id); }
    return ids;
}

}  // namespace llmc
