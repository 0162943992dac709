// The training loop, for any model that has the interface of model.h:
//   data -> enqueue_step -> (one step later) poll -> log line -> now and then: validate, sample, save
// Nothing here waits for the device except validation, sampling, saving and the end.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/run_lock.h"
#include "llmc/host/log/report.h"
#include "llmc/host/options/options.h"
#include "llmc/host/options/parse_words.h"
#include "llmc/host/options/typed_text.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/model.h"
#include "llmc/model/run/data.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/follower.h"
#include "llmc/model/run/header.h"
#include "llmc/model/run/hf_export.h"
#include "llmc/model/run/open_model.h"
#include "llmc/model/run/plan.h"
#include "llmc/model/run/rank_tasks.h"
#include "llmc/model/run/samples.h"
#include "llmc/model/run/saver.h"
#include "llmc/model/run/step_clock.h"

namespace llmc {

constexpr int kMostSkippedSteps = 10;  // in a row: then the run has diverged

template <typename Model>
class Trainer {
public:
    // needs: of models of other settings than these, too; comm: this is its rank 0
    Trainer(const Options& options, const Needs& needs, Comm& comm)
        : o_(options),
          options_text_(config_text(options)),
          needs_(needs),
          comm_(comm),
          data_(o_.train_data, o_.seq_len, o_.seed, o_.raw_tokens),
          plan_(locked_plan()),
          samples_(o_, plan_, data_.vocab_size()),
          line_(o_.quiet, o_.log_every) {
        const auto& tokenizer = samples_.tokenizer();
        if (tokenizer) { plan_.record.tokenizer = tokenizer->files(plan_.config.max_seq_len); }
        check_tokens(data_.set());
        if (!o_.val_data.empty()) { val_.emplace(o_, data_.vocab_size(), samples_.end_of_text()); }
        if (!o_.hellaswag.empty()) {
            require_vocabulary(questions_.emplace(o_.hellaswag), data_.vocab_size(), o_.train_data);
        }
    }

    // the whole run; returns the program's exit code
    int run() {
        settings_ = model_settings(o_, &comm_);
        MemoryPlan memory = Model::plan(plan_.config, o_.batch, o_.seq_len, settings_);
        const Device device = Model::device(settings_);
        peak_flops_ = device.peak_flops * comm_.size();
        const int64_t on_host = o_.program == Program::kCpu ? comm_.local_size() * memory.total() : 0;
        const SavePlan saves = plan_saves(o_, plan_, on_host);
        const std::string plan_text =
            describe_run(o_, plan_, data_, val_ ? &val_->data() : nullptr, memory, device);
        put_text(stdout, plan_text + describe_saves(saves) + "\n");
        require_memory(memory, o_, needs_, plan_.config);
        line_.note(disk_warning(saves, plan_.out) + o_.notes);
        require_export_folder(o_, plan_.out, goes_on() ? plan_.record.line : Line());
        if (o_.dry_run && !o_.out.empty() && o_.resume != "auto" && !goes_on()) { require_no_run(plan_.out); }
        if (o_.dry_run) { return require_printed(), kExitDone; }  // the plan is all that it leaves
        if (!o_.export_hf.empty()) { make_writable_folder(o_.export_hf); }
        make_run_folder();
        if (!goes_on()) { require_no_run(plan_.out); }
        std::string notes;
        record_ = next_record(plan_.record, plan_.checkpoint, o_, data_.set(),
                              val_ ? &val_->data().set() : nullptr, device.name, &notes);
        share();
        Model model(plan_.config, o_.batch, o_.seq_len, settings_);
        int64_t first =
            start(model, run_header(o_, plan_, memory, device, val_ ? val_->entropy() : 0, plan_text));
        saver_.emplace(o_, plan_, record_.best, saves, Model::page_lock, &line_, &*log_);
        line_.note(notes);
        stop_when_out_of_memory();
        try {
            const int code = train_or_save(model, first);
            pass_on(comm_, {.task = Task::kEnd, .exit_code = code, .params = {}});
            return code;
        } catch (const Error& e) {
            log_->event("error", first + clock_.steps, {{"text", std::string(e.what())}});
            line_.note(log_->write_report(true));
            throw;
        }
    }

