// GPT-2 on the CPU: see cpu/gpt2.h. forward() and backward() are the model, in order, shapes beside the calls.
#include "llmc/model/cpu/gpt2.h"

#include <xxhash.h>
#include <algorithm>
#include <cmath>

#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/cpu/reference.h"

namespace llmc {

namespace {

void require_defaults(const ModelSettings& settings) {
    require(settings.recompute == Recompute::kNone && !settings.tf32,
            "GPT2Cpu keeps all activations and computes in fp32: recompute and tf32 are for the GPU model");
}

// floats: the direction of fc's and fcproj's matrix, the largest, and what its iterations need
int64_t muon_scratch(const GPT2Config& c) {
    return tensor_size(c, kFcw) + newton_schulz_scratch_blas(4 * c.channels, c.channels);
}

void copy_out(const GPT2Config& c, const ParameterLayout& layout, const std::vector<float>& arena, int tensor,
              int64_t first, std::span<float> values) {
    for_each_piece(c, layout, tensor, first, (int64_t)values.size(), [&](int64_t at, int64_t to, int64_t n) {
        std::copy_n(arena.data() + at, n, values.data() + to);
    });
}

}  // namespace

MemoryPlan GPT2Cpu::plan(const GPT2Config& c, int B, int T, const ModelSettings& settings) {
    require_defaults(settings);
    int64_t parameters = ParameterLayout(c).size() * 4, C = c.channels;
    double BT = (double)B * T;
    double layer = BT * (double)(16 * C + 4 + c.num_heads);
    double around = BT * (double)(2 * C + 2 + c.padded_vocab_size + 2 + 3 * C + 4 * C) +
                    (double)attention_scratch_blas(T);
    if (settings.fp8) { around += BT * (double)(8 * C) + 4.0 * (double)(C * C); }  // of one layer, rounded
    MemoryPlan plan;
    plan.parameters = parameters;
    const StateShares shares(c, settings);
    plan.gradients = parameters + GradientSums::bytes(shares);
    plan.optimizer = (int64_t)sizeof(float) * (shares.kept() + shares.seconds.kept());
    if (settings.muon) { plan.optimizer += (int64_t)sizeof(float) * muon_scratch(c); }
    // The options allow sizes whose product does not fit in 64 bits: those must read as too much, not wrap round.
    plan.activations = (int64_t)std::min(4 * (layer * c.num_layers + around), 0x1p60);
    plan.available = available_memory() / settings.local_ranks;
    return plan;
}

GPT2Cpu::GPT2Cpu(const GPT2Config& config, int B, int T, const ModelSettings& settings)
    : config_(config),
      layout_(config),
      second_layout_(config, !settings.muon),
      B_(B),
      T_(T),
      settings_(settings),
      sums_(StateShares(config, settings), settings.comm),
      pieces_(update_pieces(config, sums_.shares(), sums_.rank())),
      dropout_(settings.dropout, settings.seed) {
    require_defaults(settings);
    require_sizes(config, B, T);
    require((int64_t)B * T <= INT32_MAX, "GPT2Cpu: B * T must fit in 32 bits, the BLAS's index");
    int64_t BT = (int64_t)B * T, C = config.channels;
    for (auto* arena : {&states_[(int)State::kParameter], &grads_}) { arena->resize(layout_.size()); }
    for (State state : {State::kFirstMoment, State::kSecondMoment}) {
        const Shares& of = sums_.shares().of(state);
        states_[(int)state].resize((size_t)(of.shard ? of.sizes[sums_.rank()] : of.elements()));
    }
    if (settings.muon) { muon_scratch_.resize((size_t)muon_scratch(config)); }
    layers_.resize(config.num_layers);
    for (Layer& a : layers_) {
        for (auto* x : {&a.ln1.out, &a.atty, &a.residual2, &a.ln2.out, &a.residual3}) { x->resize(BT * C); }
        for (auto* x : {&a.ln1.mean, &a.ln1.rstd, &a.ln2.mean, &a.ln2.rstd}) { x->resize(BT); }
        a.qkv.resize(BT * 3 * C);
        a.lse.resize(BT * config.num_heads);
        for (auto* x : {&a.fch, &a.fch_gelu}) { x->resize(BT * 4 * C); }
    }
    for (auto* x : {&encoded_, &lnf_.out, &proj_, &dresidual_, &dproj_}) { x->resize(BT * C); }
    for (auto* x : {&lnf_.mean, &lnf_.rstd, &losses_}) { x->resize(BT); }
    logits_.resize(BT * config.padded_vocab_size);
    predicted_.resize(BT);
    dwide_.resize(BT * 4 * C);
    scratch_.resize(attention_scratch_blas(T));
    if (settings.fp8) { fp8_.emplace(config, BT); }
}

void GPT2Cpu::init(uint64_t seed) {
    for (int t = 0; t < kNumTensors; t++) {
        for (int layer = 0; layer < tensor_copies(config_, t); layer++) {
            int64_t size = tensor_size(config_, t);
            initial_values(config_, seed, t, layer * size, {param(t, layer), (size_t)size});
        }
    }
    for (State moment : {State::kFirstMoment, State::kSecondMoment}) {
        std::ranges::fill(states_[(int)moment], 0.0f);
    }
    updates_ = 0;
    fp8_restored_ = fp8_ready_ = false;
}

void GPT2Cpu::load(State state, int tensor, int64_t first, std::span<const float> values) {
    fp8_restored_ = state == State::kFp8Maxima || (fp8_restored_ && state != State::kParameter);
    fp8_ready_ = false;
    if (state == State::kFp8Maxima) {
        if (fp8_) { std::ranges::copy(values, fp8_->maxima().subspan((size_t)first, values.size()).begin()); }
        return;
    }
    for_each_piece(config_, layout_of(state), tensor, first, (int64_t)values.size(),
                   [&](int64_t at, int64_t from, int64_t n) {
                       auto copy = [&](const SharePart& part) {
                           std::copy_n(values.data() + from + part.begin - at, part.size(),
                                       this->values(state) + part.kept);
                       };
                       if (state == State::kParameter) {
                           copy({at, at + n, at});
                       } else {
                           sums_.shares().of(state).for_each_kept(sums_.rank(), at, n, copy);
                       }
                   });
}

void GPT2Cpu::save(State state, int tensor, int64_t first, std::span<float> values) const {
    if (state == State::kFp8Maxima) {
        std::ranges::copy(fp8_->maxima().subspan((size_t)first, values.size()), values.begin());
        return;
    }
    const bool share = sums_.shares().shard && state != State::kParameter;
    const auto& arena = (share ? gathered_ : states_)[(int)state];
    require((int64_t)arena.size() == layout_of(state).size(), "GPT2Cpu: gather() before save() of moments");
    copy_out(config_, layout_of(state), arena, tensor, first, values);
}

void GPT2Cpu::save_gradient(int tensor, int64_t first, std::span<float> values) const {
    copy_out(config_, layout_, grads_, tensor, first, values);
}

// A layer of a large model takes seconds, and all layers more than whoever sends the signal waits. Many ranks
// agree on a stop between micro-batches.
bool GPT2Cpu::stopping() const { return training_ && settings_.ranks == 1 && stop_requested != 0; }

// Scales as GPT2's: without maxima of a checkpoint those of the weights are known, as they are there.
void GPT2Cpu::prepare_fp8() {
    if (!fp8_ || fp8_ready_) { return; }
    fp8_ready_ = true;
    if (fp8_restored_) { return fp8_->set_scales(); }
    fp8_->reset((int64_t)B_ * T_);
    for (int l = 0; l < config_.num_layers; l++) {
        for (int weight : kFp8Weights) {
            fp8_->rounded(Fp8Role::kWeight, weight, l,
                          {param(weight, l), (size_t)tensor_size(config_, weight)}, true);
        }
    }
    fp8_->end_step(nullptr);
}

// A layer's bias is the tensor behind its weight. out (rows_,OC)
void GPT2Cpu::linear(float* out, const std::vector<float>& inp, int weight, int l) {
    const int inner = kTensors[weight].cols(config_), OC = kTensors[weight].rows(config_);
    const float *x = inp.data(), *w = param(weight, l);
    if (fp8_) {
        x = fp8_->rounded(Fp8Role::kInput, weight, l, {x, (size_t)rows_ * inner}, training_);
        w = fp8_->rounded(Fp8Role::kWeight, weight, l, {w, (size_t)OC * inner}, training_);
    }
    matmul_forward_blas(out, OC, x, w, param(weight + 1, l), rows_, inner, OC);
}

// dinp is written; the bias has the sums of dout as it was before it is rounded
void GPT2Cpu::linear_backward(float* dinp, const float* dout, const std::vector<float>& inp, int weight,
                              int l) {
    const int inner = kTensors[weight].cols(config_), OC = kTensors[weight].rows(config_);
    const float *x = inp.data(), *w = param(weight, l);
    if (fp8_) {
        bias_backward_cpu(grad(weight + 1, l), dout, rows_, OC, OC);
        x = fp8_->rounded(Fp8Role::kInput, weight, l, {x, (size_t)rows_ * inner}, false);
        w = fp8_->rounded(Fp8Role::kWeight, weight, l, {w, (size_t)OC * inner}, false);
        dout = fp8_->rounded(Fp8Role::kGradient, weight, l, {dout, (size_t)rows_ * OC}, true);
    }
    matmul_backward_blas(dinp, grad(weight, l), fp8_ ? nullptr : grad(weight + 1, l), dout, OC, x, w, rows_,
                         inner, OC);
}

const float* GPT2Cpu::dropped(float* to, const float* x, int layernorm, int layer) const {
    if (!training_ || settings_.dropout == 0) { return x; }
    Dropout here = dropout_;
    here.rows = &dropout_rows_;
    here.place = dropout_place(config_, layernorm, layer);
    dropout_cpu(to, x, here, rows_, config_.channels);
    return to;
}

void GPT2Cpu::forward(const Batch& batch) {
    const int B = batch.B, T = batch.T, C = config_.channels, L = config_.num_layers;
    const int64_t N = rows_ = B * T;
    float* proj = proj_.data();
    auto add_and_normalise = [&](Norm& norm, int weight, int l, std::vector<float>& sum, const float* inp) {
        residual_layernorm_forward_cpu(sum.data(), norm.out.data(), norm.mean.data(), norm.rstd.data(), inp,
                                       dropped(proj, proj, weight, l), param(weight, l), param(weight + 1, l),
                                       N, C, kLayernormEps);
    };
    encoder_forward_cpu(encoded_.data(), batch.tokens.data(), param(kWte), param(kWpe), B, T, C);  // (N,C)
    const float* residual = dropped(encoded_.data(), encoded_.data(), kLn1w, 0);
    Norm& first = layers_[0].ln1;
    layernorm_forward_cpu(first.out.data(), first.mean.data(), first.rstd.data(), residual, param(kLn1w),
                          param(kLn1b), N, C, kLayernormEps);
    for (int l = 0; l < L; l++) {
        if (stopping()) { return; }
        Layer& a = layers_[l];
        linear(a.qkv.data(), a.ln1.out, kQkvw, l);  // (N,3C)
        attention_forward_blas(a.atty.data(), a.lse.data(), scratch_.data(), a.qkv.data(), B, T, C,
                               config_.num_heads);  // (N,C)
        linear(proj, a.atty, kAttprojw, l);         // (N,C)
        add_and_normalise(a.ln2, kLn2w, l, a.residual2, residual);
        linear(a.fch.data(), a.ln2.out, kFcw, l);  // (N,4C)
        gelu_forward_cpu(a.fch_gelu.data(), a.fch.data(), N * 4 * C);
        linear(proj, a.fch_gelu, kFcprojw, l);  // (N,C)
        // the layernorm that follows: the next block's first, or the final one
        const bool last = l + 1 == L;
        add_and_normalise(last ? lnf_ : layers_[l + 1].ln1, last ? kLnfw : kLn1w, last ? 0 : l + 1,
                          a.residual3, a.residual2.data());
        residual = a.residual3.data();
    }
    const int V = config_.vocab_size, Vp = config_.padded_vocab_size;
    matmul_forward_blas(logits_.data(), Vp, lnf_.out.data(), param(kWte), nullptr, N, C, V);
    classifier_forward_cpu(losses_.data(), predicted_.data(), logits_.data(), batch.targets.data(), N, V, Vp);
}

void GPT2Cpu::backward(const Batch& batch, double dloss) {
    const int B = batch.B, T = batch.T, C = config_.channels, V = config_.vocab_size;
    const int Vp = config_.padded_vocab_size, L = config_.num_layers;
    const int64_t N = rows_;
    const float* dbranch = nullptr;  // of what was added to the stream before the last layernorm
    float *dresidual = dresidual_.data(), *dproj = dproj_.data(), *dwide = dwide_.data();
    auto layernorm = [&](const Norm& norm, int weight, int l, const std::vector<float>& inp) {
        residual_layernorm_backward_cpu(dresidual, grad(weight, l), grad(weight + 1, l), dproj, inp.data(),
                                        param(weight, l), norm.mean.data(), norm.rstd.data(), N, C);
        dbranch = dropped(proj_.data(), dresidual, weight, l);
    };
    classifier_backward_cpu(logits_.data(), logits_.data(), batch.targets.data(), dloss, N, V, Vp);
    matmul_backward_blas(dproj, grad(kWte), nullptr, logits_.data(), Vp, lnf_.out.data(), param(kWte), N, C,
                         V);
    std::fill(dresidual, dresidual + N * C, 0.0f);
    layernorm(lnf_, kLnfw, 0, layers_[L - 1].residual3);
    for (int l = L - 1; l >= 0; l--) {
        if (stopping()) { return; }
        Layer& a = layers_[l];
        linear_backward(dwide, dbranch, a.fch_gelu, kFcprojw, l);  // (N,4C)
        gelu_backward_cpu(dwide, dwide, a.fch.data(), N * 4 * C);
        linear_backward(dproj, dwide, a.ln2.out, kFcw, l);
        layernorm(a.ln2, kLn2w, l, a.residual2);
        linear_backward(dproj, dbranch, a.atty, kAttprojw, l);
        attention_backward_blas(dwide, scratch_.data(), dproj, a.qkv.data(), a.atty.data(), a.lse.data(), B,
                                T, C, config_.num_heads);
        linear_backward(dproj, dwide, a.ln1.out, kQkvw, l);  // dwide holds dqkv (N,3C) here
        layernorm(a.ln1, kLn1w, l, l == 0 ? encoded_ : layers_[l - 1].residual3);
    }
    encoder_backward_cpu(grad(kWte), grad(kWpe), dbranch, batch.tokens.data(), B, T, C);
}

double GPT2Cpu::forward_backward(std::span<const Batch> micro_batches) {
    const int64_t targets = count_targets(config_, B_, T_, micro_batches);
    double sum = 0;
    dropout_rows_ = {};
    add_gradients(micro_batches, true, 1.0 / targets, &sum);
    return sum / targets;
}

// The gradients of a group and the sum of its losses. False: a stop was asked for; last: of the groups of a step.
bool GPT2Cpu::add_gradients(std::span<const Batch> micro_batches, bool last, double dloss, double* loss) {
    std::fill(grads_.begin(), grads_.end(), 0.0f);
    prepare_fp8();
    *loss = 0;
    training_ = true;
    for (const Batch& batch : micro_batches) {
        forward(batch);
        if (stopping()) { return false; }
        for (int i = 0; i < rows_; i++) { *loss += losses_[i]; }
        backward(batch, dloss);
        if (stopping()) { return false; }
        dropout_rows_.first += (int64_t)B_ * T_;
        if (last && &batch == &micro_batches.back()) { break; }
        bool stop = stop_requested != 0;
        if (settings_.comm != nullptr) { stop = settings_.comm->root_says("whether to stop", stop); }
        if (stop) { return false; }
    }
    return true;
}

bool GPT2Cpu::enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) {
    for (auto& gathered : gathered_) { gathered = std::vector<float>(); }
    const int64_t counted = count_targets(config_, B_, T_, micro_batches);
    const int64_t targets = params.targets > 0 ? params.targets : counted;
    const auto groups = (size_t)sums_.groups_here(), each = micro_batches.size() / groups;
    require(each > 0 && each * groups == micro_batches.size(),
            "GPT2Cpu: groups of micro-batches of one size");
    std::vector<double> losses(groups);
    for (size_t g = 0; g < groups; g++) {
        const bool last = g + 1 == groups;
        const int64_t number = micro_batch_number((int64_t)(g * each), (int64_t)each, (int64_t)sums_.rank(),
                                                  sums_.shares().ranks);
        dropout_rows_ = {number * B_ * T_, (uint32_t)params.step};
        if (!add_gradients(micro_batches.subspan(g * each, each), last, 1.0 / targets, &losses[g])) {
            return false;
        }
        sums_.add(grads_, g == 0);
    }
    const double loss = sums_.total(losses) / targets, norm = sums_.norm();  // gaps and padding rows are zero
    bool too_long = norm > kLongestGradient && !(params.clip > 0);
    bool skipped = !std::isfinite((float)loss) || !std::isfinite((float)norm) || too_long ||
                   is_outlier(params, (float)loss, (float)norm);
    if (!skipped) { update(params, params.clip > 0 ? std::min(1.0, params.clip / (norm + 1e-6)) : 1.0); }
    const Fp8Saturated saturated = fp8_ ? fp8_->end_step(settings_.comm) : Fp8Saturated();
    auto done = std::chrono::steady_clock::now();
    results_.push_back({params.step, (float)loss, (float)norm, skipped, saturated, done});
    return true;
}

