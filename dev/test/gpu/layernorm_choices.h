// Classes of calls of LayerNorm that choose alike but for C, what choose.h chooses for each, and from which C to which. Host
// only.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/layernorm/choose.h"

namespace llmc::choices {

struct Gpu {
    const char* name;
    int device;  // of dev/emulate/runtime.cpp
    layernorm::Gpu facts;
};
// H100: and H200
inline constexpr Gpu kGpus[] = {
    {"H100", 4, layernorm::kH100},           {"A100", 5, layernorm::kA100},
    {"sm_86", 6, {false, 84, 99 << 10, 1}},  {"clusters_of_8", 7, {true, 132, 227 << 10, 8}},
    {"sm_120", 8, {true, 170, 99 << 10, 8}}, {"H100_as_sm_80", 9, {false, 132, 227 << 10, 1}}};

enum class Op { kForward, kResidual, kBackward, kAccumulate };
inline constexpr const char* kOps[] = {"forward", "residual", "backward", "accumulate"};

// lines: C is whole lines of 128 bytes, or is not
struct Case {
    Op op;
    int bytes;
    bool same = true;  // weights of the rows' type; else fp32
    int piece;         // elements that all of the call is aligned to, C at least
    bool aligned_weights = true, lines = false;
    int64_t N = 4096;

    bool whole() const { return piece == 16 / bytes; }
    bool forward() const { return op == Op::kForward || op == Op::kResidual; }
    bool adds() const { return op == Op::kResidual || op == Op::kAccumulate; }
    std::string name() const {
        return fmt::format("{} {}-byte{} piece {}{}{} N={}", kOps[(int)op], bytes,
                           same ? "" : " fp32-weights", piece, aligned_weights ? "" : " unaligned-weights",
                           lines ? " lines" : "", N);
    }
    layernorm::Call call(int C) const {
        return {.N = N,
                .C = C,
                .bytes = bytes,
                .piece = piece,
                .same_weights = same,
                .aligned_weights = aligned_weights,
                .adds = adds()};
    }
    layernorm::Choice choose(const Gpu& gpu, int C) const {
        return *(forward() ? choose_forward(call(C), gpu.facts) : choose_backward(call(C), gpu.facts));
    }
};

inline std::vector<Case> cases() {
    std::vector<Case> all;
    for (Op op : {Op::kForward, Op::kResidual, Op::kBackward, Op::kAccumulate}) {
        for (auto [bytes, same] : {std::pair{2, true}, {2, false}, {4, true}, {8, true}}) {
            for (int piece = 16 / bytes; piece > 0; piece /= 2) {
                Case c{op, bytes, same, piece};
                for (c.aligned_weights = true;; c.aligned_weights = false) {
                    for (c.lines = false;; c.lines = true) {
                        for (int64_t N : {4096, 30, 1}) {
                            c.N = N;
                            if (N == 4096 || (c.whole() && c.forward())) { all.push_back(c); }
                        }
                        if (c.lines || !c.whole()) { break; }
                    }
                    if (!c.aligned_weights || c.whole() || op != Op::kForward) { break; }
                }
            }
        }
    }
    return all;
}

// a kernel and its layout: which row of a table of the forward, what the row says of the backward
inline std::string text_of(const Case& c, const layernorm::Choice& choice) {
    using enum layernorm::Kernel;
    const int i = choice.layout;
    auto numbers = [](const char* kernel, auto... n) {
        std::string text = kernel;
        ((text += fmt::format("{}{}", text.size() == std::string(kernel).size() ? "." : ",", n)), ...);
        return text;
    };
    switch (choice.kernel) {
        case kShortRows:
            if (c.forward()) {
                return fmt::format("short_rows.{}{} in {}", c.whole() ? "" : "pieces.", i, choice.piece);
            }
            return fmt::format(
                "short_rows.lanes {} in {}",
                c.whole() ? layouts::kShortBackward[i].lanes : layouts::kShortBackwardPieces[i].lanes,
                choice.piece);
        case kRowInRegisters:
            return fmt::format("row_in_registers.{}{}", i, choice.spread ? " spread" : "");
        case kTeamRing: {
            const auto& layout = c.bytes == 2 ? layouts::kTeamRing16[i] : layouts::kTeamRing32[i];
            const layouts::TeamRing& ring = c.adds() ? layout.add : layout.write;
            return numbers("team_ring", ring.cluster, ring.warps, ring.teams, ring.vector, ring.vectors,
                           ring.stages);
        }
        case kUnalignedRows: {
            if (c.forward()) { return numbers("unaligned_rows", i); }
            const auto& layout = layouts::kUnalignedBackward[i];
            return numbers("unaligned_rows", layout.columns, layout.unguarded, layout.cluster);
        }
        case kCpAsyncTeams: {
            const auto& layout =
                layernorm::for_bytes(c.bytes, layouts::kCpAsyncTeams16, layouts::kCpAsyncTeams32)[i];
            return fmt::format("cp_async_teams.{} {}", layout.vectors, (int)!layout.reread);
        }
        case kCpAsyncPipelined: {
            const auto& layout =
                layernorm::for_bytes(c.bytes, layouts::kCpAsyncPipelined16, layouts::kCpAsyncPipelined32)[i];
            return fmt::format("cp_async_pipelined.{},{},{} {}", layout.vectors, layout.lead, layout.stages,
                               (int)layout.keeps_weight);
        }
        case kSumFirst:
            return "sum";
        case kFallback:
            return fmt::format("fallback.{}", choice.piece);
    }
    return "?";
}

// the widths of a class, in order
constexpr int kMostWidth = 300'000, kEachWidth = 4200;
inline std::vector<int> widths_of(const Case& c) {
    std::vector<int> all;
    for (int C = c.piece; C <= kMostWidth; C += c.piece) {
        if (!c.whole() || (C % (128 / c.bytes) == 0) == c.lines) { all.push_back(C); }
    }
    return all;
}

// neighbours that have the same kernel and layout; behind kEachWidth every 13th is asked, and all where that changes
struct Run {
    int first, last;  // columns
    std::string text;
};
inline std::vector<Run> runs_of(const Gpu& gpu, const Case& c) {
    const std::vector<int> widths = widths_of(c);
    auto choice_at = [&](size_t at) { return c.choose(gpu, widths[at]); };
    std::vector<Run> runs;
    for (size_t at = 0; at < widths.size();) {
        const layernorm::Choice first = choice_at(at);
        auto same = [&](const layernorm::Choice& b) {
            return first.kernel == b.kernel && first.layout == b.layout && first.piece == b.piece &&
                   first.spread == b.spread;
        };
        size_t in = at, out = at;
        while (out < widths.size() && same(choice_at(out))) {
            in = out;
            out += widths[out] < kEachWidth ? 1 : 13;
        }
        for (out = std::min(out, widths.size()); out - in > 1;) {
            const size_t middle = in + (out - in) / 2;
            (same(choice_at(middle)) ? in : out) = middle;
        }
        runs.push_back({widths[at], widths[in], text_of(c, first)});
        at = out;
    }
    return runs;
}

}  // namespace llmc::choices
