// Which kernel and layout of LayerNorm takes a call (choose.h, layouts.h): what is true of every call, and what models' widths
// get. What the launchers then launch is compared with the same choices in dev/emulate/test_layernorm_choices.cpp.
#include <sstream>

#include <doctest/doctest.h>

#include "dev/cuda/layernorm_explain.h"
#include "dev/test/gpu/layernorm_choices.h"
#include "dev/test/gpu/layernorm_widths.h"

using namespace llmc;
using namespace llmc::layernorm;
using choices::Case, choices::kGpus, choices::Op, choices::Run, choices::runs_of;
using enum Kernel;

namespace {

// What a chosen layout has room for, and what it needs. A block has teams of warps.
struct Facts {
    const void* row = nullptr;                       // of a table of layouts.h
    int64_t fewest = 1, most = choices::kMostWidth;  // columns
    int cluster = 1, warps = 0, teams = 1;
    int64_t shared = 0;  // bytes of a block
    int registers = 0;   // of a lane, at least
    int blocks_per_sm = 1;
    std::string rest;  // what else tells one layout from another
};

Facts forward_facts(const Case& c, const Choice& choice) {
    const int vector = 16 / c.bytes, i = choice.layout;
    const bool rare = !c.same && (c.adds() || !c.whole());  // rows guard all vectors then
    if (choice.kernel == kShortRows) {
        const auto& row = either(c.whole(), layouts::kShortForward, layouts::kShortForwardPieces)[i];
        return {.row = &row,
                .fewest = row.unguarded * row.lanes * choice.piece,
                .most = row.columns(choice.piece),
                .rest = fmt::format("{},{}", row.lanes, row.vectors)};
    }
    if (choice.kernel == kRowInRegisters) {
        const auto& row = for_bytes(c.bytes, layouts::kRowInRegisters16, layouts::kRowInRegisters32)[i];
        return {.row = &row,
                .fewest = rare ? 1 : (int64_t)row.unguarded() * row.step() * vector,
                .most = row.columns(vector),
                .cluster = row.cluster,
                .warps = row.warps,
                .teams = row.teams,
                .registers = 4 * row.vectors * (row.unpack_each_pass ? 1 : 2) + 16,
                .blocks_per_sm = row.blocks_per_sm,
                .rest = std::to_string(row.vectors)};
    }
    const auto& row = layouts::kUnalignedForward[i];
    const int unguarded = c.same && c.aligned_weights ? row.unguarded : row.rare_unguarded;
    return {.row = &row,
            .fewest = (int64_t)row.cluster * row.warps * (unguarded * row.lanes + 1) * vector - 1,
            .most = row.columns(vector),
            .cluster = row.cluster,
            .warps = row.warps,
            .teams = row.teams,
            .registers = 4 * row.vectors + 16,
            .blocks_per_sm = row.blocks_per_sm,
            .rest = fmt::format("{},{}", row.lanes, row.vectors)};
}

Facts backward_facts(const Case& c, const Choice& choice) {
    const int i = choice.layout;
    const Teams& teams = choice.teams;
    if (choice.kernel == kShortRows) {
        const auto& row = either(c.whole(), layouts::kShortBackward, layouts::kShortBackwardPieces)[i];
        const int columns = c.whole() ? row.lanes * choice.piece : row.columns(choice.piece);
        return {.row = &row, .most = columns, .rest = std::to_string(row.lanes)};
    }
    if (choice.kernel == kTeamRing) {
        const auto& row = for_bytes(c.bytes, layouts::kTeamRing16, layouts::kTeamRing32)[i];
        const layouts::TeamRing& ring = c.adds() ? row.add : row.write;
        CHECK_MESSAGE(row.columns > ring.columns() / ring.warps * (ring.warps - 1),
                      fmt::format("a warp too many: {}", row.use));
        CHECK_MESSAGE(ring.vector * c.bytes <= 16, std::string(row.use));
        const int held = ring.vector * ring.vectors;  // columns of a lane, each with two sums
        return {.row = &row,
                .most = std::min(row.columns, ring.columns()),
                .cluster = ring.cluster,
                .warps = ring.warps,
                .teams = ring.teams,
                .shared = ring.teams * team_bytes(ring, streams_of(c.adds()), c.bytes, c.bytes),
                .registers = (ring.reread ? 2 : 3) * held + 30,
                .rest = fmt::format("{},{},{}", ring.vector, ring.vectors, ring.stages)};
    }
    if (choice.kernel == kUnalignedRows) {
        const auto& row = layouts::kUnalignedBackward[i];
        return {.row = &row,
                .fewest = (int64_t)row.cluster * teams.warps * row.unguarded * kWarp,
                .most = (int64_t)row.cluster * teams.warps * row.columns * kWarp,
                .cluster = row.cluster,
                .warps = teams.warps,
                .teams = teams.teams,
                .shared = teams.shared_bytes,
                .registers = 3 * row.columns + 20,
                .rest = fmt::format("{},{},{}", row.columns, row.unguarded, teams.stages)};
    }
    if (choice.kernel == kCpAsyncTeams) {
        const auto& row = for_bytes(c.bytes, layouts::kCpAsyncTeams16, layouts::kCpAsyncTeams32)[i];
        const int held = row.vectors * 16 / c.bytes;
        return {.row = &row,
                .most = (int64_t)teams.warps * kWarp * held,
                .warps = teams.warps,
                .teams = teams.teams,
                .shared = teams.shared_bytes,
                .registers = (row.reread ? 2 : 3) * held + 30,
                .rest = fmt::format("{},{}", row.vectors, teams.stages)};
    }
    const auto& row = for_bytes(c.bytes, layouts::kCpAsyncPipelined16, layouts::kCpAsyncPipelined32)[i];
    return {.row = &row,
            .fewest = (int64_t)choice.blocks * (row.columns(16 / c.bytes) / row.vectors) * (row.vectors - 1),
            .most = (int64_t)choice.blocks * row.columns(16 / c.bytes),
            .shared = pipelined_bytes(row, c.bytes, c.adds()),
            .rest = fmt::format("{},{},{},{},{}", choice.blocks, row.vectors, row.lead, row.stages,
                                (int)row.keeps_weight)};
}

Facts facts_of(const Case& c, const Choice& choice) {
    if (choice.kernel == kFallback || choice.kernel == kSumFirst) { return {}; }
    return c.forward() ? forward_facts(c, choice) : backward_facts(c, choice);
}

// of kernels whose layouts are tried in turn: the place of a layout among all
int place_of(const Choice& choice) { return (int)choice.kernel * 100 + choice.layout; }
bool tried_in_turn(const Case& c, const Choice& choice) {
    return c.forward() || choice.kernel == kShortRows || choice.kernel == kTeamRing;
}

struct ClassRuns {
    choices::Gpu gpu;
    Case c;
    std::vector<Run> runs;
};
// of every GPU
const std::vector<ClassRuns>& all_runs() {
    static const std::vector<ClassRuns> all = [] {
        std::vector<ClassRuns> found;
        for (const choices::Gpu& gpu : kGpus) {
            for (const Case& c : choices::cases()) { found.push_back({gpu, c, runs_of(gpu, c)}); }
        }
        return found;
    }();
    return all;
}
// visit(gpu, class, its runs)
template <typename Visit>
void each_class(const Visit& visit) {
    for (const auto& [gpu, c, runs] : all_runs()) {
        CAPTURE(fmt::format("{}: {}", gpu.name, c.name()));
        visit(gpu, c, runs);
    }
}

}  // namespace

