// The ranks of a run: see follower.h.
#include "llmc/model/run/follower.h"

#include <algorithm>
#include <optional>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/run/data.h"
#include "llmc/model/run/folder.h"

namespace llmc {

RankTask pass_on(Comm& comm, RankTask task) {
    if (comm.root()) {
        comm.at_step(task.params.step);
        comm.take_time(false);
    }
    comm.from_root("the next task", std::span(&task, 1));
    if (!comm.root()) { comm.at_step(task.params.step); }
    return task;
}

void check_ranks(const Model& model, Comm& comm, int every, int64_t step) {
    if (every == 0 || comm.size() == 1 || (step + 1) % every != 0) { return; }
    std::vector<uint64_t> all((size_t)comm.size() * kNumTensors);
    std::ranges::copy(model.parameter_hashes(), all.begin() + comm.rank() * kNumTensors);
    comm.all_gather("hashes of the parameters", all);
    for (size_t i = kNumTensors; i < all.size(); i++) {
        const size_t tensor = i % kNumTensors;
        if (all[i] == all[tensor]) { continue; }
        throw Error(kExitPeerLost,
                    "step {}: rank {} computes with another {} than rank 0. A GPU's memory or an exchange "
                    "has failed; --resume auto goes on from the last checkpoint.",
                    (long long)step + 1, i / kNumTensors, kTensors[tensor].name);
    }
}

void share_plan(Comm& comm, SharedPlan* plan, const std::string& options_text) {
    comm.from_root("the model's sizes", std::span(&plan->config, 1));
    comm.from_root("the groups of micro-batches", std::span(&plan->reduce_groups, 1));
    plan->checkpoint = comm.text_from_root("the checkpoint's name", plan->checkpoint);
    plan->model_file = comm.text_from_root("the model's name", plan->model_file);
    plan->inputs = parse_run_record(comm.text_from_root("what rank 0 reads", to_json(plan->inputs)),
                                    "what rank 0 reads");
    const std::string root_options = comm.text_from_root("the options", options_text);
    if (root_options == options_text) { return; }
    size_t at = 0;
    while (root_options[at] == options_text[at]) { at++; }
    const size_t begin = options_text.rfind('\n', at) + 1;
    auto line = [&](const std::string& text) { return text.substr(begin, text.find('\n', begin) - begin); };
    throw Error(kExitUsage,
                "this rank was started with '{}', rank 0 with '{}'. Start all with the same options.",
                line(options_text), line(root_options));
}

std::vector<int64_t> micro_batches_of(int rank, int ranks, int groups, int64_t micro_batches) {
    std::vector<int64_t> mine;
    for (int64_t i = 0; i < micro_batches / ranks; i++) {
        mine.push_back(micro_batch_number(i, micro_batches / groups, rank, ranks));
    }
    return mine;
}

int follow(const Options& given, Models models, Comm& comm) {
    SharedPlan plan;
    share_plan(comm, &plan, config_text(given));
    Options o = given;
    o.reduce_groups = plan.reduce_groups;
    o.optimizer = plan.inputs.state.optimizer;
    const ModelFactory factory = models(o);
    const ModelSettings settings = model_settings(o, &comm);
    DataLoader data(o.train_data, o.seq_len, o.seed, o.raw_tokens);
    std::optional<Validator> val;
    if (!o.val_data.empty()) { val.emplace(o, data.vocab_size(), plan.inputs.end_of_text); }
    require_memory(factory.plan(plan.config, o.batch, o.seq_len, settings), o, models, plan.config);
    comm.take_time(true);  // to read all of its data
    require_same_inputs(plan.inputs, o, data.set(), val ? &*val : nullptr, factory.device(settings).name,
                        plan.checkpoint, plan.model_file);
    comm.take_time(false);

    const std::unique_ptr<Model> model = factory.make(plan.config, o.batch, o.seq_len, settings);
    load_start(model.get(), o.seed, plan.checkpoint, plan.model_file);
    stop_when_out_of_memory();
    const int64_t rows = plan.inputs.state.rows_per_step;
    const auto mine = micro_batches_of(comm.rank(), comm.size(), o.reduce_groups, rows / o.batch);
    std::vector<Batch> batches(mine.size());
    const auto step = [&](const StepParams& params) {
        const int64_t first = (params.step - plan.inputs.data_start) * rows;
        for (size_t i = 0; i < mine.size(); i++) {
            data.read(first + mine[i] * o.batch, o.batch, &batches[i]);
        }
        if (!model->enqueue_step(batches, params)) { return; }
        check_ranks(*model, comm, o.check_ranks, params.step);
        while (model->poll()) {}
        for (int64_t k : mine) { data.prefetch(first + rows + k * o.batch, o.batch); }
    };
    for (;;) {
        const RankTask task = pass_on(comm, {});
        if (task.task == Task::kEnd) { return task.exit_code; }
        if (task.task == Task::kStep) { step(task.params); }
        if (task.task == Task::kValidate) { val->loss(*model, o.batch, comm); }
        if (task.task == Task::kGather) {
            model->finish();
            model->gather();
        }
    }
}

}  // namespace llmc
