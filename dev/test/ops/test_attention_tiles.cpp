// Attention on Hopper without a GPU: how its work is shared out, which kernels take a call, and where the elements of the
// tensor cores' products lie (wgmma_layout.h), against the definitions.
#include <cstdint>
#include <set>
#include <utility>

#include <doctest/doctest.h>

#include "llmc/cuda/wgmma_layout.h"
#include "llmc/host/base/error.h"
#include "llmc/ops/attention/choose.h"

using namespace llmc;

namespace {

struct Shape {
    int B, T, NH;
};
// around the tiles' borders; one group of heads and many
constexpr Shape kShapes[] = {{1, 64, 1},     {1, 65, 1},    {2, 127, 3},   {2, 128, 3},
                             {3, 129, 5},    {2, 191, 2},   {2, 192, 2},   {2, 193, 2},
                             {1, 255, 7},    {1, 256, 7},   {1, 257, 7},   {16, 1000, 25},
                             {64, 1024, 12}, {4, 8192, 12}, {7, 4096, 25}, {1, 65536, 3}};

std::string text(const Shape& s, int rows) {
    return fmt::format("B={} T={} NH={} rows={}", s.B, s.T, s.NH, rows);
}

// every 64 rows of every head have one warpgroup of one tile
template <typename TileOf>
void check_cover(const Shape& s, int rows, TileOf tile_of) {
    TilePlan plan = plan_tiles(s.B, s.T, s.NH, rows);
    std::set<std::pair<int, int>> found;
    int groups = 0, wrong = 0;
    for (int number = 0; number < plan.tiles(); number++) {
        Tile t = tile_of(number, plan);
        wrong += t.head != t.b * s.NH + t.h || t.h < 0 || t.h >= s.NH || t.b >= s.B || t.first % 64 != 0;
        for (int row = t.first; row < t.first + rows; row += 64) {
            if (row < 0 || row >= s.T) { continue; }
            found.emplace(t.head, row);
            groups++;
        }
    }
    int expected = s.B * s.NH * ((s.T + 63) / 64);
    CHECK_MESSAGE(wrong == 0, text(s, rows));
    CHECK_MESSAGE(groups == expected, text(s, rows));
    CHECK_MESSAGE((int)found.size() == expected, text(s, rows));
}

// Of a group of heads the tiles come by falling cost, which is the number of rows on the other side that a tile sees.
template <typename CostOf>
void check_order(const Shape& s, int rows, CostOf cost_of) {
    TilePlan plan = plan_tiles(s.B, s.T, s.NH, rows);
    int wrong = 0;
    for (int number = 0; number + 1 < plan.tiles(); number++) {
        int per_group = plan.group * plan.per_head;
        bool same_group = number / per_group == (number + 1) / per_group;
        wrong += same_group && cost_of(number, plan) < cost_of(number + 1, plan);
    }
    CHECK_MESSAGE(wrong == 0, text(s, rows));
}

}  // namespace

TEST_CASE("attention tiles: every row of every head has one owner") {
    for (const Shape& s : kShapes) {
        for (int rows : {64, 128, 192, 256}) {
            check_cover(s, rows, query_tile);
            check_cover(s, rows, key_tile);
        }
    }
}

TEST_CASE("attention tiles: within a group of heads the longest come first") {
    for (const Shape& s : kShapes) {
        for (int rows : {128, 192, 256}) {
            check_order(s, rows, [&](int n, const TilePlan& p) { return query_tile(n, p).first + rows; });
            check_order(s, rows, [&](int n, const TilePlan& p) { return s.T - key_tile(n, p).first; });
        }
    }
}

TEST_CASE("attention tiles: a group's keys and values fit into 24 MB, or the group is one head") {
    for (const Shape& s : kShapes) {
        TilePlan plan = plan_tiles(s.B, s.T, s.NH, 256);
        int64_t bytes = (int64_t)plan.group * ((s.T + 63) / 64 * 64) * 256;
        CHECK_MESSAGE((plan.group == 1 || bytes <= 24 << 20), text(s, 256));
        // no larger number of equal groups would be needed
        int groups = (plan.heads + plan.group - 1) / plan.group;
        CHECK_MESSAGE(groups * plan.group - plan.heads < groups, text(s, 256));
    }
    CHECK(plan_tiles(64, 1024, 12, 256).group == 96);
    CHECK(plan_tiles(16, 1024, 25, 256).group == 80);
    CHECK(plan_tiles(1, 1 << 20, 2, 256).group == 1);
}

TEST_CASE("attention_choose: Hopper's kernels for heads of 64, from 64 tokens on") {
    CHECK(fits_wgmma(1024, 64));
    CHECK(fits_wgmma(64, 64));
    CHECK_FALSE(fits_wgmma(63, 64));
    CHECK_FALSE(fits_wgmma(1024, 63));
    CHECK_FALSE(fits_wgmma(1024, 128));
}

// ---- wgmma's layout ----------------------------------------------------------------------------

namespace {

// the swizzle of 128 bytes as TMA and the tensor core apply it to any address: bits 7 to 9 flip bits 4 to 6
int hardware_swizzle(int address) { return address ^ (address >> 7 & 7) << 4; }

// where an element of a tile lies according to the kernels
int element_address(int row, int column) { return swizzled(row, column / 8) + column % 8 * 2; }

}  // namespace

