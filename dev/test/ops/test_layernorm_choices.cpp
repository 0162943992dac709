// choose.h against the table of what LayerNorm's launchers launched when it was recorded, and --explain.
#include <doctest/doctest.h>

#include "dev/cuda/layernorm_explain.h"
#include "dev/test/gpu/layernorm_choices.h"
#include "llmc/layernorm/choose.h"

using namespace llmc;
using namespace llmc::layernorm;
using choices::Case, choices::Op;

namespace {

std::string forward_text(const Case& c, const Choice& choice) {
    bool whole = c.piece == 16 / c.bytes;
    if (choice.kernel == Kernel::kShortRows) {
        return fmt::format("short_rows.{}{} in {}", whole ? "" : "pieces.", choice.layout, choice.piece);
    }
    if (choice.kernel == Kernel::kRowInRegisters) {
        return fmt::format("row_in_registers.{}{}", choice.layout, choice.spread ? " spread" : "");
    }
    if (choice.kernel == Kernel::kUnalignedRows) { return fmt::format("unaligned_rows.{}", choice.layout); }
    return choice.kernel == Kernel::kSumFirst ? "sum" : fmt::format("fallback.{}", choice.piece);
}

std::string backward_text(const Case& c, const Choice& choice) {
    const int i = choice.layout;
    switch (choice.kernel) {
        case Kernel::kShortRows: {
            bool whole = c.piece == 16 / c.bytes;
            int lanes = whole ? layouts::kShortBackward[i].lanes : layouts::kShortBackwardPieces[i].lanes;
            return fmt::format("short_rows.lanes {} in {}", lanes, choice.piece);
        }
        case Kernel::kTeamRing: {
            const auto& layout = c.bytes == 2 ? layouts::kTeamRing16[i] : layouts::kTeamRing32[i];
            const layouts::TeamRing& ring = c.op == Op::kAccumulate ? layout.add : layout.write;
            return fmt::format("team_ring.{},{},{},{},{},{}", ring.cluster, ring.warps, ring.teams,
                               ring.vector, ring.vectors, ring.stages);
        }
        case Kernel::kUnalignedRows: {
            const auto& layout = layouts::kUnalignedBackward[i];
            return fmt::format("unaligned_rows.{},{},{}", layout.columns, layout.unguarded, layout.cluster);
        }
        case Kernel::kCpAsyncTeams: {
            const layouts::CpAsyncTeams& layout =
                for_bytes(c.bytes, layouts::kCpAsyncTeams16, layouts::kCpAsyncTeams32)[i];
            return fmt::format("cp_async_teams.{} {}", layout.vectors, (int)!layout.reread);
        }
        case Kernel::kCpAsyncPipelined: {
            const layouts::CpAsyncPipelined& layout =
                for_bytes(c.bytes, layouts::kCpAsyncPipelined16, layouts::kCpAsyncPipelined32)[i];
            return fmt::format("cp_async_pipelined.{},{},{} {}", layout.vectors, layout.lead, layout.stages,
                               (int)layout.keeps_weight);
        }
        default:
            return fmt::format("fallback.{}", choice.piece);
    }
}

std::string chosen(const choices::Gpu& given, const Case& c, int C) {
    Gpu gpu{given.hopper, given.multiprocessors, given.shared_bytes, given.cluster};
    Call call{.N = c.N,
              .C = C,
              .bytes = c.bytes,
              .piece = c.piece,
              .same_weights = c.same,
              .aligned_weights = c.aligned_weights,
              .adds = c.op == Op::kResidual || c.op == Op::kAccumulate};
    if (c.op == Op::kForward || c.op == Op::kResidual) { return forward_text(c, *choose_forward(call, gpu)); }
    return backward_text(c, *choose_backward(call, gpu));
}

}  // namespace

TEST_CASE("layernorm choices: what was recorded, at each edge and between") {
    const auto all = choices::read_choices("dev/test/fixture/layernorm_choices.txt");
    REQUIRE(all.size() == std::size(choices::kGpus) * choices::cases().size());
    for (const choices::Gpu& gpu : choices::kGpus) {
        for (const Case& c : choices::cases()) {
            const std::string name = fmt::format("{}: {}", gpu.name, c.name());
            REQUIRE(all.contains(name));
            const choices::Runs& runs = all.at(name);
            std::string last, wrong;
            int tried = 0;
            auto next = runs.begin();
            choices::each_width(c, gpu.every, [&](int C) {
                bool edge = next != runs.end() && next->first == C;
                if (edge) { last = (next++)->second; }
                bool before_edge = next != runs.end() && next->first - C <= 2 * c.piece;
                if (!edge && !before_edge && C > 4200 && C / c.piece % 13 != 0) { return; }
                tried++;
                if (chosen(gpu, c, C) != last && wrong.empty()) {
                    wrong = fmt::format("C = {}: {}, recorded: {}", C, chosen(gpu, c, C), last);
                }
            });
            INFO(name);
            CHECK(next == runs.end());
            CHECK(tried > 50);
            CHECK(wrong == "");
        }
    }
}

TEST_CASE("layernorm choices: explained without a GPU") {
    ShootoutOptions o;
    o.shapes = {{4096, 1000}};
    std::string text = explained(LayerNormOp::kForward, o);
    CHECK(text.find("4096x1000 bf16") != std::string::npos);
    CHECK(text.find("row_in_registers") != std::string::npos);
    o.shapes = {{4096, 12288}};
    o.accumulate = true;
    CHECK(explained(LayerNormOp::kBackward, o).find("team_ring") != std::string::npos);
    o.gpu = "sm_80";
    CHECK(explained(LayerNormOp::kBackward, o).find("cp_async_pipelined") != std::string::npos);
}