    static int64_t needs_of_model(const GPT2Config& c, const Options& o) {
        return Model::plan(c, o.batch, o.seq_len, model_settings(o)).total();
    }

private:
    using Clock = std::chrono::steady_clock;
    // Where memory ends for good, what was trained is saved all the same: unless that was in the middle of a step, or other
    // ranks may be in an exchange.
    int train_or_save(Model& model, int64_t first) {
        whole_ = first;
        try {
            return train(model, first);
        } catch (const std::bad_alloc&) {
            if (whole_ < 0 || comm_.size() > 1) { throw; }
            out_of_memory = 1;
            return stop(model, whole_);
        }
    }

    // the steps from this one on; the exit code
    int train(Model& model, int64_t first) {
        clock_.restart();
        mine_ = micro_batches_of(0, comm_.size(), o_.reduce_groups, plan_.micro_batches);
        batches_.resize(mine_.size());
        for (int64_t step = first; step < plan_.steps; step++) {
            if (due(step, o_.val_every)) { validate(model, step); }
            if (due(step, o_.hellaswag_every > 0 ? o_.hellaswag_every : o_.val_every)) { ask(model, step); }
            if (due(step, o_.sample_every)) { sample(model, step); }
            bool late = due(step, o_.save_every) && validated_first(step) &&
                        saver_->newest() != checkpoint_name(plan_.out, step);
            if (save_requested || late) { save(model, step); }
            if (stop_requested || !enqueue(model, step)) { return stop(model, step); }
            while (auto result = model.poll()) { report(*result); }
            for (int64_t k : mine_) { data_.prefetch(row_of(step + 1) + k * o_.batch, o_.batch); }
            if (stop_requested) { return stop(model, step + 1); }
            comm_.take_time(true);  // to delete old checkpoints
            saver_->poll();
            comm_.take_time(false);
            if (due(step + 1, o_.save_every) && !validated_first(step + 1)) { save(model, step + 1); }
        }
        drain(model);
        return finish(model);
    }

    // the other ranks begin with this
    void share() {
        if (comm_.size() == 1) { return; }
        RunRecord inputs = record_;
        inputs.settings["weights"] = weights_digest(plan_.checkpoint, plan_.model_file);
        inputs.settings["entropy"] = fmt::format("{:g}", val_ ? val_->entropy() : 0);
        share_plan(comm_,
                   {{plan_.config, o_.reduce_groups, samples_.end_of_text(), record_.data_start,
                     plan_.rows_per_step, plan_.micro_batches, settings_.muon},
                    plan_.checkpoint,
                    plan_.model_file,
                    to_json(inputs)},
                   options_text_);
    }

    static bool due(int64_t step, int64_t every) { return every > 0 && step > 0 && step % every == 0; }
    bool outliers_on() const { return o_.skip_loss_zscore > 0 || o_.skip_norm_zscore > 0; }

    // With --keep-best a checkpoint has its own validation's loss, so that it comes after it.
    bool validated_first(int64_t step) const {
        return o_.keep_best && (due(step, o_.val_every) || step == plan_.steps);
    }

    // What a run folder holds is read under its lock, so that it stays what the plan was made for.
    RunPlan locked_plan() {
        std::error_code ignored;
        if (!o_.dry_run && !o_.out.empty() && std::filesystem::is_directory(o_.out, ignored)) {
            lock_.take(o_.out), take_back_replaced(o_.out);
        }
        return make_run_plan(&o_, data_, Model::measure_speed);
    }

    void make_run_folder() {
        if (o_.out.empty()) {
            std::string planned = plan_.out;
            plan_.out = make_new_folder(planned);
            if (plan_.out != planned) {
                line_.message(fmt::format("{} is another run's: this one is in {}", planned, plan_.out));
            }
        } else {
            make_writable_folder(plan_.out);
        }
        lock_.take(plan_.out);
        remove_leftovers(plan_.out);
        if (o_.resume == "auto" && plan_.checkpoint.empty()) { line_.note(put_log_aside(plan_.out)); }
    }

