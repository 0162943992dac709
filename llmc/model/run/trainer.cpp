// The training of a run: see trainer.h.
#include "llmc/model/run/trainer.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/options/choices.h"
#include "llmc/host/ranks/ranks.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/eval/validation.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/data.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/follower.h"
#include "llmc/model/run/hf_export.h"
#include "llmc/model/run/samples.h"
#include "llmc/model/run/saver.h"

namespace llmc {

namespace {

constexpr int kMostSkippedSteps = 10;  // in a row: then the run has diverged
using Clock = std::chrono::steady_clock;

// as the optimizer sees it
bool was_finite(const StepResult& r) {
    return std::isfinite(r.loss) && std::isfinite(r.grad_norm) && r.grad_norm <= (float)kLongestGradient;
}

class Trainer {
public:
    // reads, and makes the plan
    Trainer(const Options& given, Models models, Comm& comm) : given_(given), models_(models), comm_(comm) {
        check_tokens(data_.set());
        if (!o_.val_data.empty()) { val_.emplace(o_, data_.vocab_size(), samples_.end_of_text()); }
        if (!o_.hellaswag.empty()) {
            require_vocabulary(questions_.emplace(o_.hellaswag), data_.vocab_size(), o_.train_data);
        }
    }

    int run() {  // to the end; the program's exit code
        announce();
        if (o_.dry_run) {  // the plan is all that it leaves
            require_printed();
            return kExitDone;
        }
        take_folder();
        share();
        begin();
        stop_when_out_of_memory();
        try {
            int code = kExitDone;
            try {
                code = train();
            } catch (const std::bad_alloc&) {
                // Where memory ends for good, what was trained is saved all the same: unless that was in the middle of a step,
                // or other ranks may be in an exchange.
                if (whole_ < 0 || comm_.size() > 1) { throw; }
                out_of_memory = 1;
                code = stop(whole_);
            }
            pass_on(comm_, {.task = Task::kEnd, .exit_code = code, .params = {}});
            return code;
        } catch (const Error& e) {
            log_->event("error", first_ + clock_.steps, {{"text", std::string(e.what())}});
            screen_.note(log_->write_report(true));
            throw;
        }
    }

private:
    // ---- the opening: data are read and the plan is made, printed and checked before anything is written; then the folder is
    // taken, the other ranks are told, and the log says where the run goes on from

    // takes the lock of a folder that is there, so that what it holds stays what the plan was made for
    RunPlan locked_plan() {
        if (!given_.dry_run && is_folder(given_.out)) {
            lock_.take(given_.out);
            take_back_replaced(given_.out);
        }
        return make_run_plan(given_, data_, factory_.measure_speed);
    }

    // prints the plan; throws where there is no room for it, or the folder is another's
    void announce() {
        const MemoryPlan memory = factory_.plan(plan_.config, o_.batch, o_.seq_len, settings_);
        device_ = factory_.device(settings_);
        const int64_t on_host = o_.program == Program::kCpu ? comm_.local_size() * memory.total() : 0;
        saves_ = plan_saves(plan_, samples_.files(plan_.config.max_seq_len), on_host);
        const std::string text = describe_run(plan_, data_, val_ ? &val_->data() : nullptr, memory, device_);
        put_text(stdout, text + describe_saves(saves_) + "\n");
        require_memory(memory, o_, models_, plan_.config);
        header_ = run_header(plan_, memory, device_, entropy(), text);
        screen_.note(disk_warning(saves_, plan_.out) + o_.notes);
        require_export_folder(o_, plan_.out, goes_on() ? plan_.record.descent : Descent());
        if (o_.dry_run && !o_.out.empty() && o_.resume != "auto" && !goes_on()) { require_no_run(plan_.out); }
    }

    // makes it, and works out what checkpoints will note
    void take_folder() {
        if (!o_.export_hf.empty()) { make_writable_folder(o_.export_hf); }
        if (o_.out.empty()) {
            folder_ = make_new_folder(plan_.out);
            if (folder_ != plan_.out) {
                screen_.message(fmt::format("{} is another run's: this one is in {}", plan_.out, folder_));
            }
        } else {
            make_writable_folder(folder_);
        }
        lock_.take(folder_);
        remove_leftovers(folder_);
        if (o_.resume == "auto" && plan_.checkpoint.empty()) { screen_.note(put_log_aside(folder_)); }
        if (!goes_on()) { require_no_run(folder_); }
        record_ = next_record(plan_.record, plan_.checkpoint, o_, data_.set(), val_ ? &*val_ : nullptr,
                              device_.name, &notes_);
        record_.end_of_text = samples_.end_of_text();
        record_.tokenizer = samples_.files(plan_.config.max_seq_len);
    }

