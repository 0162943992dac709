// prefetch: asks for a row, from HBM into L2, some time before the block that will have it begins. What blocks have asked
// for themselves is not always enough for HBM to be busy: they wait for one another's sums, or their last rows' stores.
// Too early, and the row has left L2 when it is wanted.
#pragma once
#include "llmc/cuda/async_copy.cuh"
#include "llmc/layernorm/layernorm.h"

namespace llmc::layernorm_prefetch {

struct Prefetch {
    int64_t rows;                 // so many ask
    int64_t distance, distance2;  // elements from a row to what it asks for, in inp and in inp2

    // A row asks for the one so many rows after it. By measurement: a third or a quarter of those under way at a time.
    template <typename T, typename W>
    Prefetch(const LayerNormForward<T, W>& call, int later)
        : rows(call.N - later), distance(later * call.inp_stride), distance2(later * call.inp2_stride) {}

    // One thread, for this row: for so many columns from `first` on, as far as there are so many.
    template <bool kResidual, typename T, typename W>
    __device__ void ask(const LayerNormForward<T, W>& call, int64_t row, int first, int most) const {
        int columns = min(most, call.C - first);
        if (row >= rows || columns <= 0) { return; }
        uint32_t bytes = columns * (uint32_t)sizeof(T);
        bulk_prefetch(call.inp + row * call.inp_stride + first + distance, bytes);
        if constexpr (kResidual) {
            bulk_prefetch(call.inp2 + row * call.inp2_stride + first + distance2, bytes);
        }
    }
};

}  // namespace llmc::layernorm_prefetch
