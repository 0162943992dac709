// The lines of log.jsonl: see log/lines.h.
#include "llmc/host/log/lines.h"

#include <unistd.h>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "llmc/host/base/digits.h"

namespace llmc {

namespace {

using Json = nlohmann::ordered_json;  // members stay in the order in which they are written

double nine(double x) { return to_digits(x, 9); }

double unix_time() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return (double)std::chrono::duration_cast<std::chrono::milliseconds>(now).count() / 1e3;
}

// bytes of main memory that this process occupies; null where the system does not say
Json resident_memory() {
    long long pages = 0, resident = -1;
    if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
        if (std::fscanf(file, "%lld %lld", &pages, &resident) != 2) { resident = -1; }
        std::fclose(file);
    }
    return resident < 0 ? Json() : Json((int64_t)resident * sysconf(_SC_PAGESIZE));
}

// What is not UTF-8 becomes U+FFFD: an option may be any bytes.
std::string text_of(const Json& line) {
    return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// what belongs to the state after a step; all else is done again by a run that goes on from there
bool led_to_state(const Json& line) {
    const Json event = line.value("event", Json());
    return line.contains("train_loss") || event == "skip" || event == "save" || event == "stop";
}

// one of format 1 becomes one of format 2
void renew(Json* line) {
    if (line->contains("train_loss")) { (*line)["step"] = (*line)["step"].get<int64_t>() + 1; }
    if (line->contains("line")) {
        (*line)["event"] = (*line)["step"] == 0 ? "start" : "resume";
        (*line)["log"] = kLogFormat;
    }
    (*line)["time"] = nullptr;  // unknown
}

}  // namespace

std::string step_log_line(const StepNumbers& n) {
    Json line = {{"step", n.step},
                 {"train_loss", nine(n.loss)},
                 {"grad_norm", nine(n.grad_norm)},
                 {"lr", nine(n.lr)},
                 {"ms", nine(n.ms)},
                 {"tokens_per_s", nine(n.tokens_per_s)},
                 {"tokens", n.tokens},
                 {"epoch", nine(n.epoch)},
                 {"utilisation", n.utilisation < 0 ? Json() : Json(std::round(n.utilisation * 1e4) / 1e4)},
                 {"memory", resident_memory()},
                 {"time", unix_time()}};
    return text_of(line);
}

std::string validation_log_line(int64_t step, double val_loss, double seconds) {
    return text_of({{"step", step},
                    {"val_loss", nine(val_loss)},
                    {"seconds", std::round(seconds * 1e3) / 1e3},
                    {"time", unix_time()}});
}

std::string hellaswag_log_line(int64_t step, double accuracy, double normalised) {
    return text_of({{"step", step},
                    {"hellaswag_acc", nine(accuracy)},
                    {"hellaswag_acc_norm", nine(normalised)},
                    {"time", unix_time()}});
}

std::string event_log_line(const char* event, int64_t step, const Details& details) {
    Json line = {{"event", event}, {"step", step}};
    for (const auto& [name, value] : details) {
        std::visit([&, name = name](const auto& x) { line[name] = x; }, value);
    }
    line["time"] = unix_time();
    return text_of(line);
}

Json parse_log_line(std::string_view text) {
    constexpr int kDeepest = 8;
    bool deep = false;
    const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
        deep = deep || depth > kDeepest;
        return !deep;
    };
    Json line = Json::parse(text, shallow, false);
    return deep ? Json(Json::value_t::discarded) : line;
}

std::string kept_log_lines(const std::string& log, int64_t resume_step) {
    std::istringstream in(log);
    std::string text, kept;
    while (resume_step >= 0 && std::getline(in, text)) {
        Json line = parse_log_line(text);
        if (in.eof() || !line.is_object() || !line.contains("step") || !line["step"].is_number_integer()) {
            continue;
        }
        const bool old = !line.contains("time");
        if (old) { renew(&line); }
        if (line["step"] < resume_step + led_to_state(line)) { kept += old ? text_of(line) : text + "\n"; }
    }
    return kept;
}

bool has_steps(const std::string& log) {
    std::istringstream in(log);
    for (std::string text; std::getline(in, text);) {
        const Json line = parse_log_line(text);
        const bool event = line.is_object() && (line.contains("event") || line.contains("line"));
        if (!text.empty() && !event) { return true; }
    }
    return false;
}

}  // namespace llmc