    // whether it adds to the log in its folder; a checkpoint of another folder starts a new log
    bool goes_on() const {
        std::error_code ignored;
        const std::string from = run_folder_of(plan_.checkpoint);
        return !plan_.checkpoint.empty() &&
               (o_.resume == "auto" || std::filesystem::equivalent(from, folder_, ignored));
    }

    // the other ranks begin with this
    void share() const {
        if (comm_.size() == 1) { return; }
        SharedPlan shared{plan_.config, o_.reduce_groups, plan_.checkpoint, plan_.model_file, record_};
        shared.inputs.state.rows_per_step = plan_.rows_per_step;
        shared.inputs.state.optimizer = o_.optimizer;
        note_inputs(plan_.checkpoint, plan_.model_file, entropy(), &shared.inputs);
        share_plan(comm_, &shared, config_text(given_));
    }

    // of the validation data's source; 0 = unknown
    double entropy() const { return val_ ? val_->entropy() : 0; }

    // brings the weights in, and opens the log
    void begin() {
        model_ = factory_.make(plan_.config, o_.batch, o_.seq_len, settings_);
        require_same_run(plan_);
        if (outliers_on()) { outliers_ = OutlierWindow(record_.window); }
        first_ = record_.state.step;
        load_start(model_.get(), o_.seed, plan_.checkpoint, plan_.model_file);
        record_.descent.push_back({new_id(), first_});
        // the log first: from here on it says which checkpoints count
        log_.emplace(
            folder_, goes_on() ? first_ : -1,
            log_start(record_.descent, first_, record_.data_start != plan_.record.data_start, header_));
        screen_.note(set_aside(folder_, record_.descent));
        const auto& tokenizer = samples_.tokenizer();
        const bool known = plan_.config.vocab_size == kByteVocabSize;  // without a file
        if (tokenizer && !(tokenizer->is_bytes() && known)) {
            tokenizer->save(folder_, plan_.config.max_seq_len);
        }
        write_text_file(folder_ + "/config.toml", config_text(o_, true));
        if (!o_.for_gpu.empty()) { log_->event("note", first_, {{"text", o_.notes}}); }
        saver_.emplace(plan_, folder_, record_.best, saves_, factory_.page_lock, &screen_, &*log_);
        screen_.note(notes_);
        mine_ = micro_batches_of(0, comm_.size(), o_.reduce_groups, plan_.micro_batches);
        batches_.resize(mine_.size());
    }

    // ---- the loop

    // the steps that there are to do; the exit code
    int train() {
        whole_ = first_;
        clock_.restart();
        for (int64_t step = first_; step < plan_.steps; step++) {
            if (due(step, o_.val_every)) {
                const double loss = validate(step);
                if (!stop_requested && saver_->out_of_patience()) {
                    const std::string why = fmt::format("ended by --patience {}", o_.patience);
                    log_->event("note", step, {{"text", why}});
                    screen_.message(fmt::format("step {} | {}", step, why));
                    return finish(step, loss);
                }
            }
            if (due(step, o_.hellaswag_every > 0 ? o_.hellaswag_every : o_.val_every)) { ask(step); }
            if (due(step, o_.sample_every)) { sample(step, 0); }
            const bool late = due(step, o_.save_every) && validated_first(step) &&
                              saver_->newest() != checkpoint_name(folder_, step);
            if (save_requested || late) { save(step); }
            if (stop_requested || !enqueue(step)) { return stop(step); }
            while (auto result = model_->poll()) { report(*result); }
            for (int64_t k : mine_) { data_.prefetch(row_of(step + 1) + k * o_.batch, o_.batch); }
            if (stop_requested) { return stop(step + 1); }
            comm_.take_time(true);  // to delete old checkpoints
            saver_->poll();
            comm_.take_time(false);
            if (due(step + 1, o_.save_every) && !validated_first(step + 1)) { save(step + 1); }
        }
        drain();
        return finish(plan_.steps);
    }