TEST_CASE("layernorm choices: a layout has room for its rows, and the GPU for the layout") {
    each_class([](const choices::Gpu& gpu, const Case& c, const std::vector<Run>& runs) {
        for (const Run& run : runs) {
            for (int C : {run.first, run.last}) {
                const Choice choice = c.choose(gpu, C);
                const Facts f = facts_of(c, choice);
                const int threads = f.teams * f.warps * kWarp;
                const bool fits = f.fewest <= C && C <= f.most && threads <= 1024 &&
                                  f.shared <= gpu.facts.shared_bytes && f.cluster <= gpu.facts.cluster &&
                                  f.blocks_per_sm * threads * f.registers <= 65536 &&
                                  (f.warps == 1 || f.teams < 16) &&  // named barriers 1 to 15
                                  choice.blocks * choice.groups <= gpu.facts.multiprocessors;
                CHECK_MESSAGE(fits, "C = ", C, ": ", run.text, ", for ", f.fewest, " to ", f.most, ", ",
                              threads, " threads, ", f.shared, " bytes");
            }
        }
    });
}

TEST_CASE("layernorm choices: layouts take longer rows in turn, and what is weighed changes seldom") {
    each_class([](const choices::Gpu& gpu, const Case& c, const std::vector<Run>& runs) {
        int weighed = 0;
        for (size_t i = 0; i + 1 < runs.size(); i++) {
            const Choice here = c.choose(gpu, runs[i].last), next = c.choose(gpu, runs[i + 1].first);
            if (!tried_in_turn(c, here) || !tried_in_turn(c, next)) {
                weighed++;
                continue;
            }
            CHECK_MESSAGE(place_of(here) < place_of(next), runs[i].text, " before ", runs[i + 1].text);
            const bool room = here.kernel == next.kernel && runs[i + 1].first <= facts_of(c, here).most;
            CHECK_MESSAGE(!room, "C = ", runs[i + 1].first, ": ", runs[i + 1].text, ", but ", runs[i].text,
                          " has room");
        }
        CHECK(weighed <= 27);
    });
}

