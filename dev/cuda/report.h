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
    double warm_us = NAN;
    double useful_bytes = 0, flops = 0;  // flops: of an op that is not a matter of bytes alone
    double roof_us = NAN, roof_known_us = NAN;
    bool roof_counts = true;  // not slower than is known of this GPU
    std::string roof = "-";   // which: 2R1W
    double error_over_bound = NAN;
    double misrounded = NAN;  // share of the elements of T that are not the truth correctly rounded
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

inline std::string table_head(bool warm, bool flops = false) {
    return fmt::format("{:50} {:>5} {:>10} {:>10} {:>10}{} {:>6} {:>7} {:>11} {}\n", "version", "block", "us",
                       "p20", "p80", warm ? "    warm us" : "", flops ? "TF/s" : "GB/s", "% roof",
                       "err/bound", "bit-exact");
}

inline std::string table_line(const Row& row, bool warm) {
    std::string line = fmt::format("{:50} {:>5}", row.version + "  " + row.idea,
                                   row.block ? fmt::format("{}", row.block) : "-");
    for (double us : {row.us.median, row.us.p20, row.us.p80}) {
        line += fmt::format(" {:>10}", cell("%.2f", us));
    }
    if (warm) { line += fmt::format(" {:>10}", cell("%.2f", row.warm_us)); }
    double rate = row.flops > 0 ? row.tflop_per_s() : row.gb_per_s();
    line += fmt::format(" {:>6} {:>7} {:>11} {}", cell("%.0f", rate), cell("%.1f", row.percent_of_roof()),
                        cell("%.4f", row.error_over_bound), row.bit_exact);
    if (!row.note.empty()) { line += "  " + row.note; }
    return line + (row.ok ? "\n" : "  WRONG\n");
}

// ---- JSON ---------------------------------------------------------------------------------------

inline std::string json_string(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') { out += '\\'; }
        out += (unsigned char)c < 0x20 ? ' ' : c;
    }
    return out + '"';
}

