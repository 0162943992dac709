// How odd.cuh lays a call out, by C, the type and the number of streams alone: whether one block takes a row or a
// cluster shares it; warps to a row, columns to a lane, teams to a block, stages to a team's ring.
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/layernorm/layouts.h"

namespace llmc::layernorm_odd_backward {

constexpr int kMostTeams = 15;     // of more than one warp: a block has as many barriers to name
constexpr int kMostStages = 4;     // of a team
constexpr int kSharingWarps = 16;  // of a block, where several share a row

// A block's rings, in bytes: more drives the blocks apart, much less starves them. += has more to bring, and where several
// blocks share a row each waits for the others, too.
constexpr int ring_bytes(int streams) { return (streams == 3 ? 96 : 72) << 10; }
constexpr int kSharedRingBytes = 104 << 10;
// the same where there is one team, whose stages are three at most
constexpr int lone_ring_bytes(int size) { return (size == 2 ? 104 : 80) << 10; }

// A block has `teams` teams of `warps` warps, each with a ring of `stages`; a stage has `region` bytes for each stream
// of rows. Without teams: there is none.
struct Layout {
    int warps, teams, stages, region;
};

// With this many warps to a row of so many bytes, of a block that may have `most`; size: of an element.
inline Layout layout_of(int warps, int most, int streams, int row_bytes, int size, int bytes) {
    int region = ceil_div(row_bytes, kLineBytes) * kLineBytes + kLineBytes, stage = streams * row_bytes;
    int teams = std::min(most / warps, std::max(1, bytes / (2 * stage)));
    if (warps > 1) { teams = std::min(teams, kMostTeams); }
    int stages = teams > 1 ? bytes / (teams * stage) : std::min(3, lone_ring_bytes(size) / stage);
    return {warps, teams, std::clamp(stages, 2, kMostStages), region};
}

// warps of a multiprocessor, so that what a lane holds of k columns fits its registers
constexpr int warps_of(int k, bool accumulate) {
    int registers = 5 * k + (accumulate ? 41 : 31);
    return registers > 96 ? 16 : registers > 80 ? 20 : registers > 72 ? 24 : 28;
}

// Of small teams fewer warps are enough, where lanes are wide.
constexpr int warps_of(int k, bool accumulate, int team) {
    int most = warps_of(k, accumulate);
    bool enough = most / team > 4 && (k >= 13 || (k >= 9 && team == 1));
    return enough ? 16 : most;
}

// A layout of layouts.h's: `blocks` blocks share a row; a lane has k columns of it, the first `full` of them without asking
// whether they are there.
template <int i>
struct Tile {
    static constexpr layouts::UnalignedBackward row = layouts::kUnalignedBackward[i];
    static constexpr int k = row.columns, full = row.unguarded, blocks = row.cluster;

    // `columns` of a row by so many warps
    static bool fits(int columns, int warps) {
        return ceil_div(columns, warps) <= k * kWarp && columns / warps >= full * kWarp;
    }
    // For a row that a cluster shares: as few warps as there must be. 120 of an H200's 132 multiprocessors are in clusters
    // of 4 or 8, and 112 in those of 16.
    static Layout shared(int C, int streams, int size) {
        int columns = ceil_div(C, blocks), warps = ceil_div(columns, k * kWarp);
        if (warps > kSharingWarps || !fits(C / blocks, warps)) { return {}; }
        return layout_of(warps, kSharingWarps, streams, columns * size, size, kSharedRingBytes);
    }
    static float rows_under_way(const Layout& o) {
        return (blocks == 2 ? 132.0f : blocks < 16 ? 120.0f : 112.0f) / blocks * o.teams;
    }
};

// visit(Tile<i>{}) for each of those for one block, or of those for clusters
template <bool kShared, int size, typename Visit>
void each_tile(const Visit& visit) {
    layouts::first_of<layouts::kUnalignedBackward>([&]<int i>() {
        constexpr bool shared = Tile<i>::blocks > 1;
        if constexpr (shared == kShared && (!shared || size == 2 || Tile<i>::row.fp32)) { visit(Tile<i>{}); }
        return false;
    });
}

}  // namespace llmc::layernorm_odd_backward
