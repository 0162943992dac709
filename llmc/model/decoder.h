// What writing with a model needs of it: the context, token by token, and what may come next.
#pragma once
#include <cstdint>
#include <span>

#include "llmc/model/gpt2_config.h"

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

}  // namespace llmc
