// Where the elements of a product of Hopper's tensor cores (wgmma) lie, as plain functions: the kernels use them and
// dev/test/ops/test_attention_tiles.cpp checks them without a GPU. PTX ISA, 9.7.15 "wgmma".
//
// A tile is 64 rows of 64 bf16 in shared memory, 128 bytes a row, 8 KB, at a multiple of 1024 bytes.
//
// Swizzle. Read down a column, all 64 rows of a plain tile would meet in the same 4 of the 32 banks. So the eight
// 16-byte chunks of a row change places: chunk c of row r lies where chunk c ^ (r % 8) would. Eight rows, 1024 bytes,
// are one swizzle atom: the pattern repeats from there on, as it is a function of address bits 4 to 9. TMA
// writes tiles this way and the tensor core reads them so; threads that touch a tile themselves must do the same.
#pragma once
#include <cstdint>

namespace llmc {

constexpr int kTileRows = 64, kTileColumns = 64;
constexpr int kTileElements = kTileRows * kTileColumns;
constexpr int kTileRowBytes = 2 * kTileColumns, kTileBytes = kTileRows * kTileRowBytes;
constexpr int kAtomBytes = 8 * kTileRowBytes;

// byte in a tile at which the 16-byte chunk (8 bf16) of a row lies
constexpr int swizzled(int row, int chunk) { return row * kTileRowBytes + (chunk ^ row % 8) * 16; }

// A descriptor tells the tensor core where an operand lies: address / 16 in bits 0 to 13, the distance between atoms / 16
// from bit 32 on, and 1 in bits 62 and 63 for the swizzle of 128 bytes. (Bits 16 to 29 are not used with it.)
constexpr uint64_t tile_descriptor(uint32_t shared_address) {
    return (uint64_t)((shared_address & 0x3ffff) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)(kAtomBytes >> 4) << 32 | (uint64_t)1 << 62;
}

// One instruction multiplies 16 elements deep. How far the next 16 are, in a descriptor's units of 16 bytes: along the
// rows where the sum runs over a tile's columns (a b^T: "K-major"), or 16 rows down where it runs over its rows
// (a b: "MN-major"). Both read the same tile.
constexpr int kNextColumns = 16 * 2 / 16, kNextRows = 16 * kTileRowBytes / 16;

// A warpgroup's 64 x 64 result: warp w has rows 16 w to 16 w + 15. Of those a lane's register i (of 32) is element:
constexpr int result_row(int lane, int i) { return lane / 4 + i / 2 % 2 * 8; }
constexpr int result_column(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

// Column minus row of a lane's register i, less lane_diagonal(): a compile-time number, so that a mask is one compare.
constexpr int past_diagonal(int i) { return result_column(0, i) - result_row(0, i); }
// what is subtracted, for warp w of the warpgroup; past_diagonal(i) > lane_diagonal() where column > row
constexpr int lane_diagonal(int warp, int lane) { return warp * 16 + lane / 4 - lane % 4 * 2; }

// The left operand in registers, 16 rows a warp and 16 columns: register r (of 4) of a lane holds a pair of elements,
// the first of which is:
constexpr int left_row(int lane, int r) { return lane / 4 + r % 2 * 8; }
constexpr int left_column(int lane, int r) { return r / 2 * 8 + lane % 4 * 2; }
// So registers 8 k to 8 k + 7 of a result, packed in pairs, are columns 16 k to 16 k + 15 of a left operand:
// first result register of pair r
constexpr int left_from_result(int k, int r) { return 8 * k + 2 * r; }

// The row and the chunk whose address a lane gives to ldmatrix or stmatrix, which move a warp's 16 x 16 elements from
// column 16 k on: lanes 0 to 15 give the left chunk of their row, lanes 16 to 31 the right one.
constexpr int matrix_row(int lane) { return lane % 16; }
constexpr int matrix_chunk(int lane, int k) { return 2 * k + lane / 16; }

// The sums of a tile's columns: each warp of a warpgroup has 16 of them, a lane a pair of neighbours, which it reads in 16
// steps, one row each. The four rows that a warp reads at once are 2 apart: the swizzle puts their chunks into different
// banks.
constexpr int sum_row(int lane, int step) { return step / 2 * 8 + lane / 8 * 2 + step % 2; }
constexpr int sum_column(int warp, int lane) { return warp * 16 + lane % 8 * 2; }

}  // namespace llmc
