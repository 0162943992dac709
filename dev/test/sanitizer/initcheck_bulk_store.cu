// Proof that compute-sanitizer's initcheck does not see bulk stores as writes. On Hopper a thread can have a
// whole tile of shared memory written to global memory by the copy unit (cp.async.bulk). cuBLASLt's bf16
// products end so, by its form for tensors, and every kernel that reads their results is then reported for
// "Uninitialized __global__ memory read". Here a fresh buffer is filled by a bulk store and copied by
// ordinary loads. What must come out (sm_90):
//   f=dev/test/sanitizer/initcheck_bulk_store; nvcc -std=c++20 -I. -gencode arch=compute_90a,code=sm_90a $f.cu -o $f
//   compute-sanitizer --tool initcheck dev/test/sanitizer/initcheck_bulk_store             right, and reports
//   compute-sanitizer --tool initcheck dev/test/sanitizer/initcheck_bulk_store ordinary    right, 0 errors
// The second fills it by ordinary stores: nothing else differs.
#include <cstdio>
#include <vector>

#include "llmc/cuda/check.cuh"

namespace {
constexpr int kTile = 1024, kTiles = 4, kBlock = 256;  // numbers, of 4 bytes; threads

// out[i] = i; a block fills a tile
template <bool bulk>
__global__ void fill_kernel(uint32_t* out) {
    alignas(128) __shared__ uint32_t tile[kTile];
    uint32_t first = blockIdx.x * kTile;
    for (uint32_t i = threadIdx.x; i < kTile; i += kBlock) { (bulk ? tile[i] : out[first + i]) = first + i; }
    if constexpr (bulk) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy unit sees what was stored
        __syncthreads();
        if (threadIdx.x > 0) { return; }
        auto from = (uint32_t)__cvta_generic_to_shared(tile);
        // the copy, as a group of its own, and the wait until all of it is written
        asm volatile(
            "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2; cp.async.bulk.commit_group;"
            "cp.async.bulk.wait_group 0;" ::"l"(out + first),
            "r"(from), "n"(4 * kTile)
            : "memory");
    }
}

__global__ void copy_kernel(uint32_t* out, const uint32_t* inp) {
    int i = blockIdx.x * kBlock + threadIdx.x;
    out[i] = inp[i];
}
}  // namespace

int main(int argc, char**) {
    using llmc::check;
    bool ordinary = argc > 1;
    std::vector<uint32_t> found(kTile * kTiles);
    uint32_t *filled, *copied;
    check(cudaMalloc(&filled, found.size() * 4));
    check(cudaMalloc(&copied, found.size() * 4));
    (ordinary ? fill_kernel<false> : fill_kernel<true>)<<<kTiles, kBlock>>>(filled);
    copy_kernel<<<kTile * kTiles / kBlock, kBlock>>>(copied, filled);
    llmc::check_launch();
    check(cudaMemcpy(found.data(), copied, found.size() * 4, cudaMemcpyDeviceToHost));
    size_t right = 0;
    while (right < found.size() && found[right] == right) { right++; }
    std::printf("%zu of %zu numbers are right\n", right, found.size());
    return right == found.size() ? 0 : 1;
}
