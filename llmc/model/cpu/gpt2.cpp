// GPT-2 on the CPU: see cpu/gpt2.h. forward() and backward() are the model, in execution order, shapes beside
// the calls.
#include "llmc/model/cpu/gpt2.h"

#include <xxhash.h>
#include <algorithm>
#include <cmath>
#include <cstring>

#include "llmc/host/base/error.h"
#include "llmc/host/base/resources.h"
#include "llmc/host/base/stop_signal.h"
#include "llmc/host/ranks/comm.h"
#include "llmc/model/cpu/blas.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/model/gpt2_config.h"

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

// The options allow sizes whose product does not fit in 64 bits: those must read as too much, not wrap round.
int64_t saturated(double bytes) { return (int64_t)std::min(bytes, 0x1p60); }

}  // namespace

MemoryPlan GPT2Cpu::plan(const GPT2Config& c, int B, int T, const ModelSettings& settings) {
    require_defaults(settings);
    int64_t parameters = ParameterLayout(c).size() * 4, C = c.channels;
    double BT = (double)B * T;
    double layer = BT * (double)(16 * C + 4 + c.num_heads);
    double around = BT * (double)(2 * C + 2 + c.padded_vocab_size + 2 + 3 * C + 4 * C) +
                    (double)attention_scratch_blas(T);
    MemoryPlan plan;
    plan.parameters = parameters;
    const StateShares shares(c, settings);
    plan.gradients = parameters + GradientSums::bytes(shares);
    plan.optimizer = (int64_t)sizeof(float) * (shares.kept() + shares.seconds.kept());
    if (settings.muon) { plan.optimizer += (int64_t)sizeof(float) * muon_scratch(c); }
    plan.activations = saturated(4 * (layer * c.num_layers + around));
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
      pieces_(update_pieces(config, sums_.shares(), sums_.rank())) {
    require_defaults(settings);
    require(B > 0 && T > 0 && T <= config.max_seq_len,
            "GPT2Cpu: B and T must be positive, T at most max_seq_len");
    require((int64_t)B * T <= INT32_MAX, "GPT2Cpu: B * T must fit in 32 bits, the BLAS's index");
    require(config.num_layers > 0 && config.num_heads > 0 && config.channels > 0 && config.vocab_size > 0 &&
                config.channels % config.num_heads == 0 && config.padded_vocab_size >= config.vocab_size,
            "GPT2Cpu: sizes must be positive, channels a multiple of heads");
    int64_t BT = (int64_t)B * T, C = config.channels;
    for (auto* arena : {&params_, &grads_}) { arena->resize(layout_.size()); }
    const StateShares& shares = sums_.shares();
    for (auto [state, arena] : {std::pair(State::kFirstMoment, &m_), std::pair(State::kSecondMoment, &v_)}) {
        const Shares& of = shares.of(state);
        arena->resize((size_t)(of.shard ? of.sizes[sums_.rank()] : of.elements()));
    }
    if (settings.muon) { muon_scratch_.resize((size_t)muon_scratch(config)); }
    layers_.resize(config.num_layers);
    for (Layer& a : layers_) {
        for (auto* x : {&a.ln1, &a.atty, &a.residual2, &a.ln2, &a.residual3}) { x->resize(BT * C); }
        for (auto* x : {&a.ln1_mean, &a.ln1_rstd, &a.ln2_mean, &a.ln2_rstd}) { x->resize(BT); }
        a.qkv.resize(BT * 3 * C);
        a.lse.resize(BT * config.num_heads);
        a.fch.resize(BT * 4 * C);
        a.fch_gelu.resize(BT * 4 * C);
    }
    for (auto* x : {&encoded_, &lnf_, &proj_, &dresidual_, &dproj_}) { x->resize(BT * C); }
    for (auto* x : {&lnf_mean_, &lnf_rstd_, &losses_}) { x->resize(BT); }
    logits_.resize(BT * config.padded_vocab_size);
    predicted_.resize(BT);
    dwide_.resize(BT * 4 * C);
    scratch_.resize(attention_scratch_blas(T));
}

void GPT2Cpu::init(uint64_t seed) {
    for (int t = 0; t < kNumTensors; t++) {
        for (int layer = 0; layer < tensor_copies(config_, t); layer++) {
            int64_t size = tensor_size(config_, t);
            initial_values(config_, seed, t, layer * size, {param(t, layer), (size_t)size});
        }
    }
    std::fill(m_.begin(), m_.end(), 0.0f);
    std::fill(v_.begin(), v_.end(), 0.0f);
    updates_ = 0;
}

void GPT2Cpu::load(State state, int tensor, int64_t first, std::span<const float> values) {
    auto& arena = state == State::kParameter ? params_ : state == State::kFirstMoment ? m_ : v_;
    for_each_piece(config_, layout_of(state), tensor, first, (int64_t)values.size(),
                   [&](int64_t at, int64_t from, int64_t n) {
                       auto copy = [&](const SharePart& part) {
                           std::memcpy(arena.data() + part.kept, values.data() + from + part.begin - at,
                                       (size_t)part.size() * sizeof(float));
                       };
                       if (state == State::kParameter) {
                           copy({at, at + n, at});
                       } else {
                           sums_.shares().of(state).for_each_kept(sums_.rank(), at, n, copy);
                       }
                   });
}

void GPT2Cpu::save(State state, int tensor, int64_t first, std::span<float> values) const {
    const bool share = sums_.shares().shard;
    const auto& m = share ? gathered_m_ : m_;
    const auto& v = share ? gathered_v_ : v_;
    const auto& arena = state == State::kParameter ? params_ : state == State::kFirstMoment ? m : v;
    require((int64_t)arena.size() == layout_of(state).size(), "GPT2Cpu: gather() before save() of moments");
    for_each_piece(config_, layout_of(state), tensor, first, (int64_t)values.size(),
                   [&](int64_t at, int64_t to, int64_t n) {
                       std::memcpy(values.data() + to, arena.data() + at, n * sizeof(float));
                   });
}

void GPT2Cpu::save_gradient(int tensor, int64_t first, std::span<float> values) const {
    for_each_piece(config_, layout_, tensor, first, (int64_t)values.size(),
                   [&](int64_t at, int64_t to, int64_t n) {
                       std::memcpy(values.data() + to, grads_.data() + at, n * sizeof(float));
                   });
}

void GPT2Cpu::check_batch(const Batch& batch) const {
    require(batch.B > 0 && batch.T > 0 && (int64_t)batch.B * batch.T <= (int64_t)B_ * T_ && batch.T <= T_,
            "GPT2Cpu: the batch is larger than the model was made for");
    int64_t n = (int64_t)batch.B * batch.T;
    require((int64_t)batch.tokens.size() == n && (int64_t)batch.targets.size() == n,
            "GPT2Cpu: batch sizes disagree");
    for (int64_t i = 0; i < n; i++) {
        bool ok = batch.tokens[i] >= 0 && batch.tokens[i] < config_.vocab_size &&
                  batch.targets[i] < config_.vocab_size && batch.targets[i] >= kIgnoreTarget;
        require(ok, "GPT2Cpu: a token id is outside of the vocabulary");
    }
}

// A layer of a large model takes seconds, and all layers more than whoever sends the signal waits. Many ranks
// agree on a stop between micro-batches.
bool GPT2Cpu::stopping() const { return training_ && settings_.ranks == 1 && stop_requested != 0; }

void GPT2Cpu::forward(const Batch& batch) {
    int B = batch.B, T = batch.T, C = config_.channels, NH = config_.num_heads, V = config_.vocab_size;
    int64_t N = (int64_t)B * T;
    rows_ = (int)N;
    encoder_forward_cpu(encoded_.data(), batch.tokens.data(), param(kWte), param(kWpe), B, T, C);  // (N,C)
    float* residual = encoded_.data();
    layernorm_forward_cpu(layers_[0].ln1.data(), layers_[0].ln1_mean.data(), layers_[0].ln1_rstd.data(),
                          residual, param(kLn1w), param(kLn1b), N, C, kLayernormEps);
    for (int l = 0; l < config_.num_layers; l++) {
        if (stopping()) { return; }
        Layer& a = layers_[l];
        matmul_forward_blas(a.qkv.data(), 3 * C, a.ln1.data(), param(kQkvw, l), param(kQkvb, l), N, C, 3 * C);
        attention_forward_blas(a.atty.data(), a.lse.data(), scratch_.data(), a.qkv.data(), B, T, C,
                               NH);  // (N,C)
        matmul_forward_blas(proj_.data(), C, a.atty.data(), param(kAttprojw, l), param(kAttprojb, l), N, C,
                            C);
        residual_layernorm_forward_cpu(a.residual2.data(), a.ln2.data(), a.ln2_mean.data(), a.ln2_rstd.data(),
                                       residual, proj_.data(), param(kLn2w, l), param(kLn2b, l), N, C,
                                       kLayernormEps);
        matmul_forward_blas(a.fch.data(), 4 * C, a.ln2.data(), param(kFcw, l), param(kFcb, l), N, C, 4 * C);
        gelu_forward_cpu(a.fch_gelu.data(), a.fch.data(), N * 4 * C);
        matmul_forward_blas(proj_.data(), C, a.fch_gelu.data(), param(kFcprojw, l), param(kFcprojb, l), N,
                            4 * C, C);
        // the layernorm that follows: the next block's first, or the final one
        bool last = l + 1 == config_.num_layers;
        Layer* next = last ? nullptr : &layers_[l + 1];
        residual_layernorm_forward_cpu(a.residual3.data(), last ? lnf_.data() : next->ln1.data(),
                                       last ? lnf_mean_.data() : next->ln1_mean.data(),
                                       last ? lnf_rstd_.data() : next->ln1_rstd.data(), a.residual2.data(),
                                       proj_.data(), last ? param(kLnfw) : param(kLn1w, l + 1),
                                       last ? param(kLnfb) : param(kLn1b, l + 1), N, C, kLayernormEps);
        residual = a.residual3.data();
    }
    matmul_forward_blas(logits_.data(), config_.padded_vocab_size, lnf_.data(), param(kWte), nullptr, N, C,
                        V);
}

void GPT2Cpu::backward(const Batch& batch, double dloss) {
    int B = batch.B, T = batch.T, C = config_.channels, NH = config_.num_heads, V = config_.vocab_size;
    int Vp = config_.padded_vocab_size, L = config_.num_layers;
    int64_t N = (int64_t)B * T;
    float *dresidual = dresidual_.data(), *dproj = dproj_.data(), *dwide = dwide_.data();
    classifier_backward_cpu(logits_.data(), logits_.data(), batch.targets.data(), dloss, N, V, Vp);
    matmul_backward_blas(dproj, grad(kWte), nullptr, logits_.data(), Vp, lnf_.data(), param(kWte), N, C, V);
    std::fill(dresidual, dresidual + N * C, 0.0f);
    residual_layernorm_backward_cpu(dresidual, grad(kLnfw), grad(kLnfb), dproj,
                                    layers_[L - 1].residual3.data(), param(kLnfw), lnf_mean_.data(),
                                    lnf_rstd_.data(), N, C);
    for (int l = L - 1; l >= 0; l--) {
        if (stopping()) { return; }
        Layer& a = layers_[l];
        const float* residual = l == 0 ? encoded_.data() : layers_[l - 1].residual3.data();
        matmul_backward_blas(dwide, grad(kFcprojw, l), grad(kFcprojb, l), dresidual, C, a.fch_gelu.data(),
                             param(kFcprojw, l), N, 4 * C, C);  // dwide (N,4C)
        gelu_backward_cpu(dwide, dwide, a.fch.data(), N * 4 * C);
        matmul_backward_blas(dproj, grad(kFcw, l), grad(kFcb, l), dwide, 4 * C, a.ln2.data(), param(kFcw, l),
                             N, C, 4 * C);
        residual_layernorm_backward_cpu(dresidual, grad(kLn2w, l), grad(kLn2b, l), dproj, a.residual2.data(),
                                        param(kLn2w, l), a.ln2_mean.data(), a.ln2_rstd.data(), N, C);
        matmul_backward_blas(dproj, grad(kAttprojw, l), grad(kAttprojb, l), dresidual, C, a.atty.data(),
                             param(kAttprojw, l), N, C, C);
        attention_backward_blas(dwide, scratch_.data(), dproj, a.qkv.data(), a.atty.data(), a.lse.data(), B,
                                T, C, NH);
        matmul_backward_blas(dproj, grad(kQkvw, l), grad(kQkvb, l), dwide, 3 * C, a.ln1.data(),
                             param(kQkvw, l), N, C,
                             3 * C);  // dwide holds dqkv (N,3C) here
        residual_layernorm_backward_cpu(dresidual, grad(kLn1w, l), grad(kLn1b, l), dproj, residual,
                                        param(kLn1w, l), a.ln1_mean.data(), a.ln1_rstd.data(), N, C);
    }
    encoder_backward_cpu(grad(kWte), grad(kWpe), dresidual, batch.tokens.data(), B, T, C);
}

int64_t GPT2Cpu::count_targets(std::span<const Batch> micro_batches) const {
    int64_t targets = 0;
    for (const Batch& batch : micro_batches) {
        check_batch(batch);
        for (int32_t target : batch.targets) { targets += target != kIgnoreTarget; }
    }
    require(targets > 0, "GPT2Cpu: no target to learn from");
    return targets;
}

double GPT2Cpu::forward_backward(std::span<const Batch> micro_batches) {
    const int64_t targets = count_targets(micro_batches);
    double sum = 0;
    add_gradients(micro_batches, true, 1.0 / targets, &sum);
    return sum / targets;
}

// The gradients of a group and the sum of its losses. False: a stop was asked for; last: of the groups of a step.
bool GPT2Cpu::add_gradients(std::span<const Batch> micro_batches, bool last, double dloss, double* loss) {
    std::fill(grads_.begin(), grads_.end(), 0.0f);
    *loss = 0;
    training_ = true;
    for (const Batch& batch : micro_batches) {
        forward(batch);
        if (stopping()) { return false; }
        classifier_forward_cpu(losses_.data(), predicted_.data(), logits_.data(), batch.targets.data(), rows_,
                               config_.vocab_size, config_.padded_vocab_size);
        for (int i = 0; i < rows_; i++) { *loss += losses_[i]; }
        backward(batch, dloss);
        if (stopping()) { return false; }
        if (last && &batch == &micro_batches.back()) { break; }
        bool stop = stop_requested != 0;
        if (settings_.comm != nullptr) { stop = settings_.comm->root_says("whether to stop", stop); }
        if (stop) { return false; }
    }
    return true;
}

bool GPT2Cpu::enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) {
    for (auto* gathered : {&gathered_m_, &gathered_v_}) { *gathered = std::vector<float>(); }
    const int64_t counted = count_targets(micro_batches);
    const int64_t targets = params.targets > 0 ? params.targets : counted;
    const auto groups = (size_t)sums_.groups_here(), each = micro_batches.size() / groups;
    require(each > 0 && each * groups == micro_batches.size(),
            "GPT2Cpu: groups of micro-batches of one size");
    std::vector<double> losses(groups);
    for (size_t g = 0; g < groups; g++) {
        const bool last = g + 1 == groups;
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
    auto done = std::chrono::steady_clock::now();
    results_.push_back({params.step, (float)loss, (float)norm, skipped, done});
    return true;
}

// Of the share of the optimizer's state that is here; with ZeRO-1 the parameters then come together, else the
// gradients' sums before.
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
    AdamWParams adamw{params.lr, params.beta1, params.beta2, params.eps, 0.0, grad_scale, updates_};
    for (const AdamWPiece& p : pieces_) {
        adamw.weight_decay = p.decays ? params.weight_decay : 0.0;
        adamw_cpu(params_.data() + p.at, m_.data() + p.kept, v_.data() + p.second, sums + p.kept, p.size,
                  adamw);
    }
    for (int t = 0; t < kNumTensors; t++) {
        for (const MuonCopy& copy : muon_copies(config_, shares, sums_.rank(), t)) {
            update_by_muon(t, copy, sums + copy.kept, params, grad_scale);
        }
    }
    if (shares.shard) { sums_.all_gather("parameters", params_.data()); }
}

