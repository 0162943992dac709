// What the kernels of LayerNorm are written in: the vocabulary of llmc/cuda, layouts, and the choice that they launch.
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/clusters.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/choose.h"
#include "llmc/layernorm/layernorm.h"

namespace llmc::layouts {

// act.operator()<row>() for a number that is known at run time, 0 <= row < count
template <int count, int i = 0, typename Act>
auto at_row(int row, const Act& act) {
    if constexpr (i + 1 == count) {
        return act.template operator()<i>();
    } else {
        return row == i ? act.template operator()<i>() : at_row<count, i + 1>(row, act);
    }
}
// act.operator()<piece>() likewise: n elements, a vector, or with `halves` n / 2, n / 4 .. 1, else 1
template <int n, bool halves, typename Act>
auto at_piece(int piece, const Act& act) {
    if constexpr (n > 1) {
        if (piece < n) { return at_piece < halves ? n / 2 : 1, halves > (piece, act); }
    }
    return act.template operator()<n>();
}

}  // namespace llmc::layouts
