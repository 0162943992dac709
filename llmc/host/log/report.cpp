// report.html and who draws it: see report.h.
#include "llmc/host/log/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"
#include "llmc/host/log/report_page.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/options/table.h"

namespace llmc {

// ---- what the page shows ------------------------------------------------------------------------

namespace {

constexpr size_t kMostPoints = 1000, kMostValidations = 500, kMostSamples = 50, kMostEvents = 200;
constexpr size_t kMostTextBytes = 2000;  // of a sample, an event's text, an option
constexpr size_t kMostOptions = 100, kMostPlanBytes = 8000;

std::string cut(const std::string& text, size_t most) {
    if (text.size() <= most) { return text; }
    size_t end = most;
    while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80) { end--; }  // a character stays whole
    return text.substr(0, end) + " ...";
}

// every second one goes, but not the last
template <typename T>
void halve(std::vector<T>* all) {
    size_t kept = 0;
    for (size_t i = 0; i < all->size(); i++) {
        if (i % 2 == (all->size() - 1) % 2) { (*all)[kept++] = std::move((*all)[i]); }
    }
    all->resize(kept);
}

// six digits are enough for a curve; null = unknown
JsonValue number(double x) { return std::isfinite(x) ? JsonValue(to_digits(x, 6)) : JsonValue(); }

// the members of all, a list each: what is the same for every curve is written once
template <typename T, typename Member>
JsonValue column(const std::vector<T>& all, Member member) {
    JsonValue list = JsonValue::array();
    for (const T& one : all) { list.push_back(member(one)); }
    return list;
}

}  // namespace

// what a line has of this name, if it is of the right kind
struct RunHistory::LogLine {
    JsonValue json;
    double number(const char* name) const {
        const JsonValue* value = json_find(&json, name);
        return value != nullptr && value->is_number() ? value->get<double>() : NAN;
    }
    int64_t count(const char* name) const {
        const double x = number(name);
        return x >= 0 && x < 9e18 ? (int64_t)x : 0;
    }
    std::string text(const char* name, size_t most = kMostTextBytes) const {
        const auto* value = json_get<std::string>(json, name);
        return value == nullptr ? "" : cut(*value, most);
    }
};

RunHistory RunHistory::read(const std::string& path) {
    std::error_code ignored;
    const std::string log = std::filesystem::is_directory(path, ignored) ? path + "/log.jsonl" : path;
    const auto text = read_whole(log, std::numeric_limits<int64_t>::max());
    if (!text) { throw Error(kExitBadInput, path + ": no run: there is no " + log + ". Name a run folder."); }
    RunHistory history(path);
    history.add(*text);
    if (history.points_.empty() && history.events_.empty()) {
        throw Error(kExitBadInput, log + ": not a log of a run: found no line of a step or a start");
    }
    return history;
}

void RunHistory::add(std::string_view lines) {
    for (size_t end; (end = lines.find('\n')) != lines.npos; lines.remove_prefix(end + 1)) {
        add_line(lines.substr(0, end));
    }
}

void RunHistory::add_line(std::string_view text) {
    LogLine line{parse_log_line(text)};
    if (!line.json.is_object()) { return; }
    if (const double time = line.number("time"); time > 0) { time_ = time; }
    if (line.json.contains("train_loss")) {
        add_step(line);
    } else if (line.json.contains("val_loss")) {
        validations_.push_back({line.count("step"), seconds_, line.number("val_loss")});
        if (validations_.size() > kMostValidations) { halve(&validations_); }
    } else if (line.json.contains("event") || line.json.contains("line")) {
        add_event(line);
    }
}

void RunHistory::add_step(const LogLine& line) {
    const int64_t step = line.count("step") + !line.json.contains("time");  // see kLogFormat
    const double loss = line.number("train_loss"), norm = line.number("grad_norm");
    const double ms = std::max(0.0, line.number("ms"));
    seconds_ += ms / 1e3;
    if (points_.empty() || (points_.back().step - 1) / width_ != (step - 1) / width_) {
        points_.emplace_back();
    }
    Point& p = points_.back();
    p.step = step;
    p.seconds = seconds_;
    p.lr = line.number("lr");
    p.steps++;
    p.ms += ms;
    p.new_tokens += line.number("tokens_per_s") * ms / 1e3;
    if (std::isfinite(loss) && std::isfinite(norm)) {
        p.low = p.finite == 0 ? loss : std::min(p.low, loss);
        p.high = p.finite == 0 ? loss : std::max(p.high, loss);
        p.finite++;
        p.loss += loss;
        p.norm += norm;
    }
    if (points_.size() > kMostPoints) { join_points(); }
}

