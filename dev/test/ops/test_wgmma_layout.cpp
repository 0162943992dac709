// Where the elements of Hopper's tensor-core products lie (wgmma_layout.h), checked against the definitions without a GPU.
#include <set>
#include <utility>

#include <doctest/doctest.h>

#include "llmc/cuda/wgmma_layout.h"

using namespace llmc;

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

TEST_CASE("wgmma layout: eight rows of a column lie in all 32 banks") {
    for (int chunk = 0; chunk < 8; chunk++) {
        std::set<int> banks;
        for (int row = 0; row < 8; row++) { banks.insert(swizzled(row, chunk) % 128 / 16); }
        CHECK(banks.size() == 8);
    }
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