// The bits of a row are not to depend on how many rows come with it.
TEST_CASE("layernorm choices: the number of rows chooses no layout, but whether few rows are spread") {
    each_class([](const choices::Gpu& gpu, Case c, const std::vector<Run>& runs) {
        for (const Run& run : runs) {
            INFO("C = ", run.last, ": ", run.text);
            c.N = 1;
            const Choice one = c.choose(gpu, run.last);
            const Facts f = facts_of(c, one);
            const int most = gpu.facts.multiprocessors / one.cluster;  // rows that have a cluster each
            CHECK(one.spread == (one.kernel == kRowInRegisters && f.cluster == 1 && f.warps > 4 && c.same &&
                                 gpu.facts.cluster > 1));
            if (one.spread) {
                CHECK((one.cluster <= 8 && f.warps % one.cluster == 0 && f.warps <= 4 * one.cluster));
            }
            for (int64_t N : {(int64_t)most, (int64_t)most + 1, (int64_t)1 << 40}) {
                c.N = N;
                const Choice choice = c.choose(gpu, run.last);
                CHECK((choice.kernel == one.kernel && choice.layout == one.layout));
                CHECK(choice.spread == (one.spread && N <= most));
            }
        }
    });
}

TEST_CASE("layernorm choices: what is not aligned, usual or of 16 or 32 bits goes to kernels for it") {
    each_class([](const choices::Gpu& gpu, const Case& c, const std::vector<Run>& runs) {
        for (const Run& run : runs) {
            const Choice choice = c.choose(gpu, run.last);
            const bool vectors = choice.kernel == kRowInRegisters || choice.kernel == kTeamRing ||
                                 choice.kernel == kCpAsyncTeams || choice.kernel == kCpAsyncPipelined;
            INFO("C = ", run.last, ": ", run.text);
            CHECK((c.piece % choice.piece == 0 && run.last % choice.piece == 0));
            CHECK((c.whole() ? choice.kernel != kUnalignedRows : !vectors));
            if (c.bytes == 8) { CHECK(choice.kernel == (c.op == Op::kResidual ? kSumFirst : kFallback)); }
            if (c.op == Op::kResidual && !c.whole()) { CHECK(choice.kernel == kSumFirst); }
            if (!gpu.facts.hopper) { CHECK((choice.kernel != kTeamRing && choice.cluster == 1)); }
            if (!c.forward()) {
                Call call = c.call(run.last);
                call.usual = false;
                CHECK(choose_backward(call, gpu.facts)->kernel == kFallback);
            }
        }
    });
}

