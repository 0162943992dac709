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

// Warps, lanes, k, all, early, blocks, together. Few lanes with many vectors each: what a warp does once costs as much
// as three vectors.
using Fine16 =
    Choice<Layout<1, 8, 1, 0, 2, 4, 8>, Layout<1, 8, 2, 1, 2, 8, 4>, Layout<1, 8, 3, 2, 2, 12, 2>,
           Layout<1, 8, 4, 3, 2, 12, 2>, Layout<1, 8, 5, 4, 2, 20>, Layout<1, 8, 6, 5, 1, 20>,
           Layout<1, 8, 7, 6, 1, 16>, Layout<1, 8, 8, 7, 1, 16>, Layout<1, 16, 5, 4, 1, 20>,
           Layout<1, 16, 6, 5, 1, 20>, Layout<1, 16, 8, 6, 1, 16>, Layout<1, 32, 5, 4, 1, 20>,
           Layout<1, 32, 6, 5, 1, 20>, Layout<1, 32, 7, 6, 0, 20>, Layout<1, 32, 8, 7, 1, 16>,
           Layout<2, 32, 6, 4, 1, 10>, Layout<2, 32, 8, 6, 1, 8>, Layout<4, 32, 6, 4, 1, 5>,
           Layout<4, 32, 8, 6, 1, 4>, Layout<4, 32, 9, 7, 0, 4>, Layout<5, 32, 8, 6, 1, 3>,
           Layout<5, 32, 9, 7, 0, 3>, Layout<4, 32, 12, 10, 0, 3>, Layout<4, 32, 14, 12, 0, 3>,
           Layout<4, 32, 15, 13, 0, 3>, Layout<8, 32, 8, 6, 1, 2>, Shared<4, 9, 8, 0, 2>,
           Shared<4, 11, 9, 0, 2>, Shared<4, 9, 7, 0, 3>, Shared<4, 8, 6, 0, 4>, Shared<4, 9, 8, 0, 4>,
           Shared<4, 9, 7, 0, 5>, Shared<4, 9, 7, 0, 6>, Shared<4, 9, 7, 0, 7>, Shared<4, 9, 7, 0, 8>,
           Shared<4, 11, 9, 0, 8>, Shared<4, 9, 7, 0, 10>, Shared<4, 11, 9, 0, 10>, Shared<4, 11, 9, 0, 12>,
           Shared<4, 9, 8, 0, 16>, Shared<4, 11, 9, 0, 16>, Shared<8, 9, 7, 0, 12>, Shared<8, 8, 6, 0, 16>>;
using Fine32 =
    Choice<Layout<1, 8, 2, 1, 2, 8, 4>, Layout<1, 8, 3, 2, 2, 8, 4>, Layout<1, 8, 4, 3, 2, 12, 2>,
           Layout<1, 8, 5, 4, 2, 10, 2>, Layout<1, 8, 6, 5, 1, 10, 2>, Layout<1, 8, 8, 6, 1, 8, 2>,
           Layout<1, 16, 6, 3, 1, 8, 2>, Layout<1, 16, 7, 5, 1, 8, 2>, Layout<1, 32, 4, 3, 1, 10, 2>,
           Layout<1, 32, 6, 4, 1, 10, 2>, Layout<1, 32, 7, 5, 0, 10, 2>, Layout<1, 32, 8, 7, 1, 8, 2>,
           Layout<2, 32, 6, 4, 1, 8>, Layout<2, 32, 7, 5, 0, 10>, Layout<2, 32, 8, 6, 1, 8>,
           Layout<3, 32, 7, 5, 1, 5>, Layout<3, 32, 8, 6, 1, 5>, Layout<4, 32, 7, 5, 1, 4>,
           Layout<4, 32, 8, 6, 1, 4>, Layout<5, 32, 8, 6, 1, 3>, Layout<6, 32, 8, 6, 0, 3>,
           Layout<7, 32, 8, 6, 1, 2>, Layout<8, 32, 8, 6, 1, 2>, Layout<10, 32, 8, 6, 0, 2>,
           Layout<10, 32, 10, 8, 0, 2>, Layout<18, 32, 7, 5, 0, 1>, Shared<8, 8, 7, 1, 2>,
           Shared<4, 10, 8, 0, 4>, Shared<4, 10, 8, 0, 5>, Shared<4, 10, 8, 0, 6>, Shared<4, 10, 8, 0, 7>,
           Shared<8, 10, 8, 0, 4>, Shared<8, 10, 8, 0, 5>, Shared<8, 10, 8, 0, 6>, Shared<8, 10, 8, 0, 7>,
           Shared<8, 10, 8, 0, 8>, Shared<8, 10, 8, 0, 10>, Shared<8, 10, 8, 0, 12>, Shared<8, 10, 8, 0, 14>,
           Shared<16, 10, 8, 0, 8>, Shared<16, 8, 5, 0, 16>>;
// Fewer, for what is rare: residuals, weights of another type, or not aligned. With a residual clusters of 16 take longer
// than general.cu: 349 us for 284 at 512x131071 bf16.
using Coarse16 = Choice<Layout<1, 8, 1, 0, 0, 4, 8>, Layout<1, 8, 4, 1, 0, 10, 2>, Layout<1, 16, 5, 2, 0, 16>,
                        Layout<1, 16, 6, 5, 1, 15>, Layout<1, 32, 6, 3, 0, 16>, Layout<2, 32, 6, 3, 0, 8>,
                        Layout<4, 32, 6, 3, 0, 4>, Layout<8, 32, 6, 3, 0, 2>, Layout<16, 32, 4, 2, 0, 1>,
                        Shared<8, 6, 2, 0, 3>, Shared<8, 6, 2, 0, 8>>;
using Coarse32 = Choice<Layout<1, 8, 3, 1, 0, 4, 4>, Layout<1, 8, 8, 3, 0, 8, 2>, Layout<1, 16, 8, 4, 0, 16>,
                        Layout<1, 32, 8, 4, 0, 16>, Layout<2, 32, 8, 4, 0, 8>, Layout<4, 32, 8, 4, 0, 4>,
                        Layout<8, 32, 8, 4, 0, 2>, Layout<16, 32, 8, 4, 0, 1>, Shared<8, 8, 3, 0, 4>,
                        Shared<8, 8, 3, 0, 10>>;

template <typename T, bool fine>
using Layouts = std::conditional_t<sizeof(T) == 2, std::conditional_t<fine, Fine16, Coarse16>,
                                   std::conditional_t<fine, Fine32, Coarse32>>;

}  // namespace llmc::layernorm_odd_forward
