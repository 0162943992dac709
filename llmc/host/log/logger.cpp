// What a run leaves behind: see logger.h.
#include "llmc/host/log/logger.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/base/terminal_text.h"
#include "llmc/host/files/binary_file.h"
#include "llmc/host/files/read_file.h"

namespace llmc {

namespace {

// a line that wraps could not be redrawn in place
size_t terminal_columns() {
    winsize size{};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col : 80;
}

// is standard output a terminal that can redraw a line?
bool can_redraw() {
    const char* kind = std::getenv("TERM");
    return isatty(STDOUT_FILENO) != 0 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
}

constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();

std::string log_of(const std::string& path) { return read_whole(path, kAnyLength).value_or(""); }

}  // namespace

void require_no_steps(const std::string& folder) {
    if (has_steps(log_of(folder + "/log.jsonl"))) {
        throw Error(kExitUsage,
                    folder +
                        ": this folder holds a run already (log.jsonl). Choose another --out, or go on "
                        "with it by --resume auto.");
    }
}

RunLog::RunLog(const std::string& folder, int64_t resume_step, const std::string& start)
    : path_(folder + "/log.jsonl") {
    if (resume_step < 0) { require_no_steps(folder); }
    std::string text = kept_log_lines(log_of(path_), resume_step) + start;
    FileWriter out(path_);
    out.write(text.data(), text.size());
    out.commit();
    fd_ = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (fd_ < 0) {
        throw Error(kExitUsage, fmt::format("{}: cannot write: {}", path_, std::strerror(errno)));
    }
    whole_ = (off_t)text.size();
}

RunLog::~RunLog() {
    if (fd_ < 0) { return; }
    flush();
    close(fd_);
}

void RunLog::append(const std::string& line) {
    kept_ += line;
    flush();
}

void RunLog::fail(const char* what) {
    int error = errno;
    long long lines = std::count(kept_.begin(), kept_.end(), '\n');
    problem_ = fmt::format("{}: cannot {}: {}. Free some space; {} lines are kept until they can be written",
                           path_, what, std::strerror(error), lines);
}

void RunLog::flush() {
    if (torn_ && ftruncate(fd_, whole_) != 0) { return fail("take back half a line"); }
    torn_ = false;
    size_t done = 0;
    while (done < kept_.size()) {
        ssize_t written = ::write(fd_, kept_.data() + done, kept_.size() - done);
        if (written < 0 && errno == EINTR) { continue; }
        if (written <= 0) { break; }
        done += (size_t)written;
    }
    if (done < kept_.size()) { fail("write"); }
    size_t whole = done == 0 ? 0 : kept_.rfind('\n', done - 1) + 1;  // npos + 1 is 0
    whole_ += (off_t)whole;
    kept_.erase(0, whole);
    torn_ = done > whole && ftruncate(fd_, whole_) != 0;
    if (kept_.empty() && !sync_failed_) { problem_.clear(); }
}

bool RunLog::sync() {
    flush();
    if (fsync(fd_) != 0 && errno != EINVAL) {
        sync_failed_ = true;
        fail("flush to the disk");
    }
    return problem_.empty();
}

std::string step_text(const StepNumbers& n, size_t columns) {
    struct Part {
        std::string text;
        int rank;  // 0 always stays; of the others the highest goes first where there is no room
    };
    const std::string speed = n.tokens_per_s < 1e6 ? fmt::format("{:.0f} tok/s", n.tokens_per_s)
                                                   : fmt::format("{:.2f}M tok/s", n.tokens_per_s / 1e6);
    std::vector<Part> parts = {
        {fmt::format("step {}/{}", n.step, n.steps), 0},
        {fmt::format("loss {:.4f}", n.loss), 0},
        {fmt::format("norm {:.3f}", n.grad_norm), 2},
        {fmt::format("lr {:.2e}", n.lr), 3},
        {fmt::format("{:.{}f} ms", n.ms, n.ms < 10 ? 2 : 0), 5},
        {speed, 0},
        {n.utilisation < 0 ? "" : fmt::format("{:.0f}% of peak", 100 * n.utilisation), 4},
        {"ETA " + duration_text(n.seconds_left), 0},
        {n.skipped.empty() ? "" : "SKIPPED: " + n.skipped, 1}};
    std::erase_if(parts, [](const Part& part) { return part.text.empty(); });
    const auto joined = [&](const char* between) {
        std::string line;
        for (const Part& part : parts) { line += (line.empty() ? "" : between) + part.text; }
        return line;
    };
    for (int rank = 5; rank > 0 && columns > 0 && joined(" | ").size() > columns; rank--) {
        std::erase_if(parts, [&](const Part& part) { return part.rank == rank; });
    }
    return columns == 0 || joined(" | ").size() <= columns ? joined(" | ") : joined(" ").substr(0, columns);
}

StepLine::StepLine(bool quiet, int64_t every)
    : quiet_(quiet), terminal_(can_redraw()), every_(every < 1 ? 1 : every) {}

void StepLine::show(const StepNumbers& n) {
    if (quiet_) { return; }
    bool stays = n.step % every_ == 0;
    if (terminal_) {
        std::printf("\r\033[K%s", step_text(n, terminal_columns() - 1).c_str());
        drawn_ = true;
        if (stays && every_ > 1) { clear(); }
    } else if (stays) {
        std::printf("%s\n", step_text(n, 0).c_str());
    }
    std::fflush(stdout);
}

void StepLine::message(const std::string& text) {
    clear();
    put_text(stdout, text + "\n");
    std::fflush(stdout);
}

void StepLine::note(const std::string& lines) {
    if (lines.empty()) { return; }
    clear();
    std::fflush(stdout);
    put_text(stderr, lines);
}

void StepLine::clear() {
    if (drawn_) { std::printf("\n"); }
    drawn_ = false;
}

std::string duration_text(double seconds) {
    if (!(seconds >= 0 && seconds < 1e9)) { return "?"; }
    long long s = std::llround(seconds);
    if (s < 60) { return fmt::format("{}s", s); }
    if (s < 3600) { return fmt::format("{}m{:02}s", s / 60, s % 60); }
    return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

}  // namespace llmc