TEST_CASE("layernorm choices: each layout takes some rows") {
    std::set<const void*> chosen;
    each_class([&](const choices::Gpu& gpu, const Case& c, const std::vector<Run>& runs) {
        for (const Run& run : runs) { chosen.insert(facts_of(c, c.choose(gpu, run.last)).row); }
    });
    auto all = [&](const char* name, const auto& table) {
        for (const auto& row : table) {
            CHECK_MESSAGE(chosen.contains(&row), fmt::format("{}, layout {}", name, &row - table));
        }
    };
    all("short_rows forward", layouts::kShortForward);
    all("short_rows forward, pieces", layouts::kShortForwardPieces);
    all("row_in_registers of 16 bits", layouts::kRowInRegisters16);
    all("row_in_registers of 32 bits", layouts::kRowInRegisters32);
    all("unaligned_rows forward", layouts::kUnalignedForward);
    all("short_rows backward", layouts::kShortBackward);
    all("short_rows backward, pieces", layouts::kShortBackwardPieces);
    all("team_ring of 16 bits", layouts::kTeamRing16);
    all("team_ring of 32 bits", layouts::kTeamRing32);
    all("unaligned_rows backward", layouts::kUnalignedBackward);
    all("cp_async_teams of 16 bits", layouts::kCpAsyncTeams16);
    all("cp_async_teams of 32 bits", layouts::kCpAsyncTeams32);
    all("cp_async_pipelined of 16 bits", layouts::kCpAsyncPipelined16);
    all("cp_async_pipelined of 32 bits", layouts::kCpAsyncPipelined32);
}

