// Blocks of a cluster that share a row exchange its moments: each, or each of their warps, sends its own to all, into
// shared memory.
#pragma once
#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/layernorm/forward/moments.cuh"

namespace llmc::layernorm_moments {

// Where they meet, once a kernel: in the shared memory of each block, at the same place. The row's moments come in so
// many parts.
template <int blocks, int parts = blocks>
struct Meeting {
    Moments of_part[parts];
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
            mbarrier_arrive_expect(&come, sizeof(of_part));
        }
        __syncwarp();
        // relaxed: the fence has released the barrier, and there is nothing else to see
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
    // Every thread, with what it knows of its part of the row; one of those who know it for each block to send it to.
    // Who has got all of them may end: nothing more is sent to it, and what it sent itself needs it no longer.
    __device__ const Moments* exchange(const Moments& mine, int part, int to) {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // every block has opened
        if (to < blocks) { store4_async(&of_part[part], mine.packed(), &come, to); }
        mbarrier_wait_cluster(&come, 0);
        return of_part;
    }
};

}  // namespace llmc::layernorm_moments