// points of twice as many steps
void RunHistory::join_points() {
    width_ *= 2;
    size_t kept = 0;
    for (size_t i = 0; i < points_.size(); i++) {
        Point& p = points_[i];
        if (kept == 0 || (points_[kept - 1].step - 1) / width_ != (p.step - 1) / width_) {
            points_[kept++] = p;
            continue;
        }
        Point& before = points_[kept - 1];
        if (before.finite > 0 && p.finite > 0) {
            p.low = std::min(p.low, before.low);
            p.high = std::max(p.high, before.high);
        } else if (before.finite > 0) {
            p.low = before.low;
            p.high = before.high;
        }
        p.finite += before.finite;
        p.steps += before.steps;
        p.loss += before.loss;
        p.norm += before.norm;
        p.ms += before.ms;
        p.new_tokens += before.new_tokens;
        before = p;
    }
    points_.resize(kept);
}

void RunHistory::add_header(const LogLine& line) {
    version_ = line.text("version");
    plan_ = line.text("plan", kMostPlanBytes);
    total_steps_ = line.count("steps");
    parameters_ = line.count("parameters");
    entropy_ = line.number("source_entropy");
    options_.clear();
    const JsonValue options = line.json.value("options", JsonValue());
    for (const auto& item : options.items()) {
        if (!options.is_object() || options_.size() == kMostOptions) { break; }
        const JsonValue& value = item.value();
        const std::string text = value.is_string()         ? value.get<std::string>()
                                 : value.is_number_float() ? number(value.get<double>()).dump()
                                                           : value.dump();
        options_[cut(item.key(), 100)] = cut(text, kMostTextBytes);
    }
}

void RunHistory::add_event(const LogLine& line) {
    const int64_t step = line.count("step");
    std::string kind = line.text("event", 100), text = line.text("text");
    if (kind == "sample") {
        samples_.push_back({step, text});
        if (samples_.size() > kMostSamples) { halve(&samples_); }
        return;
    }
    if (line.json.contains("line")) {
        if (line.json.contains("version")) { add_header(line); }
        kind = kind.empty() ? "start" : kind;
        text = line.text("version") + (line.json.contains("device") ? " on " : "") + line.text("device");
    }
    events_.push_back({line.number("time"), step, kind, text});
    if (events_.size() > kMostEvents) { halve(&events_); }
}

void RunHistory::thin() {
    if (points_.size() > 1) { join_points(); }
    halve(&validations_);
    halve(&samples_);
    halve(&events_);
}

std::string RunHistory::to_json() const {
    double tokens = 0, steps = 0;
    for (const Point& p : points_) {
        tokens += p.new_tokens;
        steps += (double)p.steps;
    }
    JsonValue run = {{"name", name_},
                     {"version", version_},
                     {"plan", plan_},
                     {"steps", total_steps_},
                     {"parameters", parameters_},
                     {"entropy", number(entropy_)},
                     {"tokensPerStep", number(std::round(tokens / std::max(1.0, steps)))},
                     {"time", time_}};
    run["options"] = options_;
    const auto mean = [](double sum, int64_t n) { return n > 0 ? number(sum / (double)n) : JsonValue(); };
    run["points"] = {
        {"step", column(points_, [](const Point& p) { return p.step; })},
        {"seconds", column(points_, [](const Point& p) { return number(p.seconds); })},
        {"loss", column(points_, [&](const Point& p) { return mean(p.loss, p.finite); })},
        {"low", column(points_, [](const Point& p) { return p.finite > 0 ? number(p.low) : JsonValue(); })},
        {"high", column(points_, [](const Point& p) { return p.finite > 0 ? number(p.high) : JsonValue(); })},
        {"norm", column(points_, [&](const Point& p) { return mean(p.norm, p.finite); })},
        {"lr", column(points_, [](const Point& p) { return number(p.lr); })},
        {"speed", column(points_, [](const Point& p) { return number(p.new_tokens / p.ms * 1e3); })}};
    run["validation"] = {{"step", column(validations_, [](const auto& v) { return v.step; })},
                         {"seconds", column(validations_, [](const auto& v) { return number(v.seconds); })},
                         {"loss", column(validations_, [](const auto& v) { return number(v.loss); })}};
    run["samples"] = column(samples_, [](const auto& s) { return JsonValue{s.step, s.text}; });
    run["events"] = column(events_, [](const auto& e) {
        return JsonValue{std::isfinite(e.time) ? JsonValue(e.time) : JsonValue(), e.step, e.kind, e.text};
    });
    return json_line(run);
}

