// All device memory of the GPU model: one block, planned before it is allocated. The same code that hands out
// the pieces adds them up for the plan.
#pragma once
#include <vector>

#include "llmc/cuda/resources.cuh"
#include "llmc/layernorm/layernorm.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/gpu/fp8_blocks.cuh"
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
    GPT2Config config;
    StateShares shares;
    Arena arena;  // without a block all this is only counted

    T* params = arena.take<T>(shares.elements());  // all
    int64_t parameter_bytes = arena.used();

    Grad* grads = arena.take<Grad>(shares.elements());  // all, of one group
    // With groups only: the sums of their gradients, of the share, or with --zero 0 of all; the other ranks' gradients of
    // the share: (ranks - 1, the largest share); the sums of squares of all chunks, by rank; all chunks, by rank; by their
    // numbers, their places in that order; the losses of all groups, as sum_groups() takes them.
    float* sums = take_grouped<float>(shares.kept());
    Grad* arrived = take_grouped<Grad>((shares.ranks - 1) * shares.largest());
    double* chunks = take_grouped<double>(shares.chunks());
    NormChunk* chunk_table = take_grouped<NormChunk>(shares.chunks());
    int32_t* chunk_places = take_grouped<int32_t>(shares.chunks());
    double* group_losses = take_grouped<double>(shares.groups);
    int64_t gradient_bytes = arena.used() - parameter_bytes;

    // Of many ranks with ZeRO-1 these are the share's alone. low: of bf16 parameters the halves that they lack
    // of fp32 weights; null for fp32.
    uint16_t* low = sizeof(T) == sizeof(float) ? nullptr : arena.take<uint16_t>(shares.kept());
    float* m = arena.take<float>(shares.kept());
    float* v = arena.take<float>(shares.seconds.kept());
    StepDecision* decision = arena.take<StepDecision>(1);
    double *loss_sum = arena.take<double>(1), *squares = arena.take<double>(1);
    void* norm_scratch = arena.take<char>((int64_t)sum_of_squares_scratch());
    // what AdamW updates, and Muon
    AdamWPiece* pieces = arena.take<AdamWPiece>(most_update_pieces(config, shares));
    MuonCopy* copies = arena.take<MuonCopy>(shares.muon ? (int64_t)kNumTensors * config.num_layers : 0);
    int64_t bytes = arena.used(), optimizer_bytes = bytes - parameter_bytes - gradient_bytes;

    template <typename X>
    X* take_grouped(int64_t n) {
        return shares.groups > 1 ? arena.take<X>(n) : nullptr;
    }
};

// ---- all of it

// With more rows in a micro-batch each product has work for all multiprocessors, and a branch gains nothing.
constexpr int64_t kMostBranchRows = 4096;

// carves everything from a block, or with an empty arena only counts
template <typename T, typename Grad>
struct GPT2Memory : GPT2State<T, Grad> {
    using Base = GPT2State<T, Grad>;
    using Base::arena, Base::config;

    struct Norm {  // a layernorm's output (N,C), null in the blocks if that is in FP8, and statistics (N)
        T* out;
        float *mean, *rstd;
    };
    // What forward leaves for backward. With recomputation, layers share some of it.
    struct Layer {
        Norm ln1, ln2;
        T *qkv, *atty;      // (N,3C), (N,C)
        T* residual2;       // (N,C): the stream after attention
        float* lse;         // (B,NH,seq_len)
        T *fch, *fch_gelu;  // (N,4C), fch_gelu null if that is in FP8
        T* residual3;       // (N,C): the stream after the MLP
    };

    ModelSettings settings;
    int B, seq_len, C = config.channels;
    int64_t N = (int64_t)B * seq_len;  // rows

