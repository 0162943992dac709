// How ring.cuh lays out its work: which blocks, warps and lanes have which columns, by a row's length.
#pragma once
#include "llmc/cuda/device.cuh"

namespace llmc::layernorm_ring {

// A row is shared by the blocks of a cluster (1: no cluster), in each of them by a team of warps, whose lanes hold k
// vectors of n columns; a block has several teams, each with a ring of stages. again: a row's second half reads it again
// where the copy engine left it, for want of registers, and its stage is refilled a row later; soon: at once, for one
// more meeting of the team, where there are but two stages.
template <int blocks_, int warps_, int n_, int k_, int teams_, int stages_ = 2, bool again_ = false>
struct Layout {
    static constexpr bool again = again_, soon = again && stages_ == 2;
    static constexpr int blocks = blocks_, warps = warps_, n = n_, k = k_, teams = teams_, stages = stages_;
    static constexpr int team_threads = warps * kWarp, threads = teams * team_threads;
    static constexpr int step = team_threads * n,
                         columns = step * k;  // of a lane's vectors; a block has room for
    static constexpr int room = blocks * columns, pairs = blocks * warps;  // columns of a row; warps
    static_assert(threads <= 1024 && (warps == 1 || teams < 16));          // named barriers 1 to 15
};

// For rows of up to so many columns: a layout for dinp =, and one for dinp +=, whose stages are half as large again.
// usual: weights of another type, which are rare, take the next one.
template <int columns_, typename Write_, typename Add_, bool usual_ = false>
struct Both {
    static constexpr int columns = columns_;
    static constexpr bool usual = usual_;
    using Write = Write_;
    using Add = Add_;
    static_assert(columns <= Write::room && columns <= Add::room);
};
template <int columns, typename Write, typename Add>
using Usual = Both<columns, Write, Add, true>;
// instead of a layout: += of such rows is not taken
struct None {
    static constexpr int room = 1 << 30;
};
template <typename... Boths>
struct Choice {};

// Blocks, warps, n, k, teams, stages, by measurement. Up to 4096 columns 48 to 72 KB of ring an SM are best: more
// drives the SMs apart, less starves them; longer rows want 64 KB on their way while one is at work. A vector of 16
// bytes a lane and many warps a row win while a team leaves room for others; exact tiling counts more. Clusters pay
// from 3905 columns of 16 bits on (2561 to 3008 five small teams do); few warps with many vectors each, as all warps of a
// row must meet. Of clusters of 8 that have their SMs to themselves an H200 holds 15, 120 of its 132 SMs, of 16 only 7. A
// turn takes as long for a row that does not fill its layout: so there are many. Beyond 64 KB, where each has to do for
// rows half as long, a ring takes all of shared memory.
using Layouts16 = Choice<
    Both<256, Layout<1, 1, 8, 1, 12, 4>, Layout<1, 1, 8, 1, 12, 3>>,
    Both<512, Layout<1, 2, 8, 1, 8, 3>, Layout<1, 2, 8, 1, 8, 2>>,
    Both<768, Layout<1, 3, 8, 1, 4, 4>, Layout<1, 3, 8, 1, 5, 2>>,
    Both<1024, Layout<1, 4, 8, 1, 4, 3>, Layout<1, 4, 8, 1, 4, 2>>,
    Both<1280, Layout<1, 5, 8, 1, 3, 4>, Layout<1, 5, 8, 1, 3, 3>>,
    Usual<1536, Layout<1, 6, 8, 1, 3, 3>, Layout<1, 6, 8, 1, 2, 3>>,
    Both<1600, Layout<1, 5, 2, 5, 4, 2>, Layout<1, 5, 2, 5, 3, 2>>,
    Usual<1728, Layout<1, 7, 8, 1, 3, 3>, Layout<1, 7, 8, 1, 2, 3>>,
    Both<2048, Layout<1, 4, 8, 2, 3, 2>, Layout<1, 8, 8, 1, 2, 3>>,
    Both<2560, Layout<1, 10, 4, 2, 2, 3>, Layout<1, 5, 8, 2, 2, 2>>,
    Both<3072, Layout<1, 6, 8, 2, 2, 2>, Layout<1, 6, 8, 2, 2, 2>>,
    Usual<3904, Layout<1, 8, 8, 2, 1, 4>, Layout<1, 8, 8, 2, 1, 3>>,
    Both<4096, Layout<2, 4, 8, 2, 2, 4>, Layout<1, 8, 8, 2, 1, 3>>,
    Usual<4608, Layout<2, 6, 4, 3, 2, 4>, Layout<2, 6, 4, 3, 2, 3>>,
    Both<5120, Layout<2, 5, 8, 2, 2, 3>, Layout<2, 5, 8, 2, 2, 2>>,
    Usual<6144, Layout<4, 3, 8, 2, 4, 3>, Layout<4, 3, 8, 2, 4, 2>>,
    Usual<7552, Layout<2, 4, 8, 4, 2, 2>, Layout<2, 4, 8, 4, 1, 3>>,
    Both<8192, Layout<4, 4, 8, 2, 3, 3>, Layout<4, 4, 8, 2, 2, 3>>,
    Usual<9216, Layout<4, 3, 8, 3, 4, 2>, Layout<2, 5, 8, 4, 1, 3>>,
    Usual<10240, Layout<4, 5, 8, 2, 3, 3>, Layout<4, 5, 8, 2, 2, 3>>,
    Both<12288, Layout<4, 4, 8, 3, 2, 3>, Layout<4, 4, 8, 3, 2, 2>>,
    Usual<13824, Layout<4, 4, 8, 4, 2, 3>, Layout<4, 4, 8, 4, 2, 2>>,
    Usual<14848, Layout<4, 5, 8, 3, 2, 3>, Layout<4, 5, 8, 3, 2, 2>>,
    Both<16384, Layout<8, 4, 8, 2, 3, 3>, Layout<8, 4, 8, 2, 3, 2>>,
    Both<20480, Layout<8, 5, 8, 2, 3, 3>, Layout<8, 5, 8, 2, 2, 3>>,
    Usual<24576, Layout<8, 4, 8, 3, 2, 4>, Layout<8, 4, 8, 3, 3, 2>>,
    Both<32768, Layout<16, 4, 8, 2, 4, 3>, Layout<8, 4, 8, 4, 2, 2>>,
    Both<65536, Layout<16, 4, 8, 4, 2, 6>, Layout<16, 4, 8, 4, 2, 4>>,
    Both<131072, Layout<16, 8, 8, 4, 1, 6>, Layout<16, 8, 8, 4, 1, 4>>,
    Usual<196608, Layout<16, 8, 8, 6, 1, 4, true>, None>,
    Both<262144, Layout<16, 8, 8, 8, 1, 3, true>, None>>;
using Layouts32 = Choice<
    Both<256, Layout<1, 1, 4, 2, 12, 3>, Layout<1, 1, 4, 2, 12, 2>>,
    Both<512, Layout<1, 2, 4, 2, 8, 2>, Layout<1, 2, 4, 2, 6, 2>>,
    Both<768, Layout<1, 2, 4, 3, 4, 2>, Layout<1, 3, 4, 2, 3, 2>>,
    Both<1024, Layout<1, 4, 4, 2, 3, 2>, Layout<1, 4, 4, 2, 2, 2>>,
    Both<1280, Layout<1, 5, 4, 2, 3, 3>, Layout<1, 5, 4, 2, 2, 2>>,
    Both<1792, Layout<1, 7, 4, 2, 2, 2>, Layout<1, 7, 4, 2, 2, 2>>,
    Both<2048, Layout<1, 8, 4, 2, 1, 3>, Layout<1, 8, 4, 2, 1, 3>>,
    Both<3072, Layout<1, 12, 4, 2, 1, 3>, Layout<1, 12, 4, 2, 1, 2>>,
    Both<4096, Layout<1, 16, 4, 2, 1, 2>, Layout<2, 8, 4, 2, 1, 3>>,
    Both<5120, Layout<2, 5, 4, 4, 1, 3>, Layout<4, 5, 4, 2, 3, 2>>,
    Both<6144, Layout<4, 6, 4, 2, 2, 3>, Layout<4, 6, 4, 2, 2, 2>>,
    Both<8192, Layout<4, 4, 4, 4, 2, 2>, Layout<4, 4, 4, 4, 2, 2>>,
    Both<10240, Layout<4, 5, 4, 4, 2, 2>, Layout<4, 5, 4, 4, 1, 3>>,
    Both<12288, Layout<8, 4, 4, 3, 2, 3>, Layout<8, 4, 4, 3, 3, 2>>,
    Both<16384, Layout<8, 4, 4, 4, 2, 2>, Layout<8, 4, 4, 4, 2, 2>>,
    Both<20480, Layout<8, 5, 4, 4, 2, 2>, Layout<8, 5, 4, 4, 1, 3>>,
    Both<32768, Layout<16, 4, 4, 4, 3, 4>, Layout<16, 4, 4, 4, 2, 4>>,
    Both<65536, Layout<16, 8, 4, 4, 2, 3>, Layout<16, 8, 4, 4, 1, 3>>,
    Both<131072, Layout<16, 8, 4, 8, 1, 3>, Layout<16, 8, 4, 8, 1, 2>>,
    Both<229376, Layout<16, 8, 4, 14, 1, 2, true>, None>>;

}  // namespace llmc::layernorm_ring
