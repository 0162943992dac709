// report.html: the curves, samples, options and events of one or several runs on one page that needs nothing
// else: no network, no other file.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/host/log/run_log.h"

namespace llmc {

// What report.html shows of a run: the lines of its log.jsonl, thinned out as they come, so that a run of any
// length takes a bounded amount of memory and of the page.
class RunHistory {
public:
    explicit RunHistory(std::string name) : name_(std::move(name)) {}

    // Of a run folder, or of a log.jsonl. Throws Error(kExitBadInput) if there is none, or no line of a run
    // in it.
    static RunHistory read(const std::string& path);

    // Whole lines of a log, in order. What is no line of a log is passed over.
    void add(std::string_view lines);

    // about half of the points, samples and events; the newest of each stays
    void thin();

    // one JSON object: name, plan, options, points ... as report_page.h reads them
    std::string to_json() const;

private:
    // the mean of some steps that follow each other
    struct Point {
        int64_t step = 0;    // of the last one
        double seconds = 0;  // of training, up to the last one
        int64_t finite = 0, steps = 0;
        double loss = 0, low = 0, high = 0, norm = 0;  // of the finite ones: sums, and the range of the loss
        double lr = 0, ms = 0, new_tokens = 0;
    };
    struct Validation {
        int64_t step;
        double seconds, loss;
    };
    struct Sample {
        int64_t step;
        std::string text;
    };
    struct Event {
        double time;
        int64_t step;
        std::string kind, text;
    };
    struct LogLine;
    void add_line(std::string_view text);
    void add_step(const LogLine& line);
    void add_event(const LogLine& line);
    void add_header(const LogLine& line);
    void join_points();

    std::string name_, plan_, version_;
    std::map<std::string, std::string> options_;
    int64_t total_steps_ = 0, parameters_ = 0;
    double entropy_ = 0, seconds_ = 0, time_ = 0;
    int64_t width_ = 1;  // steps in a point
    std::vector<Point> points_;
    std::vector<Validation> validations_;
    std::vector<Sample> samples_;
    std::vector<Event> events_;
};

constexpr size_t kMostReportBytes = 1'000'000;

// The page. Curves are thinned out until it is small enough; that many runs that it cannot be throw
// Error(kExitUsage).
std::string report_page(std::vector<RunHistory> runs);

// Writes it: at every moment the file is the old one or the whole new one. Throws Error as FileWriter does.
void write_report(const std::string& path, const std::vector<RunHistory>& runs);

// The sub-command report of both trainers; argv[1] is the command. Returns the program's exit code; throws
// Error(kExitUsage) for bad usage, Error(kExitBadInput) where a folder has no log.
int report_command(int argc, const char* const* argv);

// What a run writes down about itself: log.jsonl, a line at a time, and report.html, drawn from those lines.
class RunJournal {
public:
    RunJournal(const std::string& folder, int64_t resume_step, const std::string& start);  // as RunLog's

    void step(const StepNumbers& numbers);
    void validation(int64_t step, double val_loss, double seconds);
    void hellaswag(int64_t step, double accuracy, double normalised);
    void event(const char* event, int64_t step, const Details& details = {});

    // Writes report.html; unless `now`, only where that takes a small part of the run's time. A page that
    // cannot be written stops nothing: what was wrong comes back, the first time, as a line; else "".
    std::string write_report(bool now);

    bool sync() { return log_.sync(); }
    const std::string& problem() const { return log_.problem(); }

private:
    void append(const std::string& line);
    std::string folder_;
    RunLog log_;
    RunHistory history_;
    std::chrono::steady_clock::time_point next_report_;  // not before
    bool report_failed_ = false;
};

}  // namespace llmc
