// The ranks of a run. Rank 0 runs the loop (trainer.h) and decides; the others do their share of its tasks, and write nothing.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/host/options/options.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/model/run/plan.h"
#include "llmc/ops/step_params.h"

namespace llmc {

enum class Task : int32_t {
    kStep,      // an optimizer step
    kValidate,  // the validation loss
    kGather,    // Model::gather()
    kEnd,       // leave, with the exit code
};

struct RankTask {
    Task task = Task::kEnd;
    int32_t exit_code = 0;
    StepParams params;  // of a step
};

// Rank 0 tells, the others are told; returns what. In a job of one rank nothing happens.
RankTask pass_on(Comm& comm, RankTask task);

// Every `every` steps (0: never) ranks compare what they compute with. Throws Error(kExitPeerLost), in all ranks.
void check_ranks(const Model& model, Comm& comm, int every, int64_t step);

// what the other ranks need of rank 0's plan
struct SharedPlan {
    GPT2Config config;
    int reduce_groups = 1;
    std::string checkpoint, model_file;  // as in RunPlan
    RunRecord inputs;                    // as require_same_inputs() compares them
};

// Rank 0's plan, in all ranks. Throws Error(kExitUsage) if a rank was started with other options.
void share_plan(Comm& comm, SharedPlan* plan, const std::string& options_text);

// Which micro-batches of a step a rank computes, in order: those of its groups (see ModelSettings).
std::vector<int64_t> micro_batches_of(int rank, int ranks, int groups, int64_t micro_batches);

// The run in a rank other than 0, until rank 0 says that it ends; the exit code.
int follow(const Options& options, Models models, Comm& comm);

}  // namespace llmc
