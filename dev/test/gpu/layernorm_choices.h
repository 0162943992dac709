// The calls of LayerNorm whose choice of kernel and layout is recorded in dev/test/fixture/layernorm_choices.txt: classes
// of calls that choose alike but for C, and C from 1 to 270,400. Host only.
#pragma once
#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"

namespace llmc::choices {

struct Gpu {
    const char* name;
    int device;  // of dev/emulate/runtime.cpp
    bool hopper;
    int multiprocessors, shared_bytes;
    int cluster;  // blocks of the largest that fits
    int every;    // of longer rows one width in this many is recorded
};
inline constexpr Gpu kGpus[] = {
    {"H100", 4, true, 132, 227 << 10, 16, 1}, {"A100", 5, false, 108, 163 << 10, 1, 1},
    {"sm_86", 6, false, 84, 99 << 10, 1, 7},  {"clusters_of_8", 7, true, 132, 227 << 10, 8, 7},
    {"sm_120", 8, true, 170, 99 << 10, 8, 7}, {"H100_as_sm_80", 9, false, 132, 227 << 10, 1, 7}};

enum class Op { kForward, kResidual, kBackward, kAccumulate };
inline constexpr const char* kOps[] = {"forward", "residual", "backward", "accumulate"};

// lines: C is whole lines of 128 bytes, or is not
struct Case {
    Op op;
    int bytes;
    bool same;  // weights of the rows' type; else fp32
    int piece;  // elements that all of the call is aligned to, C at least
    bool aligned_weights, lines;
    int64_t N;

    std::string name() const {
        return fmt::format("{} {}-byte{} piece {}{}{} N={}", kOps[(int)op], bytes,
                           same ? "" : " fp32-weights", piece, aligned_weights ? "" : " unaligned-weights",
                           lines ? " lines" : "", N);
    }
};

inline std::vector<Case> cases() {
    std::vector<Case> all;
    for (Op op : {Op::kForward, Op::kResidual, Op::kBackward, Op::kAccumulate}) {
        bool forward = op == Op::kForward || op == Op::kResidual;
        for (auto [bytes, same] : {std::pair{2, true}, {2, false}, {4, true}, {8, true}}) {
            for (int piece = 16 / bytes; piece > 0; piece /= 2) {
                bool whole = piece == 16 / bytes;
                for (bool aligned : {true, false}) {
                    if (!aligned && (whole || op != Op::kForward)) { continue; }
                    for (bool lines : {false, true}) {
                        if (lines && !whole) { continue; }
                        for (int64_t N : {4096, 30, 1}) {
                            if (N < 4096 && !(whole && forward)) { continue; }
                            all.push_back({op, bytes, same, piece, aligned, lines, N});
                        }
                    }
                }
            }
        }
    }
    return all;
}

constexpr int kMostWidth = 270400, kEachWidth = 2200;

// visit(C) for the widths of a class, in order; every: of those beyond kEachWidth
template <typename Visit>
void each_width(const Case& c, int every, const Visit& visit) {
    bool whole = c.piece == 16 / c.bytes;
    for (int C = c.piece; C <= kMostWidth; C += C < kEachWidth ? c.piece : every * c.piece) {
        if (!whole || (C % (128 / c.bytes) == 0) == c.lines) { visit(C); }
    }
}

// of a class and GPU: from which width on which choice
using Runs = std::map<int, std::string>;

// by "GPU: class"
inline std::map<std::string, Runs> read_choices(const std::string& path) {
    std::ifstream file(path);
    std::map<std::string, Runs> all;
    std::vector<std::string> names;
    bool was_run = true;
    for (std::string line; std::getline(file, line);) {
        if (line.empty() || line[0] == '#') { continue; }
        if (line[0] != ' ') {
            if (was_run) { names.clear(); }
            names.push_back(line);
        } else {
            for (size_t at = 2, end = 0; at < line.size(); at = end + 2) {
                end = std::min(line.find(';', at), line.size());
                size_t space = line.find(' ', at);
                int C = std::stoi(line.substr(at));
                for (const auto& name : names) { all[name][C] = line.substr(space + 1, end - space - 1); }
            }
        }
        was_run = line[0] == ' ';
    }
    return all;
}

// the text of widths' choices, the same of several classes once
inline std::string written(const std::map<std::string, Runs>& all) {
    std::map<Runs, std::string> names;
    for (const auto& [name, runs] : all) { names[runs] += name + "\n"; }
    std::map<std::string, Runs> sorted;
    for (const auto& [runs, name] : names) { sorted[name] = runs; }
    std::string text;
    for (const auto& [name, runs] : sorted) {
        text += name;
        size_t begin = text.size();
        for (const auto& [C, choice] : runs) {
            std::string run = fmt::format("{} {}", C, choice);
            bool full = text.size() - begin + run.size() > 108;
            if (full) { text += "\n", begin = text.size(); }
            text += (text.size() == begin ? "  " : "; ") + run;
        }
        text += "\n";
    }
    return text;
}

}  // namespace llmc::choices
