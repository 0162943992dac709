// What a race prints and writes: the statistics of its replays, the table, the JSON file. Host only.
#pragma once
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/files/json.h"

namespace llmc {

// the value below which this share of the sorted samples lies, between two of them if need be
inline double percentile(std::vector<double> samples, double share) {
    require(!samples.empty(), "percentile of nothing");
    std::sort(samples.begin(), samples.end());
    double place = share * (double)(samples.size() - 1);
    size_t below = (size_t)place, above = std::min(below + 1, samples.size() - 1);
    return samples[below] + (place - (double)below) * (samples[above] - samples[below]);
}

// microseconds per launch
struct Times {
    double median = NAN, p20 = NAN, p80 = NAN;
    Times() = default;
    explicit Times(const std::vector<double>& replays)
        : median(percentile(replays, 0.5)), p20(percentile(replays, 0.2)), p80(percentile(replays, 0.8)) {}
};

// one line of the table; NAN where a column does not apply
struct Row {
    std::string op{}, version{}, idea{}, dtype{};
    long long N = 0;
    int C = 0, T = 0, block = 0;  // T: tokens of a sequence, of which N are; 0: the op has none
    int launches = 0;             // in a replay
    Times us{};
    double useful_bytes = 0, flops = 0;  // flops: of an op that is not a matter of bytes alone
    double roof_us = NAN;
    bool roof_counts = true;  // not slower than is known of this GPU
    std::string roof = "-";   // which: 2R1W
    double error_over_bound = NAN;
    std::string bit_exact = "-";
    std::string note{};  // why there is no time, or how it was taken
    bool ok = true;

    double gb_per_s() const { return useful_bytes / us.median / 1e3; }
    double tflop_per_s() const { return flops / us.median / 1e6; }
    double percent_of_roof() const { return 100 * roof_us / us.median; }
};

// a number, or a dash where there is none
inline std::string cell(const char* format, double value) {
    char text[64];
    std::snprintf(text, sizeof(text), format, value);
    return std::isfinite(value) ? text : std::isinf(value) ? "inf" : "-";
}

// ---- tables: of a problem, of a sweep (a shape a line), of single rows, whose roof is a copy --------------

struct Column {
    const char* name;
    int width;  // < 0: from the left
    std::string text;
};
using Columns = std::vector<Column>;

inline Columns table_columns(const Row& row) {
    const bool flops = row.flops > 0;
    return {{"version", -50, row.version + "  " + row.idea},
            {"block", 5, row.block ? fmt::format("{}", row.block) : "-"},
            {"us", 10, cell("%.2f", row.us.median)},
            {"p20", 10, cell("%.2f", row.us.p20)},
            {"p80", 10, cell("%.2f", row.us.p80)},
            {flops ? "TF/s" : "GB/s", 6, cell("%.0f", flops ? row.tflop_per_s() : row.gb_per_s())},
            {"% roof", 7, cell("%.1f", row.percent_of_roof())},
            {"err/bound", 11, cell("%.4f", row.error_over_bound)}};
}
inline Columns sweep_columns(const Row& row) {
    Columns columns = table_columns(row);
    columns[0] = {"version", -8, row.version};
    columns[3] = {"roof us", 10, cell("%.2f", row.roof_us)};
    columns[4] = {"N x C", 12, fmt::format("{}x{}", row.N, row.C)};
    std::rotate(columns.begin() + 1, columns.begin() + 4, columns.begin() + 5);
    return columns;
}
inline Columns latency_columns(const Row& row) {
    return {{"version", -8, row.version},
            {"C", 7, fmt::format("{}", row.C)},
            {"dtype", 5, row.dtype},
            {"copy us", 10, cell("%.2f", row.roof_us)},
            {"us", 10, cell("%.2f", row.us.median)},
            {"over us", 10, cell("%.2f", row.us.median - row.roof_us)},
            {"err/bound", 11, cell("%.4f", row.error_over_bound)}};
}

inline std::string line_of(const Columns& columns, const std::string& rest, bool names = false) {
    std::string line;
    for (const auto& [name, width, text] : columns) {
        const std::string shown = names ? name : text;
        line += width < 0 ? fmt::format("{:<{}} ", shown, -width) : fmt::format("{:>{}} ", shown, width);
    }
    return line + rest + "\n";
}
inline std::string head_of(const Columns& columns) { return line_of(columns, "bit-exact", true); }
inline std::string line_of(const Columns& columns, const Row& row) {
    return line_of(columns,
                   row.bit_exact + (row.note.empty() ? "" : "  ") + row.note + (row.ok ? "" : "  WRONG"));
}

// ---- JSON ---------------------------------------------------------------------------------------

// JSON has neither NaN nor infinity
inline std::string json_number(double value) {
    return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

// an object, written field by field
class JsonObject {
public:
    JsonObject& raw(const char* name, const std::string& value) {
        text_ += fmt::format("{}{}: {}", text_.empty() ? "" : ", ", json_text(name), value);
        return *this;
    }
    JsonObject& set(const char* name, const std::string& value) { return raw(name, json_text(value)); }
    JsonObject& set(const char* name, const char* value) { return raw(name, json_text(value)); }
    JsonObject& set(std::initializer_list<std::pair<const char*, double>> numbers) {
        for (const auto& [name, value] : numbers) { raw(name, json_number(value)); }
        return *this;
    }
    JsonObject& set(const char* name, bool value) { return raw(name, value ? "true" : "false"); }
    std::string str() const { return "{" + text_ + "}"; }

private:
    std::string text_;
};

inline std::string json_row(const Row& row) {
    JsonObject o;
    o.set("op", row.op).set("version", row.version).set("idea", row.idea).set("dtype", row.dtype);
    o.set({{"N", (double)row.N}, {"C", row.C}, {"block", row.block}, {"launches_per_replay", row.launches}});
    if (row.T > 0) { o.set({{"T", row.T}, {"flops", row.flops}, {"tflop_per_s", row.tflop_per_s()}}); }
    o.set({{"us", row.us.median}, {"p20_us", row.us.p20}, {"p80_us", row.us.p80}});
    o.set({{"useful_bytes", row.useful_bytes}, {"gb_per_s", row.gb_per_s()}});
    o.set("roof", row.roof).set({{"roof_us", row.roof_us}, {"percent_of_roof", row.percent_of_roof()}});
    o.set({{"error_over_bound", row.error_over_bound}}).set("roof_counts", row.roof_counts);
    return o.set("bit_exact", row.bit_exact).set("note", row.note).set("ok", row.ok).str();
}

// ---- files --------------------------------------------------------------------------------------

// Everything that a run measured. save() may be called after every shape: a run cut short keeps what it had.
struct Report {
    JsonObject context;              // the machine, the date
    std::vector<std::string> roofs;  // an object per shape
    std::vector<std::string> rows;
    int wrong = 0, slow_roofs = 0;  // slow: slower than is known of this GPU

    void save(const std::string& path) const {
        auto list = [](const std::vector<std::string>& objects) {
            std::string text;
            for (const auto& object : objects) { text += (text.empty() ? "\n    " : ",\n    ") + object; }
            return "[" + text + "]";
        };
        const std::string text = fmt::format("{{\n  \"context\": {},\n  \"roofs\": {},\n  \"rows\": {}\n}}\n",
                                             context.str(), list(roofs), list(rows));
        std::FILE* file = std::fopen(path.c_str(), "w");
        const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
        if (file == nullptr || std::fclose(file) != 0 || !written) {
            throw Error(kExitUsage, fmt::format("--json: cannot write {}: {}", path, std::strerror(errno)));
        }
    }
};

}  // namespace llmc
