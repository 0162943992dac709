// GPT-2 as Hugging Face keeps it: a folder with config.json and model.safetensors (or shards with an index).
// Matrices of the layers are stored (in, out) there and (out, in) here; the vocabulary is padded here.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "llmc/host/files/safetensors.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/model_source.h"

namespace llmc {

// Reads a folder, or one *.safetensors beside its config.json. Throws Error(kExitBadInput) that names the
// field or the tensor for a configuration that is not GPT-2's as it is computed here, and for a tensor that
// is missing, doubled, unknown, or of a wrong shape or type.
class HfModel : public ModelSource {
public:
    explicit HfModel(const std::string& path);
    const GPT2Config& config() const override { return config_; }
    const std::string& path() const override { return path_; }
    void read(int tensor, int64_t first, std::span<float> values) const override;
    FloatType type() const override;
    HfFacts facts() const override { return facts_; }

private:
    struct Place {
        const SafetensorsFile* file = nullptr;
        const SafetensorsEntry* entry = nullptr;
    };
    void open_shards(const std::string& index);
    void find_tensors();
    const Place& place(int tensor, int64_t layer) const { return places_[tensor][(size_t)layer]; }

    std::string path_;
    GPT2Config config_;
    HfFacts facts_;
    std::deque<SafetensorsFile> files_;       // whose addresses stay
    std::vector<Place> places_[kNumTensors];  // by layer
    // a matrix is read piece by piece: the one that was transposed last, and as what
    mutable const SafetensorsEntry* turned_of_ = nullptr;
    mutable std::vector<float> turned_;
};

// What config.json (path) and generation_config.json beside it, which goes before, say. Throws Error(kExitBadInput).
HfFacts read_hf_facts(const std::string& path, int vocab_size);

// The text of config.json, as transformers reads it. type: any but auto; end_of_text: its token
// id, -1 = not known; kept: HfFacts', which goes before all else.
std::string hf_config_text(const GPT2Config& config, FloatType type, int end_of_text,
                           const std::string& kept = "{}");

// model.safetensors alone. read: as ModelSource's, of what `from` names. before: as FileWriter::commit()'s. Errors as
// FileWriter's, and kExitBadInput for what is not finite in this type.
using ReadParameters = std::function<void(int tensor, int64_t first, std::span<float> values)>;
Digest write_hf_weights(const std::string& path, const GPT2Config& config, FloatType type,
                        const std::string& from, const ReadParameters& read,
                        const std::function<void()>& before = nullptr);

// Writes config.json, generation_config.json and model.safetensors, which transformers loads, into a folder,
// which is made, and others beside them. type: any but auto; end_of_text: its token id, unless the source's facts say
// another. run: the id of the run's start that exports it (formats/checkpoint.h), "" = none; config.json has it. That is written
// last: until then one is there that nobody loads, but has the run's id, so that a run knows an export that it was killed in. If
// the weights cannot be written, all is as it was. Errors as above.
void write_hf_model(const std::string& folder, const ModelSource& source, FloatType type, int end_of_text,
                    const std::string& run = "", const TextFiles& others = {});

// the run noted in the config.json of a folder, or ""
std::string run_of_hf_model(const std::string& folder);

}  // namespace llmc
