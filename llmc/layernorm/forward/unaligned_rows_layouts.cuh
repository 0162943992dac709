// How odd.cuh lays a row out, by C and the types alone: lanes, warps and blocks that share it, and the vectors of a lane.
#pragma once
#include <type_traits>

#include "llmc/cuda/device.cuh"

namespace llmc::layernorm_odd_forward {

constexpr int kFewestColumns = 57;  // narrow.cuh has shorter rows

// A row is shared by `lanes` lanes of each of `warps` warps. A lane holds k vectors, the first `all` of which
// are there in every lane, and one column more. Groups of lanes of a warp have a row each, as far past
// 16-byte boundaries as the others'. early: weight (1), or weight and bias (2), are asked for together with
// the row. blocks: so many are to fit an SM, which limits registers. together: so many warps, with rows of
// their own, make a block: more for short rows, since blocks begin no faster than 0.8 a ns. cluster: so many
// blocks, of `warps` warps each, share a row (Hopper).
template <int warps_, int lanes_, int k_, int all_, int early_, int blocks_, int together_ = 1,
          int cluster_ = 1>
struct Layout {
    static constexpr int warps = warps_, lanes = lanes_, k = k_, all = all_, early = early_, blocks = blocks_;
    static constexpr int together = together_, threads = warps * together * kWarp, cluster = cluster_;
    static constexpr int of_warp = kWarp / lanes, rows = of_warp * together;  // rows of a warp; of a block
    static_assert(warps == 1 || rows == 1, "a block's barrier is that of one row");
    static_assert(cluster == 1 || warps > 1);

    // of rows with vectors of n columns
    static constexpr int columns(int n) { return cluster * warps * lanes * (k * n + 1); }
    static constexpr int fewest(int n) { return cluster * warps * (all * lanes + 1) * n; }
};

// a row shared by a cluster of so many blocks, of which as many fit an SM as have 16 warps
template <int warps, int k, int all, int early, int cluster>
using Shared = Layout<warps, 32, k, all, early, 16 / warps, 1, cluster>;

template <typename... Layouts>
struct Choice {};

// L for weights or residuals that are rare: few layouts, so fewer vectors are sure to be there, and more registers are
// needed.
template <typename L, int all_>
struct Rare : L {
    static constexpr int all = all_, early = 0, blocks = L::blocks > 1 ? L::blocks * 3 / 4 : 1;
    static constexpr int fewest(int n) { return L::cluster * L::warps * (all * L::lanes + 1) * n; }
};

// Warps, lanes, k, all, early, blocks, together; for 16 bits and, half as many columns, fp32. Few lanes with many vectors
// each: what a warp does once costs as much as three vectors.
using Upto520 = Layout<1, 8, 8, 4, 1, 16>;
using Upto2080 = Layout<1, 32, 8, 3, 1, 16>;
using Upto8320 = Layout<4, 32, 8, 4, 1, 4>;
using Upto16640 = Layout<8, 32, 8, 4, 1, 2>;
using Upto74752 = Shared<4, 9, 5, 0, 8>;
using Usual =
    Choice<Layout<1, 8, 4, 0, 2, 12, 2>, Upto520, Layout<1, 16, 6, 4, 1, 20>, Upto2080, Layout<2, 32, 8, 4, 1, 8>,
           Upto8320, Upto16640, Shared<4, 9, 5, 0, 3>, Shared<4, 9, 5, 0, 5>, Upto74752, Shared<4, 11, 6, 0, 12>,
           Shared<8, 9, 5, 0, 12>, Shared<8, 9, 6, 0, 16>>;
// a residual, weights of another type or not aligned
using Others = Choice<Rare<Upto520, 0>, Rare<Upto2080, 2>, Rare<Upto8320, 2>, Rare<Upto16640, 4>,
                      Rare<Upto74752, 2>>;

}  // namespace llmc::layernorm_odd_forward
