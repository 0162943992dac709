// The training loop of rank 0, for any model:
//   data -> enqueue_step -> (one step later) poll -> log line -> now and then: validate, sample, save
// Nothing here waits for the device except validation, sampling, saving and the end.
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/log/run_log.h"
#include "llmc/host/options/options.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/formats/checkpoint.h"
#include "llmc/model/model.h"
#include "llmc/model/run/opening.h"
#include "llmc/model/run/plan.h"
#include "llmc/model/run/saver.h"

namespace llmc {

// as the optimizer sees it
bool was_finite(const StepResult& r);

// The numbers of each step as the log and the screen have them, and the time that steps took; what is done
// between steps does not count.
class StepClock {
public:
    // the time since the last step was spent on something else
    void restart() { last_done_ = std::chrono::steady_clock::now(); }

    // data_start: the step that began with the training data; peak_flops: of the device, 0 = unknown
    StepNumbers numbers(const StepResult& r, const RunPlan& plan, int seq_len, int64_t data_start,
                        double peak_flops);

    // What is wrong with how a run from random weights ends, where its loss has grown without becoming NaN; "" =
    // nothing. A new model begins with the logarithm of its vocabulary.
    std::string exploded(const RunPlan& plan) const;

    double seconds = 0, last_loss = NAN;
    int64_t steps = 0;  // that this process has done

private:
    static constexpr double kPaceMs = 30e3;
    double pace_ = 0;  // ms a step
    std::chrono::steady_clock::time_point last_done_;
};

class Trainer {
public:
    // brings the weights in, and opens the log
    Trainer(Run& run, std::unique_ptr<Model> model);
    int run();  // to the end; the program's exit code

private:
    // ---- the loop: trainer.cpp
    int train_or_save();
    int train();
    bool enqueue(int64_t step);
    StepParams step_params(int64_t step) const;
    void report(const StepResult& r);
    void drain();  // waits for the steps in flight and reports them
    int64_t row_of(int64_t step) const { return (step - run_.record.data_start) * plan_.rows_per_step; }
    static bool due(int64_t step, int64_t every) { return every > 0 && step > 0 && step % every == 0; }
    bool outliers_on() const { return o_.skip_loss_zscore > 0 || o_.skip_norm_zscore > 0; }

    // ---- between steps: trainer.cpp
    double validate(int64_t step);
    void ask(int64_t step);
    void sample(int64_t step);
    void save(int64_t step, bool wait = false);
    void gather(int64_t step);
    void watch_log();
    // With --keep-best a checkpoint has its own validation's loss, so that it comes after it.
    bool validated_first(int64_t step) const {
        return o_.keep_best && (due(step, o_.val_every) || step == plan_.steps);
    }

    // ---- the end: trainer_end.cpp
    int stop(int64_t steps);
    int finish();
    void write_last_samples();
    void write_model();
    void require_converged(double val_loss) const;
    int saved_or(int exit_code);
    int end_well();

    Run& run_;
    const RunPlan& plan_;
    const Options& o_;
    const std::string& folder_;
    Comm& comm_;
    Screen& screen_;
    RunJournal* log_ = nullptr;
    std::optional<RunSaver> saver_;
    int64_t first_ = 0;           // the first step to do
    std::vector<int64_t> mine_;   // which micro-batches of a step are this rank's
    std::vector<Batch> batches_;  // and what is in them
    StepClock clock_;
    double peak_flops_ = 0;
    int64_t whole_ = -1;  // the model is what it was after so many steps; -1: it is in the middle of one
    OutlierWindow outliers_;
    int64_t skipped_in_a_row_ = 0;                     // those that were not finite
    bool model_failed_ = false, log_failing_ = false;  // to write model.bin, the log
    // last: after an error it ends first, and with it what other ranks wait for
    std::unique_ptr<Model> model_;
};

// The models of a program: options, as a user may give them, name one.
using Models = ModelFactory (*)(const Options&);

// a run, in the rank that this process is; the program's exit code
int train_in_rank(const Options& options, Models models, Comm& comm);

}  // namespace llmc
