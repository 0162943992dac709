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
    using Norm = typename Memory::Norm;

    Memory mem;
    cudaStream_t stream;
    const GPT2Config& config = mem.config;
    ModelSettings& settings = mem.settings;
    ParameterLayout layout{config};
    // Of many ranks: what is to be done before layer l's parameters are read (-1: the embeddings, num_layers:
    // the last layernorm), and when its gradients are complete.
    std::function<void(int)> before_forward, after_backward;
    Matmul matmul;
    bool recording = false;  // what is queued is recorded

    GPT2Network(const Memory& memory, cudaStream_t stream)
        : mem(memory), stream(stream), matmul(mem.workspace, settings.tf32, mem.small_workspaces) {
        if (mem.branch_workspace != nullptr) {
            branch.emplace(stream);
            matmul.also_on(branch->stream(), mem.branch_workspace);
        }
        if (settings.matmul_file.empty()) { return; }
        const MatmulChoices choices = read_matmul_choices(settings.matmul_file);
        require_same_machine(choices, matmul.machine(), settings.matmul_file);
        matmul.use(choices, settings.matmul_file);
    }

    // fills the activations, up to logits; tokens (B,T_) in device memory
    void forward(int B, int T_, const int32_t* tokens) {
        begin(B, T_);
        auto ready = [&](int l) {
            if (before_forward) { before_forward(l); }
        };
        ready(-1);
        ready(0);
        encoder_forward(mem.encoded, tokens, param(kWte), param(kWpe), B, T_, C, stream);  // (N,C)
        normalise(mem.layers[0].ln1, kLn1w, 0, mem.encoded);
        T* residual = mem.encoded;
        for (int l = 0; l < L; l++) {
            Layer& a = mem.layers[l];
            forward_attention(a, l);
            normalise(a.ln2, kLn2w, l, residual, a.residual2);
            forward_fc(a, l);
            linear(mem.proj, a.fch_gelu, kFcprojw, l);  // (N,C)
            ready(l + 1);
            if (l + 1 < L) {  // the layernorm that follows: the next block's first, or the final one
                normalise(mem.layers[l + 1].ln1, kLn1w, l + 1, a.residual2, a.residual3);
            } else {
                normalise(mem.lnf, kLnfw, 0, a.residual2, a.residual3);
            }
            residual = a.residual3;
        }
        matmul.forward(mem.logits, mem.lnf.out, param(kWte), (const T*)nullptr, N, C, rows(kWte), stream);
    }

    // Before backward(), which writes the gradients of its T_ positions alone: zeroes those that longer
    // batches left. Not in backward(), as a recording of its launches must not depend on the batch before.
    void zero_positions(int T_, bool accumulate) {
        if (!accumulate && T_ < positions) {
            const size_t row = C;
            check(cudaMemsetAsync(grad(kWpe) + T_ * row, 0, (positions - T_) * row * sizeof(Grad), stream));
        }
        positions = accumulate ? std::max(positions, T_) : T_;
    }

    // from the gradient of the logits, which is in their place, to those of all parameters; += with accumulate
    void backward(int B, int T_, const int32_t* tokens, bool accumulate) {
        begin(B, T_, accumulate);
        weight_gradient(kWte, 0, mem.logits, mem.lnf.out);
        input_gradient(mem.dproj, mem.logits, kWte, 0);  // (N,C)
        layernorm_gradient(mem.lnf, kLnfw, 0, mem.layers[L - 1].residual3, grad(kFcprojb, L - 1));
        for (int l = L - 1; l >= 0; l--) {
            backward_block(mem.layers[l], l, l == 0 ? mem.encoded : mem.layers[l - 1].residual3);
            if (after_backward) { after_backward(l); }
        }
        if (side() != nullptr) { branch->join(); }  // all gradients are complete
        encoder_backward(grad(kWte), grad(kWpe), mem.scratch, mem.dresidual, tokens, B, T_, C,
                         config.vocab_size, accumulate, stream);
    }

