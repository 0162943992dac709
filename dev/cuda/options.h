// The command line of the shootouts, the same for all of them. Host only.
#pragma once
#include <algorithm>
#include <charconv>
#include <climits>
#include <sstream>
#include <string>
#include <vector>

#include "dev/cuda/problem.h"
#include "llmc/host/base/error.h"
#include "llmc/host/options/table.h"
#include "llmc/host/options/typed_text.h"

namespace llmc {

struct ShootoutOptions {
    bool check = false, sweep = false, latency = false, explain = false;
    bool accumulate = false, for_sanitizer = false;
    bool cold = false, warm = true;  // warm: a column of its own
    bool sequences = false;          // how shapes are written: Shootout::sequences
    std::vector<std::string> only;   // version names; empty = all
    std::vector<Shape> shapes;       // empty = the shootout's own
    std::vector<Dtype> dtypes;       // empty = the shootout's own
    int block = 0;                   // 0 = try several
    std::string json;                // file; "" = none
    std::string gpu = "sm_90a";      // of --explain
    std::string command;             // all that was typed

    bool wants(const std::string& version) const {
        return only.empty() || std::find(only.begin(), only.end(), version) != only.end();
    }
};

inline std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream in(text + separator);
    for (std::string part; std::getline(in, part, separator);) { parts.push_back(part); }
    return parts;
}

// rows x columns; of attention sequences x heads x tokens: N tokens of C = 64 heads elements
inline Shape parse_shape(const std::string& text, bool sequences) {
    constexpr int64_t kMost = INT_MAX / kHeadColumns;
    const auto most = sequences ? std::vector<int64_t>{kMost, kMost, kMost}
                                : std::vector<int64_t>{INT64_MAX / INT_MAX, INT_MAX};
    std::vector<int64_t> sizes;
    bool known = true;
    for (const std::string& part : split(text, 'x')) {
        const size_t i = sizes.size();
        const auto [end, code] =
            std::from_chars(part.data(), part.data() + part.size(), sizes.emplace_back());
        known = known && i < most.size() && code == std::errc() && end == part.data() + part.size() &&
                sizes[i] >= (sequences || i > 0) && sizes[i] <= most[i];
    }
    if (!known || sizes.size() != most.size()) {
        fail_usage("--shape: found " + in_quotes(text) + ", expected " +
                   (sequences ? "sequences x heads x tokens, such as 64x12x1024"
                              : "rows x columns, such as 65536x768"));
    }
    if (!sequences) { return {sizes[0], (int)sizes[1]}; }
    return {sizes[0] * sizes[2], (int)sizes[1] * kHeadColumns, (int)sizes[2]};
}

inline Dtype parse_dtype(const std::string& text) {
    for (Dtype dtype : kDtypes) {
        if (text == format_of(dtype).name) { return dtype; }
    }
    fail_usage("--dtype: found " + in_quotes(text) + ", expected fp32, bf16, fp16 or fp64");
}

inline Table shootout_table(ShootoutOptions* options, const char* program) {
    ShootoutOptions& o = *options;
    Table t(std::string("dev/cuda/") + program,
            fmt::format("Checks and times every version of {} against the CPU reference and the memory roof.",
                        program),
            "Exit codes: 0 all right, 1 a version is wrong, 2 usage, 4 no CUDA device or not enough memory.\n"
            "How to read the tables: dev/cuda/README.md\n");
    t.add("version", &o.only, {.repeats = true}, "all of them, if none is named");
    t.add("--check", &o.check, "check every version and stop; ends 'N passed, N failed, N skipped'");
    const auto read_shapes = [&o](const std::string& text) {
        for (const std::string& shape : split(text, ',')) {
            o.shapes.push_back(parse_shape(shape, o.sequences));
        }
    };
    t.add("--shape NxC[,NxC]", read_shapes, {.repeats = true},
          "these shapes, rows x columns, instead of the usual ones; in bf16 unless --dtype is given; of "
          "attention: sequences x heads x tokens");
    const auto read_dtypes = [&o](const std::string& text) {
        for (const std::string& dtype : split(text, ',')) { o.dtypes.push_back(parse_dtype(dtype)); }
    };
    t.add("--dtype T[,T]", read_dtypes, {.repeats = true},
          "fp32, bf16, fp16 or fp64 (for versions that have it: the shipped function)");
    t.add("--block B", &o.block, {1, 1024, "threads"},
          "threads per block; left out: several are tried and the fastest is shown");
    t.add("--sweep", &o.sweep,
          "4096 rows of 512 i columns, i = 2..31, fp16; the shipped function unless others are named");
    t.add("--latency", &o.latency,
          "single rows of 256 to 16384 columns: us over one block that copies them; versions as in --sweep");
    t.add("--accumulate", &o.accumulate,
          "backward: dinp += instead of =, for versions that have it; roof 3R1W");
    t.add("--cold", &o.cold, "leave out the column of the time when inputs and outputs stay in L2");
    t.add("--json FILE", &o.json,
          "write every row, and what it was measured on, to FILE; --sweep does so without being asked");
    t.add("--explain", &o.explain,
          "LayerNorm: print which kernel and layout takes each --shape, and why; needs no GPU");
    t.add("--gpu ARCH", &o.gpu, {.choices = "sm_90a sm_80"},
          "--explain: for an H100, sm_90a, or an A100, sm_80");
    t.add("--for-sanitizer", &o.for_sanitizer, {.needed = "check"},
          "--check: few repetitions, and outputs start as allocated, for compute-sanitizer");
    return t;
}

// False: --help was asked for, and has been printed.
inline bool parse_shootout_options(int argc, const char* const* argv, const char* program,
                                   ShootoutOptions* o) {
    for (int i = 0; i < argc; i++) { o->command += fmt::format("{}{}", i > 0 ? " " : "", argv[i]); }
    if (!parse_table(shootout_table(o, program), argc, argv)) { return false; }
    for (std::string& version : o->only) {  // "2" and "v2" name the same version
        if (version.find_first_not_of("0123456789") == version.npos) { version = "v" + version; }
    }
    o->warm = !o->cold && !o->latency;
    if (o->check && (o->sweep || o->latency)) {
        fail_usage("--check goes with neither --sweep nor --latency; ask for them one by one");
    }
    return true;
}

}  // namespace llmc
