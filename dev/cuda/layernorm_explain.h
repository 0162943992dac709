// --explain: which kernel and layout choose.h chooses for a shape, and why. Host only.
#pragma once
#include <string>

#include "dev/cuda/options.h"
#include "llmc/layernorm/choose.h"

namespace llmc {

// of layernorm::Kernel
inline constexpr const char* kKernelNames[] = {"short_rows",     "row_in_registers", "team_ring",
                                               "unaligned_rows", "cp_async_teams",   "cp_async_pipelined",
                                               "the sum first",  "fallback"};

enum class LayerNormOp { kForward, kResidual, kBackward };

// the layout's cluster, and for what it is there
inline std::string layout_text(LayerNormOp op, const layernorm::Call& call, const layernorm::Choice& choice) {
    using layernorm::Kernel;
    const int i = choice.layout;
    const bool forward = op != LayerNormOp::kBackward, half = call.bytes == 2, whole = call.whole();
    auto use = [&](const char* table, const auto& rows) {
        return fmt::format("layout {} of {}: {}", i, table, rows[i].use);
    };
    switch (choice.kernel) {
        case Kernel::kShortRows:
            if (forward) {
                return whole ? use("kShortForward", layouts::kShortForward)
                             : use("kShortForwardPieces", layouts::kShortForwardPieces);
            }
            return whole ? use("kShortBackward", layouts::kShortBackward)
                         : use("kShortBackwardPieces", layouts::kShortBackwardPieces);
        case Kernel::kRowInRegisters:
            if (call.mixed) { return use("kRowInRegistersMixed", layouts::kRowInRegistersMixed); }
            return half ? use("kRowInRegisters16", layouts::kRowInRegisters16)
                        : use("kRowInRegisters32", layouts::kRowInRegisters32);
        case Kernel::kTeamRing:
            if (call.mixed) { return use("kTeamRingMixed", layouts::kTeamRingMixed); }
            return half ? use("kTeamRing16", layouts::kTeamRing16) : use("kTeamRing32", layouts::kTeamRing32);
        case Kernel::kUnalignedRows:
            return forward ? use("kUnalignedForward", layouts::kUnalignedForward)
                           : use("kUnalignedBackward", layouts::kUnalignedBackward);
        case Kernel::kCpAsyncTeams:
            return fmt::format("{} warps to a row, {} teams, {} stages", choice.teams.warps,
                               choice.teams.teams, choice.teams.stages);
        case Kernel::kCpAsyncPipelined:
            return fmt::format("layout {}, {} blocks to a row", i, choice.blocks);
        default:
            return fmt::format("{} elements an access", choice.piece);
    }
}

inline std::string reason_for(const layernorm::Call& call, const layernorm::Choice& choice) {
    // of layernorm::Kernel
    static constexpr const char* kReasons[] = {
        "some lanes of a warp have a row, in pieces",
        "whole aligned vectors, and the registers of a warp, a block or a cluster hold a row",
        "whole aligned vectors, on Hopper: teams of warps behind rings of bulk copies",
        "rows are not whole aligned vectors",
        "whole aligned vectors without TMA: a block's registers hold a row between its halves",
        "a row fills a block: it stays in shared memory between its halves",
        "a residual of rows that are not whole vectors is added first, then the plain call is chosen for",
        "no other kernel takes such rows"};
    using layernorm::Kernel;
    std::string reason = kReasons[(int)choice.kernel];
    if (choice.kernel == Kernel::kShortRows) { return fmt::format("{} of {}", reason, choice.piece); }
    if (choice.kernel == Kernel::kUnalignedRows) {
        return fmt::format("{}: {} elements at a time at most", reason, call.piece);
    }
    if (!choice.spread) { return reason; }
    return fmt::format("{} rows are fewer than multiprocessors: a row is spread over {} blocks", call.N,
                       choice.cluster);
}

// of contiguous, aligned tensors: a line for each shape and type
inline std::string explained(LayerNormOp op, const ShootoutOptions& o) {
    using namespace layernorm;
    const bool hopper = o.gpu != "sm_80";
    const Gpu gpu = hopper ? kH100 : kA100;
    if (o.shapes.empty()) {
        throw Error(kExitUsage, "--explain: found no --shape, expected one, such as 4096x1000");
    }
    std::string text;
    for (const Shape& shape : o.shapes) {
        for (Dtype dtype : o.dtypes.empty() ? std::vector{Dtype::kBf16} : o.dtypes) {
            Call call{.N = shape.N, .C = shape.C, .bytes = (int)format_of(dtype).bytes, .piece = 1};
            call.piece = call.vector();
            call.mixed = o.out.has_value();
            const int widest =
                call.mixed && op == LayerNormOp::kBackward ? 2 : 1;  // of dout, too, whole vectors
            while (shape.C % (call.piece * widest) != 0 && call.piece > 1) { call.piece /= 2; }
            call.adds = op == LayerNormOp::kResidual || o.accumulate;
            auto line = [&](const Choice& choice) {
                text += fmt::format("{}x{} {} on {}: {}, {}\n    {}\n", shape.N, shape.C,
                                    format_of(dtype).name, hopper ? "an H100 (sm_90a)" : "an A100 (sm_80)",
                                    kKernelNames[(int)choice.kernel], layout_text(op, call, choice),
                                    reason_for(call, choice));
            };
            if (op == LayerNormOp::kBackward) {
                line(*choose_backward(call, gpu));
                continue;
            }
            const Choice choice = *choose_forward(call, gpu);
            line(choice);
            if (choice.kernel == Kernel::kSumFirst) {
                call.adds = false;
                line(*choose_forward(call, gpu));
            }
        }
    }
    return text;
}

}  // namespace llmc
