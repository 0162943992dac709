// The instructions CUDA C++ has no short name for: barriers that count bytes, copies that arrive on them,
// clusters. Section numbers refer to the PTX manual's chapter 9.7. Call the Hopper ones under if constexpr
// (kSm90) only.
#pragma once
#include <cstdint>
#include <type_traits>

#include "llmc/cuda/device.cuh"

namespace llmc {

// An address in this block's shared memory as PTX wants it; also valid in the cluster's window
// (shared::cluster).
__device__ inline uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// --- any GPU: prefetch -------------------------------------------------------------------------------------

// the 128 bytes around p, from HBM into L2
__device__ inline void prefetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Arrays of C elements that all blocks will read, from HBM into L2, by the first block of the grid: those that run
// beside it need not wait for their rows and then, once more, for these. Before dependency_wait(), too: what earlier
// kernels still write arrives in L2.
template <typename T, typename... Same>
__device__ void prefetch_lines(int C, const T* array, const Same*... more) {
    static_assert((std::is_same_v<T, Same> && ...));
    constexpr int line = 128 / sizeof(T);
    if (blockIdx.x != 0) { return; }
    for (int c = threadIdx.x * line; c < C; c += blockDim.x * line) {
        prefetch_line(array + c);
        (prefetch_line(more + c), ...);
    }
}

// --- Ampere: how long L2 keeps a line ----------------------------------------------------------------------

// For numbers that many threads write one by one, beside rows that stream through L2: they wait there for their
// neighbours, and HBM gets whole lines.
__device__ inline void store_evict_last(float* p, float x) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(p), "f"(x), "l"(policy) : "memory");
}

// --- Ampere: cp.async --------------------------------------------------------------------------------------

// 16 bytes from global to shared memory, past the registers and L1; both 16-byte aligned. Ampere and later.
__device__ inline void copy16_async(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
                 : "memory");
}

// closes the group of copies this thread has started; may be empty
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// waits until at most `pending` of this thread's latest groups are under way. The thread's own copies alone:
// others need a barrier (or a __syncwarp) after it.
template <int pending>
__device__ inline void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
// the same for a number that the template does not know, or for `most` if that is less
template <int most>
__device__ inline void copy_wait(int pending) {
    if constexpr (most > 0) {
        if (pending < most) { return copy_wait<most - 1>(pending); }
    }
    copy_wait<most>();
}

// --- Ampere: mbarrier --------------------------------------------------------------------------------------

// A barrier's phase ends when there were `arrivals` arrivals and every expected byte has come. One thread
// calls it, then on Hopper mbarrier_init_fence(), then everybody synchronises.
__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

// what this thread wrote before is then seen by those who wait, but not what it copies by copy16_async
__device__ inline void mbarrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, as one of the barrier's `arrivals`, when all that this thread has copied by copy16_async so far
// has come; at once if that is nothing. Those who wait then see the copies; of what the thread stored itself
// only mbarrier_arrive() tells.
__device__ inline void copy_arrive(uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Has the phase of this parity ended: 0 for the first, 1 for the second, 0 ...? What those who arrived wrote before is then
// seen.
__device__ inline bool mbarrier_ended(uint64_t* barrier, unsigned parity) {
    uint32_t ended;
    asm volatile(
        "{\n .reg .pred ended;\n"
        " mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 ended, [%1], %2;\n"
        " selp.u32 %0, 1, 0, ended;\n}"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return ended != 0;
}

// Waits for the end of the phase. Ampere's code asks again and again; on Hopper the thread sleeps a while between.
__device__ inline void mbarrier_wait(uint64_t* barrier, unsigned parity) {
    if constexpr (kSm90) {
        asm volatile(
            "{\n .reg .pred done;\n"
            "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
            " @!done bra again;\n}" ::"r"(shared_address(barrier)),
            "r"(parity)
            : "memory");
    } else {
        while (!mbarrier_ended(barrier, parity)) {}
    }
}

// --- Hopper: mbarrier --------------------------------------------------------------------------------------

// makes initialised barriers visible to TMA and to the cluster
__device__ inline void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// arrives and says how many bytes the phase waits for
__device__ inline void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}

// mbarrier_wait() for a barrier on which threads of other blocks of the cluster arrive: what they wrote is
// then seen
__device__ inline void mbarrier_wait_cluster(uint64_t* barrier, unsigned parity) {
    asm volatile(
        "{\n .reg .pred done;\n"
        "again:\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        " @!done bra again;\n}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// --- Hopper: bulk copies -----------------------------------------------------------------------------------

// `bytes` bytes from global to shared memory by TMA, which counts them off on the barrier. One
// thread calls it. Addresses and bytes are multiples of 16.
__device__ inline void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// A line in elements. A row should lie as far past the begin of a line in shared memory as in memory: where a bulk copy's two
// addresses are 16 bytes off, modulo 32, rows take 4 to 15 % longer; 32 or 64 bytes off, modulo 128, about 1 %.
template <typename T>
constexpr int kLine = kLineBytes / sizeof(T);

// Asks for `bytes` bytes from any address on, which will be read soon, into L2; with them come those up to the next
// 16-byte boundaries.
__device__ inline void bulk_prefetch(const void* global, uint32_t bytes) {
    uint32_t before = (uintptr_t)global % 16;
    auto* begin = (const char*)global - before;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(begin),
                 "r"((before + bytes + 15) / 16 * 16)
                 : "memory");
}

// Before TMA overwrites shared memory that this thread has read or written: its accesses come
// first. Every thread that touched the memory calls it, then they synchronise, then one refills. Without it
// rows are wrong now and then.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- Hopper: clusters --------------------------------------------------------------------------------------

__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ inline unsigned cluster_blocks() {
    unsigned blocks;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    return blocks;
}

// every thread of every block of the cluster; what was written before is seen after
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

// the address, in the cluster's window, of the same shared variable in the block of this rank
__device__ inline uint32_t cluster_address(const void* shared, unsigned rank) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(remote)
                 : "r"(shared_address(shared)), "r"(rank));
    return remote;
}

// Writes two floats into the same place (8-byte aligned) of another block of the cluster and counts 8 bytes
// off on the same barrier there. The receiver reads them after its wait; it needs no other fence.
__device__ inline void store2_async(float2* shared, float2 value, uint64_t* barrier, unsigned rank) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
            cluster_address(shared, rank)),
        "f"(value.x), "f"(value.y), "r"(cluster_address(barrier, rank))
        : "memory");
}

// the same with four, 16-byte aligned
__device__ inline void store4_async(void* shared, float4 value, uint64_t* barrier, unsigned rank) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::
            "r"(cluster_address(shared, rank)),
        "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(cluster_address(barrier, rank))
        : "memory");
}

// --- Hopper: dependent launch ------------------------------------------------------------------------------

// Waits until the kernel before this one, launched with programmatic stream serialization, has finished and
// its writes are seen.
__device__ inline void dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// the next kernel may be launched once every block has said so or ended
__device__ inline void dependency_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// --- Hopper: bulk stores -----------------------------------------------------------------------------------

// `bytes` bytes from shared to global memory by TMA; addresses and bytes are multiples of 16. The
// shared memory was written by ordinary stores: each thread that wrote calls fence_proxy_async(), then they
// synchronise, then one thread calls this.
__device__ inline void bulk_store(void* global, const void* shared, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

// closes the group of bulk stores this thread has started; may be empty
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this thread's latest groups still read shared memory, which may then be
// used again, or given up by the end of the block. What they write is seen by the next kernel.
template <int pending>
__device__ inline void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

}  // namespace llmc
