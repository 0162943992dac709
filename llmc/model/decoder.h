// What writing with a model needs of it: the context, token by token, and what may come next.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "llmc/host/error.h"
#include "llmc/model/model.h"
#include "llmc/model/model_source.h"

namespace llmc {

// what limits a decoder whose tokens each read all weights
struct DecoderTraffic {
    int64_t bytes = 0;            // of weights, read for each token; 0 = they are not read once a token
    double bytes_per_second = 0;  // what the memory can deliver, 0 = unknown
};

// parameters that a token needs: all but the positions' rows and padding
inline int64_t step_parameters(const GPT2Config& c) { return num_parameters(c) - tensor_total(c, kWpe); }

class Decoder {
public:
    virtual ~Decoder() = default;
    virtual const GPT2Config& config() const = 0;
    // Adds tokens, at least one, to the context, which then is at most config().max_seq_len long. Returns the
    // logits (V) of what follows; they are valid until the next call.
    virtual std::span<const float> append(std::span<const int32_t> tokens) = 0;
    virtual void clear() = 0;        // to an empty context
    virtual int length() const = 0;  // of the context
    virtual DecoderTraffic traffic() const { return {}; }
};

// A model with its weights, for evaluating: any class with the interface of model.h behind one of three
// calls.
class LoadedModel {
public:
    virtual ~LoadedModel() = default;
    virtual const GPT2Config& config() const = 0;
    virtual Evaluation evaluate(const Batch& batch) = 0;
    virtual std::span<const float> logits_last() const = 0;
};

template <typename Model>
class LoadedModelOf : public LoadedModel {
public:
    LoadedModelOf(const ModelSource& source, int B, int T)
        : model_((require_room(Model::plan(source.config(), B, T, {}), source.path()), source.config()), B, T,
                 {}) {
        model_.init(0);
        load_model(source, [&](State s, int tensor, int64_t first, std::span<const float> x) {
            model_.load(s, tensor, first, x);
        });
    }
    const GPT2Config& config() const override { return model_.config(); }
    Evaluation evaluate(const Batch& batch) override { return model_.evaluate(batch); }
    std::span<const float> logits_last() const override { return model_.logits_last(); }

private:
    Model model_;
};

// Computes the whole context again for each token.
class UncachedDecoder : public Decoder {
public:
    explicit UncachedDecoder(std::unique_ptr<LoadedModel> model) : model_(std::move(model)) {}
    const GPT2Config& config() const override { return model_->config(); }
    std::span<const float> append(std::span<const int32_t> tokens) override {
        require(!tokens.empty() && length() + (int64_t)tokens.size() <= config().max_seq_len,
                "Decoder: 1 token or more, and no more than there is room for");
        context_.insert(context_.end(), tokens.begin(), tokens.end());
        model_->evaluate({1, length(), context_, std::vector<int32_t>(context_.size(), kIgnoreTarget)});
        return model_->logits_last();
    }
    void clear() override { context_.clear(); }
    int length() const override { return (int)context_.size(); }

private:
    std::unique_ptr<LoadedModel> model_;
    std::vector<int32_t> context_;
};

}  // namespace llmc
