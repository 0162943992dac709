// The command line of the shootouts, the same for all of them. Host only.
#pragma once
#include <algorithm>
#include <climits>
#include <string>
#include <vector>

#include "dev/cuda/problem.h"
#include "llmc/host/options/table.h"

namespace llmc {

struct ShootoutOptions {
    bool check = false, sweep = false, latency = false, explain = false;
    bool accumulate = false, dropout = false, copy = false, for_sanitizer = false;
    std::optional<Dtype> out{};     // of mixed calls
    bool sequences = false;         // how shapes are written: Shootout::sequences
    std::vector<std::string> only;  // version names; empty = all
    std::vector<Shape> shapes;      // empty = the shootout's own
    std::vector<Dtype> dtypes;      // empty = the shootout's own
    int block = 0;                  // 0 = try several
    std::string json;               // file; "" = none
    std::string gpu = "sm_90a";     // of --explain
    std::string command;            // all that was typed

    bool wants(const std::string& version) const {
        return only.empty() || std::ranges::find(only, version) != only.end();
    }
};

// rows x columns; of attention sequences x heads x tokens: N tokens of C = 64 heads elements
inline Shape parse_shape(const std::string& text, bool sequences) {
    std::vector<int64_t> n;
    bool known = true;
    for (const std::string& part : split(text, 'x')) {
        const Range range = sequences   ? Range{1, INT_MAX / kHeadColumns}
                            : n.empty() ? Range{0, (double)(INT64_MAX / INT_MAX)}
                                        : Range{1, INT_MAX};
        known = known && Field(&n).set({.range = range}, part).empty();
    }
    if (known && sequences && n.size() == 3) { return {n[0] * n[2], (int)n[1] * kHeadColumns, (int)n[2]}; }
    if (known && !sequences && n.size() == 2) { return {n[0], (int)n[1]}; }
    fail_usage("--shape: found " + in_quotes(text) + ", expected " +
               (sequences ? "sequences x heads x tokens, such as 64x12x1024."
                          : "rows x columns, such as 65536x768."));
}

// False: --help was asked for, and has been printed.
inline bool parse_shootout_options(int argc, const char* const* argv, const std::string& program,
                                   ShootoutOptions* options) {
    ShootoutOptions& o = *options;
    for (int i = 0; i < argc; i++) { o.command += fmt::format("{}{}", i > 0 ? " " : "", argv[i]); }
    Table t(
        "dev/cuda/" + program,
        "Checks and times every version of " + program + " against the CPU reference and the memory roof.",
        "Exit codes: 0 all right, 1 a version is wrong, 2 usage, 4 no CUDA device or not enough memory.\n"
        "How to read the tables: dev/cuda/README.md\n");
    const auto read_version = [&o](const std::string& text) {  // "2" and "v2" name the same version
        o.only.push_back(text.find_first_not_of("0123456789") == text.npos ? "v" + text : text);
    };
    const auto read_shape = [&o](const std::string& text) {
        o.shapes.push_back(parse_shape(text, o.sequences));
    };
    const auto read_dtype = [&o](const std::string& text) {
        const auto name = [](Dtype dtype) { return format_of(dtype).name; };
        o.dtypes.push_back(*std::ranges::find(kDtypes, text, name));
    };
    t.add("version", read_version, {.repeats = true}, "all of them, if none is named");
    t.add("--check", &o.check, {.rivals = "sweep latency"},
          "check every version and stop; ends 'N passed, N failed, N skipped'");
    t.add("--shape NxC[,NxC]", read_shape, {.listed = true},
          "instead of the usual ones, in bf16 unless --dtype is given: rows x columns; of attention "
          "sequences x heads x tokens");
    t.add("--dtype T[,T]", read_dtype, {.choices = "fp32 bf16 fp16 fp64", .listed = true},
          "fp64 is for versions that have it: the shipped function");
    t.add("--block B", &o.block, {1, 1024, "threads"},
          "threads per block; left out: several are tried and the fastest is shown");
    t.add("--sweep", &o.sweep,
          "4096 rows of 512 i columns, i = 2..31, fp16; the shipped function unless others are named");
    t.add("--latency", &o.latency, "single rows of 256 to 16384 columns: us over one block that copies them");
    t.add("--accumulate", &o.accumulate, "backward: dinp += instead of =; roof 3R1W");
    const auto read_out = [&o](const std::string& text) {
        o.out = text == "bf16" ? Dtype::kBf16 : Dtype::kFp16;
        o.dtypes = {Dtype::kFp32};
    };
    t.add("--out T", read_out, {.choices = "bf16 fp16", .rivals = "dtype dropout sweep latency"},
          "LayerNorm: rows of fp32, forward's out or backward's dout of T; roof 2R1W, backward 3R2W, += 5R2W "
          "of T");
    t.add("--copy", &o.copy, {.needed = "out"}, "backward: a copy of dinp in T is written, too");
    t.add("--dropout", &o.dropout,
          "half of the second input is dropped; backward: a second stream is written, of dinp so dropped");
    t.add("--json FILE", &o.json,
          "write every row, and what it was measured on, to FILE; --sweep does so without being asked");
    t.add("--explain", &o.explain, "LayerNorm: which kernel and layout takes each --shape, and why");
    t.add("--gpu ARCH", &o.gpu, {.choices = "sm_90a sm_80"}, "of --explain: an H100 or an A100");
    t.add("--for-sanitizer", &o.for_sanitizer, {.needed = "check"},
          "--check: few repetitions, and outputs start as allocated, for compute-sanitizer");
    return t.parse(argc, argv).has_value();
}

}  // namespace llmc