    // whether this run adds to the log in its folder; a checkpoint of another folder starts a new log
    bool goes_on() const {
        std::error_code ignored;
        const std::string from = run_folder_of(plan_.checkpoint);
        return !plan_.checkpoint.empty() &&
               (o_.resume == "auto" || std::filesystem::equivalent(from, plan_.out, ignored));
    }

    // brings the weights in and opens the log, whose first line has this; returns the first step to do
    int64_t start(Model& model, const std::string& header) {
        auto write = [&](State s, int tensor, int64_t first, std::span<const float> x) {
            model.load(s, tensor, first, x);
        };
        int64_t first = 0;
        model.init(o_.seed);
        if (!plan_.checkpoint.empty()) {
            require_same_run(o_, plan_);
            model.set_updates(plan_.record.state.updates);
            load_checkpoint(Checkpoint(plan_.checkpoint), write);
            skipped_in_a_row_ = plan_.record.skipped_in_a_row;
            if (outliers_on()) { outliers_ = OutlierWindow(plan_.record.window); }
            first = plan_.record.state.step;
        } else if (!plan_.model_file.empty()) {
            std::string notes;
            load_model(*open_model(plan_.model_file, &notes).source, write);
        }
        record_.line.push_back({new_id(), first});
        record_.end_of_text = samples_.end_of_text();
        // the log first: from here on it says which checkpoints count
        log_.emplace(plan_.out, goes_on() ? first : -1,
                     log_start(record_.line, first, record_.data_start != plan_.record.data_start, header));
        line_.note(set_aside(plan_.out, record_.line));
        const auto& tokenizer = samples_.tokenizer();
        const bool known = plan_.config.vocab_size == kByteVocabSize;  // without a file
        if (tokenizer && !(tokenizer->is_bytes() && known)) {
            tokenizer->save(plan_.out, plan_.config.max_seq_len);
        }
        write_text_file(plan_.out + "/config.toml", config_text(o_, true));
        if (!o_.for_gpu.empty()) { log_->event("note", first, {{"text", o_.notes}}); }
        return first;
    }

    // of the data, the first row of a step
    int64_t row_of(int64_t step) const { return (step - record_.data_start) * plan_.rows_per_step; }

    // false: a stop was asked for first, and the step does not happen
    bool enqueue(Model& model, int64_t step) {
        for (size_t i = 0; i < mine_.size(); i++) {
            if (stop_requested) { return false; }
            try {
                data_.read(row_of(step) + mine_[i] * o_.batch, o_.batch, &batches_[i]);
            } catch (const Error&) {  // a shard that cannot be read any more: what was trained is not lost
                save(model, step, true);
                throw;
            }
        }
        pass_on(comm_, {.task = Task::kStep, .params = step_params(step)});
        whole_ = -1;
        const bool done = model.enqueue_step(batches_, step_params(step));
        whole_ = step + done;
        if (!done) { return false; }
        check_ranks(model, comm_, o_.check_ranks, step);
        return true;
    }

    StepParams step_params(int64_t step) const {
        const float loss = outliers_.largest(&AcceptedStep::loss, o_.skip_loss_zscore, step),
                    norm = outliers_.largest(&AcceptedStep::norm, o_.skip_norm_zscore, step);
        return {step,     plan_.schedule(step),
                o_.beta1, o_.beta2,
                o_.eps,   o_.weight_decay,
                o_.clip,  plan_.rows_per_step * o_.seq_len,
                loss,     norm};
    }

    void report(const StepResult& r) {
        const StepNumbers n = clock_.numbers(r, plan_, o_.seq_len, record_.data_start, peak_flops_);
        log_->step(n);
        watch_log();
        line_.show(n);
        if (!r.skipped && outliers_on()) { outliers_.add({r.step, r.loss, r.grad_norm}); }
        skipped_in_a_row_ = r.skipped ? skipped_in_a_row_ + !was_finite(r) : 0;
        if (std::max(skipped_in_a_row_, outliers_.skipped(r.step)) >= kMostSkippedSteps) {
            throw saver_->diverged(fmt::format("step {}: loss or gradient norm was {} {} times in a row",
                                               n.step, n.skipped, kMostSkippedSteps));
        }
    }

