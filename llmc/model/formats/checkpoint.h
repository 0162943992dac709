// Models and training states on disk.
//   model file: 20240326, version 3 (fp32) or 5 (bf16), as llm.c writes them: header, then the 16 tensors in
//   file order
//   checkpoint: a folder step_%08d, which appears under its name only when it is complete and on disk
//     model.safetensors, config.json   the parameters in fp32, as Hugging Face's GPT-2 has them
//     optimizer.safetensors            first_moment.T and second_moment.T of each of the 16 tensors T in file
//                                      order, (layers, rows, cols), without the padding of the vocabulary: an
//                                      element has its place whatever machine or number of GPUs wrote it. Of
//                                      Muon's tensors there is no second moment. Of a run in FP8 fp8_maxima
//                                      (3, layers, 4, steps): model/fp8_tensors.h
//     run.json                         all else: RunRecord
//     tokenizer.json and others        as transformers' AutoTokenizer loads them, if the run has a tokenizer
//     MANIFEST                         written last: size and XXH3 of each file
//   Checkpoints of earlier versions (model.bin, optimizer.bin) are refused by name.
// Which checkpoints of a run folder count: run/folder.h.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llmc/host/files/file_io.h"
#include "llmc/host/options/choices.h"
#include "llmc/host/tokens/tokenizer.h"
#include "llmc/model/formats/hf_model.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/model/model_source.h"

namespace llmc {

// ---- run.json -----------------------------------------------------------------------------------

// What a checkpoint says about its run beside weights and moments: how far it is, which run it belongs to and along which
// line of descent, what the run trained on, with which settings. Random numbers are functions of seed and step, and so is the
// order of the data, so that these two are all that they need to go on.

// Loss and gradient norm of the last steps: more than z standard deviations above their mean is an outlier, and skipped.

// a step that was not skipped
struct AcceptedStep {
    int64_t step = 0;
    float loss = 0, norm = 0;
    bool operator==(const AcceptedStep&) const = default;
};

class OutlierWindow {
public:
    static constexpr size_t kSteps = 128;  // that a mean is of; with fewer before it, a step is no outlier
    static constexpr size_t kMost = kSteps + 1;  // and the newest, which may be too new for the next step

    OutlierWindow() = default;
    explicit OutlierWindow(std::vector<AcceptedStep> steps) : steps_(std::move(steps)) {}

    // Steps come in order. One that was skipped is never added: it would hide the next outlier.
    void add(const AcceptedStep& step) {
        steps_.push_back(step);
        if (steps_.size() > kMost) { steps_.erase(steps_.begin()); }
    }
    const std::vector<AcceptedStep>& steps() const { return steps_; }
    // how many steps up to this one were skipped since the last that was not
    int64_t skipped(int64_t step) const { return steps_.empty() ? 0 : step - steps_.back().step; }

