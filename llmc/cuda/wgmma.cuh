// Hopper's tensor-core products as functions: wgmma, which a warpgroup (four warps) issues together and which runs in
// the background. The layouts are in wgmma_layout.h. Call under if constexpr (kSm90a) only: no other GPU has these
// instructions, not even later ones.
//
// Order. A product reads its registers and shared memory after the instruction was issued, and adds to registers that
// the compiler believes to be complete. Three things keep that right:
//   wgmma_fence()    before the first product of a group, where ordinary code wrote the registers that it uses.
//   wgmma_commit()   closes the group; wgmma_wait<n>() waits until at most the n latest groups are under way. Until
//                    then nobody may touch their registers or refill the shared memory that they read.
//   hold(registers)  tells the compiler that the registers change there: it moves no use of them past it. Without it
//                    the compiler may read a result before the wait.
// Ordinary stores to shared memory that a product or TMA reads need fence_proxy_async() behind them: both
// read shared memory another way ("proxy") than ld and st, and would find what was there before.
#pragma once
#include <cstdint>

#include "llmc/cuda/mma.cuh"
#include "llmc/cuda/wgmma_layout.h"

namespace llmc {

// 64 x 64 sums of a warpgroup, a thread's share: see result_row() and result_column()
using Result = float[32];
// 64 x 64 left operand of a warpgroup, a thread's share
using Left = FragmentA[4];

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

__device__ __forceinline__ void hold(Result& d) {
#pragma unroll
    for (int i = 0; i < 32; i++) { asm volatile("" : "+f"(d[i])::"memory"); }
}
__device__ __forceinline__ void hold(Left& a) {
#pragma unroll
    for (int i = 0; i < 16; i++) { asm volatile("" : "+r"(a[i / 4].at[i % 4])::"memory"); }
}

// The registers of a thread, from here on (all threads of the warpgroup call it): a producer that only starts copies
// gives most of its own to the warpgroups that compute. Multiples of 8, 24 to 240.
template <int count>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

__device__ __forceinline__ uint64_t descriptor(const bf16* tile) {
    return tile_descriptor(shared_address(tile));
}

// which way the sum runs over the right operand b, a tile: over its columns (the product is a b^T) or rows (a b)
enum class Over { kColumns, kRows };

// d (64 x 64) = or += a b, 16 elements deep: a (64 x 16) in shared memory, its sum over columns
template <Over over>
__device__ __forceinline__ void multiply16(Result& d, uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{\n .reg .pred add;\n setp.ne.b32 add, %34, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, add, 1, 1, 0, %35;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"((int)add), "n"(over == Over::kRows));
}

// the same with a in registers
template <Over over>
__device__ __forceinline__ void multiply16(Result& d, const FragmentA& a, uint64_t b, bool add) {
    asm volatile(
        "{\n .reg .pred add;\n setp.ne.b32 add, %37, 0;\n"
        " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),
          "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),
          "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),
          "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "l"(b), "r"((int)add),
          "n"(over == Over::kRows));
}

// Starts d = a b^T, both tiles in shared memory, as a group of its own. The warpgroup's product: all call it.
__device__ __forceinline__ void start_product(Result& d, uint64_t a, uint64_t b) {
    hold(d);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        multiply16<Over::kColumns>(d, a + kNextColumns * k, b + kNextColumns * k, k > 0);
    }
    wgmma_commit();
}

// the same with a in registers
__device__ __forceinline__ void start_product(Result& d, Left& a, uint64_t b) {
    hold(d);
    hold(a);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) { multiply16<Over::kColumns>(d, a[k], b + kNextColumns * k, k > 0); }
    wgmma_commit();
}

// starts d += a b, a in registers
__device__ __forceinline__ void start_sum(Result& d, Left& a, uint64_t b) {
    hold(d);
    hold(a);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) { multiply16<Over::kRows>(d, a[k], b + kNextRows * k, true); }
    wgmma_commit();
}

__device__ __forceinline__ void set_zero(Result& d) {
#pragma unroll
    for (int i = 0; i < 32; i++) { d[i] = 0; }
}

// a result, rounded to bf16, as the left operand of the next product: no lane needs another's elements
__device__ __forceinline__ void as_left(Left& a, const Result& d) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int from = left_from_result(i / 4, i % 4);
        a[i / 4].at[i % 4] = pack(d[from], d[from + 1]);
    }
}

// where a lane's row of a warp's 16 rows lies in a swizzled tile, for ldmatrix and stmatrix; rows: the first of the 16
__device__ __forceinline__ const bf16* matrix_address(const bf16* rows, int lane, int k) {
    return rows + swizzled(matrix_row(lane), matrix_chunk(lane, k)) / 2;
}

// a = a warp's 16 rows of a swizzled tile
__device__ __forceinline__ void load_left(Left& a, const bf16* rows, int lane) {
#pragma unroll
    for (int k = 0; k < 4; k++) { load_tiles(a[k].at, matrix_address(rows, lane, k)); }
}

// a warp's 16 rows of a swizzled tile = d, rounded to bf16, the lane's upper row times upper, its lower row times lower
__device__ __forceinline__ void store_result(bf16* rows, const Result& d, float upper, float lower,
                                             int lane) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float* e = d + 8 * k;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         shared_address(matrix_address(rows, lane, k))),
                     "r"(pack(e[0] * upper, e[1] * upper)), "r"(pack(e[2] * lower, e[3] * lower)),
                     "r"(pack(e[4] * upper, e[5] * upper)), "r"(pack(e[6] * lower, e[7] * lower))
                     : "memory");
    }
}

// waits for the 128 threads of a warpgroup; id: 1 to 15, another for each warpgroup (0 is __syncthreads')
__device__ __forceinline__ void warpgroup_sync(int id) {
    asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory");
}

}  // namespace llmc
