// All device memory of the GPU model: one block, planned before it is allocated. The same code that hands out
// the pieces adds them up for the plan.
#pragma once
#include <utility>
#include <vector>

#include "llmc/cuda/resources.cuh"
#include "llmc/layernorm/layernorm.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/gpu/muon.cuh"
#include "llmc/model/gpu/token_feed.cuh"
#include "llmc/model/model.h"
#include "llmc/model/state_shares.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/column_sums/bias.h"
#include "llmc/ops/encoder.h"
#include "llmc/ops/global_norm.h"
#include "llmc/ops/matmul/matmul.h"

namespace llmc {

// ---- the device memory of a model's parameters and what belongs to them, carved from one block: all elements in
// the order of ParameterLayout, or a rank's share of them, in that order.

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

// ---- all of it

// With more rows in a micro-batch each product has work for all multiprocessors, and a branch gains nothing.
constexpr int64_t kMostBranchRows = 4096;

template <typename T, typename Grad>
struct GPT2Memory : GPT2State<T, Grad> {
    // What forward leaves for backward; N = B * seq_len rows. With recomputation, layers share some of it.
    struct Layer {
        T *ln1, *qkv, *atty;  // (N,C), (N,3C), (N,C)
        T *residual2, *ln2;   // (N,C): the stream after attention, normalised
        T *fch, *fch_gelu;    // (N,4C)
        T* residual3;         // (N,C): the stream after the MLP
        float *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd, *lse;  // (N), lse (B,NH,seq_len)
    };

    std::vector<Layer> layers;
    T *encoded, *lnf, *logits;     // (N,C), (N,C), (N,Vp): logits, then their gradient
    float *lnf_mean, *lnf_rstd;    // (N)
    T *dresidual, *dproj, *dwide;  // (N,C), (N,C), (N,4C)
    T* proj;                 // (N,C): what attention or the MLP adds to the stream; it is dproj's memory
    float* losses;           // (N)
    int32_t* predicted;      // (N)
    void *feed, *workspace;  // TokenFeed's, cuBLASLt's
    void* small_workspaces;  // likewise, of a few bytes each
    void* scratch;           // what any op needs for itself
    void *branch_workspace, *branch_scratch;  // of weight gradients beside the rest; null: there are none
    void* branch_sums[2];                     // there: scratch of a block's layernorms
    unsigned* counters;                       // attention's
    MuonRoom muon;                            // the logits', which a step is done with

    MemoryPlan plan;  // how much of which

    // carves everything from a block, or with an empty arena only counts
    GPT2Memory(const GPT2Config& c, int B, int seq_len, const ModelSettings& s, Arena arena) {
        this->take(c, StateShares(c, s), arena);
        plan.parameters = this->parameter_bytes;
        plan.gradients = this->gradient_bytes;
        plan.optimizer = this->optimizer_bytes;
        take_activations(c, B, seq_len, s, arena);
        plan.activations = arena.used() - plan.parameters - plan.gradients - plan.optimizer;
    }

private:
    void take_activations(const GPT2Config& c, int B, int seq_len, const ModelSettings& s, Arena& arena) {
        const Recompute recompute = s.recompute;
        int64_t N = (int64_t)B * seq_len, C = c.channels;
        for (int l = 0; l < c.num_layers; l++) {
            Layer a = l > 0 ? layers[0] : Layer{};
            if (l == 0 || recompute != Recompute::kBlock) { take_block(a, c, N, arena); }
            if (l == 0 || recompute == Recompute::kNone) {
                a.fch = arena.take<T>(N * 4 * C);
                a.fch_gelu = arena.take<T>(N * 4 * C);
            }
            a.residual3 = arena.take<T>(N * C);
            layers.push_back(a);
        }
        for (T** x : {&encoded, &lnf, &dresidual, &dproj}) { *x = arena.take<T>(N * C); }
        proj = dproj;
        for (float** x : {&lnf_mean, &lnf_rstd, &losses}) { *x = arena.take<float>(N); }
        const int64_t before = arena.used(),
                      least = s.muon ? GPT2Muon<T>::least_room(c) / (int64_t)sizeof(T) : 0;
        logits = arena.take<T>(std::max(N * c.padded_vocab_size, least));
        muon.scratch = logits;
        muon.bytes = arena.used() - before;
        dwide = arena.take<T>(N * 4 * C);
        predicted = arena.take<int32_t>(N);
        feed = arena.take<char>(TokenFeed::bytes(N));
        workspace = muon.workspace = arena.take<char>(Matmul::kWorkspace);
        small_workspaces = arena.take<char>(Matmul::kSmallWorkspaces * Matmul::kSmallWorkspace);
        scratch = arena.take<char>((int64_t)std::max(
            {encoder_backward_scratch(B, seq_len, c.channels, c.vocab_size),
             layernorm_backward_scratch(c.channels), bias_backward_scratch(4 * c.channels),
             attention_backward_bias_scratch(B, seq_len, c.num_heads, c.channels / c.num_heads)}));
        counters = arena.take<unsigned>(kAttentionCounters);
        // recomputed rows are overwritten while a branch would read them; with many ranks a recording has breaks
        const bool branch = s.graph && s.ranks == 1 && recompute == Recompute::kNone && N <= kMostBranchRows;
        branch_workspace = branch ? arena.take<char>(Matmul::kWorkspace) : nullptr;
        branch_scratch = branch ? arena.take<char>(bias_backward_scratch(4 * c.channels)) : nullptr;
        for (void*& x : branch_sums) {
            x = branch ? arena.take<char>(layernorm_backward_scratch(c.channels)) : nullptr;
        }
    }
    static void take_block(Layer& a, const GPT2Config& c, int64_t N, Arena& arena) {
        int64_t C = c.channels;
        for (T** x : {&a.ln1, &a.atty, &a.residual2, &a.ln2}) { *x = arena.take<T>(N * C); }
        for (float** x : {&a.ln1_mean, &a.ln1_rstd, &a.ln2_mean, &a.ln2_rstd}) { *x = arena.take<float>(N); }
        a.qkv = arena.take<T>(N * 3 * C);
        a.lse = arena.take<float>(N * c.num_heads);
    }
};

}  // namespace llmc
