// The layers of GPT-2 on the GPU, forward and backward, in execution order, shapes beside the calls.
// Everything is queued on one stream; nothing waits. But in the recording of a small batch, whose products leave
// multiprocessors idle, the gradients of weights are a branch beside the rest (gpu/memory.cuh says when). In backward
// a linear layer whose output is added to the residual stream gets the gradient of its bias, sums over the stream's,
// from the layernorm that completes that.
#pragma once
#include <functional>
#include <optional>

#include "llmc/cuda/resources.cuh"
#include "llmc/model/gpu/memory.cuh"
#include "llmc/ops/column_sums/bias.h"

namespace llmc {

template <typename T, typename Grad>
struct GPT2Network {
    using Memory = GPT2Memory<T, Grad>;
    using Layer = typename Memory::Layer;

    GPT2Config config;
    ModelSettings settings;
    ParameterLayout layout;
    Memory mem;
    cudaStream_t stream;
    // Of many ranks: what is to be done before layer l's parameters are read (-1: the embeddings, num_layers:
    // the last layernorm), and when its gradients are complete.
    std::function<void(int)> before_forward, after_backward;
    Matmul matmul;
    bool recording = false;  // what is queued is recorded

    GPT2Network(const GPT2Config& c, const ModelSettings& s, const Memory& memory, cudaStream_t stream)
        : config(c),
          settings(s),
          layout(c),
          mem(memory),
          stream(stream),
          matmul(mem.workspace, s.tf32, mem.small_workspaces) {
        if (mem.branch_workspace != nullptr) {
            branch.emplace(stream);
            matmul.also_on(branch->stream(), mem.branch_workspace);
        }
        if (s.matmul_file.empty()) { return; }
        const MatmulChoices choices = read_matmul_choices(s.matmul_file);
        require_same_machine(choices, matmul.machine(), s.matmul_file);
        matmul.use(choices, s.matmul_file);
    }

    // fills the activations, up to logits; tokens (B,T_) in device memory
    void forward(int B, int T_, const int32_t* tokens);
    // Before backward(), which writes the gradients of its T_ positions alone: zeroes those that longer
    // batches left. Not in backward(), as a recording of its launches must not depend on the batch before.
    void zero_positions(int T_, bool accumulate) {
        if (!accumulate && T_ < positions) {
            const int64_t C = config.channels;
            check(cudaMemsetAsync(grad(kWpe) + T_ * C, 0, (positions - T_) * C * sizeof(Grad), stream));
        }
        positions = accumulate ? std::max(positions, T_) : T_;
    }
    // from the gradient of the logits, which is in their place, to the gradients of all parameters; += with
    // accumulate
    void backward(int B, int T_, const int32_t* tokens, bool accumulate);

private:
    int positions = 0;  // that have a gradient
    std::optional<Branch> branch;
    Branch::Mark dresidual_read, dwide_read;    // by the branch
    Branch::Mark attention_added, ln_added[2];  // by the branch: sums that are in scratch

