// What rank 0 tells the other ranks of a run to do. Rank 0 runs the training loop (trainer.h) and decides;
// the others do their share of each task (follower.h).
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/gpt2_config.h"
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
inline RankTask pass_on(Comm& comm, RankTask task) {
    if (comm.root()) {
        comm.at_step(task.params.step);
        comm.take_time(false);
    }
    comm.from_root("the next task", std::span(&task, 1));
    if (!comm.root()) { comm.at_step(task.params.step); }
    return task;
}

// Every `every` steps (0: never) the ranks compare what they compute with. Throws Error(kExitPeerLost), in all
// ranks.
template <typename Model>
void check_ranks(const Model& model, Comm& comm, int every, int64_t step) {
    if (every == 0 || comm.size() == 1 || (step + 1) % every != 0) { return; }
    std::vector<uint64_t> all((size_t)comm.size() * kNumTensors);
    std::ranges::copy(model.parameter_hashes(), all.begin() + comm.rank() * kNumTensors);
    comm.all_gather("hashes of the parameters", all);
    for (size_t i = kNumTensors; i < all.size(); i++) {
        const size_t tensor = i % kNumTensors;
        if (all[i] == all[tensor]) { continue; }
        throw Error(
            kExitPeerLost,
            fmt::format(
                "step {}: rank {} computes with another {} than rank 0. A GPU's memory or an exchange "
                "has failed; --resume auto goes on from the last checkpoint.",
                (long long)step + 1, i / kNumTensors, kTensors[tensor].name));
    }
}

// what the other ranks need of rank 0's plan
struct RankPlan {
    GPT2Config config;
    int32_t reduce_groups = 1, end_of_text = 0;
    int64_t data_start = 0, rows_per_step = 0, micro_batches = 0;
    int32_t muon = 0;
};

struct SharedPlan {
    RankPlan numbers;
    std::string checkpoint, model_file;  // as in RunPlan
    std::string inputs;                  // as require_same_inputs() compares them, by to_json()
};

// Rank 0's plan, in all ranks. Throws Error(kExitUsage) if a rank was started with other options.
inline SharedPlan share_plan(Comm& comm, SharedPlan plan, const std::string& options_text) {
    comm.from_root("the plan", std::span(&plan.numbers, 1));
    plan.checkpoint = comm.text_from_root("the checkpoint's name", plan.checkpoint);
    plan.model_file = comm.text_from_root("the model's name", plan.model_file);
    plan.inputs = comm.text_from_root("what rank 0 reads", plan.inputs);
    const std::string root_options = comm.text_from_root("the options", options_text);
    if (root_options == options_text) { return plan; }
    size_t at = 0;
    while (root_options[at] == options_text[at]) { at++; }
    const size_t begin = options_text.rfind('\n', at) + 1;
    auto line = [&](const std::string& text) { return text.substr(begin, text.find('\n', begin) - begin); };
    throw Error(
        kExitUsage,
        fmt::format("this rank was started with '{}', rank 0 with '{}'. Start all with the same options.",
                    line(options_text), line(root_options)));
}

// Which micro-batches of a step a rank computes, in order: those of its groups (see ModelSettings).
inline std::vector<int64_t> micro_batches_of(int rank, int ranks, int groups, int64_t micro_batches) {
    std::vector<int64_t> mine;
    const int64_t each = micro_batches / groups;
    for (int64_t group = rank; group < groups; group += ranks) {
        for (int64_t k = group * each; k < (group + 1) * each; k++) { mine.push_back(k); }
    }
    return mine;
}

}  // namespace llmc
