// v5: a producer warpgroup keeps a ring filled, four stages of keys and values in dQ's kernel, six of queries
//     and douts, with their lse and dot, in that of dK and dV (wgmma_rungs.cuh).
// Why:    as in forward: nobody waits for L2 any more, and warpgroups need not move in step.
// Costs:  as v4; 64 and 99 KB of shared memory for the rings.
// Result: 1012 us, 34 % of the roof at 64x12x1024; 2794 us, 47 % at 4x12x8192; H100, 2026-11-25
#include "llmc/ops/attention/ladder/backward/wgmma_rungs.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {
namespace attention_wgmma {
namespace {

struct OneAfterTheOther {
    static __device__ __forceinline__ void dq(Result& dq, RingQ& s, KeyPlace& at, const Consumer& me,
                                              const Queries& mine, const QueryNumbers& rows, int n) {
        int limit = me.diagonal;
#pragma unroll 1
        for (; n >= 0; n--) {
            mbarrier_wait(&s.full[at.stage], at.phase);
            add_to_dq(dq, mine, descriptor(s.keys[at.stage]), descriptor(s.values[at.stage]), rows, limit);
            me.release(&s.empty[at.stage]);
            at.next();
            limit = kNoneAbove;
        }
    }

    static __device__ __forceinline__ void dkv(Keys& mine, RingKV& s, QueryPlace& at, const Consumer& me,
                                               int n) {
        int limit = me.diagonal;
#pragma unroll 1
        for (; n > 0; n--) {
            mbarrier_wait(&s.full[at.stage], at.phase);
            add_to_dkv(mine, s.at(at.stage), limit, me.lane);
            me.release(&s.empty[at.stage]);
            at.next();
            limit = kNoneBelow;
        }
    }
};

}  // namespace
}  // namespace attention_wgmma

void v5::attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                            const float* lse, int B, int T, int NH, cudaStream_t stream) {
    using namespace attention_wgmma;
    launch_ring<OneAfterTheOther>(dqkv, scratch, dout, qkv, out, lse, B, T, NH, stream);
}

}  // namespace llmc