// a layer's copy of a tensor, whose matrices lie one behind the other
void GPT2Cpu::update_by_muon(int tensor, const MuonCopy& copy, const float* gradient,
                             const StepParams& params, double grad_scale) {
    const auto [count, rows, cols] = block_matrices(config_, tensor);
    const int64_t n = (int64_t)rows * cols;
    float *direction = muon_scratch_.data(), *scratch = direction + n;
    const MuonParams muon{params.lr, params.weight_decay, grad_scale};
    for (int k = 0; k < count; k++) {
        muon_momentum_cpu(direction, m_.data() + copy.kept + k * n, gradient + k * n, n, grad_scale);
        newton_schulz_blas(direction, scratch, rows, cols);
        muon_step_cpu(params_.data() + copy.at + k * n, direction, n, muon_scale(rows, cols), muon);
    }
}

void GPT2Cpu::gather() {
    if (!sums_.shares().shard) { return; }
    for (auto [state, share, whole] : {std::tuple(State::kFirstMoment, &m_, &gathered_m_),
                                       std::tuple(State::kSecondMoment, &v_, &gathered_v_)}) {
        if (settings_.comm->root()) { whole->resize((size_t)layout_of(state).size()); }
        sums_.gather("moments", state, whole->data(), share->data());
    }
}

