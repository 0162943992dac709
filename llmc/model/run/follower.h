// A rank other than 0: does its share of what rank 0 asks for, and writes nothing.
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/base/stop_signal.h"
#include "llmc/host/options/options.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/model.h"
#include "llmc/model/run/data.h"
#include "llmc/model/run/open_model.h"
#include "llmc/model/run/plan.h"
#include "llmc/model/run/rank_tasks.h"

namespace llmc {

template <typename Model>
class Follower {
public:
    Follower(const Options& options, const Needs& needs, Comm& comm)
        : o_(options), comm_(comm), plan_(share_plan(comm, {}, config_text(options))), settings_(settings()) {
        const RankPlan& p = plan_.numbers;
        data_.emplace(o_.train_data, o_.seq_len, o_.seed, o_.raw_tokens);
        if (!o_.val_data.empty()) { val_.emplace(o_, data_->vocab_size(), p.end_of_text); }
        require_memory(Model::plan(p.config, o_.batch, o_.seq_len, settings_), o_, needs, p.config);
        compare_inputs();
        mine_ = micro_batches_of(comm.rank(), comm.size(), p.reduce_groups, p.micro_batches);
        batches_.resize(mine_.size());
    }

    // until rank 0 says that the run ends; the exit code
    int run() {
        Model model(plan_.numbers.config, o_.batch, o_.seq_len, settings_);
        start(model);
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
    ModelSettings settings() {
        o_.reduce_groups = plan_.numbers.reduce_groups;
        o_.optimizer = plan_.numbers.muon != 0 ? "muon" : "adamw";
        return model_settings(o_, &comm_);
    }

    void compare_inputs() {
        comm_.take_time(true);  // to read all of its data
        const RunRecord root = parse_run_record(plan_.inputs, "what rank 0 reads");
        RunRecord mine = read_here(root, o_, data_->set(), val_ ? &val_->data().set() : nullptr,
                                   Model::device(settings_).name);
        mine.settings["weights"] = weights_digest(plan_.checkpoint, plan_.model_file);
        mine.settings["entropy"] = fmt::format("{:g}", val_ ? val_->entropy() : 0);
        require_same_inputs(root, mine, o_, plan_.checkpoint + plan_.model_file);
        comm_.take_time(false);
    }

    void start(Model& model) {
        auto write = [&](State s, int tensor, int64_t first, std::span<const float> x) {
            model.load(s, tensor, first, x);
        };
        model.init(o_.seed);
        if (!plan_.checkpoint.empty()) {
            const Checkpoint checkpoint(plan_.checkpoint);
            model.set_updates(checkpoint.record().state.updates);
            load_checkpoint(checkpoint, write);
        } else if (!plan_.model_file.empty()) {
            std::string notes;
            load_model(*open_model(plan_.model_file, &notes).source, write);
        }
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

    Options o_;
    Comm& comm_;
    SharedPlan plan_;
    ModelSettings settings_;
    std::optional<DataLoader> data_;
    std::optional<Validator> val_;
    std::vector<int64_t> mine_;  // which micro-batches of a step
    std::vector<Batch> batches_;
};

}  // namespace llmc
