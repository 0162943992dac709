// What a run writes down about itself: log.jsonl, a line at a time, and report.html, drawn from those lines.
#pragma once
#include <chrono>
#include <string>

#include "llmc/host/log/history.h"
#include "llmc/host/log/lines.h"
#include "llmc/host/log/logger.h"

namespace llmc {

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
