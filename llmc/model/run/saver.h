// The checkpoints of a run: what they take of disk and memory; how they are written, told of, counted and deleted.
#pragma once
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "llmc/host/log/run_log.h"
#include "llmc/host/options/options.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/run/folder.h"
#include "llmc/model/run/plan.h"

namespace llmc {

// Room on the disk, and in memory where checkpoints are written while the training goes on.
struct SavePlan {
    int64_t saves = 0;             // of this start
    int64_t at_once = 0;           // checkpoints of these on the disk at the most
    int64_t checkpoint_bytes = 0;  // each
    int64_t model_bytes = 0;       // model.bin at the end
    int64_t free_bytes = -1;       // on the disk, -1 = unknown
    bool background = false;       // written from a copy while the training goes on
    int64_t copy_bytes = 0;        // that copy's
    int64_t host_bytes = -1;       // free in the host's memory, -1 = unknown
    std::string why;               // of background

    int64_t disk_bytes() const { return at_once * checkpoint_bytes + model_bytes; }
};

// tokenizer: its files, which each checkpoint has; training_bytes: what the training itself takes of the host's memory. Throws
// Error(kExitDevice) if --save-mode async has no room for the copy.
SavePlan plan_saves(const RunPlan& plan, const TextFiles& tokenizer, int64_t training_bytes);

// what the user sees at start-up; and what to say on stderr if the disk has too little room ("": it has enough)
std::string describe_saves(const SavePlan& plan);
std::string disk_warning(const SavePlan& plan, const std::string& folder);

class RunSaver {
public:
    using PageLock = std::function<std::shared_ptr<void>(std::span<float>)>;  // page_lock() of model.h
    // folder: the run's; best: the validation that --keep-best has to beat. The plan outlives the saver; *screen gets what is to
    // be said, *journal the saves. If the plan is to write in the background, memory for a copy is taken here.
    RunSaver(const RunPlan& plan, const std::string& folder, const std::optional<Validated>& best,
             const SavePlan& saves, const PageLock& lock, Screen* screen, RunJournal* journal);

    // Saves a state, after what is under way; `read` is not used after this returns. With wait, it is saved then, or has failed.
    void save(RunRecord record, const ReadTensor& read, bool wait);
    // Tells of a save that has ended meanwhile, and deletes old checkpoints; wait() waits for it. Both, and
    // save(), throw diverged() if numbers were not finite.
    void poll();
    void wait();

    // Notes a validation, which the next checkpoint of this step will have. True if --keep-best wants one.
    bool validated(int64_t step, double loss);

    // whether --patience ends the run: so many validations came after the best one
    bool out_of_patience() const { return o_.patience > 0 && since_best_ >= o_.patience; }

    bool failed() const { return failed_; }                               // the last save
    const std::optional<Validated>& best() const { return saved_best_; }  // that --keep-best has saved
    const std::string& newest() const { return newest_; }                 // the newest checkpoint; "" = none
    Error diverged(const std::string& what) const;

private:
    const RunPlan& plan_;
    const Options& o_ = plan_.options;
    const std::string folder_;
    Retention keep_;
    Screen* screen_;
    RunJournal* journal_;
    KnownIntact known_;
    std::string newest_;
    bool failed_ = false;
    std::optional<Validated> last_, best_, saved_best_;  // the last validation; the best, and the best saved
    // validations after the best, and the last one's step: a run goes on by the one with which it was saved
    int64_t since_best_ = 0, counted_ = -1;
    std::unique_ptr<float[]> copy_;           // parameters and moments in file order; null: none
    std::span<float> parts_[4][kNumTensors];  // of the copy, by State; empty where the optimizer has none
    std::shared_ptr<void> lock_;
    RunRecord saving_;             // the last save's
    std::future<void> under_way_;  // that save; last: it ends before what it uses
};

}  // namespace llmc
