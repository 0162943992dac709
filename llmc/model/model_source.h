// Where a model's parameters come from, whatever the format.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"

namespace llmc {

// What config.json says that training has no use for, but that makes a model what it is: an export keeps it.
struct HfFacts {
    std::vector<int> begins, ends;  // of a text: bos_token_id, eos_token_id, if the vocabulary has them
    std::string kept = "{}";        // these and others, as a JSON object
};

class ModelSource {
public:
    virtual ~ModelSource() = default;
    virtual const GPT2Config& config() const = 0;
    virtual const std::string& path() const = 0;
    // values [first, first + values.size()) of a tensor in file order, as fp32
    virtual void read(int tensor, int64_t first, std::span<float> values) const = 0;
    virtual const char* type() const = 0;  // of what is stored: "fp32", "bf16" or "fp16"
    virtual HfFacts facts() const { return {}; }
};

// Hands all parameters on in pieces. Throws Error(kExitBadInput) naming the first that is not finite.
using WriteTensor =
    std::function<void(State state, int tensor, int64_t first, std::span<const float> values)>;
void load_model(const ModelSource& source, const WriteTensor& write);

}  // namespace llmc
