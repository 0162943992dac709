// Models and training states on disk.
//   model file: 20240326, version 3 (fp32) or 5 (bf16), as llm.c writes them: header, then the 16 tensors in
//   file order
//   checkpoint: a folder step_%08d with model.bin, optimizer.bin, run.json (run_record.h) and MANIFEST (size
//   and XXH3 of each file); it appears under its name only when it is complete and on disk. Those of earlier
//   versions have no run.json, and two lines in MANIFEST.
// Which checkpoints of a run folder count: run_folder.h.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "llmc/host/binary_file.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/model/model_source.h"
#include "llmc/model/run_record.h"

namespace llmc {

constexpr int32_t kModelMagic = 20240326;
constexpr int32_t kModelFp32 = 3, kModelBf16 = 5;  // header word 1

// A model file mapped into memory; throws Error(kExitBadInput) naming the field unless header and size are
// right.
class ModelFile : public ModelSource {
public:
    explicit ModelFile(const std::string& path);
    const GPT2Config& config() const override { return config_; }
    const std::string& path() const override { return file_.path(); }
    void read(int tensor, int64_t first, std::span<float> values) const override;
    const char* type() const override { return version_ == kModelFp32 ? "fp32" : "bf16"; }

private:
    MappedFile file_;
    GPT2Config config_;
    int32_t version_ = 0;
    int64_t tensor_start_[kNumTensors] = {};  // elements from the end of the header
};

// reads a range of one tensor, in file order, from wherever the model lives
using ReadTensor = std::function<void(State state, int tensor, int64_t first, std::span<float> values)>;

// Replaces path atomically. version is kModelFp32 or kModelBf16 (rounded to nearest even). Throws
// Error(kExitDiverged) naming the first number that is not finite, and then writes nothing.
void write_model_file(const std::string& path, const GPT2Config& config, int32_t version,
                      const ReadTensor& read);

struct TrainingState {
    int64_t step = 0;     // steps done, skipped ones included: the next one has this number
    int64_t updates = 0;  // optimizer updates that happened
    uint64_t seed = 0;    // of initialisation and data order
    // what else decides which data a step sees; all 0 in checkpoints from before they were noted
    int64_t seq_len = 0, rows_per_step = 0, train_tokens = 0;
};

// run_folder/step_%08d
std::string checkpoint_name(const std::string& run_folder, int64_t step);

// Writes run_folder/step_%08d, whole or not at all. Throws Error(kExitSaveFailed), Error(kExitUsage), or
// Error(kExitDiverged) as write_model_file does.
void save_checkpoint(const std::string& run_folder, const GPT2Config& config, const TrainingState& state,
                     const ReadTensor& read, RunRecord record = {});

// What a folder holds that should be a checkpoint. Throws CannotRead where that cannot be found out.
struct CheckpointFacts {
    std::string damage;  // "" = none, else what is wrong and where
    RunRecord record;    // of an intact one; its line is empty in checkpoints of earlier versions
};
// contents = false: only MANIFEST and run.json are read
CheckpointFacts inspect_checkpoint(const std::string& folder, bool contents = true);

// Throws Error(kExitBadInput) unless the folder is a complete checkpoint; the model's configuration, without
// its weights.
GPT2Config checkpoint_config(const std::string& folder);
TrainingState load_checkpoint(const std::string& folder, const WriteTensor& write);

}  // namespace llmc
