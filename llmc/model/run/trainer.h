// The training of a run: rank 0's loop, for any model.
//   data -> enqueue_step -> (one step later) poll -> log line -> now and then: validate, sample, save
// Nothing in it waits for the device except validation, sampling, saving and the end.
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>

#include "llmc/host/log/run_log.h"
#include "llmc/host/options/options.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/model.h"
#include "llmc/model/run/plan.h"

namespace llmc {

// The numbers of each step, as log and screen have them, and the time that steps took, without what is done between.
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

// What each of both trainers says of itself. The functions that return an int: an exit code, but for require_gpus.
struct TrainProgram {
    Models models;
    const char* name = "";
    Program program = Program::kCpu;
    std::optional<int> (*command)(int argc, char** argv) = nullptr;  // nothing if argv names no sub-command
    // a GPU's: how many there are, throws Error(kExitDevice) if none; what --profile asks for instead of a run; takes the rank's
    int (*require_gpus)() = nullptr;
    int (*profile)(const Options& options) = nullptr;
    void (*take_gpu)(const Options& options, const Comm& comm) = nullptr;
};

// Options in, errors out as messages and exit codes, between them a sub-command or a run. Returns what the program should.
int run_main(int argc, char** argv, const TrainProgram& program);

// a run, in the rank that this process is; the program's exit code
int train_in_rank(const TrainProgram& program, const Options& options, Comm& comm);

}  // namespace llmc