private:
    const int C = config.channels, NH = config.num_heads, L = config.num_layers;
    int positions = 0;  // that have a gradient
    // of the pass under way; N = batch * length rows
    int batch = 0, length = 0;
    int64_t N = 0;
    bool adding = false;  // its gradients are added to those of the micro-batches before it
    std::optional<Branch> branch;
    Branch::Mark dresidual_read, dwide_read;    // by the branch
    Branch::Mark attention_added, ln_added[2];  // by the branch: sums that are in scratch

    void begin(int B, int T_, bool accumulate = false) {
        batch = B, length = T_, adding = accumulate;
        N = (int64_t)B * T_;
    }
    T* param(int tensor, int layer = 0) { return mem.params + layout.offset(tensor, layer); }
    Grad* grad(int tensor, int layer = 0) { return mem.grads + layout.offset(tensor, layer); }
    int rows(int tensor) const { return kTensors[tensor].rows(config); }
    int cols(int tensor) const { return kTensors[tensor].cols(config); }
    Branch* side() { return recording && branch ? &*branch : nullptr; }
    void before_writing(const Branch::Mark& read) {
        if (side() != nullptr) { read.wait(*branch); }
    }

    // ---- A layer's bias is the tensor behind its weight.

    // norm = layernorm(inp), or with residual: residual = inp + proj, norm = layernorm(residual)
    void normalise(const Norm& norm, int weight, int l, const T* inp, T* residual = nullptr) {
        const LayerNormForward<T> call{.out = norm.out,
                                       .mean = norm.mean,
                                       .rstd = norm.rstd,
                                       .inp = inp,
                                       .weight = param(weight, l),
                                       .bias = param(weight + 1, l),
                                       .N = N,
                                       .C = C,
                                       .residual = residual,
                                       .inp2 = residual != nullptr ? mem.proj : nullptr};
        layernorm_forward(call, stream);
    }
    // out (N,OC) = inp (N,C) weight^T + bias
    void linear(T* out, const T* inp, int weight, int l) {
        matmul.forward(out, inp, param(weight, l), param(weight + 1, l), N, cols(weight), rows(weight),
                       stream);
    }
    void forward_attention(Layer& a, int l) {
        linear(a.qkv, a.ln1.out, kQkvw, l);  // (N,3C)
        attention_forward<T>({a.atty, a.lse, mem.counters, a.qkv, batch, length, NH, C / NH},
                             stream);            // (N,C)
        linear(mem.proj, a.atty, kAttprojw, l);  // (N,C)
    }
    void forward_fc(Layer& a, int l) {
        matmul.forward_gelu(a.fch_gelu, a.fch, a.ln2.out, param(kFcw, l), param(kFcb, l), N, C, 4 * C,
                            stream);  // (N,4C)
    }

    // Of a layernorm of inp: dresidual += what dproj, the gradient of its output, becomes through it; dresidual_sums (C),
    // unless null: the sums over its rows. The last layernorm is the first here, whose dresidual is written (=).
    void layernorm_gradient(const Norm& norm, int weight, int l, const T* inp, Grad* dresidual_sums) {
        const int place = weight == kLn2w ? 0 : 1;  // in turn, for sums that the branch adds up
        const LayerNormBackward<T, Grad> call{
            .dinp = mem.dresidual,
            .dweight = grad(weight, l),
            .dbias = grad(weight + 1, l),
            .scratch = side() != nullptr ? mem.branch_sums[place] : mem.scratch,
            .dout = mem.dproj,
            .inp = inp,
            .weight = param(weight, l),
            .mean = norm.mean,
            .rstd = norm.rstd,
            .N = N,
            .C = C,
            .accumulate_dinp = weight != kLnfw,
            .accumulate = adding,
            .dinp_sums = dresidual_sums};
        before_writing(dresidual_read);
        before_writing(ln_added[place]);
        layernorm_backward(call, stream, side());
        if (side() != nullptr) { ln_added[place].set(*branch); }
    }
    // dwide (N,3C) = the gradient of qkv, from dproj, that of attention's output
    void attention_gradient(Layer& a, int l) {
        before_writing(dwide_read);
        before_writing(attention_added);
        const AttentionBackward<T> call{.dqkv = mem.dwide,
                                        .scratch = mem.scratch,
                                        .counters = mem.counters,
                                        .dout = mem.dproj,
                                        .qkv = a.qkv,
                                        .out = a.atty,
                                        .lse = a.lse,
                                        .B = batch,
                                        .T = length,
                                        .NH = NH,
                                        .HS = C / NH};
        attention_backward_bias(grad(kQkvb, l), adding, call, stream, side());
        if (side() != nullptr) { attention_added.set(*branch); }
    }
    // The gradient of weight, of out (N,OC) = inp (N,C) weight^T. Before dout is written to, before_writing(dout_read).
    void weight_gradient(int weight, int l, const T* dout, const T* inp, Branch::Mark* dout_read = nullptr) {
        matmul.backward_weight(grad(weight, l), dout, inp, N, cols(weight), rows(weight), adding,
                               beside(stream, side()));
        if (side() != nullptr && dout_read != nullptr) { dout_read->set(*branch); }
    }
    // dinp (N,C) = dout (N,OC) weight
    void input_gradient(T* dinp, const T* dout, int weight, int l) {
        matmul.backward_input(dinp, dout, param(weight, l), N, cols(weight), rows(weight), stream);
    }
    // the gradient of fc's bias, from dwide (N,4C), behind that of its weight
    void wide_bias_gradient(int l) {
        bias_backward(grad(kFcb, l), side() != nullptr ? mem.branch_scratch : mem.scratch, mem.dwide, N,
                      4 * C, adding, side() != nullptr ? branch->stream() : stream);
        if (side() != nullptr) { dwide_read.set(*branch); }
    }

    // On entry dresidual (N,C) is the gradient of the block's output, and fcprojb has its gradient; on return it is the
    // gradient of the block's input `residual`, and fcprojb of the block below has its.
    void backward_block(Layer& a, int l, const T* residual) {
        if (settings.recompute == Recompute::kBlock) {
            normalise(a.ln1, kLn1w, l, residual);
            forward_attention(a, l);
            normalise(a.ln2, kLn2w, l, residual, a.residual2);
        }
        if (settings.recompute != Recompute::kNone) { forward_fc(a, l); }

        weight_gradient(kFcprojw, l, mem.dresidual, a.fch_gelu, &dresidual_read);
        before_writing(dwide_read);
        matmul.backward_input_gelu(mem.dwide, mem.dresidual, param(kFcprojw, l), a.fch, N, 4 * C, C,
                                   stream);  // (N,4C)
        weight_gradient(kFcw, l, mem.dwide, a.ln2.out);
        wide_bias_gradient(l);
        input_gradient(mem.dproj, mem.dwide, kFcw, l);  // (N,C)
        layernorm_gradient(a.ln2, kLn2w, l, a.residual2, grad(kAttprojb, l));
        weight_gradient(kAttprojw, l, mem.dresidual, a.atty, &dresidual_read);
        input_gradient(mem.dproj, mem.dresidual, kAttprojw, l);  // (N,C)
        attention_gradient(a, l);
        weight_gradient(kQkvw, l, mem.dwide, a.ln1.out, &dwide_read);
        input_gradient(mem.dproj, mem.dwide, kQkvw, l);  // (N,C)
        layernorm_gradient(a.ln1, kLn1w, l, residual, l > 0 ? grad(kFcprojb, l - 1) : nullptr);
    }
};

}  // namespace llmc
