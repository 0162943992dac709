// v5: a fifth warpgroup, the producer, keeps a ring of six stages filled; barriers in shared memory say what
//     is full or empty (wgmma_rungs.cuh).
// Why:    in v4 everyone waits for every tile, about a microsecond each from L2, and the four warpgroups move
//         in step: all multiply, then all compute exponentials. With a ring each goes at its own pace, so
//         that one's products can run beside another's exponentials. The producer needs few registers and
//         hands the rest on (setmaxnreg).
// Costs:  as v4; 96 KB of shared memory for the ring.
// Result: 309 us, 44 % of the roof at 64x12x1024; 910 us, 57 % at 4x12x8192; H100, 2026-11-25
#include "llmc/ops/attention/ladder/forward/wgmma_rungs.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {
namespace attention_wgmma {
namespace {

struct OneAfterTheOther {
    static __device__ __forceinline__ void attend(Result& out, Softmax& state, RingShared& s, Place& at,
                                                  const Consumer& me, uint64_t queries, int n) {
        int base = n * kTileRows;
#pragma unroll 1
        for (; n >= 0; n--) {
            s.wait(at);
            attend_tile(out, state, me, queries, descriptor(s.keys[at.stage]), descriptor(s.values[at.stage]),
                        n, base);
            me.release(&s.empty[at.stage]);
            at.next();
        }
    }
};

}  // namespace
}  // namespace attention_wgmma

void v5::attention_forward(bf16* out, float* lse, void*, const bf16* qkv, int B, int T, int NH,
                           cudaStream_t stream) {
    using namespace attention_wgmma;
    launch_forward<forward_ring_kernel<OneAfterTheOther>, RingShared>(kRingThreads, out, lse, qkv, B, T, NH,
                                                                      stream);
}

}  // namespace llmc
