// The layers of GPT-2 on the GPU, forward and backward, in execution order, shapes beside the calls.
// Everything is queued on one stream; nothing waits. But in the recording of a small batch, whose products leave
// multiprocessors idle, the gradients of weights are a branch beside the rest (gpu/memory.cuh says when). In backward
// a linear layer whose output is added to the residual stream gets the gradient of its bias, sums over the stream's,
// from the layernorm that completes that. With settings.fp8 the input of a block's linear layer is in mem.fp8.input.
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

    // Of a pass in FP8. counts: its largest magnitudes are for the scales of the steps that follow. cast_weights: the weights
    // have changed since the last pass that cast them.
    struct Fp8Pass {
        bool counts = true, cast_weights = true;
    };
    // Fills the activations, up to logits; tokens (B,T_) in device memory, and so is dropout_rows: of a step, for its dropout and
    // in the backward() that follows; null: none
    void forward(int B, int T_, const int32_t* tokens, Fp8Pass fp8_pass = {},
                 const DropoutRows* dropout_rows = nullptr) {
        begin(B, T_);
        dropout.rows = settings.dropout > 0 ? dropout_rows : nullptr;
        fp8_counts = fp8_pass.counts;
        auto ready = [&](int l) {
            if (before_forward) { before_forward(l); }
            if (settings.fp8 && fp8_pass.cast_weights && l >= 0 && l < L) { cast_weights(l); }
        };
        ready(-1);
        ready(0);
        encoder_forward(mem.encoded, tokens, param(kWte), param(kWpe), B, T_, C, stream,
                        dropout_at(kLn1w, 0));  // (N,C)
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

    // FP8: the scales before the first step. restored: the history is a checkpoint's; else nothing is known but the weights.
    void set_first_scales(bool restored) {
        if constexpr (kCanFp8) {
            const Fp8Scales& scales = mem.fp8.scales;
            std::vector<float> first(scales.n), inverse(scales.n * kFp8Inverse);
            for (int64_t i = 0; i < scales.n; i++) {
                const Fp8Role role = i < scales.gradients ? Fp8Role::kInput : Fp8Role::kGradient;
                first[i] = first_fp8_scale(role, (int64_t)mem.B * mem.seq_len);
                inverse[i * kFp8Inverse] = 1 / first[i];
            }
            for (auto [to, from] : {std::pair{scales.scale, &first}, {scales.inverse, &inverse}}) {
                check(cudaMemcpyAsync(to, from->data(), from->size() * sizeof(float), cudaMemcpyHostToDevice,
                                      stream));
            }
            check(cudaStreamSynchronize(stream));  // the copies read vectors that end here
            check(cudaMemsetAsync(scales.amax, 0, scales.ranks * scales.n * sizeof(float), stream));
            if (restored) { return restore_fp8_scales(scales, stream); }
            check(cudaMemsetAsync(scales.history, 0, scales.n * kFp8History * sizeof(float), stream));
            fp8_counts = true;
            for (int l = 0; l < L; l++) { cast_weights(l); }
            end_fp8_step(scales, &mem.decision->saturated, stream);
        }
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
        encoder_backward(grad(kWte), grad(kWpe), mem.scratch, mem.dbranch, tokens, B, T_, C,
                         config.vocab_size, accumulate, stream);
    }

private:
    static constexpr bool kCanFp8 = sizeof(T) == 2;
    const int C = config.channels, NH = config.num_heads, L = config.num_layers;
    int positions = 0;  // that have a gradient
    // of the pass under way; N = batch * length rows
    int batch = 0, length = 0;
    int64_t N = 0;
    bool adding = false;  // its gradients are added to those of the micro-batches before it
    bool fp8_counts = true;
    Dropout dropout{settings.dropout, settings.seed};
    std::optional<Branch> branch;
    Branch::Mark dbranch_read, dwide_read;      // by the branch
    Branch::Mark attention_added, ln_added[2];  // by the branch: sums that are in scratch

    void begin(int B, int T_, bool accumulate = false) {
        batch = B, length = T_, adding = accumulate;
        N = (int64_t)B * T_;
    }
    T* param(int tensor, int layer = 0) { return mem.params + layout.offset(tensor, layer); }
    Grad* grad(int tensor, int layer = 0) { return mem.grads + layout.offset(tensor, layer); }
    int rows(int tensor) const { return kTensors[tensor].rows(config); }
    int cols(int tensor) const { return kTensors[tensor].cols(config); }
    Dropout dropout_at(int layernorm, int layer) const {
        Dropout here = dropout;
        here.place = dropout_place(config, layernorm, layer);
        return here;
    }
    Branch* side() { return recording && branch ? &*branch : nullptr; }
    void before_writing(const Branch::Mark& read) {
        if (side() != nullptr) { read.wait(*branch); }
    }

    // ---- A layer's bias is the tensor behind its weight.

    // norm = layernorm(inp), or with residual: residual = inp + proj, norm = layernorm(residual); in FP8 the input of the
    // linear layer that follows
    void normalise(const Norm& norm, int weight, int l, const T* inp, T* residual = nullptr) {
        if (norm.out == nullptr) { return normalise_fp8(norm, weight, l, inp, residual); }
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
        layernorm_forward(call, stream, residual != nullptr ? dropout_at(weight, l) : Dropout());
    }
    void normalise_fp8(const Norm& norm, int weight, int l, const T* inp, T* residual) {
        if constexpr (kCanFp8) {
            const Fp8Output out = fp8_input(weight == kLn1w ? kQkvw : kFcw, l);
            const LayerNormForwardFp8<T> call{.out = out.rows,
                                              .transposed = out.transposed,
                                              .amax = out.amax,
                                              .mean = norm.mean,
                                              .rstd = norm.rstd,
                                              .inp = inp,
                                              .weight = param(weight, l),
                                              .bias = param(weight + 1, l),
                                              .scale = out.scale,
                                              .N = fp8_rows(),
                                              .C = C,
                                              .residual = residual,
                                              .inp2 = residual != nullptr ? mem.proj : nullptr};
            layernorm_forward_fp8(call, stream, residual != nullptr ? dropout_at(weight, l) : Dropout());
        }
    }
    // out (N,OC) = inp (N,C) weight^T + bias
    void linear(T* out, const T* inp, int weight, int l) {
        if (settings.fp8) {
            if constexpr (kCanFp8) {
                using enum Fp8Role;
                matmul.forward(out, mem.fp8.matrix(mem.fp8.input, kInput, weight, l),
                               mem.fp8.matrix(fp8_layer(l).weight[fp8_linear(weight)], kWeight, weight, l),
                               param(weight + 1, l), fp8_rows(), cols(weight), rows(weight), stream);
            }
            return;
        }
        matmul.forward(out, inp, param(weight, l), param(weight + 1, l), N, cols(weight), rows(weight),
                       stream);
    }
    void forward_attention(Layer& a, int l) {
        linear(a.qkv, a.ln1.out, kQkvw, l);  // (N,3C)
        attention_forward<T>({a.atty, a.lse, mem.counters, a.qkv, batch, length, NH, C / NH},
                             stream);  // (N,C)
        if constexpr (kCanFp8) {
            if (settings.fp8) { cast_e4m3(fp8_input(kAttprojw, l), a.atty, fp8_rows(), C, stream); }
        }
        linear(mem.proj, a.atty, kAttprojw, l);  // (N,C)
    }
    void forward_fc(Layer& a, int l) {
        if constexpr (kCanFp8) {
            if (settings.fp8) {
                linear(a.fch, nullptr, kFcw, l);  // (N,4C)
                return gelu_e4m3(fp8_input(kFcprojw, l), a.fch, fp8_rows(), 4 * C, stream);
            }
        }
        matmul.forward_gelu(a.fch_gelu, a.fch, a.ln2.out, param(kFcw, l), param(kFcb, l), N, C, 4 * C,
                            stream);  // (N,4C)
    }

    // Of a layernorm of inp: dresidual += what dproj, the gradient of its output, becomes through it, and dbranch follows;
    // dbranch_sums (C), unless null: the sums of that over its rows. The last layernorm is the first here: it writes (=).
    void layernorm_gradient(const Norm& norm, int weight, int l, const T* inp, Grad* dbranch_sums) {
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
            .dinp_sums = dbranch_sums,
            .dropped = dropout.rows != nullptr ? mem.dbranch : nullptr,
            .dropout = dropout_at(weight, l)};
        before_writing(dbranch_read);
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
        if (settings.recompute != Recompute::kNone) {
            if (settings.fp8 && settings.recompute != Recompute::kBlock) {
                normalise(a.ln2, kLn2w, l, a.residual2);
            }
            forward_fc(a, l);
        }
        if (settings.fp8) {
            backward_linears_fp8(a, l);
            layernorm_gradient(a.ln1, kLn1w, l, residual, l > 0 ? grad(kFcprojb, l - 1) : nullptr);
            return;
        }

        weight_gradient(kFcprojw, l, mem.dbranch, a.fch_gelu, &dbranch_read);
        before_writing(dwide_read);
        matmul.backward_input_gelu(mem.dwide, mem.dbranch, param(kFcprojw, l), a.fch, N, 4 * C, C,
                                   stream);  // (N,4C)
        weight_gradient(kFcw, l, mem.dwide, a.ln2.out);
        wide_bias_gradient(l);
        input_gradient(mem.dproj, mem.dwide, kFcw, l);  // (N,C)
        layernorm_gradient(a.ln2, kLn2w, l, a.residual2, grad(kAttprojb, l));
        weight_gradient(kAttprojw, l, mem.dbranch, a.atty, &dbranch_read);
        input_gradient(mem.dproj, mem.dbranch, kAttprojw, l);  // (N,C)
        attention_gradient(a, l);
        weight_gradient(kQkvw, l, mem.dwide, a.ln1.out, &dwide_read);
        input_gradient(mem.dproj, mem.dwide, kQkvw, l);  // (N,C)
        layernorm_gradient(a.ln1, kLn1w, l, residual, l > 0 ? grad(kFcprojb, l - 1) : nullptr);
    }

    // ---- in FP8

    Fp8Memory::Layer& fp8_layer(int l) { return mem.fp8.layers[l]; }
    // The kernels take 16 rows together. Those behind N are of the batch before; they change no other row, and training has
    // none of them.
    int64_t fp8_rows() const { return (N + 15) / 16 * 16; }
    Fp8Output fp8_input(int weight, int l) {
        return mem.fp8.output(mem.fp8.input, fp8_layer(l).input_t[fp8_linear(weight)], Fp8Role::kInput,
                              weight, l, fp8_counts);
    }
    void cast_weights(int l) {
        if constexpr (kCanFp8) {
            for (int i = 0; i < kFp8Linears; i++) {
                const int weight = kFp8Weights[i];
                const Fp8Output out = mem.fp8.output(fp8_layer(l).weight[i], fp8_layer(l).weight_t[i],
                                                     Fp8Role::kWeight, weight, l, fp8_counts);
                cast_e4m3(out, param(weight, l), rows(weight), cols(weight), stream);
            }
        }
    }
    // of a linear layer's output: the gradient's rows, and its columns to transposed
    Fp8Output fp8_gradient(int weight, int l, uint8_t* transposed) {
        return mem.fp8.output(mem.fp8.gradient, transposed, Fp8Role::kGradient, weight, l, true);
    }
    void input_gradient_fp8(T* dinp, int weight, int l) {
        using enum Fp8Role;
        matmul.backward_input(dinp, mem.fp8.matrix(mem.fp8.gradient, kGradient, weight, l),
                              mem.fp8.matrix(fp8_layer(l).weight_t[fp8_linear(weight)], kWeight, weight, l),
                              N, cols(weight), rows(weight), stream);
    }
    void weight_gradient_fp8(int weight, int l, const uint8_t* dout_t, const uint8_t* inp_t) {
        using enum Fp8Role;
        matmul.backward_weight(grad(weight, l), mem.fp8.matrix(dout_t, kGradient, weight, l),
                               mem.fp8.matrix(inp_t, kInput, weight, l), N, cols(weight), rows(weight),
                               adding, stream);
    }
    // As the rest of backward_block(), up to the gradient of ln1's output. The gradient of fcproj's weight waits for GELU's
    // output.
    void backward_linears_fp8(Layer& a, int l) {
        if constexpr (kCanFp8) {
            using enum Fp8Role;
            Fp8Memory& m = mem.fp8;
            const Fp8ColumnSums<Grad> none{}, fcb_sums{grad(kFcb, l), mem.scratch, adding};
            cast_e5m2(fp8_gradient(kFcprojw, l, m.dresidual_t), none, mem.dbranch, N, C, stream);
            input_gradient_fp8(mem.dwide, kFcprojw, l);  // (N,4C)
            gelu_backward_e5m2(fp8_gradient(kFcw, l, m.gradient_t),
                               m.output(nullptr, m.input, kInput, kFcprojw, l, false), fcb_sums, mem.dwide,
                               a.fch, N, 4 * C, stream);
            weight_gradient_fp8(kFcprojw, l, m.dresidual_t, m.input);
            weight_gradient_fp8(kFcw, l, m.gradient_t, fp8_layer(l).input_t[fp8_linear(kFcw)]);
            input_gradient_fp8(mem.dproj, kFcw, l);  // (N,C)
            layernorm_gradient(a.ln2, kLn2w, l, a.residual2, grad(kAttprojb, l));
            cast_e5m2(fp8_gradient(kAttprojw, l, m.dresidual_t), none, mem.dbranch, N, C, stream);
            weight_gradient_fp8(kAttprojw, l, m.dresidual_t, fp8_layer(l).input_t[fp8_linear(kAttprojw)]);
            input_gradient_fp8(mem.dproj, kAttprojw, l);  // (N,C)
            attention_gradient(a, l);
            cast_e5m2(fp8_gradient(kQkvw, l, m.gradient_t), none, mem.dwide, N, 3 * C, stream);
            weight_gradient_fp8(kQkvw, l, m.gradient_t, fp8_layer(l).input_t[fp8_linear(kQkvw)]);
            input_gradient_fp8(mem.dproj, kQkvw, l);  // (N,C)
        }
    }
};

}  // namespace llmc