    // false: a stop was asked for first, and the step does not happen
    bool enqueue(int64_t step) {
        for (size_t i = 0; i < mine_.size(); i++) {
            if (stop_requested) { return false; }
            try {
                data_.read(row_of(step) + mine_[i] * o_.batch, o_.batch, &batches_[i]);
            } catch (const Error&) {  // a shard that cannot be read any more: what was trained is not lost
                save(step, true);
                throw;
            }
        }
        const float loss = outliers_.largest(&AcceptedStep::loss, o_.skip_loss_zscore, step),
                    norm = outliers_.largest(&AcceptedStep::norm, o_.skip_norm_zscore, step);
        const int64_t targets = plan_.rows_per_step * o_.seq_len;
        const Options& o = given_;  // the plan works out nothing of these
        const StepParams params = {
            step, plan_.schedule(step), o.beta1, o.beta2, o.eps, o.weight_decay, o.clip, targets, loss, norm};
        pass_on(comm_, {.task = Task::kStep, .params = params});
        whole_ = -1;
        const bool done = model_->enqueue_step(batches_, params);
        whole_ = step + done;
        if (done) { check_ranks(*model_, comm_, o_.check_ranks, step); }
        return done;
    }

    void report(const StepResult& r) {
        const StepNumbers n =
            clock_.numbers(r, plan_, o_.seq_len, record_.data_start, device_.peak_flops * comm_.size());
        log_->append(step_log_line(n));
        watch_log();
        screen_.show(n);
        if (r.saturated.tensors > 0 && saturated_.insert(r.saturated.first).second) {
            log_->event("saturated", n.step,
                        {{"text", fp8_tensor_name(plan_.config, r.saturated.first) +
                                      " left its range in FP8; later steps count it in their lines alone"}});
        }
        if (!r.skipped && outliers_on()) { outliers_.add({r.step, r.loss, r.grad_norm}); }
        record_.skipped_in_a_row = r.skipped ? record_.skipped_in_a_row + !was_finite(r) : 0;
        if (std::max(record_.skipped_in_a_row, outliers_.skipped(r.step)) >= kMostSkippedSteps) {
            throw saver_->diverged(fmt::format("step {}: loss or gradient norm was {} {} times in a row",
                                               n.step, n.skipped, kMostSkippedSteps));
        }
    }

    // waits for the steps in flight and reports them
    void drain() {
        model_->finish();
        while (auto result = model_->poll()) { report(*result); }
    }

    int64_t row_of(int64_t step) const { return (step - record_.data_start) * plan_.rows_per_step; }
    static bool due(int64_t step, int64_t every) { return every > 0 && step > 0 && step % every == 0; }
    bool outliers_on() const { return o_.skip_loss_zscore > 0 || o_.skip_norm_zscore > 0; }
    // With --keep-best a checkpoint has its own validation's loss, so that it comes after it.
    bool validated_first(int64_t step) const {
        return o_.keep_best && (due(step, o_.val_every) || step == plan_.steps);
    }

    // ---- between steps

    // mean loss over the validation targets
    // (nothing, and no line in the log, if a stop was asked for first)
    double validate(int64_t step) {
        if (!val_) { return NAN; }
        drain();
        const Clock::time_point begin = Clock::now();
        pass_on(comm_, {.task = Task::kValidate, .params = {.step = step}});
        const double loss = val_->loss(*model_, o_.batch, comm_);
        comm_.take_time(true);  // until the next task
        if (stop_requested) { return NAN; }
        log_->append(
            validation_log_line(step, loss, std::chrono::duration<double>(Clock::now() - begin).count()));
        watch_log();
        if (saver_->validated(step, loss)) { save_requested = 1; }
        screen_.note(log_->write_report(false));
        screen_.message(fmt::format("step {} | {}", step, val_->short_text(loss)));
        clock_.restart();
        return loss;
    }

    // HellaSwag's questions (likewise); the other ranks wait
    void ask(int64_t step) {
        if (!questions_) { return; }
        drain();
        comm_.take_time(true);
        const auto evaluate = [&](const Batch& batch) { return model_->evaluate(batch); };
        const auto score = score_hellaswag(*questions_, o_.batch, o_.seq_len, evaluate);
        if (!score) { return; }
        log_->append(hellaswag_log_line(step, score->accuracy(), score->normalised()));
        watch_log();
        screen_.message(fmt::format("step {} | HellaSwag {:.4f}, normalised {:.4f}", step, score->accuracy(),
                                    score->normalised()));
        clock_.restart();
    }

    // number: 0 between steps, from 1 on at the end
    void sample(int64_t step, int number) {
        drain();
        comm_.take_time(true);
        const std::string text = samples_.text(*model_, step, number);
        log_->event("sample", step, {{"text", text}});
        screen_.message(number == 0 ? fmt::format("step {} | sample: {}", step, text)
                                    : fmt::format("sample {}: {}\n", number, text));
        clock_.restart();
    }

