// What a checkpoint says about its run beside weights and moments: run.json in its folder. How far it is,
// which run it belongs to and along which line of descent, what the run trained on, with which settings.
// Random numbers are functions of seed and step, and so is the order of the data, so that these two are all
// that they need to go on.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "llmc/host/options/choices.h"
#include "llmc/host/tokens/tokenizer.h"

namespace llmc {

// The loss and the gradient norm of the last steps, and from which values on a step is an outlier that is
// skipped: z standard deviations above their mean.

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

// a start of the program: a random id, and the first step that it did
struct Start {
    std::string id;
    int64_t step = 0;
    bool operator==(const Start&) const = default;
};

// All the starts that led to a state, oldest first. The first id is the run's.
using Descent = std::vector<Start>;

struct ShardRecord {
    std::string name;  // without its folder
    int64_t tokens = 0;
    uint64_t xxh3 = 0;     // of the tokens
    std::string identity;  // what the system said of the file then (settled_identity)
};

struct TrainingState {
    int64_t step = 0;     // steps done, skipped ones included: the next one has this number
    int64_t updates = 0;  // optimizer updates that happened
    uint64_t seed = 0;    // of initialisation and data order
    // what else decides which data a step sees
    int64_t seq_len = 0, rows_per_step = 0;
    Optimizer optimizer = Optimizer::kAdamW;  // not auto: which moments there are
};

// a validation of a run
struct Validated {
    int64_t step = 0;
    double loss = 0;  // finite
    bool operator==(const Validated&) const = default;
};

struct RunRecord {
    Descent descent;
    TrainingState state;
    int64_t skipped_in_a_row = 0;      // of the steps before, those that were not finite
    std::vector<AcceptedStep> window;  // if outliers are skipped: OutlierWindow's, of the steps before
    int64_t data_start = 0;            // the step that began with this training data: its first epoch
    std::vector<ShardRecord> train_data, val_data;
    std::map<std::string, std::string> settings;  // see run/data.h
    int end_of_text = 0;                          // token id
    std::optional<double> val_loss;               // of this very state, if it was validated
    std::optional<Validated> best;                // the lowest on the line, if --keep-best asks for it
    std::string kept = "{}";                      // not in run.json but config.json, as HfFacts has it
    TextFiles tokenizer;                          // nor these: the run's tokenizer's files
};

std::string new_id();  // 16 hexadecimal digits

// whether a checkpoint of this step with the descent `checkpoint` lies on `descent`: no start between it and the
// end of `descent` went back to before it
bool lies_on(const Descent& descent, const Descent& checkpoint, int64_t step);

// run.json's content, and back. what: the file, for messages. Throws Error(kExitBadInput) naming the field.
std::string to_json(const RunRecord& record);
RunRecord parse_run_record(const std::string& text, const std::string& what);

// The line that log.jsonl gets at each start, with the members of a JSON object, and which line of descent a
// log follows: that of its last start. Nothing if it has none; throws as above.
std::string log_start(const Descent& descent, int64_t step, bool new_data = false,
                      const std::string& header = "{}");
std::optional<Descent> descent_of_log(const std::string& log, const std::string& what);

}  // namespace llmc