    std::vector<Layer> layers = take_layers();
    Fp8Memory fp8 = settings.fp8 ? Fp8Memory(config, N, settings, arena) : Fp8Memory();
    T* encoded = take<T>(N * C);
    Norm lnf = take_norm(true);
    T *dresidual = take<T>(N * C), *dproj = take<T>(N * C), *dwide = take<T>(N * 4 * C);
    T* proj = dproj;  // what attention or the MLP adds to the stream
    // of that, and of the embeddings, the gradient: the stream's, behind dropout
    T* dbranch = settings.dropout > 0 ? take<T>(N* C) : dresidual;
    float* losses = take<float>(N);
    int32_t* predicted = take<int32_t>(N);
    void* feed = take<char>(TokenFeed::bytes(N));
    void* workspace = take<char>(Matmul::kWorkspace);  // cuBLASLt's
    void* small_workspaces = take<char>(Matmul::kSmallWorkspaces * Matmul::kSmallWorkspace);
    // logits (N,Vp), then their gradient, with which a step is done when Muon takes their place
    int64_t before_logits = arena.used(), least_of_muon = settings.muon ? GPT2Muon<T>::least_room(config) : 0;
    T* logits = take<T>(std::max(N * config.padded_vocab_size, least_of_muon / (int64_t)sizeof(T)));
    int64_t logits_bytes = arena.used() - before_logits;
    // what any op needs for itself
    void* scratch = take<char>((int64_t)std::max(
        {encoder_backward_scratch(B, seq_len, C, config.vocab_size), layernorm_backward_scratch(C),
         bias_backward_scratch(4 * C),
         attention_backward_bias_scratch(B, seq_len, config.num_heads, C / config.num_heads),
         settings.fp8 ? fp8_sums_scratch(N, 4 * C) : 0}));
    unsigned* counters = take<unsigned>(kAttentionCounters);  // attention's

    // Of weight gradients beside the rest; null: there are none. Recomputed rows are overwritten while a branch would
    // read them; with many ranks a recording has breaks.
    bool branch = settings.graph && settings.ranks == 1 && settings.recompute == Recompute::kNone &&
                  !settings.fp8 && N <= kMostBranchRows;
    void* branch_workspace = take_for_branch(Matmul::kWorkspace);
    void* branch_scratch = take_for_branch(bias_backward_scratch(4 * C));
    void* branch_sums[2] = {take_for_branch(layernorm_backward_scratch(C)),  // of a block's layernorms
                            take_for_branch(layernorm_backward_scratch(C))};

    MemoryPlan plan{this->parameter_bytes, this->gradient_bytes, this->optimizer_bytes,
                    arena.used() - this->bytes};

    GPT2Memory(const GPT2Config& c, int B, int seq_len, const ModelSettings& s, const Arena& all)
        : Base{c, StateShares(c, s), all}, settings(s), B(B), seq_len(seq_len) {}

private:
    template <typename X>
    X* take(int64_t n) {
        return arena.template take<X>(n);
    }
    void* take_for_branch(size_t bytes) { return branch ? take<char>((int64_t)bytes) : nullptr; }
    Norm take_norm(bool with_output) {
        return {with_output ? take<T>(N * C) : nullptr, take<float>(N), take<float>(N)};
    }
    std::vector<Layer> take_layers() {
        std::vector<Layer> all;
        for (int l = 0; l < config.num_layers; l++) {
            Layer a = l > 0 ? all[0] : Layer{};
            if (l == 0 || settings.recompute != Recompute::kBlock) {
                for (Norm* norm : {&a.ln1, &a.ln2}) { *norm = take_norm(!settings.fp8); }
                for (T** x : {&a.atty, &a.residual2}) { *x = take<T>(N * C); }
                a.qkv = take<T>(N * 3 * C);
                a.lse = take<float>(N * config.num_heads);
            }
            if (l == 0 || settings.recompute == Recompute::kNone) {
                a.fch = take<T>(N * 4 * C);
                if (!settings.fp8) { a.fch_gelu = take<T>(N * 4 * C); }
            }
            a.residual3 = take<T>(N * C);
            all.push_back(a);
        }
        return all;
    }
};

}  // namespace llmc
