// A text without a prompt is never empty: neither a run's samples nor what `generate` writes.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/cpu/gpt2.h"
#include "llmc/model/eval/generate.h"
#include "llmc/model/model.h"
#include "llmc/model/run/samples.h"

using namespace llmc;

namespace {

constexpr int kEnd = kByteVocabSize - 1;

// what all but always comes next is the end of the text; 'x' is the only other token
std::vector<float> nearly_the_end() {
    std::vector<float> logits(kByteVocabSize, -1000.0f);
    logits['x'] = 0;
    logits[kEnd] = 30;
    return logits;
}

struct EndingDecoder : Decoder {
    const GPT2Config& config() const override { return config_; }
    std::span<const float> append(std::span<const int32_t> tokens) override {
        length_ += (int)tokens.size();
        return logits_;
    }
    void clear() override { length_ = 0; }
    int length() const override { return length_; }

private:
    GPT2Config config_ = {64, kByteVocabSize, kByteVocabSize, 1, 1, 8};
    std::vector<float> logits_ = nearly_the_end();
    int length_ = 0;
};

struct EndingModel : GPT2Cpu {
    EndingModel() : GPT2Cpu({9, 37, 64, 1, 2, 14}, 1, 2) {}
    Evaluation evaluate(const Batch&) override { return {}; }
    std::span<const float> logits_last() const override { return logits; }
    std::vector<float> logits = nearly_the_end();
};

std::string run_sample(const std::string& prompt, double temperature) {
    RunPlan plan;
    plan.options.sample_every = 1;
    plan.options.prompt = prompt;
    plan.options.temperature = temperature;
    EndingModel model;
    plan.config.vocab_size = kByteVocabSize;
    return RunSamples(plan, kByteVocabSize).text(model, 1, 1);
}

}  // namespace

TEST_CASE("samples: without a prompt a text has a token before its end") {
    for (double temperature : {0.0, 0.8}) {
        CAPTURE(temperature);
        for (bool prompt : {false, true}) {
            EndingDecoder decoder;
            Context context(&decoder, [](int) {});
            const std::vector<int32_t> tokens =
                prompt ? std::vector<int32_t>{kEnd, 'a'} : std::vector<int32_t>{kEnd};
            SampleParams params;
            params.temperature = temperature;
            const Sample sample = write_sample(&context, Tokenizer::bytes(), tokens, params, [](auto) {});
            CHECK(sample.text == (prompt ? "" : "x"));
            CHECK(sample.ended == std::string("end_of_text"));
        }
        CHECK(run_sample("", temperature) == "x");
        CHECK(run_sample("a", temperature) == "a");
    }
}
