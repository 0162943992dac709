// What report.html shows of a run: the lines of its log.jsonl, thinned out as they come, so that a run of any
// length takes a bounded amount of memory and of the page.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llmc {

class RunHistory {
public:
    explicit RunHistory(std::string name) : name_(std::move(name)) {}

    // Of a run folder, or of a log.jsonl. Throws Error(kExitBadInput) if there is none, or no line of a run
    // in it.
    static RunHistory read(const std::string& path);

    // Whole lines of a log, in order. What is no line of a log is passed over.
    void add(std::string_view lines);

    // about half of the points, samples and events; the newest of each stays
    void thin();

    // one JSON object: name, plan, options, points ... as report_page.h reads them
    std::string to_json() const;

private:
    // the mean of some steps that follow each other
    struct Point {
        int64_t step = 0;    // of the last one
        double seconds = 0;  // of training, up to the last one
        int64_t finite = 0, steps = 0;
        double loss = 0, low = 0, high = 0, norm = 0;  // of the finite ones: sums, and the range of the loss
        double lr = 0, ms = 0, new_tokens = 0;
    };
    struct Validation {
        int64_t step;
        double seconds, loss;
    };
    struct Sample {
        int64_t step;
        std::string text;
    };
    struct Event {
        double time;
        int64_t step;
        std::string kind, text;
    };
    struct Line;  // of the log
    void add_line(std::string_view text);
    void add_step(const Line& line);
    void add_event(const Line& line);
    void add_header(const Line& line);
    void join_points();

    std::string name_, plan_, version_;
    std::map<std::string, std::string> options_;
    int64_t total_steps_ = 0, parameters_ = 0;
    double entropy_ = 0, seconds_ = 0, time_ = 0;
    int64_t width_ = 1;  // steps in a point
    std::vector<Point> points_;
    std::vector<Validation> validations_;
    std::vector<Sample> samples_;
    std::vector<Event> events_;
};

}  // namespace llmc
