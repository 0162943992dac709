// The plan of a training run: what the options, the data and the machine together mean, worked out, checked
// and printed before anything large is allocated.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "llmc/host/options/options.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/model/run/auto_plan.h"

namespace llmc {

struct RunPlan {
    Options options;  // with all worked out that was left open
    GPT2Config config;
    std::string model_from;     // "random initialisation", or the file or checkpoint the weights come from
    std::string model_file;     // "" unless the weights come from a model that was named: what was opened
    std::string model_folder;   // where the model's own tokenizer is, if it has one; "" for a new model
    std::string checkpoint;     // "" unless the run goes on from one
    RunRecord record;           // of that checkpoint
    std::string out;            // run folder
    int64_t rows_per_step = 0;  // windows of seq_len in an optimizer step
    int64_t micro_batches = 0;
    int64_t steps = 0;
    int64_t windows_per_epoch = 0;  // of seq_len
    Schedule schedule;
    std::string chosen;          // why what the options leave open is as it is, a line each; notes
    double flops_per_token = 0;  // forward and backward
};

// Throws Error(kExitUsage) or Error(kExitBadInput) where options, data and model do not fit together. What
// the options leave open is worked out, for plan.options; a run that goes on takes it from its config.toml.
// measure_speed gives the FLOP/s of one large product on the device, now; null: unknown.
RunPlan make_run_plan(const Options& options, const DataLoader& data, double (*measure_speed)() = nullptr);

// what the user sees at start-up
std::string describe_run(const RunPlan& plan, const DataLoader& data, const ValidationData* val,
                         const MemoryPlan& memory, const Device& device);

// the part of the options that a model is built with; comm null: for plan() only
ModelSettings model_settings(const Options& options, Comm* comm = nullptr);

// bytes that a run with these options would take
using Needs = std::function<int64_t(const GPT2Config&, const Options&)>;

// Throws Error(kExitDevice) if the plan needs more than there is; names the options that would fit, the
// cheapest first: recomputing, bf16 gradients, a smaller batch, a smaller model.
void require_memory(const MemoryPlan& memory, const Options& options, const Needs& needs,
                    const GPT2Config& config);

// what a checkpoint notes of this run after `step` steps
TrainingState training_state(const RunPlan& plan, int64_t step, int64_t updates);

// Throws Error(kExitUsage) unless the run can go on from the plan's checkpoint with the data in the same
// order.
void require_same_run(const RunPlan& plan);

}  // namespace llmc
