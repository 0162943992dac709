// Which kernel, and which of its layouts, takes a call of LayerNorm: of the call's shape, types and alignment and the
// GPU's facts alone, the same for the same. Kernels are tried in turn; the first that takes the call has it. Launchers
// only launch. `dev/cuda/layernorm_forward --explain --shape 4096x1000` prints the choice. Host only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "llmc/layernorm/layouts.h"

namespace llmc::layernorm {

// What a choice depends on beside layouts.h, and what was measured there, on an H200 unless a reason says otherwise: % of
// the roof, or us. doc/tried.md has more.
struct Thresholds {
    int short_vectors = 64;  // forward: 524288x64 bf16 95 %, 21 by a warp a row; beyond 64 no lane idles
    int dropped_vectors =
        2048;  // forward: beyond, a lane's part of a row and random bits do not fit its registers
    // backward, columns: widths of GPT-2's residual stream; a third set of sums takes registers
    int summed_columns = 2048;
    // backward, columns: 131072x127 fp32 in pieces 86 %, by the fallback 37; unaligned_rows begins at 128 columns and is
    // faster from there on, in fp32 from 193 on
    int pieces_16 = 127, pieces_32 = 192;
    // forward, few rows: a block has a multiprocessor to itself, whose schedulers issue for a warp each
    int schedulers = 4;
    // backward, unaligned_rows: bytes of a block's rings. 72 KB: 16384x2049 bf16 53.1 us for 55.2 before; += with 96: 70.4 for
    // 75.6. One team with 104: 16384x8191 bf16 203.7 for 208.3; with 80: 12288x8191 fp32 311.6 for 316.5
    int ring = 72 << 10, ring_add = 96 << 10, ring_lone_16 = 104 << 10, ring_lone_32 = 80 << 10;
    int ring_cluster = 104 << 10;  // each block waits for its cluster's others, too
    int most_teams = 15;  // of more than one warp: each needs one of the barriers that the block's own leaves
    int most_stages = 4;  // more bytes under way than enough let the blocks drift apart in memory
    int cluster_warps = 16;  // of a block whose cluster shares a row: a lane has 16 columns of 4 registers
    // multiprocessors of an H200 that have a place in clusters of 2, of 4 or 8, and of 16
    float in_pairs = 132, in_clusters = 120, in_clusters_of_16 = 112;
    // backward, cp_async_teams: bytes of a block's rings, about, and two stages at most, unless warps lack: as above
    int teams_ring = 64 << 10, teams_most_ring = 80 << 10, teams_warps = 12;
    int teams_most_warps = 16;  // of a team: half of a warp's lanes add one of a row's two sums
    int sharing_blocks = 32;    // cp_async_pipelined, of a row: a warp hears of all of them, a lane each
};
inline constexpr Thresholds kThresholds;

struct Gpu {
    bool hopper = true;  // Hopper or later, and the kernels' code is made for it
    int multiprocessors = 132;
    int shared_bytes = 227 << 10;  // of a block, at most
    int cluster = 16;              // blocks of the largest cluster that fits; 1: none does
};
inline constexpr Gpu kH100, kA100{false, 108, 163 << 10, 1};

struct Call {
    int64_t N;
    int C;
    int bytes;  // of an element of the rows; 8: double
    int piece;  // elements that rows can be read at a time, and weights beside them: 1, 2, .. a vector
    bool same_weights = true;     // weights of the rows' type
    bool aligned_weights = true;  // on 16 bytes
    bool adds = false;            // forward: a residual; backward: dinp +=
    bool mixed = false;           // rows of 32 bits, forward's out or backward's dout of 16
    bool drops_apart = false;     // forward: no kernel for such rows has dropout
    bool usual = true;            // backward: dinp is wanted, and dweight or dbias

