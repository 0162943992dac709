// The training loop: see trainer.h.
#include "llmc/model/run/trainer.h"

#include <algorithm>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/run/follower.h"
#include "llmc/model/run/open_model.h"

namespace llmc {

constexpr int kMostSkippedSteps = 10;  // in a row: then the run has diverged
using Clock = std::chrono::steady_clock;

bool was_finite(const StepResult& r) {
    return std::isfinite(r.loss) && std::isfinite(r.grad_norm) && r.grad_norm <= (float)kLongestGradient;
}

StepNumbers StepClock::numbers(const StepResult& r, const RunPlan& plan, int seq_len, int64_t data_start,
                               double peak_flops) {
    StepNumbers n;
    n.step = r.step + 1;
    n.steps = plan.steps;
    n.loss = last_loss = unsigned_nan(r.loss);
    n.grad_norm = unsigned_nan(r.grad_norm);
    n.lr = plan.schedule(r.step);
    n.ms = std::chrono::duration<double, std::milli>(r.done - last_done_).count();
    n.tokens_per_s = (double)(plan.rows_per_step * seq_len) / n.ms * 1e3;
    if (peak_flops > 0) { n.utilisation = plan.flops_per_token * n.tokens_per_s / peak_flops; }
    n.tokens = n.step * plan.rows_per_step * seq_len;
    n.epoch = (double)((n.step - data_start) * plan.rows_per_step) / (double)plan.windows_per_epoch;
    if (r.skipped) { n.skipped = was_finite(r) ? "an outlier" : "not finite"; }
    last_done_ = r.done;
    seconds += n.ms / 1e3;
    steps++;
    // the mean of the last half minute's steps: the machine may have been busy before
    pace_ += (n.ms - pace_) * std::min(1.0, std::max(1.0 / (double)steps, n.ms / kPaceMs));
    n.seconds_left = (double)(plan.steps - n.step) * pace_ / 1e3;
    return n;
}

std::string StepClock::exploded(const RunPlan& plan) const {
    const double new_model = std::log((double)plan.config.vocab_size);
    if (!plan.model_file.empty() || !(last_loss > 2 * new_model)) { return ""; }
    return fmt::format("the last training loss is {:.4f}: a new model has {:.4f}", last_loss, new_model);
}

Trainer::Trainer(Run& run, std::unique_ptr<Model> model)
    : run_(run),
      plan_(run.plan),
      o_(run.plan.options),
      folder_(run.folder),
      comm_(run.comm),
      screen_(run.screen),
      peak_flops_(run.device.peak_flops * run.comm.size()),
      model_(std::move(model)) {
    if (!plan_.checkpoint.empty()) {
        require_same_run(plan_);
        skipped_in_a_row_ = plan_.record.skipped_in_a_row;
        if (outliers_on()) { outliers_ = OutlierWindow(plan_.record.window); }
        first_ = plan_.record.state.step;
    }
    load_start(model_.get(), o_.seed, plan_.checkpoint, plan_.model_file);
    run_.open_log(first_);
    log_ = &*run_.log;
    saver_.emplace(plan_, folder_, run_.record.best, run_.saves, run_.factory.page_lock, &screen_, log_);
    screen_.note(run_.notes);
    mine_ = micro_batches_of(0, comm_.size(), o_.reduce_groups, plan_.micro_batches);
    batches_.resize(mine_.size());
}

int Trainer::run() {
    stop_when_out_of_memory();
    try {
        const int code = train_or_save();
        pass_on(comm_, {.task = Task::kEnd, .exit_code = code, .params = {}});
        return code;
    } catch (const Error& e) {
        log_->event("error", first_ + clock_.steps, {{"text", std::string(e.what())}});
        screen_.note(log_->write_report(true));
        throw;
    }
}

// Where memory ends for good, what was trained is saved all the same: unless that was in the middle of a step, or other
// ranks may be in an exchange.
int Trainer::train_or_save() {
    whole_ = first_;
    try {
        return train();
    } catch (const std::bad_alloc&) {
        if (whole_ < 0 || comm_.size() > 1) { throw; }
        out_of_memory = 1;
        return stop(whole_);
    }
}

// the steps that there are to do; the exit code
int Trainer::train() {
    clock_.restart();
    for (int64_t step = first_; step < plan_.steps; step++) {
        if (due(step, o_.val_every)) { validate(step); }
        if (due(step, o_.hellaswag_every > 0 ? o_.hellaswag_every : o_.val_every)) { ask(step); }
        if (due(step, o_.sample_every)) { sample(step); }
        bool late = due(step, o_.save_every) && validated_first(step) &&
                    saver_->newest() != checkpoint_name(folder_, step);
        if (save_requested || late) { save(step); }
        if (stop_requested || !enqueue(step)) { return stop(step); }
        while (auto result = model_->poll()) { report(*result); }
        for (int64_t k : mine_) { run_.data.prefetch(row_of(step + 1) + k * o_.batch, o_.batch); }
        if (stop_requested) { return stop(step + 1); }
        comm_.take_time(true);  // to delete old checkpoints
        saver_->poll();
        comm_.take_time(false);
        if (due(step + 1, o_.save_every) && !validated_first(step + 1)) { save(step + 1); }
    }
    drain();
    return finish();
}

// false: a stop was asked for first, and the step does not happen
bool Trainer::enqueue(int64_t step) {
    for (size_t i = 0; i < mine_.size(); i++) {
        if (stop_requested) { return false; }
        try {
            run_.data.read(row_of(step) + mine_[i] * o_.batch, o_.batch, &batches_[i]);
        } catch (const Error&) {  // a shard that cannot be read any more: what was trained is not lost
            save(step, true);
            throw;
        }
    }
    pass_on(comm_, {.task = Task::kStep, .params = step_params(step)});
    whole_ = -1;
    const bool done = model_->enqueue_step(batches_, step_params(step));
    whole_ = step + done;
    if (!done) { return false; }
    check_ranks(*model_, comm_, o_.check_ranks, step);
    return true;
}

StepParams Trainer::step_params(int64_t step) const {
    const float loss = outliers_.largest(&AcceptedStep::loss, o_.skip_loss_zscore, step),
                norm = outliers_.largest(&AcceptedStep::norm, o_.skip_norm_zscore, step);
    return {step,     plan_.schedule(step),
            o_.beta1, o_.beta2,
            o_.eps,   o_.weight_decay,
            o_.clip,  plan_.rows_per_step * o_.seq_len,
            loss,     norm};
}

void Trainer::report(const StepResult& r) {
    const StepNumbers n = clock_.numbers(r, plan_, o_.seq_len, run_.record.data_start, peak_flops_);
    log_->append(step_log_line(n));
    watch_log();
    screen_.show(n);
    if (!r.skipped && outliers_on()) { outliers_.add({r.step, r.loss, r.grad_norm}); }
    skipped_in_a_row_ = r.skipped ? skipped_in_a_row_ + !was_finite(r) : 0;
    if (std::max(skipped_in_a_row_, outliers_.skipped(r.step)) >= kMostSkippedSteps) {
        throw saver_->diverged(fmt::format("step {}: loss or gradient norm was {} {} times in a row", n.step,
                                           n.skipped, kMostSkippedSteps));
    }
}

void Trainer::drain() {
    model_->finish();
    while (auto result = model_->poll()) { report(*result); }
}

// mean loss over the validation targets
// (nothing, and no line in the log, if a stop was asked for first)
double Trainer::validate(int64_t step) {
    if (!run_.val) { return NAN; }
    drain();
    const Clock::time_point begin = Clock::now();
    pass_on(comm_, {.task = Task::kValidate, .params = {.step = step}});
    double loss = run_.val->loss(*model_, o_.batch, comm_);
    comm_.take_time(true);  // until the next task
    if (stop_requested) { return NAN; }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    log_->append(validation_log_line(step, loss, seconds));
    watch_log();
    if (saver_->validated(step, loss)) { save_requested = 1; }
    screen_.note(log_->write_report(false));
    screen_.message(fmt::format("step {} | {}", step, run_.val->short_text(loss)));
    clock_.restart();
    return loss;
}

// HellaSwag's questions (likewise); the other ranks wait
void Trainer::ask(int64_t step) {
    if (!run_.questions) { return; }
    drain();
    comm_.take_time(true);
    auto evaluate = [&](const Batch& batch) { return model_->evaluate(batch); };
    auto score = score_hellaswag(*run_.questions, o_.batch, o_.seq_len, evaluate);
    if (!score) { return; }
    log_->append(hellaswag_log_line(step, score->accuracy(), score->normalised()));
    watch_log();
    screen_.message(fmt::format("step {} | HellaSwag {:.4f}, normalised {:.4f}", step, score->accuracy(),
                                score->normalised()));
    clock_.restart();
}

void Trainer::sample(int64_t step) {
    drain();
    comm_.take_time(true);
    const std::string text = run_.samples.text(*model_, step, 0);
    log_->event("sample", step, {{"text", text}});
    screen_.message(fmt::format("step {} | sample: {}", step, text));
    clock_.restart();
}

// wait: until it is on the disk; else the training may go on meanwhile
void Trainer::save(int64_t step, bool wait) {
    drain();
    run_.lock.require_held();
    gather(step);
    run_.record.state = training_state(plan_, step, model_->updates());
    run_.record.skipped_in_a_row = skipped_in_a_row_;
    run_.record.window = outliers_.steps();
    log_->sync();  // before the checkpoint that stands behind its lines
    watch_log();
    save_requested = 0;
    saver_->save(run_.record, reader(*model_), wait);
    clock_.restart();
}

// what a checkpoint holds, of all ranks
void Trainer::gather(int64_t step) {
    pass_on(comm_, {.task = Task::kGather, .params = {.step = step}});
    model_->gather();
    comm_.take_time(true);  // until the next task
}

// Says when the log cannot be written, and when it can be again; the first time, what there is is saved.
void Trainer::watch_log() {
    bool failing = !log_->problem().empty();
    if (failing && !log_failing_) {
        screen_.message("LOG FAILED: " + log_->problem());
        save_requested = 1;
    } else if (!failing && log_failing_) {
        screen_.message("the log is written again: nothing of it was lost");
    }
    log_failing_ = failing;
}

namespace {

int train_root(const Options& options, const ModelFactory& factory, const Needs& needs, Comm& comm) {
    Run run(options, factory, comm);
    run.announce(needs);
    const Options& o = run.plan.options;
    if (o.dry_run) {  // the plan is all that it leaves
        require_printed();
        return kExitDone;
    }
    run.take_folder();
    run.share();
    return Trainer(run, factory.make(run.plan.config, o.batch, o.seq_len, run.settings)).run();
}

}  // namespace

int train_in_rank(const Options& options, Models models, Comm& comm) {
    const Needs needs = [models](const GPT2Config& c, const Options& o) {
        return models(o).plan(c, o.batch, o.seq_len, model_settings(o)).total();
    };
    const ModelFactory factory = models(options);
    return comm.root() ? train_root(options, factory, needs, comm) : follow(options, factory, needs, comm);
}

}  // namespace llmc