    // The largest value, of loss or norm, with which a step is no outlier; infinity if z is 0. What comes of
    // step - 1 is not asked for, as a GPU may still be at it when this step begins.
    float largest(float AcceptedStep::*value, double z, int64_t step) const {
        size_t end = steps_.size();
        if (end > 0 && steps_[end - 1].step >= step - 1) { end--; }
        constexpr float kNone = std::numeric_limits<float>::infinity();
        if (!(z > 0) || end < kSteps) { return kNone; }
        double sum = 0, squares = 0;
        for (size_t i = end - kSteps; i < end; i++) { sum += (double)(steps_[i].*value); }
        const double mean = sum / kSteps;
        for (size_t i = end - kSteps; i < end; i++) {
            const double off = (double)(steps_[i].*value) - mean;
            squares += off * off;
        }
        const double deviation = std::sqrt(squares / kSteps);
        return deviation > 0 ? (float)(mean + z * deviation) : kNone;
    }

private:
    std::vector<AcceptedStep> steps_;  // oldest first, at most kMost
};

// a start of the program: a random id, and the first step that it did
struct Start {
    std::string id;
    int64_t step = 0;
    bool operator==(const Start&) const = default;
};

// All the starts that led to a state, oldest first. The first id is the run's.
using Descent = std::vector<Start>;

struct ShardRecord {
    std::string name;  // without its folder
    int64_t tokens = 0;
    uint64_t xxh3 = 0;     // of the tokens
    std::string identity;  // what the system said of the file then (file_identity)
};

struct TrainingState {
    int64_t step = 0;     // steps done, skipped ones included: the next one has this number
    int64_t updates = 0;  // optimizer updates that happened
    uint64_t seed = 0;    // of initialisation and data order
    // what else decides which data a step sees
    int64_t seq_len = 0, rows_per_step = 0;
    Optimizer optimizer = Optimizer::kAdamW;  // not auto: which moments there are
    bool fp8 = false;  // whether there are maxima of FP8; not in run.json but optimizer.safetensors
};

// a validation of a run
struct Validated {
    int64_t step = 0;
    double loss = 0;  // finite
    bool operator==(const Validated&) const = default;
};

struct RunRecord {
    Descent descent;
    TrainingState state;
    int64_t skipped_in_a_row = 0;      // of the steps before, those that were not finite
    std::vector<AcceptedStep> window;  // if outliers are skipped: OutlierWindow's, of the steps before
    int64_t data_start = 0;            // the step that began with this training data: its first epoch
    std::vector<ShardRecord> train_data, val_data;
    std::map<std::string, std::string> settings;  // see run/data.h
    int end_of_text = 0;                          // token id
    std::optional<double> val_loss;               // of this very state, if it was validated
    std::optional<Validated> best;                // the lowest on the line, if --keep-best asks for it
    int64_t since_best = 0;                       // validations since then, none of them better
    std::string kept = "{}";                      // not in run.json but config.json, as HfFacts has it
    TextFiles tokenizer;                          // nor these: the run's tokenizer's files
};

std::string new_id();  // 16 hexadecimal digits

// whether a checkpoint of this step with the descent `checkpoint` lies on `descent`: no later start went back to before it
bool lies_on(const Descent& descent, const Descent& checkpoint, int64_t step);

// run.json's content, and back. what: the file, for messages. Throws Error(kExitBadInput) naming the field.
std::string to_json(const RunRecord& record);
RunRecord parse_run_record(const std::string& text, const std::string& what);

// The line that log.jsonl gets at each start, with the members of a JSON object, and which line of descent a
// log follows: that of its last start. Nothing if it has none; throws as above.
std::string log_start(const Descent& descent, int64_t step, bool new_data = false,
                      const std::string& header = "{}");
std::optional<Descent> descent_of_log(const std::string& log, const std::string& what);

// ---- model files --------------------------------------------------------------------------------

constexpr int32_t kModelMagic = 20240326;
constexpr int32_t kModelFp32 = 3, kModelBf16 = 5;  // header word 1

// A model file, open for reading; throws Error(kExitBadInput) naming the field unless header and size fit.
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

// values of a training state: of the parameters, of the moments that this optimizer has, and FP8's maxima
int64_t state_elements(const GPT2Config& config, Optimizer optimizer, bool fp8 = false);
// bytes that a checkpoint takes on disk, to within some KiB
int64_t checkpoint_bytes(const GPT2Config& config, Optimizer optimizer = Optimizer::kAdamW, bool fp8 = false);

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
    bool holds(State state, int tensor) const {
        return state == State::kFp8Maxima ? maxima_ != nullptr && tensor == 0
                                          : has_state(record_.state.optimizer, state, tensor);
    }
    // values [first, first + values.size()) of a tensor in file order; the padding of the vocabulary is 0.
    // Throws Error(kExitBadInput) naming the first number that is not finite.
    void read(State state, int tensor, int64_t first, std::span<float> values) const;

private:
    RunRecord record_;
    HfModel model_;
    SafetensorsFile optimizer_;
    const SafetensorsEntry* moments_[2][kNumTensors] = {};
    const SafetensorsEntry* maxima_ = nullptr;
};

// all of it, in pieces
void load_checkpoint(const Checkpoint& checkpoint, const WriteTensor& write);

}  // namespace llmc