    // mean loss over the validation targets
    // (nothing, and no line in the log, if a stop was asked for first)
    double validate(Model& model, int64_t step) {
        if (!val_) { return NAN; }
        drain(model);
        const Clock::time_point begin = Clock::now();
        pass_on(comm_, {.task = Task::kValidate, .params = {.step = step}});
        double loss = val_->loss(model, o_.batch, comm_);
        comm_.take_time(true);  // until the next task
        if (stop_requested) { return NAN; }
        log_->validation(step, loss, std::chrono::duration<double>(Clock::now() - begin).count());
        watch_log();
        if (saver_->validated(step, loss)) { save_requested = 1; }
        line_.note(log_->write_report(false));
        line_.message(fmt::format("step {} | {}", step, val_->short_text(loss)));
        clock_.restart();
        return loss;
    }

    // HellaSwag's questions (likewise); the other ranks wait
    void ask(Model& model, int64_t step) {
        if (!questions_) { return; }
        drain(model);
        comm_.take_time(true);
        auto evaluate = [&](const Batch& batch) { return model.evaluate(batch); };
        auto score = score_hellaswag(*questions_, o_.batch, o_.seq_len, evaluate);
        if (!score) { return; }
        log_->hellaswag(step, score->accuracy(), score->normalised());
        watch_log();
        line_.message(fmt::format("step {} | HellaSwag {:.4f}, normalised {:.4f}", step, score->accuracy(),
                                  score->normalised()));
        clock_.restart();
    }

    // waits for the steps in flight and reports them
    void drain(Model& model) {
        model.finish();
        while (auto result = model.poll()) { report(*result); }
    }

    void sample(Model& model, int64_t step) {
        drain(model);
        comm_.take_time(true);
        const std::string text = samples_.text(model, step, 0);
        log_->event("sample", step, {{"text", text}});
        line_.message(fmt::format("step {} | sample: {}", step, text));
        clock_.restart();
    }

    // wait: until it is on the disk; else the training may go on meanwhile
    void save(Model& model, int64_t step, bool wait = false) {
        drain(model);
        lock_.require_held();
        const ReadTensor read = gather(model, step);
        record_.state = training_state(o_, plan_, step, model.updates());
        record_.skipped_in_a_row = skipped_in_a_row_;
        record_.window = outliers_.steps();
        log_->sync();  // before the checkpoint that stands behind its lines
        watch_log();
        save_requested = 0;
        saver_->save(record_, read, wait);
        clock_.restart();
    }

    // what a checkpoint holds, of all ranks
    ReadTensor gather(Model& model, int64_t step) {
        pass_on(comm_, {.task = Task::kGather, .params = {.step = step}});
        model.gather();
        comm_.take_time(true);  // until the next task
        return [&model](State s, int t, int64_t first, std::span<float> x) { model.save(s, t, first, x); };
    }

    // Says when the log cannot be written, and when it can be again; the first time, what there is is saved.
    void watch_log() {
        bool failing = !log_->problem().empty();
        if (failing && !log_failing_) {
            line_.message("LOG FAILED: " + log_->problem());
            save_requested = 1;
        } else if (!failing && log_failing_) {
            line_.message("the log is written again: nothing of it was lost");
        }
        log_failing_ = failing;
    }

    // the exit code of a run that ends well or is stopped: whether all that it leaves is on the disk
    int saved_or(int exit_code) {
        line_.note(log_->write_report(true));
        log_->sync();
        watch_log();
        if (log_failing_) { line_.message("LOG FAILED: lines are missing: " + log_->problem()); }
        return saver_->failed() || model_failed_ || log_failing_ ? not_all_saved(plan_.out) : exit_code;
    }

    // a signal asked for it: save and leave; --resume auto goes on from here
    int stop(Model& model, int64_t steps) {
        comm_.take_time(true);
        saver_->wait();
        if (saver_->newest() != checkpoint_name(plan_.out, steps)) { save(model, steps, true); }
        const std::string why =
            out_of_memory ? "for want of memory" : fmt::format("by signal {}", (int)stop_requested);
        log_->event("stop", steps, {{"text", why}});
        const std::string said =
            "stopped " + why + "; go on with --resume auto --out " + shell_word(plan_.out);
        if (out_of_memory) { throw Error(saved_or(kExitDevice), said); }
        line_.message(said);
        return saved_or(kExitPreempted);
    }

