// The plan of a training run: what options, data and machine together mean, worked out, checked and printed beforehand.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "llmc/host/options/options.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"

namespace llmc {

// Learning rates: a linear warm-up, then constant, cosine, linear or wsd (warm-up, stable, decay).
struct Schedule {
    Decay kind = Decay::kCosine;
    double peak = 3e-4;
    double final_fraction = 0;  // of the peak, where the schedule would be one step after the last
    int64_t warmup = 0;         // steps
    int64_t steps = 1;          // of the whole run

    // the learning rate of a step, 0-based
    double operator()(int64_t step) const {
        if (step < warmup) { return peak * (double)(step + 1) / (double)warmup; }
        double lowest = peak * final_fraction;
        double done = std::min(1.0, (double)(step - warmup) / (double)std::max<int64_t>(1, steps - warmup));
        if (kind == Decay::kCosine) {
            return lowest + (peak - lowest) * 0.5 * (1 + std::cos(3.141592653589793 * done));
        }
        if (kind == Decay::kLinear) { return peak + (lowest - peak) * done; }
        if (kind == Decay::kWsd) {  // stable for 80 % of all steps, then down by 1 - sqrt, arXiv:2405.18392
            // in a run of few steps its last one falls, too
            double begin = std::max(std::min(0.8 * (double)steps, (double)steps - 1.5), (double)warmup);
            double decayed = ((double)step - begin) / std::max(1.0, (double)steps - begin);
            return decayed <= 0 ? peak : lowest + (peak - lowest) * (1 - std::sqrt(std::min(1.0, decayed)));
        }
        return peak;  // constant
    }
};

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

// What the user leaves open about the length of a run and its learning rate is worked out from the size of the model and the
// tokens there are: the same on any machine, however busy it is. Only --minutes asks for the device's speed.

// what the choice depends on
struct RunFacts {
    int64_t parameters = 0;  // those of the embeddings left out
    int channels = 0;
    double flops_per_token = 0;    // forward and backward
    double muon_flops = 0;         // of Muon's iterations in a step
    double flops_per_s = 0;        // of one large product on this device, now; 0 = unknown
    bool pretrained = false;       // the weights come from a model, not from random numbers
    int64_t tokens_per_epoch = 0;  // whole windows
    int64_t tokens_per_step = 0;
    int64_t val_tokens = 0;  // that one validation predicts
    int64_t tokens = 0;      // of the training data: what llm.c calls an epoch
};

// of Muon's iterations in a step, as the CPU computes them: symmetric products by half
double muon_flops(const GPT2Config& c);

// Sets what the options leave open; what they give stands. It is worked out, or taken from llm.c where its letters were used:
// one epoch, a learning rate of 3e-4, no warm-up, no decay, validation and a sample every 20 steps. Returns why, a line each.
std::string choose(const RunFacts& facts, Options* options);

// what the user sees at start-up
std::string describe_run(const RunPlan& plan, const DataLoader& data, const ValidationData* val,
                         const MemoryPlan& memory, const Device& device);

// the part of the options that a model is built with; comm null: for plan() only
ModelSettings model_settings(const Options& options, Comm* comm = nullptr);

// The models of a program: options, as a user may give them, name one.
using Models = ModelFactory (*)(const Options&);

// Throws Error(kExitDevice) if the plan needs more than there is; names the options that would fit, the
// cheapest first: recomputing, bf16 gradients, a smaller batch, a smaller model.
void require_memory(const MemoryPlan& memory, const Options& options, Models models,
                    const GPT2Config& config);

// Throws Error(kExitUsage) unless the run can go on from the plan's checkpoint, if any, with the data in the same order.
void require_same_run(const RunPlan& plan);

}  // namespace llmc