// JSON has neither NaN nor infinity
inline std::string json_number(double value) {
    return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

// an object, written field by field
class JsonObject {
public:
    JsonObject& raw(const char* name, const std::string& value) {
        text_ += fmt::format("{}{}: {}", text_.empty() ? "" : ", ", json_string(name), value);
        return *this;
    }
    JsonObject& set(const char* name, const std::string& value) { return raw(name, json_string(value)); }
    JsonObject& set(const char* name, const char* value) { return raw(name, json_string(value)); }
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
    o.set({{"us", row.us.median}, {"p20_us", row.us.p20}, {"p80_us", row.us.p80}, {"warm_us", row.warm_us}});
    o.set({{"useful_bytes", row.useful_bytes}, {"gb_per_s", row.gb_per_s()}});
    o.set("roof", row.roof).set({{"roof_us", row.roof_us}, {"percent_of_roof", row.percent_of_roof()}});
    o.set({{"error_over_bound", row.error_over_bound}, {"misrounded_share", row.misrounded}});
    return o.set("bit_exact", row.bit_exact).set("note", row.note).set("ok", row.ok).str();
}

// ---- CSV ----------------------------------------------------------------------------------------

inline std::string csv_head() {
    return "op,version,idea,dtype,N,C,block,us,p20_us,p80_us,warm_us,useful_bytes,gb_per_s,roof,roof_us,"
           "percent_of_roof,error_over_bound,misrounded_share,bit_exact,ok,note,roof_known_us,roof_counts\n";
}

// what is not a number stays empty; texts are quoted
inline std::string csv_row(const Row& row) {
    auto text = [](const std::string& words) {
        std::string out = "\"";
        for (char c : words) { out += c == '"' ? "\"\"" : std::string(1, c); }
        return out + "\",";
    };
    auto numbers = [](std::initializer_list<double> values) {
        std::string out;
        for (double value : values) {
            out += (std::isfinite(value) ? fmt::format("{:.9g}", value) : "") + ",";
        }
        return out;
    };
    return text(row.op) + text(row.version) + text(row.idea) + text(row.dtype) +
           numbers({(double)row.N, (double)row.C, (double)row.block, row.us.median, row.us.p20, row.us.p80,
                    row.warm_us, row.useful_bytes, row.gb_per_s()}) +
           text(row.roof) +
           numbers({row.roof_us, row.percent_of_roof(), row.error_over_bound, row.misrounded}) +
           text(row.bit_exact) + (row.ok ? "1," : "0,") + text(row.note) + numbers({row.roof_known_us}) +
           (row.roof_counts ? "yes\n" : "no\n");
}

// a shape a line, for --sweep
inline std::string sweep_head(bool warm) {
    return fmt::format("{:8} {:>12} {:>5} {:>10}{} {:>6} {:>10} {:>7} {:>11} {}\n", "version", "N x C",
                       "block", "us", warm ? "    warm us" : "", "GB/s", "roof us", "% roof", "err/bound",
                       "bit-exact");
}
inline std::string sweep_line(const Row& row, bool warm) {
    std::string line =
        fmt::format("{:8} {:>12} {:>5} {:>10}", row.version, fmt::format("{}x{}", row.N, row.C),
                    row.block ? fmt::format("{}", row.block) : "-", cell("%.2f", row.us.median));
    if (warm) { line += fmt::format(" {:>10}", cell("%.2f", row.warm_us)); }
    line +=
        fmt::format(" {:>6} {:>10} {:>7} {:>11} {}", cell("%.0f", row.gb_per_s()), cell("%.2f", row.roof_us),
                    cell("%.1f", row.percent_of_roof()), cell("%.4f", row.error_over_bound), row.bit_exact);
    if (!row.note.empty()) { line += "  " + row.note; }
    return line + (row.ok ? "\n" : "  WRONG\n");
}

// one row, for --latency; its roof is the copy
inline std::string latency_head(bool) {
    return fmt::format("{:8} {:>7} {:>5} {:>10} {:>10} {:>10} {:>11} {}\n", "version", "C", "dtype",
                       "copy us", "us", "over us", "err/bound", "bit-exact");
}
inline std::string latency_line(const Row& row, bool) {
    std::string line = fmt::format("{:8} {:7} {:>5} {:>10} {:>10} {:>10} {:>11} {}", row.version, row.C,
                                   row.dtype, cell("%.2f", row.roof_us), cell("%.2f", row.us.median),
                                   cell("%.2f", row.us.median - row.roof_us),
                                   cell("%.4f", row.error_over_bound), row.bit_exact);
    if (!row.note.empty()) { line += "  " + row.note; }
    return line + (row.ok ? "\n" : "  WRONG\n");
}

// ---- files --------------------------------------------------------------------------------------

// Everything that a run measured. save() may be called after every shape: a run cut short keeps what it had.
struct Report {
    JsonObject context;              // the machine, the date
    std::vector<std::string> roofs;  // an object per shape
    std::vector<std::string> rows;
    std::string csv = csv_head();
    int wrong = 0, slow_roofs = 0;  // slow: slower than is known of this GPU

    void save(const std::string& path) const {
        auto list = [](const std::vector<std::string>& objects) {
            std::string text;
            for (const auto& object : objects) { text += (text.empty() ? "\n    " : ",\n    ") + object; }
            return "[" + text + "]";
        };
        write("--json", path,
              fmt::format("{{\n  \"context\": {},\n  \"roofs\": {},\n  \"rows\": {}\n}}\n", context.str(),
                          list(roofs), list(rows)));
    }
    void save_csv(const std::string& path) const { write("--csv", path, csv); }

private:
    static void write(const char* option, const std::string& path, const std::string& text) {
        std::FILE* file = std::fopen(path.c_str(), "w");
        bool ok = file != nullptr;
        if (ok) {
            ok = std::fwrite(text.data(), 1, text.size(), file) == text.size();
            ok = std::fclose(file) == 0 && ok;
        }
        if (!ok) {
            throw Error(kExitUsage,
                        fmt::format("{}: cannot write {}: {}", option, path, std::strerror(errno)));
        }
    }
};

}  // namespace llmc
