// Tensor-core products of bf16 tiles that lie in shared memory, as warps do them since Ampere: ldmatrix, mma,
// and asynchronous copies to bring the tiles in. PTX ISA 8.x, "mma.sync.m16n8k16" has the fragment layouts:
// with g = lane / 4, t = lane % 4 a lane holds, of the 16x8 result, elements (g, 2t), (g, 2t+1), (g+8, 2t),
// (g+8, 2t+1).
#pragma once
#include <cstdint>

#include <cuda_bf16.h>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/device.cuh"

namespace llmc {

using bf16 = __nv_bfloat16;

// a 16x16 operand in registers, as mma wants its left side
struct FragmentA {
    uint32_t at[4];
};
// two 16x8 operands side by side: columns 0-7 in at[0], at[1], columns 8-15 in at[2], at[3]
struct FragmentB {
    uint32_t at[4];
};

// four 8x8 tiles; lane l passes the address of row l % 8 of tile l / 8
__device__ inline void load_tiles(uint32_t (&r)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ inline void load_tiles_transposed(uint32_t (&r)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// A = tile[0..15][0..15], rows `stride` elements apart
__device__ inline FragmentA load_a(const bf16* tile, int stride) {
    int lane = threadIdx.x % kWarp;
    FragmentA a;
    load_tiles(a.at, tile + (lane % 16) * stride + lane / 16 * 8);
    return a;
}
// B[k][n] = tile[n][k]: the tile holds B's columns as rows (16 of them)
__device__ inline FragmentB load_b_columns(const bf16* tile, int stride) {
    int lane = threadIdx.x % kWarp;
    FragmentB b;
    load_tiles(b.at, tile + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
    return b;
}
// B[k][n] = tile[k][n]
__device__ inline FragmentB load_b_rows(const bf16* tile, int stride) {
    int lane = threadIdx.x % kWarp;
    FragmentB b;
    load_tiles_transposed(b.at, tile + (lane % 16) * stride + lane / 16 * 8);
    return b;
}

// c (16x8) += a (16x16) times half of b: columns 0-7 for half 0, 8-15 for half 1
__device__ inline void multiply_add(float (&c)[4], const FragmentA& a, const FragmentB& b, int half) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b.at[2 * half]),
          "r"(b.at[2 * half + 1]));
}

__device__ inline uint32_t pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
}
// two 16x8 results, rounded to bf16, as the left side of the next product
__device__ inline FragmentA as_a(const float (&left)[4], const float (&right)[4]) {
    return {pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]),
            pack(right[2], right[3])};
}

// 16 bytes from global to shared memory, both 16-byte aligned, in the background; zeros if not valid
__device__ inline void copy_async(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

}  // namespace llmc
