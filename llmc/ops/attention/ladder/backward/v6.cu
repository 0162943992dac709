// v6: products are under way while others' results are worked on: the exponentials are computed while y =
//     dout v^T is, ds while dv's product is, and the last product of a tile, dq's or dk's, during the scores
//     of the next tile.
// Why:    v5 waits for each product by itself, and nothing of the warpgroup's runs beside its exponentials.
// Costs:  as v5. A stage is released a tile later, as the last product still reads it.
// Result: 956 us, 36 % of the roof at 64x12x1024; 2599 us, 50 % at 4x12x8192; H100, 2026-11-25
#include "llmc/ops/attention/ladder/backward/wgmma_rungs.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {
namespace attention_wgmma {
namespace {

struct ProductsAhead {
    // starts dq += ds k, which the next step, or whoever calls the last one, waits for
    template <bool kFirst>
    static __device__ __forceinline__ void dq_step(Result& dq, RingQ& s, KeyPlace& at, const Consumer& me,
                                                   const Queries& mine, const QueryNumbers& rows) {
        Result x, y;
        Left ds;
        mbarrier_wait(&s.full[at.stage], at.phase);
        start_product(x, descriptor(mine.q), descriptor(s.keys[at.stage]));
        start_product(y, descriptor(mine.dout), descriptor(s.values[at.stage]));
        wgmma_wait<1>();  // for x, and dq's product of the step before
        hold(x);
        if constexpr (!kFirst) { me.release(&s.empty[at.before()]); }
        probabilities(x, rows, kFirst ? me.diagonal : kNoneAbove);
        hold(x);
        mbarrier_wait(&s.full[at.stage],
                      at.phase);  // has ended: the assembler does not move the next wait over it
        wgmma_wait<0>();
        hold(y);
        score_gradients(ds, x, y, rows);
        start_sum(dq, ds, descriptor(s.keys[at.stage]));
        at.next();
    }

    static __device__ __forceinline__ void dq(Result& dq, RingQ& s, KeyPlace& at, const Consumer& me,
                                              const Queries& mine, const QueryNumbers& rows, int n) {
        dq_step<true>(dq, s, at, me, mine, rows);
#pragma unroll 1
        for (; n > 0; n--) { dq_step<false>(dq, s, at, me, mine, rows); }
        wgmma_wait<0>();
        hold(dq);
        me.release(&s.empty[at.before()]);
    }

    template <bool kFirst>
    static __device__ __forceinline__ void dkv_step(Keys& mine, RingKV& s, QueryPlace& at,
                                                    const Consumer& me) {
        Result x, y;
        Left p, ds;
        const QueryTile t = s.at(at.stage);
        mbarrier_wait(&s.full[at.stage], at.phase);
        start_product(x, descriptor(mine.k), descriptor(t.q));
        start_product(y, descriptor(mine.v), descriptor(t.dout));
        wgmma_wait<1>();  // for x, and the products of the step before
        hold(x);
        if constexpr (!kFirst) { me.release(&s.empty[at.before()]); }
        probabilities(x, t.lse_log2, kFirst ? me.diagonal : kNoneBelow, me.lane);
        as_left(p, x);
        start_sum(mine.dv, p, descriptor(t.dout));
        wgmma_wait<1>();  // for y
        hold(y);
        score_gradients(ds, x, y, t.dot, me.lane);
        start_sum(mine.dk, ds, descriptor(t.q));
        at.next();
    }

    static __device__ __forceinline__ void dkv(Keys& mine, RingKV& s, QueryPlace& at, const Consumer& me,
                                               int n) {
        dkv_step<true>(mine, s, at, me);
#pragma unroll 1
        while (--n > 0) { dkv_step<false>(mine, s, at, me); }
        wgmma_wait<0>();
        hold(mine.dk);
        hold(mine.dv);
        me.release(&s.empty[at.before()]);
    }
};

}  // namespace
}  // namespace attention_wgmma

void v6::attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                            const float* lse, int B, int T, int NH, cudaStream_t stream) {
    using namespace attention_wgmma;
    launch_ring<ProductsAhead>(dqkv, scratch, dout, qkv, out, lse, B, T, NH, stream);
}

}  // namespace llmc
