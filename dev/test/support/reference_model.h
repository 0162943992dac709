// The plain GPT-2 that judges the GPU's: the layers of reference.h and nothing else, in Real = float or
// double, with the interface of model.h as far as tests need it. It is written apart from both models that
// ship: a tensor is one array in file order, a layer's copies one after the other. With Rounding::kBf16 every
// tensor that a model in bf16 keeps in memory is rounded when it is stored; what such a model holds in fp32
// (sums, statistics, gradients of parameters, master weights, moments) stays as it is. kFp8: what the blocks' products read is
// rounded to FP8; beside bf16 a tensor that is kept in FP8 alone is rounded to that alone.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "llmc/host/base/fp8.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/model/fp8_tensors.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"

namespace llmc {

enum class Rounding { kNone, kBf16, kFp8, kFp8AndBf16 };

// x in bf16, to nearest, ties to even: a float whose low 16 bits are zero
inline float nearest_bf16(float x) {
    uint32_t bits = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) { return x; }
    return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}

template <typename Real>
class ReferenceModel {
public:
    using Array = std::vector<Real>;
    struct Norm {  // a layernorm's output (N,C) and statistics (N)
        Array out, mean, rstd;
    };
    struct Layer {  // activations kept for backward; N = B * T rows
        Norm ln1, ln2;
        Array qkv, lse, atty;  // (N,3C), (B,NH,T), (N,C)
        Array residual2;       // (N,C): the stream after attention
        Array fch, gelu;       // (N,4C): before and after GELU
        Array residual3;       // (N,C): the stream after the MLP
    };

    // it takes batches of any size; B T: the rows that FP8's first scales are for
    ReferenceModel(const GPT2Config& config, int B, int T, Rounding rounding = Rounding::kNone,
                   bool muon = false)
        : config_(config), rounding_(rounding), muon_(muon), rows_((int64_t)B * T) {
        layers_.resize(config.num_layers);
        amax_.resize(fp8_tensors(config));
        for (auto* arena : {&weights_, &master_, &m_, &v_, &grads_}) {
            for (int t = 0; t < kNumTensors; t++) { (*arena)[t].resize(tensor_total(config, t)); }
        }
    }

    const GPT2Config& config() const { return config_; }

    void init(uint64_t seed) {
        for (int t = 0; t < kNumTensors; t++) {
            std::vector<float> values((size_t)tensor_total(config_, t));
            initial_values(config_, seed, t, 0, values);
            load(State::kParameter, t, 0, values);
            std::ranges::fill(m_[t], Real{0});
            std::ranges::fill(v_[t], Real{0});
        }
        updates_ = 0;
    }
    void load(State state, int tensor, int64_t first, std::span<const float> values) {
        Array& x = arena(state)[tensor];
        std::copy(values.begin(), values.end(), x.begin() + first);
        if (state == State::kParameter) { set_weights(tensor); }
    }
    void save(State state, int tensor, int64_t first, std::span<float> values) const {
        copy_out(const_cast<ReferenceModel*>(this)->arena(state)[tensor], first, values);
    }
    void save_gradient(int tensor, int64_t first, std::span<float> values) const {
        copy_out(grads_[tensor], first, values);
    }
    bool holds(State state, int tensor) const {
        return !muon_ || state != State::kSecondMoment || !is_block_matrix(tensor);
    }
    int64_t updates() const { return updates_; }
    void set_updates(int64_t n) { updates_ = n; }

    // of forward_backward(), whose rows are those of step 0, and micro-batches of up to the constructor's B T rows
    void set_dropout(const Dropout& dropout) { dropout_ = dropout; }
    // the gradients of the mean loss of these batches; returns the loss
    double forward_backward(std::span<const Batch> micro_batches) {
        int64_t targets = 0;
        for (const Batch& batch : micro_batches) {
            for (int32_t target : batch.targets) { targets += target != kIgnoreTarget; }
        }
        for (Array& g : grads_) { std::fill(g.begin(), g.end(), Real{0}); }
        double sum = 0;
        DropoutRows rows;
        dropout_.rows = &rows;
        for (const Batch& batch : micro_batches) {
            for (float loss : evaluate(batch).losses) { sum += loss; }
            backward(batch, 1.0 / (double)targets);
            rows.first += rows_;
        }
        dropout_.rows = nullptr;
        return sum / (double)targets;
    }