    T* param(int tensor, int layer = 0) { return mem.params + layout.offset(tensor, layer); }
    Grad* grad(int tensor, int layer = 0) { return mem.grads + layout.offset(tensor, layer); }
    void normalise(T* out, float* mean, float* rstd, T* residual, const T* inp, const T* inp2,
                   const T* weight, const T* bias, int64_t N);
    void forward_attention(Layer& a, int l, int B, int T_);
    void forward_fc(Layer& a, int l, int64_t N);
    void layernorm_gradient(Grad* dweight, Grad* dbias, const T* inp, const T* weight, const float* mean,
                            const float* rstd, Grad* dresidual_sums, int64_t N, bool add_to_dresidual,
                            bool accumulate, int place);
    void attention_gradient(Layer& a, int l, int B, int T_, bool accumulate);
    bool branched() const { return recording && branch; }
    void weight_gradient(int weight, int l, const T* dout, const T* inp, int64_t N, int C, int OC,
                         bool accumulate, Branch::Mark* dout_read);
    void wide_bias_gradient(int l, int64_t N, bool accumulate);
    void before_writing(const Branch::Mark& read);
    void join();
    void backward_block(Layer& a, int l, const T* residual, int B, int T_, bool accumulate);
};

// out = layernorm(inp), or with residual: residual = inp + inp2, out = layernorm(residual)
template <typename T, typename Grad>
void GPT2Network<T, Grad>::normalise(T* out, float* mean, float* rstd, T* residual, const T* inp,
                                     const T* inp2, const T* weight, const T* bias, int64_t N) {
    LayerNormForward<T> call{.out = out,
                             .mean = mean,
                             .rstd = rstd,
                             .inp = inp,
                             .weight = weight,
                             .bias = bias,
                             .N = N,
                             .C = config.channels};
    call.residual = residual;
    call.inp2 = inp2;
    layernorm_forward(call, stream);
}

template <typename T, typename Grad>
void GPT2Network<T, Grad>::forward_attention(Layer& a, int l, int B, int T_) {
    int C = config.channels, NH = config.num_heads;
    int64_t N = (int64_t)B * T_;
    matmul.forward(a.qkv, a.ln1, param(kQkvw, l), param(kQkvb, l), N, C, 3 * C, stream);          // (N,3C)
    attention_forward(a.atty, a.lse, mem.counters, a.qkv, B, T_, NH, C / NH, stream);             // (N,C)
    matmul.forward(mem.proj, a.atty, param(kAttprojw, l), param(kAttprojb, l), N, C, C, stream);  // (N,C)
}

template <typename T, typename Grad>
void GPT2Network<T, Grad>::forward_fc(Layer& a, int l, int64_t N) {
    int C = config.channels;
    matmul.forward_gelu(a.fch_gelu, a.fch, a.ln2, param(kFcw, l), param(kFcb, l), N, C, 4 * C,
                        stream);  // (N,4C)
}

template <typename T, typename Grad>
void GPT2Network<T, Grad>::forward(int B, int T_, const int32_t* tokens) {
    int C = config.channels, L = config.num_layers;
    int64_t N = (int64_t)B * T_;
    auto ready = [&](int l) {
        if (before_forward) { before_forward(l); }
    };
    ready(-1);
    ready(0);
    encoder_forward(mem.encoded, tokens, param(kWte), param(kWpe), B, T_, C, stream);  // (N,C)
    Layer& first = mem.layers[0];
    normalise(first.ln1, first.ln1_mean, first.ln1_rstd, nullptr, mem.encoded, nullptr, param(kLn1w),
              param(kLn1b), N);
    T* residual = mem.encoded;
    for (int l = 0; l < L; l++) {
        Layer& a = mem.layers[l];
        forward_attention(a, l, B, T_);
        normalise(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual2, residual, mem.proj, param(kLn2w, l),
                  param(kLn2b, l), N);
        forward_fc(a, l, N);
        matmul.forward(mem.proj, a.fch_gelu, param(kFcprojw, l), param(kFcprojb, l), N, 4 * C, C, stream);
        ready(l + 1);
        if (l + 1 < L) {  // the layernorm that follows: the next block's first, or the final one
            Layer& next = mem.layers[l + 1];
            normalise(next.ln1, next.ln1_mean, next.ln1_rstd, a.residual3, a.residual2, mem.proj,
                      param(kLn1w, l + 1), param(kLn1b, l + 1), N);
        } else {
            normalise(mem.lnf, mem.lnf_mean, mem.lnf_rstd, a.residual3, a.residual2, mem.proj, param(kLnfw),
                      param(kLnfb), N);
        }
        residual = a.residual3;
    }
    matmul.forward(mem.logits, mem.lnf, param(kWte), (const T*)nullptr, N, C, config.padded_vocab_size,
                   stream);
}

// dresidual = or with add_to_dresidual += what dproj, the gradient of a layernorm's output, becomes through it;
// dresidual_sums (C), unless null: the sums over its rows. place: 0 and 1 in turn, for sums that the branch adds up.
template <typename T, typename Grad>
void GPT2Network<T, Grad>::layernorm_gradient(Grad* dweight, Grad* dbias, const T* inp, const T* weight,
                                              const float* mean, const float* rstd, Grad* dresidual_sums,
                                              int64_t N, bool add_to_dresidual, bool accumulate, int place) {
    LayerNormBackward<T, Grad> call{.dinp = mem.dresidual,
                                    .dweight = dweight,
                                    .dbias = dbias,
                                    .scratch = branched() ? mem.branch_sums[place] : mem.scratch,
                                    .dout = mem.dproj,
                                    .inp = inp,
                                    .weight = weight,
                                    .mean = mean,
                                    .rstd = rstd,
                                    .N = N,
                                    .C = config.channels};
    call.accumulate_dinp = add_to_dresidual;
    call.accumulate = accumulate;
    call.dinp_sums = dresidual_sums;
    before_writing(dresidual_read);
    before_writing(ln_added[place]);
    layernorm_backward(call, stream, branched() ? &*branch : nullptr);
    if (branched()) { ln_added[place].set(*branch); }
}

// dwide (N,3C) = the gradient of qkv, from dproj, that of attention's output
template <typename T, typename Grad>
void GPT2Network<T, Grad>::attention_gradient(Layer& a, int l, int B, int T_, bool accumulate) {
    int C = config.channels, NH = config.num_heads;
    before_writing(dwide_read);
    before_writing(attention_added);
    const AttentionBackwardBias<T, Grad> call{.dbias = grad(kQkvb, l),
                                              .accumulate = accumulate,
                                              .dqkv = mem.dwide,
                                              .scratch = mem.scratch,
                                              .counters = mem.counters,
                                              .dout = mem.dproj,
                                              .qkv = a.qkv,
                                              .out = a.atty,
                                              .lse = a.lse,
                                              .B = B,
                                              .T = T_,
                                              .NH = NH,
                                              .HS = C / NH};
    attention_backward_bias(call, stream, branched() ? &*branch : nullptr);
    if (branched()) { attention_added.set(*branch); }
}

// The gradient of weight, of out (N,OC) = inp (N,C) weight^T. Before dout is written to, before_writing(dout_read).
template <typename T, typename Grad>
void GPT2Network<T, Grad>::weight_gradient(int weight, int l, const T* dout, const T* inp, int64_t N, int C,
                                           int OC, bool accumulate, Branch::Mark* dout_read) {
    if (branched()) { branch->fork(); }
    matmul.backward_weight(grad(weight, l), dout, inp, N, C, OC, accumulate,
                           branched() ? branch->stream() : stream);
    if (branched() && dout_read != nullptr) { dout_read->set(*branch); }
}

// the gradient of fc's bias, from dwide (N,4C), behind that of its weight
template <typename T, typename Grad>
void GPT2Network<T, Grad>::wide_bias_gradient(int l, int64_t N, bool accumulate) {
    bias_backward(grad(kFcb, l), branched() ? mem.branch_scratch : mem.scratch, mem.dwide, N,
                  4 * config.channels, accumulate, branched() ? branch->stream() : stream);
    if (branched()) { dwide_read.set(*branch); }
}

template <typename T, typename Grad>
void GPT2Network<T, Grad>::before_writing(const Branch::Mark& read) {
    if (branched()) { read.wait(*branch); }
}

// all gradients are complete
template <typename T, typename Grad>
void GPT2Network<T, Grad>::join() {
    if (branched()) { branch->join(); }
}

// On entry dresidual (N,C) is the gradient of the block's output, and fcprojb has its gradient; on return it is the
// gradient of the block's input `residual`, and fcprojb of the block below has its.
template <typename T, typename Grad>
void GPT2Network<T, Grad>::backward_block(Layer& a, int l, const T* residual, int B, int T_,
                                          bool accumulate) {
    int C = config.channels;
    int64_t N = (int64_t)B * T_;
    if (settings.recompute == Recompute::kBlock) {
        normalise(a.ln1, a.ln1_mean, a.ln1_rstd, nullptr, residual, nullptr, param(kLn1w, l), param(kLn1b, l),
                  N);
        forward_attention(a, l, B, T_);
        normalise(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual2, residual, mem.proj, param(kLn2w, l),
                  param(kLn2b, l), N);
    }
    if (settings.recompute != Recompute::kNone) { forward_fc(a, l, N); }

    weight_gradient(kFcprojw, l, mem.dresidual, a.fch_gelu, N, 4 * C, C, accumulate, &dresidual_read);
    before_writing(dwide_read);
    matmul.backward_input_gelu(mem.dwide, mem.dresidual, param(kFcprojw, l), a.fch, N, 4 * C, C,
                               stream);  // (N,4C)
    weight_gradient(kFcw, l, mem.dwide, a.ln2, N, C, 4 * C, accumulate, nullptr);
    wide_bias_gradient(l, N, accumulate);
    matmul.backward_input(mem.dproj, mem.dwide, param(kFcw, l), N, C, 4 * C, stream);  // (N,C)
    layernorm_gradient(grad(kLn2w, l), grad(kLn2b, l), a.residual2, param(kLn2w, l), a.ln2_mean, a.ln2_rstd,
                       grad(kAttprojb, l), N, true, accumulate, 0);
    weight_gradient(kAttprojw, l, mem.dresidual, a.atty, N, C, C, accumulate, &dresidual_read);
    matmul.backward_input(mem.dproj, mem.dresidual, param(kAttprojw, l), N, C, C, stream);  // (N,C)
    attention_gradient(a, l, B, T_, accumulate);
    weight_gradient(kQkvw, l, mem.dwide, a.ln1, N, C, 3 * C, accumulate, &dwide_read);
    matmul.backward_input(mem.dproj, mem.dwide, param(kQkvw, l), N, C, 3 * C, stream);  // (N,C)
    layernorm_gradient(grad(kLn1w, l), grad(kLn1b, l), residual, param(kLn1w, l), a.ln1_mean, a.ln1_rstd,
                       l > 0 ? grad(kFcprojb, l - 1) : nullptr, N, true, accumulate, 1);
}

template <typename T, typename Grad>
void GPT2Network<T, Grad>::backward(int B, int T_, const int32_t* tokens, bool accumulate) {
    int C = config.channels, Vp = config.padded_vocab_size, L = config.num_layers;
    int64_t N = (int64_t)B * T_;
    weight_gradient(kWte, 0, mem.logits, mem.lnf, N, C, Vp, accumulate, nullptr);
    matmul.backward_input(mem.dproj, mem.logits, param(kWte), N, C, Vp, stream);  // (N,C)
    layernorm_gradient(grad(kLnfw), grad(kLnfb), mem.layers[L - 1].residual3, param(kLnfw), mem.lnf_mean,
                       mem.lnf_rstd, grad(kFcprojb, L - 1), N, false, accumulate, 1);
    for (int l = L - 1; l >= 0; l--) {
        const T* residual = l == 0 ? mem.encoded : mem.layers[l - 1].residual3;
        backward_block(mem.layers[l], l, residual, B, T_, accumulate);
        if (after_backward) { after_backward(l); }
    }
    join();
    encoder_backward(grad(kWte), grad(kWpe), mem.scratch, mem.dresidual, tokens, B, T_, C, config.vocab_size,
                     accumulate, stream);
}

}  // namespace llmc
