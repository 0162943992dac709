// What a run says while it goes: see run_log.h.
#include "llmc/host/log/run_log.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"

namespace llmc {

// ---- lines of the log ---------------------------------------------------------------------------

namespace {

double nine(double x) { return to_digits(x, 9); }

// bytes of main memory that this process occupies; null where the system does not say
JsonValue resident_memory() {
    int64_t pages, resident;
    if (!(std::ifstream("/proc/self/statm") >> pages >> resident)) { return nullptr; }
    return resident * sysconf(_SC_PAGESIZE);
}

// with the time, and the end of the line
std::string text_of(JsonValue line) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    line["time"] = (double)std::chrono::duration_cast<std::chrono::milliseconds>(now).count() / 1e3;
    return json_line(line) + "\n";
}

// what belongs to the state after a step; all else is done again by a run that goes on from there
bool led_to_state(const JsonValue& line) {
    const JsonValue event = line.value("event", JsonValue());
    return line.contains("train_loss") || event == "skip" || event == "save" || event == "stop";
}

// is standard output a terminal that can redraw a line?
bool can_redraw() {
    const char* kind = std::getenv("TERM");
    const std::string_view name = kind == nullptr ? "" : kind;
    return isatty(STDOUT_FILENO) != 0 && name != "" && name != "dumb";
}

}  // namespace

std::string step_log_line(const StepNumbers& n) {
    JsonValue line = {
        {"step", n.step},
        {"train_loss", nine(n.loss)},
        {"grad_norm", nine(n.grad_norm)},
        {"lr", nine(n.lr)},
        {"ms", nine(n.ms)},
        {"tokens_per_s", nine(n.tokens_per_s)},
        {"tokens", n.tokens},
        {"epoch", nine(n.epoch)},
        {"utilisation", n.utilisation < 0 ? JsonValue() : JsonValue(std::round(n.utilisation * 1e4) / 1e4)},
        {"memory", resident_memory()}};
    if (n.saturated > 0) { line["saturated"] = n.saturated; }
    if (n.skipped.empty()) { return text_of(line); }
    return text_of(line) +
           event_log_line("skip", n.step, {{"text", "loss or gradient norm was " + n.skipped}});
}

std::string validation_log_line(int64_t step, double val_loss, double seconds) {
    return text_of(
        {{"step", step}, {"val_loss", nine(val_loss)}, {"seconds", std::round(seconds * 1e3) / 1e3}});
}

std::string hellaswag_log_line(int64_t step, double accuracy, double normalised) {
    return text_of(
        {{"step", step}, {"hellaswag_acc", nine(accuracy)}, {"hellaswag_acc_norm", nine(normalised)}});
}

std::string event_log_line(const char* event, int64_t step, const Details& details) {
    JsonValue line = {{"event", event}, {"step", step}};
    for (const auto& [name, value] : details) { line[name] = value; }
    return text_of(line);
}

void for_each_log_line(std::string_view log,
                       const std::function<void(std::string_view, const JsonValue&)>& visit) {
    for (size_t end; (end = log.find('\n')) != log.npos; log.remove_prefix(end + 1)) {
        JsonValue line;
        const std::string problem = read_json(log.substr(0, end), {.integer = UINT64_MAX}, &line);
        if (!problem.empty()) { line = nullptr; }
        visit(log.substr(0, end), line);
    }
}

std::string kept_log_lines(const std::string& log, int64_t resume_step) {
    std::string kept;
    for_each_log_line(log, [&](std::string_view text, const JsonValue& line) {
        const int64_t* step = json_get<int64_t>(line, "step");
        const bool keep = step != nullptr && *step < resume_step + led_to_state(line);
        if (keep && resume_step >= 0) { kept += std::string(text) + "\n"; }
    });
    return kept;
}

bool has_steps(const std::string& log) {
    bool found = false;
    for_each_log_line(log + "\n", [&](std::string_view text, const JsonValue& line) {
        const bool event = line.is_object() && (line.contains("event") || line.contains("line"));
        found = found || (!text.empty() && !event);
    });
    return found;
}

// ---- the file and the terminal ------------------------------------------------------------------

void require_no_steps(const std::string& folder) {
    throw_if(has_steps(read_whole(folder + "/log.jsonl").value_or("")), kExitUsage,
             "{}: this folder holds a run already (log.jsonl). Choose another --out, or go on with it by "
             "--resume auto.",
             folder);
}