TEST_CASE("wgmma layout: the swizzle is the hardware's, and loses nothing") {
    std::set<int> places;
    for (int row = 0; row < kTileRows; row++) {
        for (int chunk = 0; chunk < 8; chunk++) {
            CHECK(swizzled(row, chunk) == hardware_swizzle(row * kTileRowBytes + chunk * 16));
            places.insert(swizzled(row, chunk));
        }
    }
    CHECK(places.size() == kTileRows * 8);
    CHECK(*places.rbegin() == kTileBytes - 16);
}

TEST_CASE("wgmma layout: the fields of a descriptor") {
    uint64_t d = tile_descriptor(0x2c400);
    CHECK((d & 0x3fff) == 0x2c400 >> 4);
    CHECK((d >> 32 & 0x3fff) == 64);  // atoms are 1024 bytes apart
    CHECK((d >> 62) == 1);            // the swizzle of 128 bytes
    CHECK((d >> 46 & 0xffff) == 0);   // no base offset: tiles lie at multiples of 1024 bytes
    // one more in the lowest field is 16 bytes, and does not run into the next field within a tile
    CHECK(tile_descriptor(0x2c400) + kNextRows * 3 == tile_descriptor(0x2c400 + 3 * 16 * kTileRowBytes));
    CHECK(tile_descriptor(0x2c400) + kNextColumns * 3 == tile_descriptor(0x2c400 + 3 * 32));
}

// The tensor core finds element (row, k) of 16 columns, or (k, column) of 16 rows, from the descriptor's start by steps of
// whole atoms and rows, and swizzles the sum.
TEST_CASE("wgmma layout: both ways to read a tile find its elements") {
    int wrong = 0;
    for (int step = 0; step < 4; step++) {
        for (int row = 0; row < kTileRows; row++) {
            for (int k = 0; k < 16; k++) {
                int along = step * kNextColumns * 16 + row / 8 * kAtomBytes + row % 8 * kTileRowBytes + k * 2;
                wrong += hardware_swizzle(along) != element_address(row, 16 * step + k);
                int down = step * kNextRows * 16 + k / 8 * kAtomBytes + k % 8 * kTileRowBytes + row * 2;
                wrong += hardware_swizzle(down) != element_address(16 * step + k, row);
            }
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("wgmma layout: a warp holds each of its 16 x 64 results once") {
    std::set<std::pair<int, int>> held;
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 32; i++) { held.emplace(result_row(lane, i), result_column(lane, i)); }
    }
    CHECK(held.size() == 16 * 64);
    CHECK(held.rbegin()->first == 15);
}

TEST_CASE("wgmma layout: results in pairs are a left operand as it must lie") {
    int wrong = 0;
    for (int lane = 0; lane < 32; lane++) {
        for (int k = 0; k < 4; k++) {
            for (int r = 0; r < 4; r++) {
                int from = left_from_result(k, r);
                for (int e = 0; e < 2; e++) {
                    wrong += result_row(lane, from + e) != left_row(lane, r);
                    wrong += result_column(lane, from + e) != 16 * k + left_column(lane, r) + e;
                }
            }
        }
    }
    CHECK(wrong == 0);
}

// ldmatrix and stmatrix: lane 8 m + i gives the address of row i of matrix m; lane l's register m is the pair l % 4 of row
// l / 4 of matrix m
TEST_CASE("wgmma layout: matrices move between a swizzled tile and a left operand") {
    int wrong = 0;
    for (int lane = 0; lane < 32; lane++) {
        for (int k = 0; k < 4; k++) {
            for (int m = 0; m < 4; m++) {
                int giver = 8 * m + lane / 4;
                int address = swizzled(matrix_row(giver), matrix_chunk(giver, k)) + lane % 4 * 4;
                wrong += address != element_address(left_row(lane, m), 16 * k + left_column(lane, m));
            }
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("wgmma layout: the mask of a tile on the diagonal") {
    int wrong = 0;
    for (int warp = 0; warp < 4; warp++) {
        for (int lane = 0; lane < 32; lane++) {
            for (int i = 0; i < 32; i++) {
                int row = 16 * warp + result_row(lane, i), column = result_column(lane, i);
                wrong +=
                    (past_diagonal(i) > lane_diagonal(warp, lane)) != (column > row);  // rows are queries
                wrong += (past_diagonal(i) < lane_diagonal(warp, lane)) != (row > column);  // rows are keys
            }
        }
    }
    CHECK(wrong == 0);
}

TEST_CASE("wgmma layout: the sums of columns read each element of a tile once, from 32 banks at once") {
    std::set<std::pair<int, int>> seen;
    int wrong = 0;
    for (int warp = 0; warp < 4; warp++) {
        for (int step = 0; step < 16; step++) {
            std::set<int> banks;
            for (int lane = 0; lane < 32; lane++) {
                int row = sum_row(lane, step), column = sum_column(warp, lane);
                seen.emplace(row, column);
                banks.insert(element_address(row, column) % 128 / 4);
                // lanes whose sums are added share a column; a step is whole atoms behind step 0 or 1
                wrong += column != sum_column(warp, lane % 8) || column % 2 != 0;
                wrong += element_address(row, column) !=
                         element_address(sum_row(lane, step % 2), column) + step / 2 * kAtomBytes;
            }
            CHECK(banks.size() == 32);
        }
    }
    CHECK(wrong == 0);
    CHECK(seen.size() == kTileRows * kTileColumns / 2);
}
