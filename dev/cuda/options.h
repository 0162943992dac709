// The command line of the shootouts, the same for all of them. Host only.
#pragma once
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "dev/cuda/problem.h"
#include "llmc/host/base/error.h"

namespace llmc {

struct ShootoutOptions {
    bool check = false;
    bool warm = true;  // a column of its own
    bool sweep = false;
    bool latency = false;
    bool accumulate = false;
    bool for_sanitizer = false;
    bool verbose = false;
    bool help = false;
    bool explain = false;
    bool sequences = false;         // how shapes are written: Shootout::sequences
    std::vector<std::string> only;  // version names; empty = all
    std::vector<Shape> shapes;      // empty = the shootout's own
    std::vector<Dtype> dtypes;      // empty = the shootout's own
    int block = 0;                  // 0 = try several
    int warps = 0, group_size = 0;  // of the triton rungs; 0 = by the tutorial's rules
    std::string json, csv;          // files; "" = none
    std::string gpu = "sm_90a";     // of --explain
    std::string command;            // all that was typed

    bool wants(const std::string& version) const {
        return only.empty() || std::find(only.begin(), only.end(), version) != only.end();
    }
};

// ---- values -------------------------------------------------------------------------------------

[[noreturn]] inline void bad_value(const char* option, const std::string& value, const char* expected) {
    throw Error(kExitUsage, fmt::format("{}: found '{}', expected {}", option, value, expected));
}

inline std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size();) {
        size_t end = std::min(text.find(separator, begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

// a whole number in [low, high], and nothing else
inline bool read_int(const std::string& text, int64_t low, int64_t high, int64_t* value) {
    errno = 0;
    *value = std::strtoll(text.c_str(), nullptr, 10);
    bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    return digits && errno == 0 && *value >= low && *value <= high;
}

inline Shape parse_shape(const std::string& text) {
    auto parts = split(text, 'x');
    int64_t N = 0, C = 0;
    if (parts.size() != 2 || !read_int(parts[0], 0, INT64_MAX / INT_MAX, &N) ||
        !read_int(parts[1], 1, INT_MAX, &C)) {
        bad_value("--shape", text, "rows x columns, such as 65536x768");
    }
    return {N, (int)C};
}

// of attention: N tokens of C = 64 heads elements
inline Shape parse_sequences(const std::string& text) {
    auto parts = split(text, 'x');
    int64_t B = 0, NH = 0, T = 0;
    constexpr int kMost = INT_MAX / kHeadColumns;
    if (parts.size() != 3 || !read_int(parts[0], 1, kMost, &B) || !read_int(parts[1], 1, kMost, &NH) ||
        !read_int(parts[2], 1, kMost, &T)) {
        bad_value("--shape", text, "sequences x heads x tokens, such as 64x12x1024");
    }
    return {B * T, (int)NH * kHeadColumns, (int)T};
}

inline int parse_int(const char* option, const std::string& text, int most, const char* expected) {
    int64_t value = 0;
    if (!read_int(text, 1, most, &value)) { bad_value(option, text, expected); }
    return (int)value;
}

inline Dtype parse_dtype(const std::string& text) {
    for (Dtype dtype : kDtypes) {
        if (text == format_of(dtype).name) { return dtype; }
    }
    bad_value("--dtype", text, "fp32, bf16, fp16 or fp64");
}

// "2" and "v2" name the same version
inline std::string version_name(const std::string& text) {
    bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    return number ? "v" + text : text;
}

// ---- the table of options -----------------------------------------------------------------------

struct ShootoutOption {
    const char* name;
    const char* argument;  // "" = a switch
    const char* help;
    std::function<void(ShootoutOptions&, const std::string&)> set;
};

inline const std::vector<ShootoutOption>& shootout_options() {
    static const std::vector<ShootoutOption> options = {
        {"--check", "", "check every version and stop; ends 'N passed, N failed, N skipped'",
         [](auto& o, auto&) { o.check = true; }},
        {"--shape", "NxC[,NxC]",
         "these shapes, rows x columns, instead of the usual ones; in bf16 unless --dtype is given;\n"
         "                       of attention: sequences x heads x tokens",
         [](auto& o, auto& v) {
             for (auto& s : split(v, ',')) {
                 o.shapes.push_back(o.sequences ? parse_sequences(s) : parse_shape(s));
             }
         }},
        {"--dtype", "T[,T]", "fp32, bf16, fp16 or fp64 (for versions that have it: the shipped function)",
         [](auto& o, auto& v) {
             for (auto& t : split(v, ',')) { o.dtypes.push_back(parse_dtype(t)); }
         }},
        {"--block", "B", "threads per block; default: several are tried and the fastest is shown",
         [](auto& o, auto& v) { o.block = parse_int("--block", v, 1024, "1 to 1024 threads"); }},
        {"--warps", "W", "triton: warps of a block; default: the tutorial's rule",
         [](auto& o, auto& v) { o.warps = parse_int("--warps", v, 32, "1 to 32 warps"); }},
        {"--group-size-m", "G", "triton, backward: buffers that rows are added into; default: likewise",
         [](auto& o, auto& v) { o.group_size = parse_int("--group-size-m", v, 65536, "1 to 65536"); }},
        {"--sweep", "",
         "4096 rows of 512 i columns, i = 2..31, fp16; the shipped function unless others are named",
         [](auto& o, auto&) { o.sweep = true; }},
        {"--latency", "",
         "single rows of 256 to 16384 columns: us over one block that copies them; versions as in --sweep",
         [](auto& o, auto&) { o.latency = true, o.warm = false; }},
        {"--accumulate", "", "backward: dinp += instead of =, for versions that have it; roof 3R1W",
         [](auto& o, auto&) { o.accumulate = true; }},
        {"--cold", "", "leave out the column of the time when inputs and outputs stay in L2",
         [](auto& o, auto&) { o.warm = false; }},
        {"--json", "FILE", "write every row, and what it was measured on, to FILE",
         [](auto& o, auto& v) { o.json = v; }},
        {"--csv", "FILE", "write the rows to FILE, a line each; --sweep does so without being asked",
         [](auto& o, auto& v) { o.csv = v; }},
        {"--explain", "",
         "LayerNorm: print which kernel and layout takes each --shape, and why; needs no GPU",
         [](auto& o, auto&) { o.explain = true; }},
        {"--gpu", "ARCH", "--explain: for an H100, sm_90a (default), or an A100, sm_80",
         [](auto& o, auto& v) {
             if (v != "sm_90a" && v != "sm_80") { bad_value("--gpu", v, "sm_90a or sm_80"); }
             o.gpu = v;
         }},
        {"--for-sanitizer", "",
         "--check: few repetitions, and outputs start as allocated, for compute-sanitizer",
         [](auto& o, auto&) { o.for_sanitizer = true; }},
        {"--verbose", "", "one line per output: worst error, share of elements not correctly rounded",
         [](auto& o, auto&) { o.verbose = true; }},
        {"--help", "", "this text; -h, too", [](auto& o, auto&) { o.help = true; }},
    };
    return options;
}

inline std::string shootout_help(const char* program) {
    std::string text = fmt::format(
        "Checks and times every version of {} against the CPU reference and the memory roof.\n"
        "usage: dev/cuda/{} [version] [options]\n",
        program, program);
    for (const auto& option : shootout_options()) {
        text += fmt::format("  {:20} {}\n", fmt::format("{} {}", option.name, option.argument), option.help);
    }
    return text +
           "Exit codes: 0 all right, 1 a version is wrong, 2 usage, 4 no CUDA device or not enough memory.\n"
           "How to read the tables: dev/cuda/README.md\n";
}

// throws Error(kExitUsage) naming what is wrong
inline ShootoutOptions parse_shootout_options(int argc, const char* const* argv, bool sequences = false) {
    ShootoutOptions options;
    options.sequences = sequences;
    for (int i = 0; i < argc; i++) { options.command += fmt::format("{}{}", i ? " " : "", argv[i]); }
    for (int i = 1; i < argc; i++) {
        std::string word = argv[i];
        if (!word.starts_with("-")) {
            options.only.push_back(version_name(word));
            continue;
        }
        std::string name = word == "-h" ? "--help" : word.substr(0, word.find('=')), known;
        const ShootoutOption* found = nullptr;
        for (const auto& option : shootout_options()) {
            known += fmt::format(" {}", option.name);
            if (name == option.name) { found = &option; }
        }
        if (!found) {
            throw Error(kExitUsage,
                        fmt::format("unknown option {}; known:{}. --help says more", name, known));
        }
        bool takes_value = *found->argument, has_value = name.size() < word.size();
        if (has_value && !takes_value) { throw Error(kExitUsage, fmt::format("{} takes no value", name)); }
        if (takes_value && !has_value && ++i == argc) {
            throw Error(kExitUsage, fmt::format("{} needs a value: {}", name, found->argument));
        }
        found->set(options, has_value ? word.substr(name.size() + 1) : takes_value ? argv[i] : "");
    }
    if (options.for_sanitizer && !options.check) {
        throw Error(kExitUsage, "--for-sanitizer changes what --check does; give both");
    }
    if (options.check && (options.sweep || options.latency)) {
        throw Error(kExitUsage, "--check goes with neither --sweep nor --latency; ask for them one by one");
    }
    return options;
}

}  // namespace llmc
