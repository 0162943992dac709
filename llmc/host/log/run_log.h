// What a run says while it goes: its log.jsonl, the line of a step on the terminal, and report.html, the curves, samples,
// options and events of one or several runs on one page that needs nothing else: no network, no other file.
// The lines of log.jsonl, one JSON object each:
//   {"event":"start","step":0,"log":2,"version":...,"device":...,"options":{...},...,"line":[...]}
//       first of all, and again ("resume") where a run goes on: llmc/model/run/data.h
//   {"step":1,"train_loss":...,"grad_norm":...,"lr":...,"ms":...,"tokens_per_s":...,"tokens":...,"epoch":...,
//       "utilisation":...,"memory":...,"time":...}   the first step is 1, as on the screen
//   {"step":100,"val_loss":...,"seconds":...,"time":...}   after 100 steps
//   {"step":100,"hellaswag_acc":...,"hellaswag_acc_norm":...,"time":...}
//   {"event":"save","step":100,...,"time":...}   also skip, sample, stop, error and end
// time: seconds since 1970; memory: bytes of main memory that the program occupies; utilisation: the part of
// the device's peak. What is not a number is null.
#pragma once
#include <sys/types.h>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"

namespace llmc {

constexpr int kLogFormat = 2;

struct StepNumbers {
    int64_t step = 0, steps = 0;  // this one, counted from 1, and how many the run has
    double loss = 0, grad_norm = 0, lr = 0, ms = 0, tokens_per_s = 0;
    double utilisation = -1;  // of the device's peak; negative = unknown
    double seconds_left = 0;
    int64_t tokens = 0;  // seen since the run began
    double epoch = 0;    // of the training data
    int saturated = 0;   // tensors in FP8 that left their range
    // what loss or norm was: "not finite" or "an outlier"; "" = there was an update
    std::string skipped = {};
};

// printf would show a nan's sign, which means nothing
inline double unsigned_nan(double x) { return std::isnan(x) ? NAN : x; }

std::string step_log_line(const StepNumbers& numbers);  // and one of the event where there was no update
std::string validation_log_line(int64_t step, double val_loss, double seconds);
std::string hellaswag_log_line(int64_t step, double accuracy, double normalised);
using Details = std::vector<std::pair<const char*, std::string>>;
std::string event_log_line(const char* event, int64_t step, const Details& details = {});

// Each line of a log that has its end, and it as JSON: null where it is none or nests too deep for copies of it on the stack.
void for_each_log_line(std::string_view log,
                       const std::function<void(std::string_view, const JsonValue&)>& visit);

// The lines of a log that a run keeps which goes on from the state after resume_step steps: whole ones of what
// was done to reach that state. Negative: none.
std::string kept_log_lines(const std::string& log, int64_t resume_step);

// whether a log's text has more than the lines of events
bool has_steps(const std::string& log);

// Throws Error(kExitUsage) if the folder has a log with steps.
void require_no_steps(const std::string& folder);

// What report.html shows of a run: the lines of its log.jsonl, thinned out as they come, so that a run of any
// length takes a bounded amount of memory and of the page.
class RunHistory {
public:
    explicit RunHistory(std::string name);

    // Of a run folder or a log.jsonl. Throws Error(kExitBadInput) if there is none, or no line of a run in it.
    static RunHistory read(const std::string& path);

    // Whole lines of a log, in order. What is no line of a log is passed over.
    void add(std::string_view lines);

    // about half of the points, samples and events; the newest of each stays
    void thin();

    // one JSON object: name, plan, options, points ... as the page's script reads them
    std::string to_json() const;

private:
    // some steps that follow each other
    struct Point {
        int64_t step = 0;    // the last one
        double seconds = 0;  // of training, up to that one
        double lr = 0, ms = 0, new_tokens = 0;
        int64_t steps = 1, finite = 0;
        double loss = 0, norm = 0, low = NAN, high = NAN;  // of those: sums, and the loss's range
    };
    void add_start(const JsonValue& line);
    void add_step(const JsonValue& line);
    void add_point(const Point& later);
    void join_points();
    void add_event(const JsonValue& line);

    std::string name_;
    double seconds_ = 0, time_ = 0;
    int64_t width_ = 1;  // steps in a point
    std::vector<Point> points_;
    // as the page has them, in JSON: what the last start says, and lists of what came since
    std::string start_;
    std::vector<std::string> validations_, samples_, events_;
};

constexpr size_t kMostReportBytes = 1'000'000;

// The page. Curves are thinned out until it is small enough; for too many runs throws Error(kExitUsage).
std::string report_page(std::vector<RunHistory> runs);

// The sub-command report of both trainers; argv[1] is the command. Returns the program's exit code; throws
// Error(kExitUsage) for bad usage, Error(kExitBadInput) where a folder has no log.
int report_command(int argc, const char* const* argv);

// What a run writes down about itself: folder/log.jsonl, and folder/report.html, drawn from its lines. Each line goes out in
// one write, so that a kill at any moment leaves whole lines. One that cannot be written is kept, and written before the next.
class RunJournal {
public:
    // resume_step >= 0: keeps what kept_log_lines() says. resume_step < 0: throws Error(kExitUsage) if there
    // are steps, so that no run overwrites another. Then comes `start`, a line or "". All at once, or nothing.
    RunJournal(const std::string& folder, int64_t resume_step, const std::string& start = "");
    ~RunJournal();
    RunJournal(const RunJournal&) = delete;

    void append(const std::string& lines);  // whole ones, with their ends
    void event(const char* event, int64_t step, const Details& details = {});
    // to the disk, with what was kept; tells whether all that was logged is there
    bool sync();
    // what is wrong; "" = nothing
    const std::string& problem() const { return problem_; }

    // Writes report.html, at every moment the old one or the whole new one; unless `now`, only where that takes a small
    // part of the run's time. A page that cannot be written stops nothing: a line says why, the first time; else "" comes back.
    std::string write_report(bool now);

private:
    void flush();
    void fail(const char* what);
    std::string folder_, path_, kept_, problem_;  // kept_: whole lines that are not in the file
    Descriptor file_;
    off_t whole_ = 0;           // where the last whole line in the file ends
    bool torn_ = false;         // behind it half a line is left
    bool sync_failed_ = false;  // what the system had taken may be lost: that cannot be made good
    RunHistory history_;
    std::chrono::steady_clock::time_point next_report_;  // not before
    bool report_failed_ = false;
};

// The step line in so many columns (0 = any): step, loss, speed and the time left always, the rest where there is room.
std::string step_text(const StepNumbers& numbers, size_t columns);

// The step line: redrawn in place on a terminal, plain lines otherwise or where it must stay.
class Screen {
public:
    Screen(bool quiet, int64_t every);
    void show(const StepNumbers& numbers);  // every n-th line stays
    void message(const std::string& text);  // a line of its own
    void note(const std::string& lines);    // whole lines to stderr; "" = nothing
    void clear();                           // before anything else prints

private:
    bool quiet_, terminal_, drawn_ = false;
    int64_t every_;
};

// 95 s -> "1m35s"
std::string duration_text(double seconds);

}  // namespace llmc
