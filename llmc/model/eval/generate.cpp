// Writing text: see generate.h.
#include "llmc/model/eval/generate.h"

#include <chrono>

#include "llmc/host/base/philox.h"
#include "llmc/host/base/text.h"
#include "llmc/model/model_source.h"

namespace llmc {

bool TextStream::add(std::string_view bytes) {
    kept_ += bytes;
    size_t stop_at = std::string::npos;
    for (const std::string& stop : stop_) { stop_at = std::min(stop_at, kept_.find(stop)); }
    if (stop_at != std::string::npos) {
        pass(stop_at);
        kept_.clear();
        return false;
    }
    size_t keep = utf8_unfinished(kept_);
    for (const std::string& stop : stop_) {
        for (size_t n = std::min(stop.size() - 1, kept_.size()); n > keep; n--) {
            if (kept_.ends_with(std::string_view(stop).substr(0, n))) { keep = n; }
        }
    }
    pass(kept_.size() - keep);
    return true;
}

void TextStream::pass(size_t bytes) {
    if (bytes == 0) { return; }
    text_ += kept_.substr(0, bytes);
    sink_(std::string_view(kept_).substr(0, bytes));
    kept_.erase(0, bytes);
}

std::span<const float> Context::add(std::span<const int32_t> tokens) {
    const size_t most = (size_t)decoder_->config().max_seq_len;
    seen_.insert(seen_.end(), tokens.begin(), tokens.end());
    if (seen_.size() <= most) { return decoder_->append(tokens); }
    // the positions of all tokens change, and with them all keys and values
    const size_t left = std::max<size_t>(1, most / 2);
    seen_.erase(seen_.begin(), seen_.end() - (int64_t)left);
    decoder_->clear();
    slid_((int)left);
    return decoder_->append(seen_);
}

Sample write_sample(Context* context, const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                    const SampleParams& p, const TextStream::Sink& sink) {
    TextStream stream(p.stop, sink);
    Sample sample;
    const auto begin = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    const int32_t end = tokenizer.end_of_text();
    std::span<const float> logits = context->add(prompt);
    sample.prompt_seconds = seconds();
    for (int64_t k = 0; k < p.tokens; k++) {
        require_finite_results("the logits", logits);
        const double coin = to_uniform(random_bits(p.seed, RandomUse::kSampling, p.number, 0, k)[0]);
        const int never = k == 0 && prompt.size() == 1 && prompt[0] == end ? end : -1;
        const auto drawn = logits.first(std::min(logits.size(), (size_t)tokenizer.vocab_size()));
        const int32_t token = sample_token(drawn, p.temperature, p.top_k, coin, p.top_p, never);
        if (token == end || std::ranges::count(p.ends, token) > 0) {
            sample.ended = "end_of_text";
            break;
        }
        sample.ids.push_back(token);
        if (!stream.add(tokenizer.decode(token))) {
            sample.ended = "stop";
            break;
        }
        if (k + 1 < p.tokens) {
            logits = context->add({&token, 1});
            sample.computed++;
        }
    }
    stream.finish();
    sample.seconds = seconds() - sample.prompt_seconds;
    sample.text = stream.text();
    return sample;
}

}  // namespace llmc