    // wait: until it is on the disk; else the training may go on meanwhile
    void save(int64_t step, bool wait = false) {
        drain();
        lock_.require_held();
        gather(step);
        record_.state = {step,  model_->updates(), o_.seed, o_.seq_len, plan_.rows_per_step, o_.optimizer,
                         o_.fp8};
        record_.window = outliers_.steps();
        log_->sync();  // before the checkpoint that stands behind its lines
        watch_log();
        save_requested = 0;
        saver_->save(record_, reader(*model_), wait);
        clock_.restart();
    }

    // what a checkpoint holds, of all ranks
    void gather(int64_t step) {
        pass_on(comm_, {.task = Task::kGather, .params = {.step = step}});
        model_->gather();
        comm_.take_time(true);  // until the next task
    }

    // Says when the log cannot be written, and when it can be again; the first time, what there is is saved.
    void watch_log() {
        const bool failing = !log_->problem().empty();
        if (failing == log_failing_) { return; }
        log_failing_ = failing;
        screen_.message(failing ? "LOG FAILED: " + log_->problem()
                                : "the log is written again: nothing of it was lost");
        if (failing) { save_requested = 1; }
    }

    // ---- the end: at the last step, or where a signal or the want of memory stops it

    // the exit code of a run that ends well or is stopped: whether all that it leaves is on the disk
    int saved_or(int exit_code) {
        screen_.note(log_->write_report(true));
        log_->sync();
        watch_log();
        if (log_failing_) { screen_.message("LOG FAILED: lines are missing: " + log_->problem()); }
        if (!saver_->failed() && !model_failed_ && !log_failing_) { return exit_code; }
        // for who does not read a run's standard output
        put_text(stderr, folder_ +
                             ": not all was saved: what failed is in the lines with FAILED on standard "
                             "output\n");
        return kExitSaveFailed;
    }

    // a signal asked for it: save and leave; --resume auto goes on from here
    int stop(int64_t steps) {
        comm_.take_time(true);
        saver_->wait();
        if (saver_->newest() != checkpoint_name(folder_, steps)) { save(steps, true); }
        const std::string why =
            out_of_memory ? "for want of memory" : fmt::format("by signal {}", (int)stop_requested);
        log_->event("stop", steps, {{"text", why}});
        const std::string said = "stopped " + why + "; go on with --resume auto --out " + shell_word(folder_);
        if (out_of_memory) { throw Error(saved_or(kExitDevice), said); }
        screen_.message(said);
        return saved_or(kExitPreempted);
    }

    // the end: validation, if it is not done, samples, the model; the exit code
    int finish(int64_t steps, std::optional<double> validated = std::nullopt) {
        comm_.take_time(true);
        const bool late = validated_first(steps);
        if (clock_.steps > 0 && !late && !due(steps, o_.save_every)) { save(steps); }
        const double loss = validated ? *validated : validate(steps);
        ask(steps);
        if (stop_requested) { return stop(steps); }
        if (save_requested || (clock_.steps > 0 && late)) { save(steps); }
        for (int number = 1; number <= 3 && o_.sample_every > 0; number++) { sample(steps, number); }
        if (stop_requested) { return stop(steps); }
        gather(steps);
        saver_->wait();  // the checkpoint first: nobody could go on from model.bin alone
        write_model();
        std::string done = fmt::format("trained {} steps in {}", clock_.steps, duration_text(clock_.seconds));
        if (clock_.steps > 0) { done += fmt::format(", last training loss {:.4f}", clock_.last_loss); }
        const std::string best = best_text();
        log_->event("end", steps, {{"text", done + (best.empty() ? "" : "; " + best)}});
        screen_.message(done);
        if (val_) {
            for (const std::string& line : val_->summary(loss)) { screen_.message(line); }
        }
        if (record_.skipped_in_a_row > 0) { throw saver_->diverged("the last step was skipped: not finite"); }
        // a new model begins with the logarithm of its vocabulary: a loss can grow without becoming NaN
        const double new_model = std::log((double)plan_.config.vocab_size);
        if (plan_.model_file.empty() && clock_.last_loss > 2 * new_model) {
            throw saver_->diverged(fmt::format("the last training loss is {:.4f}: a new model has {:.4f}",
                                               clock_.last_loss, new_model));
        }
        if (val_ && !std::isfinite(loss)) { throw saver_->diverged("the validation loss is not finite"); }
        const int code = saved_or(kExitDone);
        if (code != kExitDone) { return code; }
        screen_.message("curves: " + folder_ + "/report.html");
        if (samples_.tokenizer() && samples_.tokenizer()->can_encode()) {
            screen_.message(fmt::format("next: ./{} generate {} --prompt 'Once upon a time'",
                                        o_.program == Program::kGpu ? "train_gpt2cu" : "train_gpt2",
                                        shell_word(folder_)));
        }
        if (!best.empty()) { screen_.message(best + "; generate, eval and export take it with --best"); }
        return code;
    }

