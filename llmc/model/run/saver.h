// The checkpoints of a run: written, at once or while the training goes on, told of, counted and deleted.
#pragma once
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "llmc/host/log/report.h"
#include "llmc/host/log/run_log.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/plan.h"
#include "llmc/model/run/save_plan.h"

namespace llmc {

class RunSaver {
public:
    using PageLock = std::function<std::shared_ptr<void>(std::span<float>)>;  // page_lock() of model.h
    // best: the validation that --keep-best has to beat. *line gets what is to be said, *journal the saves. If the plan is
    // to write in the background, memory for a copy is taken here.
    RunSaver(const Options& options, const RunPlan& plan, const std::optional<Validated>& best,
             const SavePlan& saves, const PageLock& lock, StepLine* line, RunJournal* journal);

    // Saves a state; `read` is not used after this returns. With wait, it is on the disk then, or that has
    // failed. What was under way is waited for first.
    void save(RunRecord record, const ReadTensor& read, bool wait);
    // Tells of a save that has ended meanwhile, and deletes old checkpoints; wait() waits for it. Both, and
    // save(), throw diverged() if numbers were not finite.
    void poll();
    void wait();

    // Notes a validation, which the next checkpoint of this step will have. True if --keep-best wants one.
    bool validated(int64_t step, double loss);

    bool failed() const { return failed_; }                // the last save
    const std::string& newest() const { return newest_; }  // the newest checkpoint; "" = none
    Error diverged(const std::string& what) const;

private:
    struct Saved {
        RunRecord record;
        int exit_code = kExitDone;
        std::string error;
    };
    Saved write(const RunRecord& record, const ReadTensor& read) const;
    void copy(const ReadTensor& read);
    void collect(const Saved& saved);

    const std::string folder_;
    const GPT2Config config_;
    const std::string optimizer_;
    Retention keep_;  // but the best
    const bool done_files_, keep_best_;
    StepLine* line_;
    RunJournal* journal_;
    KnownIntact known_;
    std::string newest_;
    bool failed_ = false;
    std::optional<Validated> last_, best_, saved_best_;  // the last validation; the best, and the best saved
    std::unique_ptr<float[]> copy_;                      // parameters and moments in file order; null: none
    std::shared_ptr<void> lock_;
    std::future<Saved> under_way_;  // last: it ends before what it uses
};

// a line on standard error, for who does not read a run's standard output; returns kExitSaveFailed
int not_all_saved(const std::string& run_folder);

}  // namespace llmc
