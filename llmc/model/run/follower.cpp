// The ranks of a run: see follower.h.
#include "llmc/model/run/follower.h"

#include <algorithm>
#include <optional>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/run/data.h"
#include "llmc/model/run/open_model.h"

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
        throw Error(
            kExitPeerLost,
            fmt::format(
                "step {}: rank {} computes with another {} than rank 0. A GPU's memory or an exchange "
                "has failed; --resume auto goes on from the last checkpoint.",
                (long long)step + 1, i / kNumTensors, kTensors[tensor].name));
    }
}

SharedPlan share_plan(Comm& comm, SharedPlan plan, const std::string& options_text) {
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

std::vector<int64_t> micro_batches_of(int rank, int ranks, int groups, int64_t micro_batches) {
    std::vector<int64_t> mine;
    const int64_t each = micro_batches / groups;
    for (int64_t group = rank; group < groups; group += ranks) {
        for (int64_t k = group * each; k < (group + 1) * each; k++) { mine.push_back(k); }
    }
    return mine;
}

namespace {

class Follower {
public:
    Follower(const Options& options, const ModelFactory& factory, const Needs& needs, Comm& comm)
        : comm_(comm),
          plan_(share_plan(comm, {}, config_text(options))),
          o_(resolved(options, plan_.numbers)),
          factory_(factory),
          settings_(model_settings(o_, &comm)) {
        const RankPlan& p = plan_.numbers;
        data_.emplace(o_.train_data, o_.seq_len, o_.seed, o_.raw_tokens);
        if (!o_.val_data.empty()) { val_.emplace(o_, data_->vocab_size(), p.end_of_text); }
        require_memory(factory_.plan(p.config, o_.batch, o_.seq_len, settings_), o_, needs, p.config);
        compare_inputs();
        mine_ = micro_batches_of(comm.rank(), comm.size(), p.reduce_groups, p.micro_batches);
        batches_.resize(mine_.size());
    }

    // until rank 0 says that the run ends; the exit code
    int run() {
        const auto made = factory_.make(plan_.numbers.config, o_.batch, o_.seq_len, settings_);
        Model& model = *made;
        load_start(&model, o_.seed, plan_.checkpoint, plan_.model_file);
        stop_when_out_of_memory();
        for (;;) {
            const RankTask task = pass_on(comm_, {});
            switch (task.task) {
                case Task::kStep:
                    step(model, task.params);
                    break;
                case Task::kValidate:
                    val_->loss(model, o_.batch, comm_);
                    break;
                case Task::kGather:
                    model.finish();
                    model.gather();
                    break;
                case Task::kEnd:
                    return task.exit_code;
            }
        }
    }

private:
    // what rank 0 worked out
    static Options resolved(Options o, const RankPlan& numbers) {
        o.reduce_groups = numbers.reduce_groups;
        o.optimizer = numbers.muon != 0 ? Optimizer::kMuon : Optimizer::kAdamW;
        return o;
    }

    void compare_inputs() {
        comm_.take_time(true);  // to read all of its data
        const RunRecord root = parse_run_record(plan_.inputs, "what rank 0 reads");
        RunRecord mine = read_here(root, o_, data_->set(), val_ ? &val_->data().set() : nullptr,
                                   factory_.device(settings_).name);
        mine.settings["weights"] = weights_digest(plan_.checkpoint, plan_.model_file);
        mine.settings["entropy"] = fmt::format("{:g}", val_ ? val_->entropy() : 0);
        require_same_inputs(root, mine, o_, plan_.checkpoint + plan_.model_file);
        comm_.take_time(false);
    }

    void step(Model& model, const StepParams& params) {
        const int64_t first = (params.step - plan_.numbers.data_start) * plan_.numbers.rows_per_step;
        for (size_t i = 0; i < mine_.size(); i++) {
            data_->read(first + mine_[i] * o_.batch, o_.batch, &batches_[i]);
        }
        if (!model.enqueue_step(batches_, params)) { return; }
        check_ranks(model, comm_, o_.check_ranks, params.step);
        while (model.poll()) {}
        for (int64_t k : mine_) {
            data_->prefetch(first + plan_.numbers.rows_per_step + k * o_.batch, o_.batch);
        }
    }

    Comm& comm_;
    const SharedPlan plan_;
    const Options o_;
    const ModelFactory factory_;
    const ModelSettings settings_;
    std::optional<DataLoader> data_;
    std::optional<Validator> val_;
    std::vector<int64_t> mine_;  // which micro-batches of a step
    std::vector<Batch> batches_;
};

}  // namespace

int follow(const Options& options, const ModelFactory& factory, const Needs& needs, Comm& comm) {
    return Follower(options, factory, needs, comm).run();
}

}  // namespace llmc