// ---- the page -----------------------------------------------------------------------------------

namespace {

// A text of the run must not end the element that holds the data, nor begin another.
std::string inside_html(std::string json) {
    for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;) { json.replace(at, 1, "\\u003c"); }
    return json;
}

std::string page_of(const std::vector<RunHistory>& runs) {
    std::string data;
    for (const RunHistory& run : runs) { data += (data.empty() ? "[" : ",\n") + inside_html(run.to_json()); }
    return std::string(kReportHead) + data + "]" + std::string(kReportScript);
}

// A page takes the place of an earlier one only: a log, a model or a config file of a run would be lost.
void require_page(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) { return; }
    std::ifstream file(path, std::ios::binary);
    std::string begin(kReportHead.find("<title>"), '\0');
    file.read(begin.data(), (std::streamsize)begin.size());
    begin.resize((size_t)file.gcount());
    if (!file.is_open() || !kReportHead.starts_with(begin)) {
        throw Error(
            kExitUsage,
            path +
                ": found a file that is no page of a run and would be lost. Expected such a page or a "
                "free name: choose another --out.");
    }
}

}  // namespace

std::string report_page(std::vector<RunHistory> runs) {
    constexpr int kMostHalvings = 12;  // by then a curve has a point or two
    for (int halvings = 0;; halvings++) {
        std::string page = page_of(runs);
        if (page.size() <= kMostReportBytes) { return page; }
        if (halvings == kMostHalvings) {
            throw Error(kExitUsage, fmt::format("{} runs do not fit on a page of {} bytes. Name fewer.",
                                                runs.size(), kMostReportBytes));
        }
        for (RunHistory& run : runs) { run.thin(); }
    }
}

void write_report(const std::string& path, const std::vector<RunHistory>& runs) {
    write_text_file(path, report_page(runs));
}

int report_command(int argc, const char* const* argv) {
    const std::string name = std::string(argv[0]) + " report";
    std::vector<std::string> runs;
    std::string out;
    Table t(name, "Draws the curves of runs on one page for a browser, which needs nothing else.",
            "A run writes its own page at validations, at saves and at its end.\n\nExample:\n"
            "  PROGRAM runs/a runs/b --out compare.html\n");
    t.add("RUN", &runs, "folders of runs, or their log.jsonl").required = true;
    t.add("--out FILE", &out, "the page; default: RUN/report.html for one run, report.html for several");
    if (!parse_table(t, argc, argv, 2, "report: ")) { return kExitDone; }
    std::vector<RunHistory> histories;
    histories.reserve(runs.size());
    for (const std::string& run : runs) { histories.push_back(RunHistory::read(run)); }
    std::error_code ignored;
    const bool named = !out.empty();
    if (!named) {
        const bool folder = runs.size() == 1 && std::filesystem::is_directory(runs[0], ignored);
        out = (folder ? runs[0] + "/" : "") + "report.html";
    }
    require_page(out);
    try {
        write_report(out, histories);
    } catch (const Error& e) {
        throw Error(e.exit_code,
                    fmt::format("{}{}", e.what(), named ? "" : " --out FILE writes it elsewhere."));
    }
    put_text(stdout, "wrote " + out + "\n");
    require_printed();
    return kExitDone;
}

// ---- a run that goes on -------------------------------------------------------------------------

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
