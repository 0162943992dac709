// The loss and the gradient norm of the last steps, and from which values on a step is an outlier that is
// skipped: z standard deviations above their mean.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace llmc {

// a step that was not skipped
struct AcceptedStep {
    int64_t step = 0;
    float loss = 0, norm = 0;
    bool operator==(const AcceptedStep&) const = default;
};

class OutlierWindow {
public:
    static constexpr size_t kSteps = 128;  // that a mean is of; with fewer before it, a step is no outlier
    static constexpr size_t kMost = kSteps + 1;  // and the newest, which may be too new for the next step

    OutlierWindow() = default;
    explicit OutlierWindow(std::vector<AcceptedStep> steps) : steps_(std::move(steps)) {}

    // Steps come in order. One that was skipped is never added: it would hide the next outlier.
    void add(const AcceptedStep& step) {
        steps_.push_back(step);
        if (steps_.size() > kMost) { steps_.erase(steps_.begin()); }
    }
    const std::vector<AcceptedStep>& steps() const { return steps_; }
    // how many steps up to this one were skipped since the last that was not
    int64_t skipped(int64_t step) const { return steps_.empty() ? 0 : step - steps_.back().step; }

    // The largest value, of loss or norm, with which a step is no outlier; infinity if z is 0. What comes of
    // step - 1 is not asked for, as a GPU may still be at it when this step begins.
    float largest(float AcceptedStep::*value, double z, int64_t step) const {
        size_t end = steps_.size();
        if (end > 0 && steps_[end - 1].step >= step - 1) { end--; }
        constexpr float kNone = std::numeric_limits<float>::infinity();
        if (!(z > 0) || end < kSteps) { return kNone; }
        double sum = 0, squares = 0;
        for (size_t i = end - kSteps; i < end; i++) { sum += (double)(steps_[i].*value); }
        const double mean = sum / kSteps;
        for (size_t i = end - kSteps; i < end; i++) {
            const double off = (double)(steps_[i].*value) - mean;
            squares += off * off;
        }
        const double deviation = std::sqrt(squares / kSteps);
        return deviation > 0 ? (float)(mean + z * deviation) : kNone;
    }

private:
    std::vector<AcceptedStep> steps_;  // oldest first, at most kMost
};

}  // namespace llmc
