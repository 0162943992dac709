// The end of team_ring.cuh: where the sums by column, which lanes hold, go. L is its Layout, HeldT its Held.
#pragma once
#include "llmc/layernorm/backward/regimes.h"
#include "llmc/layernorm/kernel.cuh"

namespace llmc::team_ring {

// The teams' sums over their rows meet in their rings' memory, `apart` floats apart, are added team after team, and go to
// this group's part of scratch.
template <typename L, int apart, typename HeldT>
__device__ void write_sums(float* of_teams, float* scratch, const HeldT& held, int team, int first, int begin,
                           int columns, int C) {
    constexpr int kAll = HeldT::kSets * L::columns;
    __syncthreads();  // nobody reads the ring any more
#pragma unroll
    for (int set = 0; set < HeldT::kSets; set++) {
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            store(of_teams + team * apart + set * L::columns + first + i * L::step,
                  *reinterpret_cast<const Elements<float, L::n>*>(held.sums[set][i]));
        }
    }
    __syncthreads();
    int64_t groups = gridDim.x / L::blocks, group = blockIdx.x / L::blocks;
#pragma unroll 1
    for (int at = threadIdx.x * 4; at < kAll; at += L::threads * 4) {
        int set = at / L::columns, c = at % L::columns;
        auto sum = load<4>(of_teams + at);
#pragma unroll 4
        for (int t = 1; t < L::teams; t++) {
            auto more = load<4>(of_teams + t * apart + at);
#pragma unroll
            for (int j = 0; j < 4; j++) { sum.at[j] += more.at[j]; }
        }
        if (c < columns) { store(scratch + (set * groups + group) * C + begin + c, sum); }
    }
}

// Of a call's only row, which is the first team's: to where the call wants them. column: a lane's first of the row,
// `first` of the block's.
template <typename Grad, typename L, typename HeldT>
__device__ void write_outputs(const ColumnOutputs& outputs, const HeldT& held, int column, int first,
                              int columns) {
    void* const to[] = {outputs.dweight, outputs.dbias, outputs.dinp_sums};
#pragma unroll
    for (int set = 0; set < HeldT::kSets; set++) {
        if (to[set] == nullptr) { continue; }
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            if (first + i * L::step >= columns) { continue; }
            Grad* grad = static_cast<Grad*>(to[set]) + column + i * L::step;
            float sum[L::n];
#pragma unroll
            for (int j = 0; j < L::n; j++) {
                sum[j] = held.sums[set][i][j] + (outputs.accumulate ? (float)grad[j] : 0.0f);
            }
            store(grad, rounded<Grad>(sum));
        }
    }
}

}  // namespace llmc::team_ring