    // which checkpoint --keep-best found best; "" = none
    std::string best_text() const {
        const std::optional<Validated>& best = saver_->best();
        if (!best) { return ""; }
        return fmt::format("best: {}, val loss {:.4f}", checkpoint_name(folder_, best->step), best->loss);
    }

    // model.bin, and with --export-hf the same for others
    void write_model() {
        try {
            lock_.require_held();
            write_model_file(folder_ + "/model.bin", plan_.config,
                             o_.model_dtype == FloatType::kBf16 ? kModelBf16 : kModelFp32, reader(*model_));
            screen_.message("saved " + folder_ + "/model.bin");
            if (!o_.export_hf.empty()) {
                screen_.message(export_run(o_, folder_, record_.descent, samples_.tokenizer()));
            }
        } catch (const Error& e) {
            if (e.exit_code == kExitDiverged) { throw saver_->diverged(e.what()); }
            model_failed_ = true;
            screen_.message(std::string("SAVE FAILED: ") + e.what());
        }
    }

    const Options& given_;
    const Models models_;
    Comm& comm_;
    const ModelFactory factory_ = models_(given_);
    DataLoader data_{given_.train_data, given_.seq_len, given_.seed, given_.raw_tokens};
    RunLock lock_;
    const RunPlan plan_ = locked_plan();
    const Options& o_ = plan_.options;
    const ModelSettings settings_ = model_settings(o_, &comm_);
    RunSamples samples_{plan_, data_.vocab_size()};
    std::optional<Validator> val_;
    std::optional<EvalFile> questions_;  // HellaSwag's
    Screen screen_{given_.quiet, given_.log_every};
    std::string folder_ = plan_.out;  // since take_folder(): beside it, where that is another run's
    // since announce()
    Device device_;
    SavePlan saves_;
    std::string header_;  // of the log: run_header()
    // since take_folder()
    RunRecord record_;   // what checkpoints note of this run
    std::string notes_;  // of what is not as it was in the checkpoint's run, a line each
    // since begin()
    std::optional<RunJournal> log_;
    std::optional<RunSaver> saver_;
    int64_t first_ = 0;           // the first step to do
    std::vector<int64_t> mine_;   // which micro-batches of a step are this rank's
    std::vector<Batch> batches_;  // and what is in them
    StepClock clock_;
    int64_t whole_ = -1;  // the model is what it was after so many steps; -1: it is in the middle of one
    OutlierWindow outliers_;
    // the FP8 tensors that the log has named: an event for each step would bury all other events of a long run
    std::set<int> saturated_;
    bool model_failed_ = false, log_failing_ = false;  // to write model.bin, the log
    // last: after an error it ends first, and with it what other ranks wait for
    std::unique_ptr<Model> model_;
};

}  // namespace

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
    n.saturated = r.saturated.tensors;
    if (r.skipped) { n.skipped = was_finite(r) ? "an outlier" : "not finite"; }
    last_done_ = r.done;
    seconds += n.ms / 1e3;
    steps++;
    // the mean of the last half minute's steps: the machine may have been busy before
    pace_ += (n.ms - pace_) * std::min(1.0, std::max(1.0 / (double)steps, n.ms / kPaceMs));
    n.seconds_left = (double)(plan.steps - n.step) * pace_ / 1e3;
    return n;
}

int run_main(int argc, char** argv, const TrainProgram& p) {
    return run_program(p.name, "Use a smaller --batch, --seq-len or --model.", [&] {
        wait_politely(argv);
        // it would end a sub-command without a word; now the write fails instead
        std::signal(SIGXFSZ, SIG_IGN);
        if (std::optional<int> done = p.command(argc, argv)) { return *done; }  // a signal ends it at once
        ignore_write_signals();
        const std::optional<Options> options = parse_options(argc, argv, p.program);
        if (!options) { return kExitDone; }
        catch_run_signals();
        const int gpus = p.require_gpus != nullptr ? p.require_gpus() : 0;  // before the data is read
        if (!options->profile.empty()) { return p.profile(*options); }
        return run_ranks(*options, p.name, argv, gpus, std::bind_front(train_in_rank, p));
    });
}

int train_in_rank(const TrainProgram& p, const Options& options, Comm& comm) {
    if (p.take_gpu != nullptr) { p.take_gpu(options, comm); }
    return comm.root() ? Trainer(options, p.models, comm).run() : follow(options, p.models, comm);
}

}  // namespace llmc
