// The training of a run: rank 0's loop, for any model.
//   data -> enqueue_step -> (one step later) poll -> log line -> now and then: validate, sample, save
// Nothing in it waits for the device except validation, sampling, saving and the end.
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "llmc/host/log/run_log.h"
#include "llmc/host/options/options.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/model.h"
#include "llmc/model/run/plan.h"

namespace llmc {

// The numbers of each step as the log and the screen have them, and the time that steps took; what is done
// between steps does not count.
class StepClock {
public:
    // the time since the last step was spent on something else
    void restart() { last_done_ = std::chrono::steady_clock::now(); }

    // data_start: the step that began with the training data; peak_flops: of the device, 0 = unknown
    StepNumbers numbers(const StepResult& r, const RunPlan& plan, int seq_len, int64_t data_start,
                        double peak_flops);

    double seconds = 0, last_loss = NAN;
    int64_t steps = 0;  // that this process has done

private:
    static constexpr double kPaceMs = 30e3;
    double pace_ = 0;  // ms a step
    std::chrono::steady_clock::time_point last_done_;
};

// What the mains of both trainers share: options in, errors out as messages and exit codes. Calls command(argc, argv), which has
// a value if argv names a sub-command; else parses the options and calls train(options, argv). Returns what the program should.
int run_main(const char* name, Program program, int argc, char** argv,
             const std::function<int(const Options&, char**)>& train,
             const std::function<std::optional<int>(int, char**)>& command);

// a run, in the rank that this process is; the program's exit code
int train_in_rank(const Options& options, Models models, Comm& comm);

}  // namespace llmc
