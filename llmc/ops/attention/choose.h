// Which kernels take a call of attention, and the tiles in which Hopper's share out its work: functions of the call alone,
// plain C++, which dev/test/ops/test_attention_tiles.cpp checks.
#pragma once
#include <algorithm>
#include <cstdint>

namespace llmc {

// ---- which kernels. In bf16 there are two sets, forward and backward:
//   wgmma     Hopper's: wgmma, TMA, tiles of 64 rows of 64 elements
//   mma_sync  any GPU's since Ampere, head sizes 1 to 128
// A sequence's bits must not depend on the batch that it is in: B and NH have no say.

constexpr int kWgmmaHeadSize = 64, kWgmmaLeastT = 64;

// is a call for the kernels for Hopper? Below 64 tokens they would compute more padding than scores.
constexpr bool fits_wgmma(int T, int HS) { return HS == kWgmmaHeadSize && T >= kWgmmaLeastT; }

// ---- tiles of the kernels for Hopper. A tile is `rows` queries (forward, dQ) or keys (dK, dV) of one head, `rows` a multiple
// of 64. Blocks of threads take tiles in the order of their numbers, whoever is free the next one.

struct TilePlan {
    int T, NH, rows;
    int per_head;  // tiles of a head
    int heads;     // B NH
    int group;     // heads whose tiles come one after the other, see plan_tiles()
    constexpr int tiles() const { return per_head * heads; }
};

struct Tile {
    int head, b, h;  // head = b NH + h
    int first;       // row; may be negative, see query_tile()
};

// What the tiles of a head read again and again, two tensors of 128 bytes a row, is to stay in L2: 24 MB are half of an
// H100's. Heads are taken in groups that fit, as equal as can be.
constexpr TilePlan plan_tiles(int B, int T, int NH, int rows) {
    constexpr int64_t kL2 = 24 << 20;
    int64_t heads = (int64_t)B * NH, padded = ((int64_t)T + 63) / 64 * 64;
    int64_t most = std::max<int64_t>(1, kL2 / (padded * 256)), groups = (heads + most - 1) / most;
    return {T, NH, rows, (T + rows - 1) / rows, (int)heads, (int)((heads + groups - 1) / groups)};
}

// Of a group first the tiles that take longest, place 0 of every head, then place 1, ...: what is started last is short.
// first: the place
constexpr Tile tile_at(int number, const TilePlan& p) {
    int group = number / (p.group * p.per_head), within = number % (p.group * p.per_head);
    int size = std::min(p.group, p.heads - group * p.group);  // the last group may be smaller
    int head = group * p.group + within % size;
    return {head, head / p.NH, head % p.NH, within / size};
}

// The last queries see the most keys. Where tiles do not divide T, the first query's tile, the shortest, begins before
// row 0; it begins at a multiple of 64 in any case.
constexpr Tile query_tile(int number, const TilePlan& p) {
    Tile t = tile_at(number, p);
    t.first = (p.T + 63) / 64 * 64 - (t.first + 1) * p.rows;
    return t;
}

// the first keys are seen by the most queries
constexpr Tile key_tile(int number, const TilePlan& p) {
    Tile t = tile_at(number, p);
    t.first *= p.rows;
    return t;
}

}  // namespace llmc
