// v6: the scores of the next keys are under way while the exponentials of these are computed, and so is the
//     sum of values.
// Why:    within a warpgroup v5 multiplies, waits, computes exponentials, multiplies, waits. Products are
//         asynchronous: the next scores need only the queries and the next keys, both there. Each waits for
//         what it needs and no more.
// Costs:  as v5, at best the longer of 256 cycles of products and 256 of exponentials for a tile instead of
//         both.
//   lazy: in the same file, a second idea. The largest score moves only when a score passes it by more than
//         2^8 in the exponential: results are the same to the last bits, as a quotient does not care by what
//         both sides are scaled, and nothing overflows. The 32 products by keep and the shuffles for the
//         row's maximum go from most tiles, and plain arithmetic slows the tensor cores, while exponentials
//         do not.
// Result: 303 us, 45 % of the roof at 64x12x1024, lazy 275 us, 50 %; 870 and 776 us, 60 and 67 % at
//         4x12x8192; H100, 2026-11-25
#include "llmc/ops/attention/ladder/forward/wgmma_rungs.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {
namespace attention_wgmma {
namespace {

__device__ __forceinline__ void lazy_softmax(Result& x, Softmax& s, int limit) {
    constexpr float kSlack = 8 / kScaleLog2;
    mask_scores(x, limit);
    float m[2] = {largest_of(x, 0), largest_of(x, 1)};
    bool passed = m[0] > s.largest[0] + kSlack || m[1] > s.largest[1] + kSlack;
    s.grew = __any_sync(kAllLanes, passed);
    if (s.grew) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row = row_max(m[half]);
            move_largest(s, half, row > s.largest[half] + kSlack ? row : s.largest[half]);
        }
    }
    exponentials(x, s);
}

template <bool kLazy>
struct ScoresAhead {
    static __device__ __forceinline__ void weigh(Result& x, Softmax& state, int limit) {
        kLazy ? lazy_softmax(x, state, limit) : softmax(x, state, limit);
    }

    static __device__ __forceinline__ void attend(Result& out, Softmax& state, RingShared& s, Place& at,
                                                  const Consumer& me, uint64_t queries, int n) {
        Result x;
        Left p;
        s.wait(at);
        start_product(x, queries, descriptor(s.keys[at.stage]));
        wgmma_wait<0>();
        hold(x);
        weigh(x, state, me.diagonal);
        as_left(p, x);
#pragma unroll 1
        for (; n > 0; n--) {
            Place next = at;
            next.next();
            s.wait(next);
            start_product(x, queries, descriptor(s.keys[next.stage]));
            start_sum(out, p, descriptor(s.values[at.stage]));
            wgmma_wait<1>();  // for the scores; the sum of values, which reads p, goes on
            hold(x);
            weigh(x, state, kNoneAbove);
            hold(x);
            s.wait(next);  // has ended: a branch over which the assembler does not move the next wait
            wgmma_wait<0>();
            hold(out);
            hold(p);
            me.release(&s.empty[at.stage]);
            as_left(p, x);
            if (state.grew) { follow_largest(out, state); }
            at = next;
        }
        start_sum(out, p, descriptor(s.values[at.stage]));
        wgmma_wait<0>();
        hold(out);
        me.release(&s.empty[at.stage]);
    }
};

}  // namespace
}  // namespace attention_wgmma

void v6::attention_forward(bf16* out, float* lse, void*, const bf16* qkv, int B, int T, int NH,
                           cudaStream_t stream) {
    using namespace attention_wgmma;
    launch_forward<forward_ring_kernel<ScoresAhead<false>>, RingShared>(kRingThreads, out, lse, qkv, B, T, NH,
                                                                        stream);
}

void v6::attention_forward_lazy(bf16* out, float* lse, void*, const bf16* qkv, int B, int T, int NH,
                                cudaStream_t stream) {
    using namespace attention_wgmma;
    launch_forward<forward_ring_kernel<ScoresAhead<true>>, RingShared>(kRingThreads, out, lse, qkv, B, T, NH,
                                                                       stream);
}

}  // namespace llmc