RunJournal::RunJournal(const std::string& folder, int64_t resume_step, const std::string& start)
    : folder_(folder), path_(folder + "/log.jsonl"), file_(-1), history_(folder) {
    if (resume_step < 0) { require_no_steps(folder); }
    const std::string text = kept_log_lines(read_whole(path_).value_or(""), resume_step) + start;
    write_text_file(path_, text);
    file_ = Descriptor(open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
    if (file_ < 0) { throw Error(kExitUsage, "{}: cannot write: {}", path_, std::strerror(errno)); }
    whole_ = (off_t)text.size();
    history_.add(text);
}

RunJournal::~RunJournal() { flush(); }

void RunJournal::append(const std::string& lines) {
    kept_ += lines;
    flush();
    history_.add(lines);
}

void RunJournal::event(const char* event, int64_t step, const Details& details) {
    append(event_log_line(event, step, details));
}

void RunJournal::fail(const char* what) {
    problem_ = fmt::format("{}: cannot {}: {}. Free some space; {} lines are kept until they can be written",
                           path_, what, std::strerror(errno), std::ranges::count(kept_, '\n'));
}

void RunJournal::flush() {
    torn_ = torn_ && ftruncate(file_, whole_) != 0;
    if (torn_) { return fail("take back half a line"); }
    size_t done = 0;
    while (done < kept_.size()) {
        ssize_t written = ::write(file_, kept_.data() + done, kept_.size() - done);
        if (written < 0 && errno == EINTR) { continue; }
        if (written <= 0) { break; }
        done += (size_t)written;
    }
    if (done < kept_.size()) { fail("write"); }
    size_t whole = done == 0 ? 0 : kept_.rfind('\n', done - 1) + 1;  // npos + 1 is 0
    whole_ += (off_t)whole;
    kept_.erase(0, whole);
    torn_ = done > whole && ftruncate(file_, whole_) != 0;
    if (kept_.empty() && !sync_failed_) { problem_.clear(); }
}

bool RunJournal::sync() {
    flush();
    if (fsync(file_) != 0 && errno != EINVAL) {
        sync_failed_ = true;
        fail("flush to the disk");
    }
    return problem_.empty();
}

std::string step_text(const StepNumbers& n, size_t columns) {
    const std::string speed = n.tokens_per_s < 1e6 ? fmt::format("{:.0f} tok/s", n.tokens_per_s)
                                                   : fmt::format("{:.2f}M tok/s", n.tokens_per_s / 1e6);
    // 0 always stays; of the others the highest goes first where there is no room
    std::vector<std::pair<std::string, int>> parts = {
        {fmt::format("step {}/{}", n.step, n.steps), 0},
        {fmt::format("loss {:.4f}", n.loss), 0},
        {fmt::format("norm {:.3f}", n.grad_norm), 2},
        {fmt::format("lr {:.2e}", n.lr), 3},
        {fmt::format("{:.{}f} ms", n.ms, n.ms < 10 ? 2 : 0), 5},
        {speed, 0},
        {n.utilisation < 0 ? "" : fmt::format("{:.0f}% of peak", 100 * n.utilisation), 4},
        {"ETA " + duration_text(n.seconds_left), 0},
        {n.skipped.empty() ? "" : "SKIPPED: " + n.skipped, 1}};
    std::erase_if(parts, [](const auto& part) { return part.first.empty(); });
    const auto joined = [&](const char* between) {
        std::string line;
        for (const auto& [text, rank] : parts) { line += (line.empty() ? "" : between) + text; }
        return line;
    };
    for (int rank = 5; rank > 0 && columns > 0 && joined(" | ").size() > columns; rank--) {
        std::erase_if(parts, [&](const auto& part) { return part.second == rank; });
    }
    return columns == 0 || joined(" | ").size() <= columns ? joined(" | ") : joined(" ").substr(0, columns);
}

Screen::Screen(bool quiet, int64_t every)
    : quiet_(quiet), terminal_(can_redraw()), every_(std::max<int64_t>(1, every)) {}

void Screen::show(const StepNumbers& n) {
    if (quiet_) { return; }
    bool stays = n.step % every_ == 0;
    if (terminal_) {
        winsize size{};
        const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
        // a line that wraps could not be redrawn in place
        std::printf("\r\033[K%s", step_text(n, known ? size.ws_col - 1 : 79).c_str());
        drawn_ = true;
        if (stays && every_ > 1) { clear(); }
    } else if (stays) {
        std::printf("%s\n", step_text(n, 0).c_str());
    }
    std::fflush(stdout);
}

void Screen::message(const std::string& text) {
    clear();
    put_text(stdout, text + "\n");
    std::fflush(stdout);
}

void Screen::note(const std::string& lines) {
    if (lines.empty()) { return; }
    clear();
    std::fflush(stdout);
    put_text(stderr, lines);
}

void Screen::clear() {
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
