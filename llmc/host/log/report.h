// report.html: the curves, samples, options and events of one or several runs on one page that needs nothing
// else: no network, no other file.
#pragma once
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/host/files/json.h"
#include "llmc/host/log/run_log.h"

namespace llmc {

// What report.html shows of a run: the lines of its log.jsonl, thinned out as they come, so that a run of any
// length takes a bounded amount of memory and of the page.
class RunHistory {
public:
    explicit RunHistory(std::string name);

    // Of a run folder, or of a log.jsonl. Throws Error(kExitBadInput) if there is none, or no line of a run
    // in it.
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
        double loss = 0, norm = 0, low = NAN,
               high = NAN;  // of the finite ones: sums, and the range of the loss
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

// The page. Curves are thinned out until it is small enough; that many runs that it cannot be throw
// Error(kExitUsage).
std::string report_page(std::vector<RunHistory> runs);

// The sub-command report of both trainers; argv[1] is the command. Returns the program's exit code; throws
// Error(kExitUsage) for bad usage, Error(kExitBadInput) where a folder has no log.
int report_command(int argc, const char* const* argv);

// What a run writes down about itself: log.jsonl, a line at a time, and report.html, drawn from those lines.
class RunJournal : public RunLog {
public:
    RunJournal(const std::string& folder, int64_t resume_step, const std::string& start);  // as RunLog's

    void append(const std::string& lines);
    void event(const char* event, int64_t step, const Details& details = {});

    // Writes report.html, at every moment the old one or the whole new one; unless `now`, only where that takes a small
    // part of the run's time. A page that cannot be written stops nothing: what was wrong comes back, the first time, as a
    // line; else "".
    std::string write_report(bool now);

private:
    std::string folder_;
    RunHistory history_;
    std::chrono::steady_clock::time_point next_report_;  // not before
    bool report_failed_ = false;
};

}  // namespace llmc