// Of the optimizer's share that is here; with ZeRO-1 the parameters then come together, else the gradients' sums before.
void GPT2Cpu::update(const StepParams& params, double grad_scale) {
    updates_++;
    const StateShares& shares = sums_.shares();
    const float* sums = sums_.sums();
    if (shares.ranks > 1 && !shares.shard) {
        for (const auto& range : shares.parts) {
            const SharePart& mine = range[sums_.rank()];
            std::copy_n(sums + mine.kept, mine.size(), grads_.begin() + mine.begin);
        }
        sums_.all_gather("sums of gradients", grads_.data());
        sums = grads_.data();
    }
    float *weights = values(State::kParameter), *m = values(State::kFirstMoment);
    const double keep = 1 - params.lr * params.weight_decay;
    AdamWParams adamw{params.lr, params.beta1, params.beta2, params.eps, keep, grad_scale, updates_};
    for (const AdamWPiece& p : pieces_) {
        adamw.keep = p.decays ? keep : 1;
        adamw_cpu(weights + p.at, m + p.kept, values(State::kSecondMoment) + p.second, sums + p.kept, p.size,
                  adamw);
    }
    const MuonParams muon{params.lr, keep, grad_scale};
    for (int t = 0; t < kNumTensors; t++) {
        const auto [count, rows, cols] = block_matrices(config_, t);
        const int64_t n = (int64_t)rows * cols;
        float *direction = muon_scratch_.data(), *scratch = direction + n;
        for (const MuonCopy& copy : muon_copies(config_, shares, sums_.rank(), t)) {
            for (int64_t k = 0; k < count * n; k += n) {  // a layer's matrices lie one behind the other
                muon_momentum_cpu(direction, m + copy.kept + k, sums + copy.kept + k, n, grad_scale);
                newton_schulz_blas(direction, scratch, rows, cols);
                muon_step_cpu(weights + copy.at + k, direction, n, muon_scale(rows, cols), muon);
            }
        }
    }
    if (shares.shard) { sums_.all_gather("parameters", weights); }
}

