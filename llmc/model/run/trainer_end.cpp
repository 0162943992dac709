// How a run ends: at its last step, or where a signal or the want of memory stops it. See trainer.h.
#include <cmath>
#include <string>

#include "llmc/host/base/error.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/options/typed_text.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/hf_export.h"
#include "llmc/model/run/trainer.h"

namespace llmc {

// the exit code of a run that ends well or is stopped: whether all that it leaves is on the disk
int Trainer::saved_or(int exit_code) {
    screen_.note(log_->write_report(true));
    log_->sync();
    watch_log();
    if (log_failing_) { screen_.message("LOG FAILED: lines are missing: " + log_->problem()); }
    return saver_->failed() || model_failed_ || log_failing_ ? not_all_saved(folder_) : exit_code;
}

// a signal asked for it: save and leave; --resume auto goes on from here
int Trainer::stop(int64_t steps) {
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

// the end: validation, samples, the model; the exit code
int Trainer::finish() {
    comm_.take_time(true);
    const bool late = validated_first(plan_.steps);
    if (clock_.steps > 0 && !late && !due(plan_.steps, o_.save_every)) { save(plan_.steps); }
    double loss = validate(plan_.steps);
    ask(plan_.steps);
    if (stop_requested) { return stop(plan_.steps); }
    if (save_requested || (clock_.steps > 0 && late)) { save(plan_.steps); }
    write_last_samples();
    if (stop_requested) { return stop(plan_.steps); }
    gather(plan_.steps);
    saver_->wait();  // the checkpoint first: nobody could go on from model.bin alone
    write_model();
    std::string done = fmt::format("trained {} steps in {}", clock_.steps, duration_text(clock_.seconds));
    if (clock_.steps > 0) { done += fmt::format(", last training loss {:.4f}", clock_.last_loss); }
    log_->event("end", plan_.steps, {{"text", done}});
    screen_.message(done);
    if (run_.val) {
        for (const std::string& line : run_.val->summary(loss)) { screen_.message(line); }
    }
    require_converged(loss);
    return end_well();
}

void Trainer::write_last_samples() {
    if (o_.sample_every <= 0) { return; }
    for (int number = 1; number <= 3; number++) {
        const std::string text = run_.samples.text(*model_, plan_.steps, number);
        log_->event("sample", plan_.steps, {{"text", text}});
        screen_.message(fmt::format("sample {}: {}\n", number, text));
    }
}

// model.bin, and with --export-hf the same for others
void Trainer::write_model() {
    try {
        run_.lock.require_held();
        write_model_file(folder_ + "/model.bin", plan_.config,
                         o_.model_dtype == FloatType::kBf16 ? kModelBf16 : kModelFp32, reader(*model_));
        screen_.message("saved " + folder_ + "/model.bin");
        if (!o_.export_hf.empty()) {
            screen_.message(export_run(o_, folder_, run_.record.descent, run_.samples.tokenizer()));
        }
    } catch (const Error& e) {
        if (e.exit_code == kExitDiverged) { throw saver_->diverged(e.what()); }
        model_failed_ = true;
        screen_.message(std::string("SAVE FAILED: ") + e.what());
    }
}

void Trainer::require_converged(double val_loss) const {
    if (skipped_in_a_row_ > 0) { throw saver_->diverged("the last step was skipped: not finite"); }
    if (const std::string how = clock_.exploded(plan_); !how.empty()) { throw saver_->diverged(how); }
    if (run_.val && !std::isfinite(val_loss)) { throw saver_->diverged("the validation loss is not finite"); }
}

// what is said last
int Trainer::end_well() {
    const int code = saved_or(kExitDone);
    if (code != kExitDone) { return code; }
    screen_.message("curves: " + folder_ + "/report.html");
    if (run_.samples.tokenizer() && run_.samples.tokenizer()->can_encode()) {
        screen_.message(fmt::format("next: ./{} generate {} --prompt 'Once upon a time'",
                                    o_.program == Program::kGpu ? "train_gpt2cu" : "train_gpt2",
                                    shell_word(folder_)));
    }
    return code;
}

}  // namespace llmc
