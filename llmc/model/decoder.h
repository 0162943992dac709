// What writing with a model needs of it: the context, token by token, and what may come next.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "llmc/host/base/error.h"
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

// A model with its weights, for evaluating: any class with the interface of model.h behind one call.
class LoadedModel {
public:
    virtual ~LoadedModel() = default;
    virtual Evaluation evaluate(const Batch& batch) = 0;
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
    Evaluation evaluate(const Batch& batch) override { return model_.evaluate(batch); }

private:
    Model model_;
};

}  // namespace llmc