namespace {

// a choice in few letters: kernel, cluster x warps x teams, and what else its layout says
std::string in_short(const Case& c, int C, const choices::Gpu& gpu) {
    const Choice choice = c.choose(gpu, C);
    constexpr const char* letters = "srtucp+f";  // of Kernel
    const std::string letter(1, letters[(int)choice.kernel]);
    if (choice.kernel == kSumFirst) { return letter; }
    if (choice.kernel == kFallback) { return letter + std::to_string(choice.piece); }
    const Facts f = facts_of(c, choice);
    const std::string threads = f.warps > 0 ? fmt::format("{}x{}x{}:", f.cluster, f.warps, f.teams) : "";
    return letter + threads + f.rest;
}

struct Class {
    Case c;
    int gpu = 0;  // of kGpus: an H100
};
// each line: C, and what each class gets
void check_anchors(const char* lines, std::initializer_list<Class> classes) {
    std::istringstream in(lines);
    for (int C = 0; in >> C;) {
        for (const auto& [c, gpu] : classes) {
            std::string expected;
            in >> expected;
            INFO(fmt::format("C = {} on {}: {}", C, kGpus[gpu].name, c.name()));
            CHECK(in_short(c, C, kGpus[gpu]) == expected);
        }
    }
}

// forward in 16 bits and in fp32; backward = and += in 16 bits and in fp32; = in 16 bits on an A100; += in fp32 on an H100
// without what is Hopper's
constexpr const char* kWhole = R"(
    32 s2,2      s4,2       s4            s4            s8             s8            s4          s8
    64 s4,2      s4,4       s8            s8            s16            s16           s8          s16
    80 s4,3      s8,3       s16           s16           t1x1x12:4,2,3  t1x1x12:4,2,2 s16         c1x1x15:2,4
   192 s8,3      s16,3      t1x1x12:8,1,4 t1x1x12:8,1,3 t1x1x12:4,2,3  t1x1x12:4,2,2 c1x1x15:1,4 c1x1x15:2,2
   256 s8,4      s16,4      t1x1x12:8,1,4 t1x1x12:8,1,3 t1x1x12:4,2,3  t1x1x12:4,2,2 c1x1x15:1,4 c1x1x13:2,2
   384 s16,3     r1x1x2:3   t1x2x8:8,1,3  t1x2x8:8,1,2  t1x2x8:4,2,2   t1x2x6:4,2,2  c1x1x15:2,2 c1x1x12:3,2
   512 s16,4     r1x1x2:4   t1x2x8:8,1,3  t1x2x8:8,1,2  t1x2x8:4,2,2   t1x2x6:4,2,2  c1x1x15:2,2 c1x1x12:4,2
   768 r1x1x2:3  r1x2x1:3   t1x3x4:8,1,4  t1x3x5:8,1,2  t1x2x4:4,3,2   t1x3x3:4,2,2  c1x1x12:3,2 c1x2x6:3,2
  1024 r1x1x2:4  r1x2x1:4   t1x4x4:8,1,3  t1x4x4:8,1,2  t1x4x3:4,2,2   t1x4x2:4,2,2  c1x2x8:2,2  c1x2x6:4,2
  1280 r1x1x2:5  r1x4x1:3   t1x5x3:8,1,4  t1x5x3:8,1,3  t1x5x3:4,2,3   t1x5x2:4,2,2  c1x5x4:1,3  c1x3x4:4,2
  1536 r1x2x1:3  r1x4x1:3   t1x6x3:8,1,3  t1x6x2:8,1,3  t1x7x2:4,2,2   t1x7x2:4,2,2  c1x3x5:2,2  c1x3x4:4,2
  1600 r1x1x2:7  r1x4x1:4   t1x5x4:2,5,2  t1x5x3:2,5,2  t1x7x2:4,2,2   t1x7x2:4,2,2  c1x4x4:2,2  c1x4x3:4,2
  1664 r1x1x2:7  r1x4x1:4   t1x7x3:8,1,3  t1x7x2:8,1,3  t1x7x2:4,2,2   t1x7x2:4,2,2  c1x4x4:2,2  c1x4x3:4,2
  2048 r1x4x1:2  r1x4x1:4   t1x4x3:8,2,2  t1x8x2:8,1,3  t1x8x1:4,2,3   t1x8x1:4,2,3  c1x4x4:2,2  c1x4x3:4,2
  2560 r1x4x1:3  r1x5x1:4   t1x10x2:4,2,3 t1x5x2:8,2,2  t1x12x1:4,2,3  t1x12x1:4,2,2 c1x5x3:2,2  c1x5x2:4,2
  3072 r1x4x1:3  r1x6x1:4   t1x6x2:8,2,2  t1x6x2:8,2,2  t1x12x1:4,2,3  t1x12x1:4,2,2 c1x4x3:3,2  c1x6x2:4,2
  3584 r1x4x1:4  r1x8x1:4   t1x8x1:8,2,4  t1x8x1:8,2,3  t1x16x1:4,2,2  t2x8x1:4,2,3  c1x7x2:2,2  c1x14x1:2,2
  4096 r1x4x1:4  r1x8x1:4   t2x4x2:8,2,4  t1x8x1:8,2,3  t1x16x1:4,2,2  t2x8x1:4,2,3  c1x8x2:2,2  c1x16x1:2,2
  4544 r1x5x1:4  r1x10x1:4  t2x6x2:4,3,4  t2x6x2:4,3,3  t2x5x1:4,4,3   t4x5x3:4,2,2  c1x6x2:3,2  c1x12x1:3,2
  5120 r1x5x1:4  r1x10x1:4  t2x5x2:8,2,3  t2x5x2:8,2,2  t2x5x1:4,4,3   t4x5x3:4,2,2  c1x10x1:2,3 c1x14x1:3,2
  6144 r1x6x1:4  r1x8x1:6   t4x3x4:8,2,3  t4x3x4:8,2,2  t4x6x2:4,2,3   t4x6x2:4,2,2  c1x12x1:2,2 c1x16x1:3,2
  7168 r1x7x1:4  r1x16x1:4  t2x4x2:8,4,2  t2x4x1:8,4,3  t4x4x2:4,4,2   t4x4x2:4,4,2  c1x14x1:2,2 p1,4,1,2,1
  7560 r1x8x1:4  r1x16x1:4  t4x4x3:8,2,3  t4x4x2:8,2,3  t4x4x2:4,4,2   t4x4x2:4,4,2  c1x15x1:2,2 p1,4,1,2,1
  8192 r1x8x1:4  r1x16x1:4  t4x4x3:8,2,3  t4x4x2:8,2,3  t4x4x2:4,4,2   t4x4x2:4,4,2  c1x16x1:2,2 p1,4,1,2,1
  9216 r1x8x1:5  r1x16x1:8  t4x3x4:8,3,2  t2x5x1:8,4,3  t4x5x2:4,4,2   t4x5x1:4,4,3  c1x12x1:3,2 p3,2,3,4,1
 10240 r1x8x1:5  r1x16x1:8  t4x5x3:8,2,3  t4x5x2:8,2,3  t4x5x2:4,4,2   t4x5x1:4,4,3  p1,3,1,2,1  p3,2,3,4,1
 12288 r1x12x1:4 r1x16x1:8  t4x4x2:8,3,3  t4x4x2:8,3,2  t8x4x2:4,3,3   t8x4x3:4,3,2  p1,3,1,2,1  p3,2,3,4,1
 13312 r1x8x1:7  r1x16x1:8  t4x4x2:8,4,3  t4x4x2:8,4,2  t8x4x2:4,4,2   t8x4x2:4,4,2  p1,4,1,2,1  p4,2,3,4,1
 14848 r1x9x1:7  r1x16x1:8  t4x5x2:8,3,3  t4x5x2:8,3,2  t8x4x2:4,4,2   t8x4x2:4,4,2  p1,4,1,2,1  p4,2,3,4,1
 14856 r1x9x1:7  r1x16x1:8  t8x4x3:8,2,3  t8x4x3:8,2,2  t8x4x2:4,4,2   t8x4x2:4,4,2  p1,4,1,2,1  p3,3,2,3,1
 16384 r1x8x1:8  r1x16x1:8  t8x4x3:8,2,3  t8x4x3:8,2,2  t8x4x2:4,4,2   t8x4x2:4,4,2  p1,4,1,2,1  p4,2,3,4,1
 18432 r1x16x1:8 r2x8x1:10  t8x3x4:8,3,2  t8x5x2:8,2,3  t8x5x2:4,4,2   t8x5x1:4,4,3  p3,2,3,4,1  p5,2,3,4,1
 20480 r1x16x1:8 r2x8x1:10  t8x5x3:8,2,3  t8x5x2:8,2,3  t8x5x2:4,4,2   t8x5x1:4,4,3  p3,2,3,4,1  p5,2,3,4,1
 24576 r1x16x1:8 r2x16x1:8  t8x4x2:8,3,4  t8x4x3:8,3,2  t16x4x3:4,4,4  t16x4x2:4,4,4 p3,2,3,4,1  p6,2,3,4,1
 32768 r1x16x1:8 r2x16x1:8  t16x4x4:8,2,3 t8x4x2:8,4,2  t16x4x3:4,4,4  t16x4x2:4,4,4 p4,2,3,4,1  p8,2,3,4,1
 65536 r2x16x1:8 r8x8x1:8   t16x4x2:8,4,6 t16x4x2:8,4,4 t16x8x2:4,4,3  t16x8x1:4,4,3 p8,2,3,4,1  p16,2,3,4,1
131072 r8x8x1:8  r16x8x1:8  t16x8x1:8,4,6 t16x8x1:8,4,4 t16x8x1:4,8,3  t16x8x1:4,8,2 p16,2,3,4,1 p32,2,3,4,1
196608 r8x16x1:8 r16x16x1:8 t16x8x1:8,6,4 p24,2,4,6,1   t16x8x1:4,14,2 p32,3,2,3,1   p24,2,3,4,1 p32,3,2,3,1
262144 r8x16x1:8 r16x16x1:8 t16x8x1:8,8,3 p32,2,4,6,1   p32,4,2,3,1    p32,4,2,3,0   p32,2,3,4,1 p32,4,2,3,0
)";
// rows of an odd number of columns: forward in 16 bits, in fp32, and in 16 bits with other weights; backward as above
constexpr const char* kOdd = R"(
    25 s4,7         s4,7         s4,7        s8               s8               s8               s8
    57 u1x1x2:8,4   u1x1x2:8,4   u1x1x2:8,4  s16              s16              s16              s16
   129 u1x1x2:8,4   u1x1x2:8,4   u1x1x2:8,4  u1x1x28:6,3,4    u1x1x28:6,3,4    s32              s32
   257 u1x1x2:8,4   u1x1x1:8,8   u1x1x2:8,4  u1x1x16:9,6,4    u1x1x16:9,6,3    u1x1x16:9,6,2    u1x1x15:9,6,2
   401 u1x1x1:8,8   u1x1x1:32,8  u1x1x1:8,8  u1x1x16:16,12,2  u1x1x16:16,12,2  u1x1x11:16,12,2  u1x1x10:16,12,2
   769 u1x1x1:16,6  u1x1x1:32,8  u1x1x1:32,8 u1x2x8:16,12,2   u1x2x8:16,12,2   u1x2x5:16,12,2   u1x2x5:16,12,2
  1025 u1x1x1:32,8  u1x1x1:32,8  u1x1x1:32,8 u1x3x6:12,9,2    u1x3x5:12,9,3    u1x3x4:12,9,2    u1x3x3:12,9,2
  1601 u1x1x1:32,8  u1x2x1:32,8  u1x1x1:32,8 u1x4x4:16,12,2   u1x4x4:16,12,2   u1x4x2:16,12,2   u1x4x2:16,12,2
  2049 u1x1x1:32,8  u1x2x1:32,8  u1x1x1:32,8 u1x5x3:16,12,2   u1x5x3:16,12,2   u1x5x2:16,12,2   u1x5x1:16,12,3
  4097 u1x2x1:32,8  u1x4x1:32,8  u1x2x1:32,8 u1x9x1:16,12,3   u1x9x1:16,12,3   u1x9x1:16,12,2   u1x9x1:16,12,2
  5139 u1x4x1:32,8  u1x8x1:32,8  u1x4x1:32,8 u1x11x1:16,12,3  u1x11x1:16,12,3  u1x11x1:16,12,2  u1x11x1:16,12,2
  8191 u1x4x1:32,8  u1x8x1:32,8  u1x4x1:32,8 u1x16x1:16,12,3  u1x16x1:16,12,2  u1x16x1:16,12,2  u1x16x1:16,12,2
  9217 u1x8x1:32,8  u3x4x1:32,9  u1x8x1:32,8 u4x5x3:16,12,3   u4x5x3:16,12,2   u8x3x5:16,10,2   u8x3x3:16,10,2
 16385 u1x8x1:32,8  u5x4x1:32,9  u1x8x1:32,8 u8x5x3:16,10,4   u8x5x3:16,10,2   u8x5x3:16,10,2   u8x5x2:16,10,2
 20481 u3x4x1:32,9  u5x4x1:32,9  u8x4x1:32,9 u16x3x5:16,12,4  u16x3x5:16,12,2  u16x3x5:16,12,2  u16x3x3:16,12,2
 40001 u5x4x1:32,9  u12x4x1:32,9 u8x4x1:32,9 u16x5x3:16,12,3  u16x5x3:16,12,2  u8x10x1:16,10,2  u8x10x1:16,10,2
 50257 u8x4x1:32,9  u12x4x1:32,9 u8x4x1:32,9 u8x13x1:16,10,3  u8x13x1:16,10,2  u8x13x1:16,10,2  u8x13x1:16,10,2
 65537 u8x4x1:32,9  u12x8x1:32,9 u8x4x1:32,9 u16x9x1:16,12,3  u16x9x1:16,12,3  u16x9x1:16,12,2  u16x9x1:16,12,2
