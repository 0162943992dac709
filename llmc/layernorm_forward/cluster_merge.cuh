// Blocks of a cluster that share a row exchange its moments: each sends its own to all, into shared memory.
#pragma once
#include "llmc/async_copy.cuh"
#include "llmc/device.cuh"
#include "llmc/layernorm_forward/moments.cuh"

namespace llmc::layernorm_registers {

using namespace layernorm_moments;

// Where they meet, once a kernel: in the shared memory of each block, at the same place.
template <int blocks>
struct Meeting {
    Moments of_block[blocks];
    uint64_t come;  // all of them

    __device__ static Meeting& place() {
        __shared__ Meeting here;
        return here;
    }
    // every thread, at the kernel's beginning
    __device__ void open() {
        if (threadIdx.x == 0) {
            mbarrier_init(&come, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&come, sizeof(of_block));
        }
        __syncwarp();
        // relaxed: the fence has released the barrier, and there is nothing else to see
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
    // Every thread, with what it knows of its block, the same in each. Who has got all of them may end:
    // nothing more is sent to it, and what it sent itself needs it no longer.
    __device__ const Moments* exchange(const Moments& mine) {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // every block has opened
        if (threadIdx.x < blocks) {
            store4_async(&of_block[cluster_rank()], mine.packed(), &come, threadIdx.x);
        }
        mbarrier_wait_cluster(&come, 0);
        return of_block;
    }
};

}  // namespace llmc::layernorm_registers