void GPT2Cpu::gather() {
    if (!sums_.shares().shard) { return; }
    for (State state : {State::kFirstMoment, State::kSecondMoment}) {
        std::vector<float>& whole = gathered_[(int)state];
        if (settings_.comm->root()) { whole.resize((size_t)layout_of(state).size()); }
        sums_.gather("moments", state, whole.data(), values(state));
    }
}

std::vector<uint64_t> GPT2Cpu::parameter_hashes() const {
    std::vector<uint64_t> hashes(kNumTensors);
    for (int t = 0; t < kNumTensors; t++) {
        for_each_piece(config_, layout_, t, 0, tensor_total(config_, t), [&](int64_t at, int64_t, int64_t n) {
            const float* x = states_[(int)State::kParameter].data() + at;
            hashes[t] = XXH3_64bits_withSeed(x, n * sizeof(float), hashes[t]);
        });
    }
    return hashes;
}

std::optional<StepResult> GPT2Cpu::poll() {
    if (results_.empty()) { return std::nullopt; }
    StepResult oldest = results_.front();
    results_.pop_front();
    return oldest;
}

Evaluation GPT2Cpu::evaluate(const Batch& batch) {
    require_batch(config_, B_, T_, batch);
    prepare_fp8();
    training_ = false;
    forward(batch);
    return {std::span(losses_).first(rows_), std::span(predicted_).first(rows_)};
}

Device GPT2Cpu::device(const ModelSettings& settings) {
    require_defaults(settings);
    return {fmt::format("CPU, {} threads, {}", blas_threads(), blas_name()), 0, ""};
}

}  // namespace llmc
