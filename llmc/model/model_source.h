// Where a model's parameters come from, whatever the format: the one place that finds a model by its name.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
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

struct NamedModel {
    std::unique_ptr<ModelSource> source;
    std::string path;    // what was opened: a file, or a Hugging Face folder
    std::string folder;  // where its tokenizer is, if it has one: the run folder or the Hugging Face folder
};

// What a user may call a model:
//   a run folder: its model.bin, which a finished run has, else its newest checkpoint
//   a checkpoint folder (step_00001000), with or without its optimizer.safetensors; a model file (*.bin)
//   a Hugging Face GPT-2: the folder, or a *.safetensors in it
// Throws Error(kExitBadInput) unless it is there and right; notes about damaged checkpoints go to *notes.
NamedModel open_model(const std::string& name, std::string* notes);

// Hands all parameters on in pieces. Throws Error(kExitBadInput) naming the first that is not finite.
using WriteTensor =
    std::function<void(State state, int tensor, int64_t first, std::span<const float> values)>;
void load_model(const ModelSource& source, const WriteTensor& write);

}  // namespace llmc
