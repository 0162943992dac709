// Tensor maps: how Hopper's TMA knows a tensor. One thread asks for a box by its coordinates; TMA
// computes the addresses, writes the box into shared memory in the swizzled order of wgmma_layout.h, and counts the
// bytes off on a barrier. Of a box that hangs over the tensor's edge the outside comes as zeros, and counts in full;
// stores leave it out. PTX ISA, 9.7.9.25 "cp.async.bulk.tensor".
#pragma once
#include <cuda.h>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/driver.cuh"
#include "llmc/cuda/wgmma_layout.h"

namespace llmc {

// A map of a (B,T,heads,64) tensor of bf16, whose boxes are `rows` rows (t) of one head: coordinates {0, head, t, b}.
// T is a dimension of its own, so that a box that passes the end of a sequence does not run on into the next one.
// tensor: a multiple of 16 bytes. The map is passed to a kernel as a const __grid_constant__ parameter.
inline CUtensorMap head_map(const void* tensor, int heads, int T, int B, int rows) {
    static const auto encode =
        driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled", 12000);
    CUtensorMap map;
    cuuint64_t row_bytes = kTileRowBytes, token_bytes = heads * row_bytes, sequence_bytes = T * token_bytes;
    cuuint64_t sizes[] = {kTileColumns, (cuuint64_t)heads, (cuuint64_t)T, (cuuint64_t)B};
    cuuint64_t strides[] = {row_bytes, token_bytes, sequence_bytes};  // of all dimensions but the first
    cuuint32_t box[] = {kTileColumns, 1, (cuuint32_t)rows, 1}, steps[] = {1, 1, 1, 1};
    CUresult status = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(tensor), sizes,
                             strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS) {
        throw Error(kExitDevice, "cuTensorMapEncodeTiled: CUDA error {} for B={} T={} heads={} at {}",
                    (int)status, B, T, heads, tensor);
    }
    return map;
}

// fetches the map itself, before the first copy needs it
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// the box at {0, head, t, b} into shared memory, a multiple of 1024 bytes; counts its bytes off on the barrier
__device__ __forceinline__ void load_box(void* shared, const CUtensorMap& map, int head, int t, int b,
                                         uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(shared_address(barrier)), "r"(0), "r"(head), "r"(t), "r"(b)
        : "memory");
}

// The box from shared memory to {0, head, t, b}; bulk_commit() and bulk_wait_read() go with it as with bulk_store(). The
// threads that wrote the box call fence_proxy_async() and meet before.
__device__ __forceinline__ void store_box(const CUtensorMap& map, const void* shared, int head, int t,
                                          int b) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
            &map),
        "r"(shared_address(shared)), "r"(0), "r"(head), "r"(t), "r"(b)
        : "memory");
}

}  // namespace llmc