100001 u12x4x1:32,9 u12x8x1:32,9 f1          u16x13x1:16,12,3 u16x13x1:16,12,2 u16x13x1:16,12,2 u16x13x1:16,12,2
131073 u12x8x1:32,9 u16x8x1:32,9 f1          f1               f1               f1               f1
262145 u16x8x1:32,9 f1           f1          f1               f1               f1               f1
)";

}  // namespace

TEST_CASE("layernorm choices: what models' widths, and odd ones, get") {
    using enum Op;
    check_anchors(kWhole, {{{kForward, 2, true, 8}},
                           {{kForward, 4, true, 4}},
                           {{kBackward, 2, true, 8}},
                           {{kAccumulate, 2, true, 8}},
                           {{kBackward, 4, true, 4}},
                           {{kAccumulate, 4, true, 4}},
                           {{kBackward, 2, true, 8}, 1},
                           {{kAccumulate, 4, true, 4}, 5}});
    check_anchors(kOdd, {{{kForward, 2, true, 1}},
                         {{kForward, 4, true, 1}},
                         {{kForward, 2, false, 1}},
                         {{kBackward, 2, true, 1}},
                         {{kAccumulate, 2, true, 1}},
                         {{kBackward, 4, true, 1}},
                         {{kAccumulate, 4, true, 1}}});
}