    // the end: validation, samples, the model; the exit code
    int finish(Model& model) {
        comm_.take_time(true);
        const bool late = validated_first(plan_.steps);
        if (clock_.steps > 0 && !late && !due(plan_.steps, o_.save_every)) { save(model, plan_.steps); }
        double loss = validate(model, plan_.steps);
        ask(model, plan_.steps);
        if (stop_requested) { return stop(model, plan_.steps); }
        if (save_requested || (clock_.steps > 0 && late)) { save(model, plan_.steps); }
        if (o_.sample_every > 0) {
            for (int number = 1; number <= 3; number++) {
                const std::string text = samples_.text(model, plan_.steps, number);
                log_->event("sample", plan_.steps, {{"text", text}});
                line_.message(fmt::format("sample {}: {}\n", number, text));
            }
        }
        if (stop_requested) { return stop(model, plan_.steps); }
        const ReadTensor read = gather(model, plan_.steps);
        saver_->wait();  // the checkpoint first: nobody could go on from model.bin alone
        try {
            lock_.require_held();
            write_model_file(plan_.out + "/model.bin", plan_.config,
                             o_.model_dtype == "bf16" ? kModelBf16 : kModelFp32, read);
            line_.message("saved " + plan_.out + "/model.bin");
            if (!o_.export_hf.empty()) {
                line_.message(export_run(o_, plan_.out, record_.line, samples_.tokenizer()));
            }
        } catch (const Error& e) {
            if (e.exit_code == kExitDiverged) { throw saver_->diverged(e.what()); }
            model_failed_ = true;
            line_.message(std::string("SAVE FAILED: ") + e.what());
        }
        std::string done = fmt::format("trained {} steps in {}", clock_.steps, duration_text(clock_.seconds));
        if (clock_.steps > 0) { done += fmt::format(", last training loss {:.4f}", clock_.last_loss); }
        log_->event("end", plan_.steps, {{"text", done}});
        line_.message(done);
        if (val_) {
            for (const std::string& line : val_->summary(loss)) { line_.message(line); }
        }
        if (skipped_in_a_row_ > 0) { throw saver_->diverged("the last step was skipped: not finite"); }
        if (const std::string how = clock_.exploded(plan_); !how.empty()) { throw saver_->diverged(how); }
        if (val_ && !std::isfinite(loss)) { throw saver_->diverged("the validation loss is not finite"); }
        const int code = saved_or(kExitDone);
        if (code != kExitDone) { return code; }
        line_.message("curves: " + plan_.out + "/report.html");
        if (samples_.tokenizer() && samples_.tokenizer()->can_encode()) {
            line_.message(fmt::format("next: ./{} generate {} --prompt 'Once upon a time'",
                                      o_.program == Program::kGpu ? "train_gpt2cu" : "train_gpt2",
                                      shell_word(plan_.out)));
        }
        return code;
    }

    Options o_;
    const std::string options_text_;  // as given
    Needs needs_;
    Comm& comm_;
    ModelSettings settings_;
    DataLoader data_;
    RunLock lock_;
    RunPlan plan_;
    RunSamples samples_;
    std::optional<Validator> val_;
    std::optional<EvalFile> questions_;  // HellaSwag's
    std::vector<int64_t> mine_;          // which micro-batches of a step are this rank's
    std::vector<Batch> batches_;         // and what is in them
    std::optional<RunJournal> log_;
    RunRecord record_;  // what checkpoints note of this run
    StepLine line_;
    std::optional<RunSaver> saver_;
    StepClock clock_;
    double peak_flops_ = 0;
    int64_t whole_ = -1;  // the model is what it was after so many steps; -1: it is in the middle of one
    OutlierWindow outliers_;
    int64_t skipped_in_a_row_ = 0;                     // those that were not finite
    bool model_failed_ = false, log_failing_ = false;  // to write model.bin, the log
};

// a run, in the rank that this process is; the program's exit code
template <typename Model>
int train_in_rank(const Options& options, const Needs& needs, Comm& comm) {
    if (comm.root()) { return Trainer<Model>(options, needs, comm).run(); }
    return Follower<Model>(options, needs, comm).run();
}

}  // namespace llmc