    int vector() const { return 16 / bytes; }
    bool whole() const { return piece == vector(); }  // rows are whole aligned vectors
};

enum class Kernel {
    kShortRows,
    kRowInRegisters,
    kTeamRing,
    kUnalignedRows,
    kCpAsyncTeams,
    kCpAsyncPipelined,
    kSumFirst,
    kFallback
};

// of kernels whose teams are not a layout's: a block has `teams` teams of `warps` warps, each with a ring of `stages`
struct Teams {
    int warps, teams, stages;
    int region;        // bytes of a stage for each stream of rows: unaligned_rows
    int shared_bytes;  // of a block
};

struct Choice {
    Kernel kernel = Kernel::kFallback;
    int layout = 0;       // of the kernel's table in layouts.h
    int piece = 1;        // elements of an access
    int cluster = 1;      // blocks that share a row
    bool spread = false;  // row_in_registers, few rows: the row's warps are spread over a cluster
    Teams teams{};
    int blocks = 0, groups = 0;  // cp_async_pipelined: blocks of a row; groups of them that run at once
};
using Maybe = std::optional<Choice>;

template <typename Layout>
using Table = std::span<const Layout>;

// the first layout of a table that takes(layout), -1 if none does
template <typename Layout, typename Takes>
int first_layout(Table<Layout> table, const Takes& takes) {
    auto found = std::find_if(table.begin(), table.end(), takes);
    return found == table.end() ? -1 : (int)(found - table.begin());
}
// one of two tables
template <typename Layout, size_t a, size_t b>
constexpr Table<Layout> either(bool first, const Layout (&one)[a], const Layout (&other)[b]) {
    return first ? Table<Layout>(one) : Table<Layout>(other);
}
template <typename Layout, size_t a, size_t b>
constexpr Table<Layout> for_bytes(int bytes, const Layout (&of_16_bits)[a], const Layout (&of_32)[b]) {
    return either(bytes == 2, of_16_bits, of_32);
}
constexpr int round_up(int64_t bytes, int unit) { return (int)(ceil_div(bytes, unit) * unit); }

// ---- forward ---------------------------------------------------------------------------------------------------------

inline Maybe forward_short_rows(const Call& call, const Gpu&) {
    if ((call.adds && !call.whole()) || call.drops_apart) {
        return {};
    }  // a residual is added in whole vectors alone
    // beside weights of another type single elements, which takes half of the kernels
    int piece = call.whole() || call.same_weights ? call.piece : 1;
    auto takes = [&](const layouts::ShortForward& layout) { return call.C <= layout.columns(piece); };
    int layout =
        first_layout(either(call.whole(), layouts::kShortForward, layouts::kShortForwardPieces), takes);
    return layout < 0 ? Maybe{} : Choice{Kernel::kShortRows, layout, piece};
}

// Warps of a block where rows are few and a row's warps are spread over several blocks: at most one a scheduler, so that
// none waits for another.
constexpr int spread_warps(int warps) {
    int most = kThresholds.schedulers;
    while (warps % most != 0) { most--; }
    return most;
}

// the first layout that has room for a row, -1 if none does, or clusters of its size do not fit
template <typename Layout>
int layout_for(Table<Layout> table, const Call& call, bool rare, const Gpu& gpu) {
    int i = first_layout(
        table, [&](auto& layout) { return layout.is_for(rare) && call.C <= layout.columns(call.vector()); });
    return i < 0 || table[i].cluster > gpu.cluster ? -1 : i;
}
// Columns of the longest row that the layouts before i take; `none` before the first. The next row must have all unguarded
// vectors of layout i.
template <typename Layout>
constexpr int held_before(Table<Layout> table, int i, int vector, bool rare, int none) {
    int columns = none;
    for (int j = 0; j < i; j++) {
        if (table[j].is_for(rare)) { columns = table[j].columns(vector); }
    }
    return columns;
}

inline Maybe forward_row_in_registers(const Call& call, const Gpu& gpu) {
    int vector = call.vector();
    if (!call.whole() || call.drops_apart || call.C <= kThresholds.short_vectors * vector) { return {}; }
    if (call.mixed && call.adds) { return {}; }
    bool rare = call.adds && !call.same_weights;
    auto table = call.mixed ? Table<layouts::RowInRegisters>(layouts::kRowInRegistersMixed)
                            : for_bytes(call.bytes, layouts::kRowInRegisters16, layouts::kRowInRegisters32);
    int i = layout_for(table, call, rare, gpu);
    if (i < 0) { return {}; }
    int warps = table[i].warps, blocks = warps / spread_warps(warps);
    bool spread = table[i].cluster == 1 && warps > kThresholds.schedulers && call.same_weights &&
                  !call.mixed && blocks <= gpu.cluster && call.N <= gpu.multiprocessors / blocks;
    return Choice{Kernel::kRowInRegisters, i, vector, spread ? blocks : table[i].cluster, spread};
}

inline Maybe forward_unaligned_rows(const Call& call, const Gpu& gpu) {
    if (call.adds || call.C < layouts::kFewestUnalignedForward || call.whole()) { return {}; }
    bool rare = !call.same_weights || !call.aligned_weights;
    int i = layout_for(Table<layouts::UnalignedForward>(layouts::kUnalignedForward), call, rare, gpu);
    return i < 0 ? Maybe{} : Choice{Kernel::kUnalignedRows, i, 1, layouts::kUnalignedForward[i].cluster};
}

// one kernel's answer; nothing: it does not take the call
inline Maybe choose_forward_by(Kernel kernel, const Call& call, const Gpu& gpu) {
    if (kernel == Kernel::kSumFirst && call.adds) { return Choice{kernel}; }
    if (kernel == Kernel::kFallback && !call.adds) {
        return Choice{kernel, 0, call.whole() ? call.vector() : 1};
    }
    if (call.bytes == 8) { return {}; }
    if (kernel == Kernel::kRowInRegisters) { return forward_row_in_registers(call, gpu); }
    if (call.mixed) { return {}; }
    if (kernel == Kernel::kShortRows) { return forward_short_rows(call, gpu); }
    if (kernel == Kernel::kUnalignedRows) { return forward_unaligned_rows(call, gpu); }
    return {};
}

// The residual of rows that are not whole vectors is added by a kernel of its own first, and the call without it chosen
// for again: its results then have the bits of the plain call.
inline Maybe choose_forward(const Call& call, const Gpu& gpu) {
    using enum Kernel;
    for (Kernel kernel : {kShortRows, kRowInRegisters, kSumFirst, kUnalignedRows}) {
        if (Maybe choice = choose_forward_by(kernel, call, gpu)) { return choice; }
    }
    return choose_forward_by(Kernel::kFallback, call, gpu);
}

// ---- backward --------------------------------------------------------------------------------------------------------

constexpr int streams_of(bool adds) { return adds ? 3 : 2; }  // of rows that come to a block: inp, dout, dinp
constexpr int most_in_pieces(int bytes) { return bytes == 2 ? kThresholds.pieces_16 : kThresholds.pieces_32; }
// is there a kernel of this layout, in pieces of n elements?
constexpr bool is_for(const layouts::ShortBackward& layout, int n, int bytes) {
    return layout.columns(n) <= 2 * most_in_pieces(bytes);
}

inline Maybe backward_short_rows(const Call& call, const Gpu&) {
    bool whole = call.whole();
    if (!whole && (!call.same_weights || call.C > most_in_pieces(call.bytes))) { return {}; }
    auto table = either(whole, layouts::kShortBackward, layouts::kShortBackwardPieces);
    int layout = first_layout(table, [&](auto& layout) {
        return whole ? call.C <= layout.lanes * call.piece
                     : call.C <= layout.columns(call.piece) && is_for(layout, call.piece, call.bytes);
    });
    return layout < 0 ? Maybe{} : Choice{Kernel::kShortRows, layout, call.piece};
}

// team_ring.cuh's Team, in bytes: stages, barriers, and each warp's sums; dout: bytes of an element
constexpr int team_bytes(const layouts::TeamRing& ring, int streams, int bytes, int dout) {
    int columns = ring.warps * kWarp * ring.vector * ring.vectors;  // of a block
    int stage = ((streams - 1) * bytes + dout) * columns + kLineBytes;
    int barriers = round_up(ring.stages * (stage + 8) + 16, 16);
    return round_up(barriers + 2 * ring.cluster * ring.warps * 8, kLineBytes);
}

constexpr Table<layouts::TeamRingLayouts> team_rings(int bytes, bool mixed) {
    return mixed ? Table<layouts::TeamRingLayouts>(layouts::kTeamRingMixed)
                 : for_bytes(bytes, layouts::kTeamRing16, layouts::kTeamRing32);
}

inline Maybe backward_team_ring(const Call& call, const Gpu& gpu) {
    if (!gpu.hopper || !call.whole()) { return {}; }
    auto table = team_rings(call.bytes, call.mixed);
    auto takes = [&](const layouts::TeamRingLayouts& layout) {
        return layout.is_for(!call.same_weights) && call.C <= layout.columns;
    };
    int i = first_layout(table, takes);
    if (i < 0 || (call.adds && !table[i].adds())) { return {}; }
    const layouts::TeamRing& ring = call.adds ? table[i].add : table[i].write;
    int bytes = ring.teams * team_bytes(ring, streams_of(call.adds), call.bytes, call.mixed ? 2 : call.bytes);
    if (ring.cluster > gpu.cluster || bytes > gpu.shared_bytes) { return {}; }
    return Choice{Kernel::kTeamRing, i, call.vector(), ring.cluster};
}

// A block's rings, where a row of row_bytes has `warps` warps and the block at most `most`.
constexpr Teams unaligned_teams(int warps, int most, int streams, int row_bytes, int size, int bytes) {
    const Thresholds& t = kThresholds;
    int region = round_up(row_bytes, kLineBytes) + kLineBytes, stage = streams * row_bytes;
    int teams = std::min(most / warps, std::max(1, bytes / (2 * stage)));
    if (warps > 1) { teams = std::min(teams, t.most_teams); }
    int lone = size == 2 ? t.ring_lone_16 : t.ring_lone_32;
    int stages = teams > 1 ? bytes / (teams * stage) : std::min(3, lone / stage);
    return {warps, teams, std::clamp(stages, 2, t.most_stages), region, 0};
}

// warps of a multiprocessor, so that what a lane holds of k columns fits its registers
constexpr int unaligned_warps(int k, bool adds) {
    int registers = 5 * k + (adds ? 41 : 31);
    return registers > 96 ? 16 : registers > 80 ? 20 : registers > 72 ? 24 : 28;
}
// of small teams fewer warps are enough, where lanes are wide
constexpr int unaligned_warps(int k, bool adds, int team) {
    int most = unaligned_warps(k, adds);
    bool enough = most / team > 4 && (k >= 13 || (k >= 9 && team == 1));
    return enough ? 16 : most;
}
// Is `columns` of a row a number of columns for this many warps: neither too many, nor fewer than the unguarded ones?
constexpr bool fits(const layouts::UnalignedBackward& layout, int columns, int warps) {
    return ceil_div(columns, warps) <= layout.columns * kWarp && columns / warps >= layout.unguarded * kWarp;
}

// unaligned_rows.cuh's TeamShared, in bytes
constexpr int unaligned_team_bytes(int cluster) {
    int warps = cluster > 1 ? cluster * kThresholds.cluster_warps : kWarp;
    return round_up(8 * kThresholds.most_stages + 16 + 2 * 8 * warps, kLineBytes);
}

// With fewer stages where shared memory is small; nothing: not with two.
inline Maybe unaligned_choice(int i, Teams teams, const Call& call, const Gpu& gpu) {
    int cluster = layouts::kUnalignedBackward[i].cluster;
    int sums = 2 * (int)ceil_div<int64_t>(call.C, cluster) * (int)sizeof(float);
    auto bytes = [&] {
        int ring = teams.stages * streams_of(call.adds) * teams.region;
        return teams.teams * (unaligned_team_bytes(cluster) + std::max(ring, sums));
    };
    while (teams.stages > 2 && bytes() > gpu.shared_bytes) { teams.stages--; }
    if (cluster > gpu.cluster || bytes() > gpu.shared_bytes) { return {}; }
    teams.shared_bytes = bytes();
    return Choice{Kernel::kUnalignedRows, i, 1, cluster, false, teams};
}

// By the lanes and the number of warps that suit best: many teams, and wide lanes, since a warp's work once a row costs
// as much as seven columns a lane.
inline Maybe unaligned_in_a_block(const Call& call, const Gpu& gpu) {
    const auto& table = layouts::kUnalignedBackward;
    int streams = streams_of(call.adds), bytes = call.adds ? kThresholds.ring_add : kThresholds.ring;
    Teams best{};
    int most = 0, layout = -1;
    for (int i = 0; i < (int)std::size(table) && table[i].cluster == 1; i++) {
        int k = table[i].columns;
        for (int warps = 1; warps <= unaligned_warps(k, call.adds); warps++) {
            if (!fits(table[i], call.C, warps)) { continue; }
            Teams teams = unaligned_teams(warps, unaligned_warps(k, call.adds, warps), streams,
                                          call.C * call.bytes, call.bytes, bytes);
            if (teams.teams * k <= most) { continue; }
            best = teams;
            most = teams.teams * k;
            layout = i;
        }
    }
    return layout < 0 ? Maybe{} : unaligned_choice(layout, best, call, gpu);
}

// Rows that one block has no room for: as few warps as there must be, and of clusters the one that has most rows under
// way on the whole GPU.
inline Maybe unaligned_in_a_cluster(const Call& call, const Gpu& gpu) {
    const auto& table = layouts::kUnalignedBackward;
    const Thresholds& t = kThresholds;
    Teams teams[std::size(table)]{};
    float under_way[std::size(table)]{}, most = 0;
    for (int i = 0; i < (int)std::size(table); i++) {
        int cluster = table[i].cluster;
        if (cluster == 1 || !(call.bytes == 2 || table[i].fp32)) { continue; }
        int columns = (int)ceil_div<int64_t>(call.C, cluster);
        int warps = ceil_div(columns, table[i].columns * kWarp);
        if (warps > t.cluster_warps || !fits(table[i], call.C / cluster, warps)) { continue; }
        teams[i] = unaligned_teams(warps, t.cluster_warps, streams_of(call.adds), columns * call.bytes,
                                   call.bytes, t.ring_cluster);
        float in_use = cluster == 2 ? t.in_pairs : cluster < 16 ? t.in_clusters : t.in_clusters_of_16;
        under_way[i] = in_use / cluster * teams[i].teams;
        most = std::max(most, under_way[i]);
    }
    for (int i = 0; i < (int)std::size(table); i++) {
        if (teams[i].teams == 0 || under_way[i] < most) { continue; }
        if (Maybe choice = unaligned_choice(i, teams[i], call, gpu)) { return choice; }
    }
    return {};
}

inline Maybe backward_unaligned_rows(const Call& call, const Gpu& gpu) {
    if (call.C < layouts::kFewestUnalignedBackward || call.whole()) { return {}; }
    Maybe choice = unaligned_in_a_block(call, gpu);
    return choice ? choice : unaligned_in_a_cluster(call, gpu);
}

// threads of a block of cp_async_teams, at most, so that what a lane holds fits its registers
constexpr int most_threads(const layouts::CpAsyncTeams& layout, int bytes, bool adds) {
    int columns = layout.vectors * 16 / bytes + (adds ? bytes : 0);
    return layout.reread ? 512 : columns > 18 ? 384 : columns > 12 ? 512 : 640;
}

constexpr int kTeamsSums = 15 * 2 * 2 * 16 * (int)sizeof(float);  // bytes of cp_async_teams.cuh's Shared

// A row of the call with this layout, and what it costs: cycles to issue its warps' instructions, or a team's time, by
// teams. Without teams: it does not fit.
struct CostedTeams {
    Teams teams{};
    double cost = 0;
};
inline CostedTeams cp_async_teams(const layouts::CpAsyncTeams& layout, const Call& call, const Gpu& gpu) {
    const Thresholds& t = kThresholds;
    int columns = layout.vectors * call.vector(),
        most_warps = most_threads(layout, call.bytes, call.adds) / kWarp;
    int64_t warps = ceil_div<int64_t>(call.C, columns * kWarp);
    if (warps > std::min(most_warps, t.teams_most_warps)) { return {}; }
    int64_t bytes = (int64_t)streams_of(call.adds) * call.bytes * call.C,
            room = gpu.shared_bytes;  // of a row
    int teams = std::min(most_warps / (int)warps, t.most_teams);
    while (teams > 1 && teams * warps > t.teams_warps && 2 * teams * bytes > t.teams_most_ring) { teams--; }
    int stages = (int)std::clamp<int64_t>(t.teams_ring / (teams * bytes), 2, t.most_stages);
    auto needed = [&] { return kTeamsSums + teams * std::max<int64_t>(stages * bytes, 8 * (int64_t)call.C); };
    while (teams > 1 && needed() > room) { teams--; }
    while (stages > 1 && needed() > room) { stages--; }
    if (needed() > room) { return {}; }
    int instructions = (layout.reread ? 22 : 16) * columns + 150, exchange = warps > 1 ? 700 : 300;
    double cost = std::max(warps * instructions / 4.0, (3.0 * instructions + exchange) / teams);
    return {{(int)warps, teams, stages, 0, (int)needed()}, cost};
}

// by the layout that costs least; reread: of those for longer rows, where shared memory is too small for
// cp_async_pipelined (99 KB)
template <bool reread>
Maybe backward_cp_async_teams(const Call& call, const Gpu& gpu) {
    auto table = for_bytes(call.bytes, layouts::kCpAsyncTeams16, layouts::kCpAsyncTeams32);
    Maybe best;
    double least = 0;
    for (int i = 0; i < (int)table.size(); i++) {
        if (table[i].reread != reread || (call.adds && !table[i].adds)) { continue; }
        CostedTeams costed = cp_async_teams(table[i], call, gpu);
        if (costed.teams.teams == 0 || (best && costed.cost >= least)) { continue; }
        best = Choice{Kernel::kCpAsyncTeams, i, call.vector(), 1, false, costed.teams};
        least = costed.cost;
    }
    return best;
}

// Where a part of a row of C columns begins: each has as many lines, or one more; the last line may be short. Kernels
// ask, too.
constexpr int first_column(int bytes, int C, int part, int parts) {
    int line = kLineBytes / bytes, begin = (C + line - 1) / line * part / parts * line;
    return begin < C ? begin : C;
}

// cp_async_pipelined.cuh's Shared, in bytes: the ring, dinp of a row, the weight, sums, barriers
constexpr int pipelined_bytes(const layouts::CpAsyncPipelined& layout, int bytes, bool adds) {
    int columns = layout.columns(16 / bytes) * bytes, sets = 2 * layout.lead;
    return layout.stages * 2 * columns + (adds ? columns : 16) + (layout.keeps_weight ? columns : 16) +
           sets * (layouts::kPipelinedWarps * 8 + 8);
}

// Fewer blocks with more of a row each are best, until registers or shared memory run out.
inline Maybe backward_cp_async_pipelined(const Call& call, const Gpu& gpu) {
    if (!call.same_weights) { return {}; }  // rare
    auto table = for_bytes(call.bytes, layouts::kCpAsyncPipelined16, layouts::kCpAsyncPipelined32);
    for (int i = 0; i < (int)table.size(); i++) {
        const layouts::CpAsyncPipelined& layout = table[i];
        int step = layouts::kPipelinedWarps * kWarp * call.vector();
        bool lines = call.C % (kLineBytes / call.bytes) == 0;
        if (!layout.is_for(call.adds) || (layout.lines && !lines) || call.C <= layout.beyond ||
            call.C > layout.to || pipelined_bytes(layout, call.bytes, call.adds) > gpu.shared_bytes) {
            continue;
        }
        int blocks = (int)ceil_div<int64_t>(call.C, layout.columns(call.vector())), least = call.C;
        if (blocks > (layout.lead > 1 ? kThresholds.sharing_blocks : 1)) { continue; }
        for (int part = 0; part < blocks; part++) {
            int begin = first_column(call.bytes, call.C, part, blocks);
            least = std::min(least, first_column(call.bytes, call.C, part + 1, blocks) - begin);
        }
        int groups = std::min(gpu.multiprocessors, layouts::kMostGroups) / blocks;
        if (least < step * (layout.vectors - 1) || groups == 0) { continue; }
        return Choice{Kernel::kCpAsyncPipelined, i, call.vector(), 1, false, {}, blocks, groups};
    }
    return {};
}
// one kernel's answer; nothing: it does not take the call. The fallback's is by cp.async where that is possible.
inline Maybe choose_backward_by(Kernel kernel, const Call& call, const Gpu& gpu) {
    bool fast = call.usual && call.bytes < 8;
    if (kernel == Kernel::kFallback) {
        for (auto* by :
             {backward_cp_async_teams<false>, backward_cp_async_pipelined, backward_cp_async_teams<true>}) {
            if (!fast || !call.whole() || call.mixed) { break; }
            if (Maybe choice = by(call, gpu)) { return choice; }
        }
        return Choice{kernel, 0, call.whole() ? call.vector() : 1};
    }
    if (!fast) { return {}; }
    if (kernel == Kernel::kTeamRing) { return backward_team_ring(call, gpu); }
    if (call.mixed) { return {}; }
    if (kernel == Kernel::kShortRows) { return backward_short_rows(call, gpu); }
    if (kernel == Kernel::kUnalignedRows) { return backward_unaligned_rows(call, gpu); }
    return {};
}

inline Maybe choose_backward(const Call& call, const Gpu& gpu) {
    using enum Kernel;
    for (Kernel kernel : {kShortRows, kTeamRing, kUnalignedRows}) {
        if (Maybe choice = choose_backward_by(kernel, call, gpu)) { return choice; }
    }
    return choose_backward_by(Kernel::kFallback, call, gpu);
}

}  // namespace llmc::layernorm
