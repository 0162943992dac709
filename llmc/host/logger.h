// What a run leaves behind: log.jsonl, a line for each step and each validation, and what the terminal shows.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>

namespace llmc {

// whether a log's text has more than the lines of starts
bool has_steps(const std::string& log);

// Throws Error(kExitUsage) if the folder has a log with steps.
void require_no_steps(const std::string& folder);

// Appends to folder/log.jsonl. Each line goes out in one write, so that a kill at any moment leaves whole
// lines.
class RunLog {
public:
    // resume_step >= 0: lines of steps from there on (and a torn last line) are dropped first. resume_step <
    // 0: throws Error(kExitUsage) if there are steps, so that no run overwrites another. Then comes `start`,
    // a line or "". All of that is there at once, or the log is what it was.
    RunLog(const std::string& folder, int64_t resume_step, const std::string& start = "");
    ~RunLog();
    RunLog(const RunLog&) = delete;

    void step(int64_t step, double train_loss, double grad_norm, double lr, double ms, double tokens_per_s);
    void validation(int64_t step, double val_loss);

private:
    void append(const std::string& line);
    std::string path_;
    int fd_ = -1;
};

// The step line: redrawn in place on a terminal, plain lines otherwise or where it must stay.
class StepLine {
public:
    StepLine(bool quiet, int64_t every);
    void show(int64_t step, const std::string& line);  // every n-th line stays
    void message(const std::string& text);             // a line of its own
    void note(const std::string& lines);               // whole lines to stderr; "" = nothing
    void clear();                                      // before anything else prints

private:
    bool quiet_, terminal_, drawn_ = false;
    int64_t every_;
};

// 95 s -> "1m35s"
std::string duration_text(double seconds);

}  // namespace llmc
