// What kernels that write FP8 share: eight numbers as bytes, the largest number so far, and a tile in shared memory whose
// columns leave as rows, since Hopper's FP8 products want both operands with the dimension of their sums first.
#pragma once
#include <cuda_fp8.h>

#include "llmc/cuda/device.cuh"

namespace llmc {

enum class Fp8 { kE4m3, kE5m2 };  // largest: 448, 57344

// each times scale and rounded to the nearest, beyond the largest: the largest; NaN stays NaN
template <Fp8 format>
__device__ inline uint2 fp8_bytes(const float (&x)[8], float scale) {
    constexpr __nv_fp8_interpretation_t kind = format == Fp8::kE4m3 ? __NV_E4M3 : __NV_E5M2;
    uint32_t pair[4];
    unrolled<4>([&](int i) {
        pair[i] = __nv_cvt_float2_to_fp8x2({x[2 * i] * scale, x[2 * i + 1] * scale}, __NV_SATFINITE, kind);
    });
    return {pair[0] | pair[1] << 16, pair[2] | pair[3] << 16};
}

// *amax = max(*amax, the warp's largest), none negative: their bits are ordered as they are, and a maximum does not depend
// on who comes first. Most warps see that it is no news.
__device__ inline void raise_amax(float* amax, float largest) {
    const uint32_t bits = __reduce_max_sync(kAllLanes, __float_as_uint(largest));
    auto* kept = reinterpret_cast<uint32_t*>(amax);
    if (threadIdx.x % kWarp == 0 && bits > *(volatile uint32_t*)kept) { atomicMax(kept, bits); }
}

// 16 to 128 rows of bytes in shared memory. The words of each 16 rows are shifted by exclusive or: 16 rows' words that a
// warp reads at once lie in different banks.
template <int rows>
struct Fp8Tile {
    static_assert(rows == 16 || rows == 32 || rows == 64 || rows == 128);
    uint32_t* words;
    int pitch;  // words of a row, a multiple of 32

    __host__ __device__ static int pitch_of(int columns) { return (columns / 4 + 31) / 32 * 32; }
    __device__ int at(int row, int word) const { return row * pitch + (word ^ row / 16 * (512 / rows) % 32); }
    __device__ void store(int row, int eighth, uint2 bytes) const {
        *reinterpret_cast<uint2*>(words + at(row, eighth * 2)) = bytes;
    }
    // 16 rows of four columns, of word `word`: a column's 16 bytes at to + column * stride
    __device__ void store_columns(uint8_t* to, int64_t stride, int first_row, int word) const {
        const uint32_t* from = words + at(first_row, word);
        uint32_t column[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t a = from[4 * i * pitch], b = from[(4 * i + 1) * pitch];
            const uint32_t c = from[(4 * i + 2) * pitch], d = from[(4 * i + 3) * pitch];
            const uint32_t ab01 = __byte_perm(a, b, 0x5140), ab23 = __byte_perm(a, b, 0x7362);
            const uint32_t cd01 = __byte_perm(c, d, 0x5140), cd23 = __byte_perm(c, d, 0x7362);
            column[0][i] = __byte_perm(ab01, cd01, 0x5410);
            column[1][i] = __byte_perm(ab01, cd01, 0x7632);
            column[2][i] = __byte_perm(ab23, cd23, 0x5410);
            column[3][i] = __byte_perm(ab23, cd23, 0x7632);
        }
        unrolled<4>([&](int j) {
            *reinterpret_cast<uint4*>(to + j * stride) = {column[j][0], column[j][1], column[j][2],
                                                          column[j][3]};
        });
    }
    // the tile's first `count` rows, a multiple of 16, by all threads of the block: out (columns, stride) at its first row
    __device__ void store_transposed(uint8_t* out, int64_t stride, int count, int columns) const {
        constexpr int sixteens = rows / 16;
        for (int i = threadIdx.x; i < sixteens * (columns / 4); i += blockDim.x) {
            const int row = i % sixteens * 16, word = i / sixteens;
            if (row < count) { store_columns(out + word * 4 * stride + row, stride, row, word); }
        }
    }
};

}  // namespace llmc
