// The numbers of each step as the log and the screen have them, and the time that steps took; what is done
// between steps does not count.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>

#include "llmc/host/base/error.h"
#include "llmc/host/log/run_log.h"
#include "llmc/model/model.h"
#include "llmc/model/run/plan.h"

namespace llmc {

// as the optimizer sees it
inline bool was_finite(const StepResult& r) {
    return std::isfinite(r.loss) && std::isfinite(r.grad_norm) && r.grad_norm <= (float)kLongestGradient;
}

class StepClock {
public:
    // the time since the last step was spent on something else
    void restart() { last_done_ = std::chrono::steady_clock::now(); }

    // data_start: the step that began with the training data; peak_flops: of the device, 0 = unknown
    StepNumbers numbers(const StepResult& r, const RunPlan& plan, int seq_len, int64_t data_start,
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

    // What is wrong with how a run from random weights ends, where its loss has grown without becoming NaN; "" =
    // nothing. A new model begins with the logarithm of its vocabulary.
    std::string exploded(const RunPlan& plan) const {
        const double new_model = std::log((double)plan.config.vocab_size);
        if (!plan.model_file.empty() || !(last_loss > 2 * new_model)) { return ""; }
        return fmt::format("the last training loss is {:.4f}: a new model has {:.4f}", last_loss, new_model);
    }

    double seconds = 0, last_loss = NAN;
    int64_t steps = 0;  // that this process has done

private:
    static constexpr double kPaceMs = 30e3;
    double pace_ = 0;  // ms a step
    std::chrono::steady_clock::time_point last_done_;
};

}  // namespace llmc
