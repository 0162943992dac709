// See checksum.cuh. A file of its own: what calls it is left to the host's compiler.
#include "llmc/cuda/checksum.cuh"

#include "llmc/cuda/resources.cuh"

namespace llmc {

// adds hashes of n words and their places, which count from `first`: the same in any order
static __global__ void checksum_kernel(unsigned long long* sum, const uint32_t* words, int64_t n,
                                       int64_t first) {
    unsigned long long mine = 0;
    int64_t threads = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) {
        uint64_t h = ((uint64_t)words[i] << 32 | (uint32_t)(first + i)) * 0x9e3779b97f4a7c15u;
        mine += (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    }
    atomicAdd(sum, mine);
}

void add_checksum(uint64_t* sum, const uint32_t* words, int64_t n, int64_t first, cudaStream_t stream) {
    checksum_kernel<<<1024, 256, 0, stream>>>((unsigned long long*)sum, words, n, first);
    check_launch();
}

uint64_t checksum(const uint32_t* words, int64_t n, cudaStream_t stream) {
    DeviceMemory sum(sizeof(uint64_t));
    uint64_t value = 0;
    check(cudaMemsetAsync(sum.data(), 0, sizeof(value), stream));
    add_checksum((uint64_t*)sum.data(), words, n, 0, stream);
    check(cudaMemcpyAsync(&value, sum.data(), sizeof(value), cudaMemcpyDeviceToHost, stream));
    check(cudaStreamSynchronize(stream));
    return value;
}

}  // namespace llmc
