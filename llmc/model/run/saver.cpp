// The checkpoints of a run: see run/saver.h.
#include "llmc/model/run/saver.h"

#include <sys/statvfs.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/text.h"

namespace llmc {

namespace {

// bytes for an ordinary user on the disk that a folder is on, or will be; -1 if the system does not say
int64_t free_disk(const std::string& folder) {
    std::error_code error;
    std::filesystem::path path = std::filesystem::absolute(folder, error);
    while (!error && path.has_relative_path() && !std::filesystem::exists(path, error)) {
        path = path.parent_path();
    }
    struct statvfs disk;
    return statvfs(path.c_str(), &disk) == 0 ? (int64_t)disk.f_bavail * (int64_t)disk.f_frsize : -1;
}

// multiples of `every` in (first, last]
int64_t multiples(int64_t first, int64_t last, int64_t every) {
    return every > 0 ? last / every - first / every : 0;
}

}  // namespace

SavePlan plan_saves(const RunPlan& plan, const TextFiles& tokenizer, int64_t training_bytes) {
    const Options& o = plan.options;
    SavePlan p;
    const int64_t first = plan.record.state.step, last = plan.steps;
    const bool ends_on_one = o.save_every > 0 && last % o.save_every == 0;
    p.saves = first < last ? multiples(first, last, o.save_every) + !ends_on_one : 0;
    p.at_once = p.saves;
    if (o.keep > 0) {  // those kept, the one that is written before the oldest goes, and those never counted
        p.at_once = std::min(p.saves, o.keep + 1 + multiples(first, last, o.keep_major) + o.keep_best);
    } else if (o.keep_best) {  // each of the validations may be the best so far
        p.at_once += multiples(first, last, o.val_every);
    }
    p.checkpoint_bytes = checkpoint_bytes(plan.config, o.optimizer, o.fp8);
    for (const auto& [name, text] : tokenizer) { p.checkpoint_bytes += (int64_t)text.size(); }
    p.model_bytes = file_elements(plan.config) * (o.model_dtype == FloatType::kBf16 ? 2 : 4);
    p.free_bytes = free_disk(plan.out);
    p.copy_bytes = state_elements(plan.config, o.optimizer, o.fp8) * (int64_t)sizeof(float);
    p.host_bytes = available_memory();
    const int64_t left = p.host_bytes - training_bytes;
    const bool unknown = p.host_bytes < 0;
    throw_if(
        o.save_mode == SaveMode::kAsync && !unknown && p.copy_bytes > left, kExitDevice,
        "--save-mode async takes a copy of {} in the host's memory, but {} is left. Use --save-mode sync.",
        bytes_text(p.copy_bytes), bytes_text(std::max<int64_t>(0, left)));
    // half, so that the system's cache, through which files are written, has room beside it
    const bool has_room = !unknown && p.copy_bytes <= left / 2;
    p.background = o.save_mode == SaveMode::kAsync ||
                   (o.save_mode == SaveMode::kAuto && o.program == Program::kGpu && has_room);
    p.why = o.save_mode != SaveMode::kAuto ? "--save-mode " + text_of(o.save_mode)
            : o.program == Program::kCpu   ? "on the CPU it would slow the steps"
            : !p.background                ? "a copy would take more than half of what is free"
                                           : "--save-mode sync would stop it";
    return p;
}

std::string describe_saves(const SavePlan& p) {
    const std::string room = p.free_bytes >= 0 ? bytes_text(p.free_bytes) + " free" : "free: unknown",
                      host = p.host_bytes >= 0 ? bytes_text(p.host_bytes) : "unknown";
    const std::string how =
        p.background
            ? fmt::format("while the training goes on, from a copy of {} in the host's memory ({} free)",
                          bytes_text(p.copy_bytes), host)
            : "the training waits";
    return fmt::format("{:11}| {} save{} x {}, {} at once, and model.bin of {} = {}; {}\n{:11}| {}: {}\n",
                       "disk", count_text(p.saves), p.saves == 1 ? "" : "s", bytes_text(p.checkpoint_bytes),
                       count_text(p.at_once), bytes_text(p.model_bytes), bytes_text(p.disk_bytes()), room,
                       "saving", how, p.why);
}

std::string disk_warning(const SavePlan& p, const std::string& folder) {
    if (p.free_bytes < 0 || p.disk_bytes() <= p.free_bytes) { return ""; }
    return fmt::format(
        "{}: the disk has {} free, the checkpoints of this run will need {}: a save will fail when it "
        "is full. Free some space (old step_ folders of the run may be deleted), or give a smaller --keep, "
        "a larger --save-every or another --out.\n",
        folder, bytes_text(p.free_bytes), bytes_text(p.disk_bytes()));
}

RunSaver::RunSaver(const RunPlan& plan, const std::string& folder, const std::optional<Validated>& best,
                   const SavePlan& saves, const PageLock& lock, Screen* screen, RunJournal* journal)
    : plan_(plan),
      folder_(folder),
      keep_{o_.keep, o_.keep_major, -1},
      screen_(screen),
      journal_(journal),
      newest_(plan.checkpoint) {
    if (o_.keep_best) {
        best_ = saved_best_ = best;
        since_best_ = best ? plan.record.since_best : 0;
        counted_ = plan.record.val_loss ? plan.record.state.step : -1;
        keep_.best = plan.record.best ? plan.record.best->step : -1;  // until another one is saved
    }
    if (!saves.background) { return; }
    const auto elements = (size_t)state_elements(plan.config, o_.optimizer, o_.fp8);
    copy_.reset(new float[elements]);  // not filled: pages come as they are needed
    lock_ = lock({copy_.get(), elements});
    float* at = copy_.get();
    for (State state : {State::kParameter, State::kFirstMoment, State::kSecondMoment}) {
        for (int t = 0; t < kNumTensors; t++) {
            if (!has_state(o_.optimizer, state, t)) { continue; }
            parts_[(int)state][t] = {at, (size_t)tensor_total(plan.config, t)};
            at += parts_[(int)state][t].size();
        }
    }
    if (o_.fp8) { parts_[(int)State::kFp8Maxima][0] = {at, (size_t)fp8_maxima(plan.config)}; }
}

bool RunSaver::validated(int64_t step, double loss) {
    if (!std::isfinite(loss)) { return false; }
    last_ = {step, loss};
    if (!o_.keep_best) { return false; }
    const bool again = std::exchange(counted_, step) == step;
    if (best_ && loss >= best_->loss) {
        since_best_ += !again;
        return false;
    }
    best_ = last_;
    since_best_ = 0;
    return true;
}

void RunSaver::save(RunRecord record, const ReadTensor& read, bool wait_for_it) {
    wait();
    record.val_loss = last_ && last_->step == record.state.step ? std::optional(last_->loss) : std::nullopt;
    record.best = best_;
    record.since_best = since_best_;
    saving_ = std::move(record);
    const auto write = [this](const ReadTensor& from) {
        save_checkpoint(folder_, plan_.config, saving_, from);
    };
    if (copy_ != nullptr && !wait_for_it) {
        for (State state :
             {State::kParameter, State::kFirstMoment, State::kSecondMoment, State::kFp8Maxima}) {
            for (int t = 0; t < kNumTensors; t++) {
                if (const auto part = parts_[(int)state][t]; !part.empty()) { read(state, t, 0, part); }
            }
        }
        const ReadTensor read_copy = [this](State state, int t, int64_t first, std::span<float> values) {
            std::ranges::copy(parts_[(int)state][t].subspan((size_t)first, values.size()), values.begin());
        };
        try {
            under_way_ = std::async(std::launch::async, write, read_copy);
            return;
        } catch (const std::system_error& e) {
            screen_->message(
                fmt::format("step {} | no thread to save in the background, so the training waits: {}",
                            saving_.state.step, e.what()));
        }
    }
    under_way_ = std::async(std::launch::deferred, write, read);
    wait();
}

void RunSaver::poll() {
    if (under_way_.valid() && under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
        wait();
    }
}

void RunSaver::wait() {
    if (!under_way_.valid()) { return; }
    const int64_t step = saving_.state.step;
    const auto fail = [&](const char* why) {
        failed_ = true;
        screen_->message(fmt::format("step {} | SAVE FAILED: {}", step, why));
    };
    failed_ = false;
    try {
        under_way_.get();
    } catch (const Error& e) {
        if (e.exit_code == kExitDiverged) { throw diverged(e.what()); }
        fail(e.what());
    } catch (const std::bad_alloc&) { fail("out of memory"); }
    if (failed_) {  // what is on disk is untouched: the training goes on, and says so at the end
        if (best_ == saving_.best) { best_ = saved_best_; }
        return;
    }
    saved_best_ = saving_.best;
    if (saved_best_) { keep_.best = saved_best_->step; }
    newest_ = checkpoint_name(folder_, step);
    journal_->event("save", step, {{"text", newest_}});
    screen_->message(fmt::format("step {} | saved {}", step, newest_));
    screen_->note(journal_->write_report(true));
    try {
        if (o_.llmc_letters) { mark_done(newest_); }
    } catch (const Error& e) { fail(e.what()); }
    try {
        screen_->note(remove_old_checkpoints(folder_, saving_.descent, step, keep_, &known_));
    } catch (const CannotRead& e) { screen_->note(std::string("old checkpoints stay: ") + e.what() + "\n"); }
}

Error RunSaver::diverged(const std::string& what) const {
    return Error(kExitDiverged, "{}. Lower --lr, or lengthen --warmup. {}", what,
                 newest_.empty() ? "There is no checkpoint."
                                 : "The newest checkpoint is " + newest_ +
                                       "; it may hold such a model: log.jsonl tells what the loss was at the "
                                       "step of each.");
}

}  // namespace llmc
