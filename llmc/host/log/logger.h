// What a run leaves behind: log.jsonl, whose lines log/lines.h makes, and what the terminal shows.
#pragma once
#include <sys/types.h>
#include <cstdint>
#include <cstdio>
#include <string>

#include "llmc/host/log/lines.h"

namespace llmc {

// Throws Error(kExitUsage) if the folder has a log with steps.
void require_no_steps(const std::string& folder);

// Appends to folder/log.jsonl. Each line goes out in one write, so that a kill at any moment leaves whole
// lines. A line that cannot be written is kept, and written before the next one.
class RunLog {
public:
    // resume_step >= 0: keeps what kept_log_lines() says. resume_step < 0: throws Error(kExitUsage) if there
    // are steps, so that no run overwrites another. Then comes `start`, a line or "". All of that is there at
    // once, or the log is what it was.
    RunLog(const std::string& folder, int64_t resume_step, const std::string& start = "");
    ~RunLog();
    RunLog(const RunLog&) = delete;

    void append(const std::string& line);  // a whole line, with its end
    // to the disk, with what was kept; tells whether all that was logged is there
    bool sync();
    // what is wrong; "" = nothing
    const std::string& problem() const { return problem_; }

private:
    void flush();
    void fail(const char* what);
    std::string path_, kept_, problem_;  // kept_: whole lines that are not in the file
    int fd_ = -1;
    off_t whole_ = 0;           // where the last whole line in the file ends
    bool torn_ = false;         // behind it half a line is left
    bool sync_failed_ = false;  // what the system had taken may be lost: that cannot be made good
};

// The step line in `columns` columns (0 = any number): step, loss, tokens a second and the time left are always
// there, the rest where there is room.
std::string step_text(const StepNumbers& numbers, size_t columns);

// The step line: redrawn in place on a terminal, plain lines otherwise or where it must stay.
class StepLine {
public:
    StepLine(bool quiet, int64_t every);
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