std::vector<uint64_t> GPT2Cpu::parameter_hashes() const {
    std::vector<uint64_t> hashes(kNumTensors);
    for (int t = 0; t < kNumTensors; t++) {
        for_each_piece(config_, layout_, t, 0, tensor_total(config_, t), [&](int64_t at, int64_t, int64_t n) {
            hashes[t] = XXH3_64bits_withSeed(params_.data() + at, n * sizeof(float), hashes[t]);
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
    check_batch(batch);
    training_ = false;
    forward(batch);
    classifier_forward_cpu(losses_.data(), predicted_.data(), logits_.data(), batch.targets.data(), rows_,
                           config_.vocab_size, config_.padded_vocab_size);
    return {std::span(losses_).first(rows_), std::span(predicted_).first(rows_)};
}

std::span<const float> GPT2Cpu::logits_last() const {
    require(rows_ > 0, "GPT2Cpu: logits_last() before evaluate()");
    return std::span(logits_).subspan((int64_t)(rows_ - 1) * config_.padded_vocab_size, config_.vocab_size);
}

Device GPT2Cpu::device(const ModelSettings& settings) {
    require_defaults(settings);
    return {fmt::format("CPU, {} threads, {}", blas_threads(), blas_name()), 0, ""};
}

double GPT2Cpu::measure_speed() { return measure_blas_speed(); }

}  // namespace llmc