    void enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) {
        double loss = forward_backward(micro_batches), norm = 0;
        for (const Array& g : grads_) { norm = std::hypot(norm, global_norm_cpu(g.data(), g.size())); }
        bool skipped = !std::isfinite(loss) || !std::isfinite(norm);
        if (!skipped) { update(params, params.clip > 0 ? std::min(1.0, params.clip / (norm + 1e-6)) : 1.0); }
        auto done = std::chrono::steady_clock::now();
        results_.push_back({params.step, (float)loss, (float)norm, skipped, {}, done});
    }
    std::optional<StepResult> poll() {
        if (results_.empty()) { return std::nullopt; }
        const StepResult oldest = results_.front();
        results_.pop_front();
        return oldest;
    }
    void finish() {}

    Evaluation evaluate(const Batch& batch);
    std::span<const Real> logits() const { return logits_; }  // (B,T,Vp) of the last evaluate()
    std::span<const Real> logits_last() const {
        return logits().last(config_.padded_vocab_size).first(config_.vocab_size);
    }
    // FP8: the largest magnitudes since the last call; the passes that follow have scales of them, those before it of a model's
    // first step, whose micro-batches have up to B T rows
    std::vector<Real> end_fp8_step() {
        known_ = amax_;
        std::ranges::fill(amax_, Real{0});
        return known_;
    }
    // what the last forward pass kept
    const Array& encoded() const { return encoded_; }
    const Layer& layer(int l) const { return layers_[l]; }
    const Norm& lnf() const { return lnf_; }

