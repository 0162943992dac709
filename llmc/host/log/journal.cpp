// What a run writes down about itself: see log/journal.h.
#include "llmc/host/log/journal.h"

#include "llmc/host/base/error.h"
#include "llmc/host/log/report.h"

namespace llmc {

RunJournal::RunJournal(const std::string& folder, int64_t resume_step, const std::string& start)
    : folder_(folder), log_(folder, resume_step, start), history_(RunHistory::read(folder)) {}

void RunJournal::append(const std::string& line) {
    log_.append(line);
    history_.add(line);
}

void RunJournal::step(const StepNumbers& numbers) {
    append(step_log_line(numbers));
    if (!numbers.skipped.empty()) {
        event("skip", numbers.step, {{"text", "loss or gradient norm was " + numbers.skipped}});
    }
}

void RunJournal::validation(int64_t step, double val_loss, double seconds) {
    append(validation_log_line(step, val_loss, seconds));
}

void RunJournal::hellaswag(int64_t step, double accuracy, double normalised) {
    append(hellaswag_log_line(step, accuracy, normalised));
}

void RunJournal::event(const char* event, int64_t step, const Details& details) {
    append(event_log_line(event, step, details));
}

std::string RunJournal::write_report(bool now) {
    using Clock = std::chrono::steady_clock;
    constexpr int kPartOfTime = 50;  // validations that follow each other fast do not wait for the page
    const auto begin = Clock::now();
    if (!now && begin < next_report_) { return ""; }
    std::string problem;
    try {
        llmc::write_report(folder_ + "/report.html", {history_});
    } catch (const Error& e) {
        if (!report_failed_) {
            problem = std::string("the page of the run is not written: ") + e.what() + "\n";
        }
    }
    report_failed_ = report_failed_ || !problem.empty();
    next_report_ = Clock::now() + kPartOfTime * (Clock::now() - begin);
    return problem;
}

}  // namespace llmc
