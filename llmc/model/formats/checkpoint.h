// Models and training states on disk.
//   model file: 20240326, version 3 (fp32) or 5 (bf16), as llm.c writes them: header, then the 16 tensors in
//   file order
//   checkpoint: a folder step_%08d, which appears under its name only when it is complete and on disk
//     model.safetensors, config.json   the parameters in fp32, as Hugging Face's GPT-2 has them
//     optimizer.safetensors            first_moment.T and second_moment.T of each of the 16 tensors T in file
//                                      order, (layers, rows, cols), without the padding of the vocabulary: an
//                                      element has its place whatever machine or number of GPUs wrote it. Of
//                                      Muon's tensors there is no second moment
//     run.json                         all else: formats/record.h
//     tokenizer.json and others        as transformers' AutoTokenizer loads them, if the run has a tokenizer
//     MANIFEST                         written last: size and XXH3 of each file
//   Checkpoints of earlier versions (model.bin, optimizer.bin) are refused by name.
// Which checkpoints of a run folder count: run/folder.h.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "llmc/host/files/file_io.h"
#include "llmc/model/formats/hf_model.h"
#include "llmc/model/formats/record.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/model/model_source.h"

namespace llmc {

constexpr int32_t kModelMagic = 20240326;
constexpr int32_t kModelFp32 = 3, kModelBf16 = 5;  // header word 1

// A model file, open for reading; throws Error(kExitBadInput) naming the field unless header and size are
// right.
class ModelFile : public ModelSource {
public:
    explicit ModelFile(const std::string& path);
    const GPT2Config& config() const override { return config_; }
    const std::string& path() const override { return file_.path(); }
    void read(int tensor, int64_t first, std::span<float> values) const override;
    FloatType type() const override { return version_ == kModelFp32 ? FloatType::kFp32 : FloatType::kBf16; }
    HfFacts facts() const override;  // those of the newest checkpoint beside it

private:
    RegularFile file_;
    GPT2Config config_;
    int32_t version_ = 0;
    int64_t tensor_start_[kNumTensors] = {};  // elements from the end of the header
};

// reads a range of one tensor, in file order, from wherever the model lives
using ReadTensor = std::function<void(State state, int tensor, int64_t first, std::span<float> values)>;
inline ReadTensor reader(const Model& model) {
    return [&](State s, int t, int64_t first, std::span<float> x) { model.save(s, t, first, x); };
}

// Replaces path atomically. version is kModelFp32 or kModelBf16 (rounded to nearest even). Throws
// Error(kExitDiverged) naming the first number that is not finite, and then writes nothing.
void write_model_file(const std::string& path, const GPT2Config& config, int32_t version,
                      const ReadTensor& read);

// whether this optimizer has that of a tensor
inline bool has_state(Optimizer optimizer, State state, int tensor) {
    return state != State::kSecondMoment || optimizer != Optimizer::kMuon || !is_block_matrix(tensor);
}

// run_folder/step_%08d
std::string checkpoint_name(const std::string& run_folder, int64_t step);

// values of a training state: of the parameters and of the moments that this optimizer has
int64_t state_elements(const GPT2Config& config, Optimizer optimizer);
// bytes that a checkpoint takes on disk, to within some KiB
int64_t checkpoint_bytes(const GPT2Config& config, Optimizer optimizer = Optimizer::kAdamW);

// behind the name of a checkpoint that a newer one of the same step is about to replace: take_back_replaced() in run/folder.h
constexpr const char* kReplaced = ".replaced";
// "step_00000004" of "step_00000004.replaced"; "" of other names
std::string name_before_replaced(const std::string& name);

// a step_ folder; whether it is intact is not looked at
struct StepFolder {
    std::string path;
    int64_t step;
};

// of a run folder, those of the most steps first
std::vector<StepFolder> list_steps(const std::string& run_folder);
std::string newest_step(const std::string& run_folder);  // the first; "" if there is none

// Writes run_folder/step_%08d, whole or not at all. Throws Error(kExitSaveFailed), Error(kExitUsage), or
// Error(kExitDiverged) as write_model_file does.
void save_checkpoint(const std::string& run_folder, const GPT2Config& config, const RunRecord& record,
                     const ReadTensor& read);

// What a folder holds that should be a checkpoint. Throws CannotRead where that cannot be found out.
struct CheckpointFacts {
    std::string damage;  // "" = none, else what is wrong and where
    RunRecord record;    // of an intact one
};
// What is read of a checkpoint: MANIFEST and run.json; all but the optimizer's moments, which may be gone; everything.
enum class Contents { kRecord, kWeights, kAll };
CheckpointFacts inspect_checkpoint(const std::string& folder, Contents contents = Contents::kAll);

// A checkpoint that is complete and intact; the constructor throws Error(kExitBadInput) if it is not.
class Checkpoint {
public:
    explicit Checkpoint(const std::string& folder);
    const GPT2Config& config() const { return model_.config(); }
    const RunRecord& record() const { return record_; }
    bool holds(State state, int tensor) const { return has_state(record_.state.optimizer, state, tensor); }
    // values [first, first + values.size()) of a tensor in file order; the padding of the vocabulary is 0.
    // Throws Error(kExitBadInput) naming the first number that is not finite.
    void read(State state, int tensor, int64_t first, std::span<float> values) const;

private:
    RunRecord record_;
    HfModel model_;
    SafetensorsFile optimizer_;
    const SafetensorsEntry* moments_[2][kNumTensors] = {};
};

// all of it, in pieces
void load_checkpoint(const Checkpoint& checkpoint, const WriteTensor& write);

}  // namespace llmc