private:
    using Arena = std::array<Array, kNumTensors>;

    // ---- storage
    void store(Array& x) const {  // in place; called when all of x is computed
        if (rounding_ == Rounding::kNone || rounding_ == Rounding::kFp8) { return; }
        for (Real& value : x) { value = nearest_bf16((float)value); }
    }
    static Real* sized(Array& x, int64_t n) {
        x.resize(n);
        return x.data();
    }
    void set_weights(int tensor) {
        weights_[tensor] = master_[tensor];
        store(weights_[tensor]);
    }
    bool fp8() const { return rounding_ == Rounding::kFp8 || rounding_ == Rounding::kFp8AndBf16; }
    bool in_fp8(int tensor) const { return fp8() && is_block_matrix(tensor); }
    // n numbers in FP8, or as they are
    Array operand(Fp8Role role, int tensor, int layer, const Real* x, int64_t n) {
        Array out(x, x + n);
        if (!in_fp8(tensor)) { return out; }
        const int64_t place = fp8_place(config_, role, tensor, layer);
        const bool gradient = role == Fp8Role::kGradient;
        Real largest = 0;
        for (Real value : out) { largest = std::max(largest, std::fabs(value)); }
        amax_[place] = std::max(amax_[place], largest);
        const Real known = !known_.empty() ? known_[place] : role == Fp8Role::kWeight ? largest : 0;
        const float scale = known > 0 ? fp8_scale(gradient ? kMostE5m2 : kMostE4m3, (float)known)
                                      : first_fp8_scale(role, rows_);
        for (Real& value : out) {
            const float scaled = (float)value * scale;
            value = (Real)((gradient ? from_e5m2(to_e5m2(scaled)) : from_e4m3(to_e4m3(scaled))) / scale);
        }
        return out;
    }
    Arena& arena(State state) {
        return state == State::kParameter ? master_ : state == State::kFirstMoment ? m_ : v_;
    }
    static void copy_out(const Array& x, int64_t first, std::span<float> values) {
        std::copy_n(x.begin() + first, values.size(), values.begin());
    }
    // a layer's part of a tensor's weights and gradients
    const Real* weight(int tensor, int layer) const {
        return weights_[tensor].data() + tensor_size(config_, tensor) * layer;
    }
    Real* grad(int tensor, int layer) { return grads_[tensor].data() + tensor_size(config_, tensor) * layer; }

    // ---- layers, named by their weight: its bias is the tensor after it. Products are not yet stored.
    void matmul(Array& out, const Array& inp, int tensor, int layer) {
        int OC = kTensors[tensor].rows(config_), C = kTensors[tensor].cols(config_);
        int64_t N = (int64_t)inp.size() / C;
        const Real* bias = tensor == kWte ? nullptr : weight(tensor + 1, layer);
        const Array x = operand(Fp8Role::kInput, tensor, layer, inp.data(), N * C),
                    w = operand(Fp8Role::kWeight, tensor, layer, weight(tensor, layer), (int64_t)OC * C);
        matmul_forward_cpu(sized(out, N * OC), x.data(), w.data(), bias, N, C, OC);
    }
    void matmul_backward(Array& dinp, const Array& dout, const Array& inp, int tensor, int layer) {
        int OC = kTensors[tensor].rows(config_), C = kTensors[tensor].cols(config_);
        int64_t N = (int64_t)inp.size() / C;
        const Array x = operand(Fp8Role::kInput, tensor, layer, inp.data(), N * C),
                    w = operand(Fp8Role::kWeight, tensor, layer, weight(tensor, layer), (int64_t)OC * C),
                    d = operand(Fp8Role::kGradient, tensor, layer, dout.data(), N * OC);
        matmul_backward_cpu(sized(dinp, N * C), grad(tensor, layer), (Real*)nullptr, d.data(), x.data(),
                            w.data(), N, C, OC);
        if (tensor != kWte) { bias_backward_cpu(grad(tensor + 1, layer), dout.data(), N, OC, OC); }
    }
    Array dropped(const Array& x, int layernorm, int layer) const {
        Array out = x;
        Dropout here = dropout_;
        here.place = dropout_place(config_, layernorm, layer);
        if (here.rows != nullptr) {
            const int C = config_.channels;
            dropout_cpu(out.data(), x.data(), here, (int64_t)x.size() / C, C);
        }
        return out;
    }
    void add(Array& residual, const Array& stream, const Array& branch, int layernorm, int layer) const {
        const Array more = dropped(branch, layernorm, layer);
        residual.resize(stream.size());
        std::transform(stream.begin(), stream.end(), more.begin(), residual.begin(), std::plus<Real>());
        store(residual);
    }
    void normalise(Norm& ln, const Array& residual, int tensor, int layer) const {
        int C = config_.channels;
        int64_t N = (int64_t)residual.size() / C;
        layernorm_forward_cpu(sized(ln.out, N * C), sized(ln.mean, N), sized(ln.rstd, N), residual.data(),
                              weight(tensor, layer), weight(tensor + 1, layer), N, C, kLayernormEps);
        if (!fp8() || tensor == kLnfw) { store(ln.out); }
    }
    void normalise_backward(Array& dresidual, const Array& dout, const Array& residual, const Norm& ln,
                            int tensor, int layer) {
        int64_t N = (int64_t)ln.mean.size();
        residual_layernorm_backward_cpu(dresidual.data(), grad(tensor, layer), grad(tensor + 1, layer),
                                        dout.data(), residual.data(), weight(tensor, layer), ln.mean.data(),
                                        ln.rstd.data(), N, config_.channels);
        store(dresidual);
    }

    // ---- the model: reference_model.cpp, so that the layers' templates are compiled once
    void forward(const Batch& batch);
    void backward(const Batch& batch, double dloss);  // adds to the gradients; overwrites logits_
    void update(const StepParams& params, double grad_scale);
    void update_by_muon(int t, const MuonParams& params) {
        const BlockMatrices each = block_matrices(config_, t);
        for (size_t at = 0; at < master_[t].size(); at += (size_t)each.rows * each.cols) {
            muon_cpu(&master_[t][at], &m_[t][at], &grads_[t][at], each.rows, each.cols, params);
        }
    }

    GPT2Config config_;
    Rounding rounding_;
    bool muon_;
    int64_t rows_;
    Arena weights_, master_, m_, v_, grads_;
    std::vector<Layer> layers_;
    Dropout dropout_;
    Array encoded_, logits_, amax_, known_;
    Norm lnf_;
    std::vector<float> losses_;
    std::vector<int32_t> predicted_;
    int64_t updates_ = 0;
    std::deque<StepResult> results_;  // not yet asked for, in order
};

}  // namespace llmc
