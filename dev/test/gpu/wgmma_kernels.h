// Kernels around single wrappers of llmc/cuda/wgmma.cuh and tensor_map.cuh, for test_wgmma.cpp; and a comparison of
// arrays on the device. On the default stream; nothing waits but count_differences().
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

namespace llmc::gpu_test {

// which product: a from shared memory or registers, b's sum over its columns (a b^T) or rows (a b)
enum class Product { kSharedColumns, kSharedRows, kRegistersColumns, kRegistersRows };

// d (64,64) = before (64,64) + the product of a and b (64,64) each, which TMA brings in. rounded (64,64): d
// times 2 in rows whose number has bit 3 set, by way of store_result() and store_box(): the first `rows` rows.
void run_product(Product product, float* d, __nv_bfloat16* rounded, const float* before,
                 const __nv_bfloat16* a, const __nv_bfloat16* b, int rows);

// box (64,64) = rows t to t + 63 of head h of sequence s of a (B,T,heads,64) tensor, as they lie in shared memory, with
// the swizzle undone
void run_load_box(__nv_bfloat16* box, const __nv_bfloat16* tensor, int heads, int T, int B, int h, int t,
                  int s);

// bytes that differ, counted 4 at a time; bytes is a multiple of 4
int64_t count_differences(const void* a, const void* b, int64_t bytes);

}  // namespace llmc::gpu_test