TEST_CASE("layernorm choices: fp32 rows beside 16 bits") {
    Call call{.N = 4096, .C = 768, .bytes = 4, .piece = 4, .mixed = true};
    for (int i = 0; i < (int)std::size(layouts::kTeamRingMixed); i++) {
        call.C = layouts::kTeamRingMixed[i].columns;
        for (bool adds : {false, true}) {
            call.adds = adds;
            const Choice choice = *choose_backward(call, kH100);
            CHECK_MESSAGE((choice.kernel == kTeamRing && choice.layout == i),
                          fmt::format("{} columns", call.C));
            CHECK((*choose_backward(call, kA100)).kernel == kFallback);
        }
    }
    call.adds = false;
    CHECK((*choose_forward(call, kH100)).kernel == kRowInRegisters);
    call.adds = true;  // a residual: by a kernel of its own
    CHECK((*choose_forward(call, kH100)).kernel == kSumFirst);
    call = {.N = 4096, .C = 769, .bytes = 4, .piece = 1, .mixed = true};
    CHECK((*choose_forward(call, kH100)).kernel == kFallback);
    CHECK((*choose_backward(call, kH100)).kernel == kFallback);
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

TEST_CASE("layernorm layouts: tests try each edge and a vector, or a column, beside it") {
    std::set<int> tried = gpu_test::widths(false);
    for (int vector : {4, 8}) {
        for (int edge : gpu_test::whole_edges(vector)) {
            for (int C : {edge - vector, edge, edge + vector}) {
                INFO(C, " columns");
                CHECK((C == 0 || tried.count(C) == 1));
            }
        }
        for (int edge : gpu_test::unaligned_edges(vector)) {
            CHECK(tried.count(edge - 1) + tried.count(edge + 1) == 2);
        }
        for (int edge : gpu_test::piece_edges(vector)) {
            CHECK(tried.count(edge) + tried.count(edge + 1) == 2);
        }
    }
    for (int C : layouts::kModelWidths) { CHECK(tried.count(C) == 1); }
}
