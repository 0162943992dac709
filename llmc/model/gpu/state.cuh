// The device memory of a model's parameters and what belongs to them, carved from one block: all elements in
// the order of ParameterLayout, or a rank's share of them, in that order.
#pragma once
#include <utility>

#include "llmc/cuda/device_memory.cuh"
#include "llmc/model/state_shares.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/global_norm.h"

namespace llmc {

template <typename T, typename Grad>
struct GPT2State {
    T* params;    // all
    Grad* grads;  // all, of one group
    // Of many ranks with ZeRO-1 these are the share's alone. low: of bf16 parameters the halves that they lack
    // of fp32 weights; null for fp32.
    uint16_t* low;
    float *m, *v;

    StepDecision* decision;      // one
    double *loss_sum, *squares;  // one each
    void* norm_scratch;
    AdamWPiece* pieces;          // what AdamW updates
    MuonCopy* copies = nullptr;  // what Muon updates

    // with groups only
    float* sums = nullptr;     // of the groups' gradients: of the share, or with --zero 0 of all
    Grad* arrived = nullptr;   // the other ranks' gradients of the share: (ranks - 1, the largest share)
    double* chunks = nullptr;  // the sums of squares of all chunks, by rank
    NormChunk* chunk_table = nullptr;  // all chunks, by rank
    int32_t* chunk_places = nullptr;   // by their numbers, their places in that order
    double* group_losses = nullptr;    // the losses of all groups, as sum_groups() takes them

    int64_t parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0;

    int64_t bytes() const { return parameter_bytes + gradient_bytes + optimizer_bytes; }

    void take(const GPT2Config& c, const StateShares& s, Arena& arena) {
        const int64_t all = s.elements(), kept = s.kept();
        int64_t before = arena.used();
        auto taken = [&] { return arena.used() - std::exchange(before, arena.used()); };
        params = arena.take<T>(all);
        parameter_bytes = taken();
        grads = arena.take<Grad>(all);
        if (s.groups > 1) {
            sums = arena.take<float>(kept);
            arrived = arena.take<Grad>((s.ranks - 1) * s.largest());
            chunks = arena.take<double>(s.chunks());
            chunk_table = arena.take<NormChunk>(s.chunks());
            chunk_places = arena.take<int32_t>(s.chunks());
            group_losses = arena.take<double>(s.groups);
        }
        gradient_bytes = taken();
        low = sizeof(T) == sizeof(float) ? nullptr : arena.take<uint16_t>(kept);
        m = arena.take<float>(kept);
        v = arena.take<float>(s.seconds.kept());
        decision = arena.take<StepDecision>(1);
        loss_sum = arena.take<double>(1);
        squares = arena.take<double>(1);
        norm_scratch = arena.take<char>((int64_t)sum_of_squares_scratch());
        pieces = arena.take<AdamWPiece>(most_update_pieces(c, s));
        copies = arena.take<MuonCopy>(s.muon ? (int64_t)kNumTensors * c.num_layers : 0);
        optimizer_bytes = taken();
    }
};

}  // namespace llmc
