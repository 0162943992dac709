// The lines of log.jsonl, one JSON object each:
//   {"event":"start","step":0,"log":2,"version":...,"device":...,"options":{...},...,"line":[...]}
//       first of all, and again ("resume") where a run goes on: llmc/model/run/header.h
//   {"step":1,"train_loss":...,"grad_norm":...,"lr":...,"ms":...,"tokens_per_s":...,"tokens":...,"epoch":...,
//       "utilisation":...,"memory":...,"time":...}   the first step is 1, as on the screen
//   {"step":100,"val_loss":...,"seconds":...,"time":...}   after 100 steps
//   {"step":100,"hellaswag_acc":...,"hellaswag_acc_norm":...,"time":...}
//   {"event":"save","step":100,...,"time":...}   also skip, sample, stop, error and end
// time: seconds since 1970; memory: bytes of main memory that the program occupies; utilisation: the part of
// the device's peak. What is not a number is null.
#pragma once
#include <cmath>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace llmc {

constexpr int kLogFormat = 2;  // 1: steps counted from 0, no header, no events, no "time"

struct StepNumbers {
    int64_t step = 0, steps = 0;  // this one, counted from 1, and how many the run has
    double loss = 0, grad_norm = 0, lr = 0, ms = 0, tokens_per_s = 0;
    double utilisation = -1;  // of the device's peak; negative = unknown
    double seconds_left = 0;
    int64_t tokens = 0;  // seen since the run began
    double epoch = 0;    // of the training data
    std::string skipped =
        {};  // what loss or norm was: "not finite" or "an outlier"; "" = there was an update
};

// printf would show a nan's sign, which means nothing
inline double unsigned_nan(double x) { return std::isnan(x) ? NAN : x; }

std::string step_log_line(const StepNumbers& numbers);
std::string validation_log_line(int64_t step, double val_loss, double seconds);
std::string hellaswag_log_line(int64_t step, double accuracy, double normalised);
using Details = std::vector<std::pair<const char*, std::variant<std::string, double, int64_t>>>;
std::string event_log_line(const char* event, int64_t step, const Details& details = {});

// A line as JSON; discarded where it is none or nests deeper than any of ours, as copies of it go as deep in the stack.
nlohmann::ordered_json parse_log_line(std::string_view text);

// The lines of a log that a run keeps which goes on from the state after resume_step steps: whole ones of what
// was done to reach that state. Lines of format 1 come back in format 2. Negative: none.
std::string kept_log_lines(const std::string& log, int64_t resume_step);

// whether a log's text has more than the lines of events
bool has_steps(const std::string& log);

}  // namespace llmc
