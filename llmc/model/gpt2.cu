// GPT-2 on one GPU: see gpt2.h. The layers in order are in gpt2_network.cuh; here is what surrounds them:
// batches in, the optimizer, results out. Everything is queued on one stream; only evaluate(), finish(),
// load() and save() wait.
#include "llmc/model/gpt2.h"

#include <cuda_bf16.h>
#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "llmc/host/stop_signal.h"
#include "llmc/model/gpt2_network.cuh"
#include "llmc/model/gpu_peak.h"
#include "llmc/model/initial_values.h"
#include "llmc/ops/classifier.h"

namespace llmc {

namespace {

constexpr int64_t kReserve = 256 << 20;   // bytes left free for CUDA's own modules and cuBLASLt's
constexpr int64_t kInitChunk = 16 << 20;  // values made on the host at once

void check_config(const GPT2Config& c, int B, int seq_len) {
    require(c.num_layers > 0 && c.num_heads > 0 && c.channels > 0 && c.vocab_size > 0 &&
                c.channels % c.num_heads == 0 && c.padded_vocab_size >= c.vocab_size,
            "GPT2: sizes must be positive, channels a multiple of heads");
    require(B > 0 && seq_len > 0 && seq_len <= c.max_seq_len,
            "GPT2: B and T must be positive, T at most max_seq_len");
    if ((int64_t)B * seq_len > INT32_MAX) {
        throw Error(kExitUsage,
                    strf("%d sequences of %d tokens at once: at most 2^31 - 1 tokens are possible. Use a "
                         "smaller --batch; --total-batch adds up the gradients of several.",
                         B, seq_len));
    }
    if (c.channels / c.num_heads > kMaxHeadSize) {
        throw Error(kExitUsage,
                    strf("%d channels in %d heads: heads of %d, but the GPU's attention has room for %d. "
                         "Use more heads.",
                         c.channels, c.num_heads, c.channels / c.num_heads, kMaxHeadSize));
    }
}

void require_one_rank(const ModelSettings& s) {
    if (s.ranks == 1 && s.groups == 1) { return; }
    throw Error(kExitUsage,
                strf("%d ranks, %d groups of micro-batches: train_gpt2cu trains on one GPU, in one group. "
                     "./train_gpt2 --ranks N trains on the CPU in many processes.",
                     s.ranks, s.groups));
}

}  // namespace

template <typename T, typename Grad>
struct GPT2<T, Grad>::Impl {
    using Memory = GPT2Memory<T, Grad>;
    using Clock = std::chrono::steady_clock;

    // a step on its way: the decision is copied to the host behind it
    struct Pending {
        int64_t step;
        std::unique_ptr<PinnedMemory<StepDecision>> result;
        std::unique_ptr<Event> ready;
    };

    GPT2Config config;
    int B, seq_len;
    DeviceMemory block;
    Stream stream;
    GPT2Network<T, Grad> network;
    Memory& mem = network.mem;
    const ParameterLayout& layout = network.layout;
    TokenFeed feed;
    uint64_t seed = 0;
    int64_t updates = 0;        // as far as the host has been told
    bool weights_stale = true;  // params must be made from master again
    bool finished = true;       // nothing is under way
    int rows = 0;               // of the last evaluate()
    std::deque<Pending> pending;
    std::vector<Pending> spare;
    // The end of the last step that was polled, or the start of the first one after a pause, and when that
    // was: from there the device's own clock counts, however late the host looks.
    std::unique_ptr<Event> done = std::make_unique<Event>(cudaEventDefault);
    Clock::time_point done_at;
    std::vector<float> losses, logits;
    std::vector<int32_t> predicted;

    Impl(const GPT2Config& c, int B, int seq_len, const ModelSettings& s)
        : config(c),
          B(B),
          seq_len(seq_len),
          block(Memory(c, B, seq_len, s.recompute, Arena()).plan.total()),
          network(c, s, Memory(c, B, seq_len, s.recompute, Arena(block.data())), stream),
          feed(mem.tokens, (int64_t)B * seq_len) {
        // also what no kernel writes: gaps between tensors, gradients of padding rows
        check(cudaMemsetAsync(mem.params, 0, mem.plan.total() - mem.plan.activations, stream));
        check(cudaMemsetAsync(mem.decision, 0, sizeof(StepDecision), stream));
        check(cudaMemsetAsync(mem.counters, 0, kAttentionCounters * sizeof(unsigned), stream));
        wait();
    }

    float* state(State s) {
        return s == State::kParameter ? mem.master : s == State::kFirstMoment ? mem.m : mem.v;
    }
    AdamWTensor shape(int t) {
        return {t, tensor_size(config, t), (int)tensor_copies(config, t), layout.block_size()};
    }
    void wait() { check(cudaStreamSynchronize(stream)); }

    void check_batch(const Batch& batch) const;
    void round_weights();
    int64_t forward_backward(std::span<const Batch> micro_batches);
    void update(const StepParams& params);
    Pending take_pending();
};

template <typename T, typename Grad>
void GPT2<T, Grad>::Impl::check_batch(const Batch& batch) const {
    int64_t n = (int64_t)batch.B * batch.T;
    require(batch.B > 0 && batch.T > 0 && n <= (int64_t)B * seq_len && batch.T <= seq_len,
            "GPT2: the batch is larger than the model was made for");
    require((int64_t)batch.tokens.size() == n && (int64_t)batch.targets.size() == n,
            "GPT2: batch sizes disagree");
    for (int64_t i = 0; i < n; i++) {
        bool ok = batch.tokens[i] >= 0 && batch.tokens[i] < config.vocab_size &&
                  batch.targets[i] < config.vocab_size && batch.targets[i] >= kIgnoreTarget;
        require(ok, "GPT2: a token id is outside of the vocabulary");
    }
}

// after loading: the weights that are computed with, from the master weights
template <typename T, typename Grad>
void GPT2<T, Grad>::Impl::round_weights() {
    if constexpr (sizeof(T) != sizeof(float)) {
        for (int t = 0; t < kNumTensors && weights_stale; t++) {
            round_parameters(mem.params + layout.offset(t), mem.master + layout.offset(t), shape(t),
                             mem.decision, seed, stream);
        }
    }
    weights_stale = false;
}

// Gradients of the mean loss, and the sum of the losses in *mem.loss_sum; returns the number of targets, or
// -1 if a stop was asked for between two batches.
template <typename T, typename Grad>
int64_t GPT2<T, Grad>::Impl::forward_backward(std::span<const Batch> micro_batches) {
    int64_t targets = 0;
    for (const Batch& batch : micro_batches) {
        check_batch(batch);
        for (int32_t target : batch.targets) { targets += target != kIgnoreTarget; }
    }
    require(targets > 0, "GPT2: no target to learn from");
    round_weights();
    finished = false;
    for (size_t k = 0; k < micro_batches.size(); k++) {
        const Batch& batch = micro_batches[k];
        int64_t N = (int64_t)batch.B * batch.T;
        auto [tokens, target_ids] = feed.upload(batch, stream);
        network.forward(batch, tokens);
        classifier_forward_backward(mem.logits, mem.losses, target_ids, (float)(1.0 / (double)targets), N,
                                    config.vocab_size, config.padded_vocab_size, stream);
        sum_losses(mem.loss_sum, mem.losses, N, k > 0, stream);
        network.backward(batch, tokens, k > 0);
        feed.done(stream);
        if (stop_requested && k + 1 < micro_batches.size()) { return -1; }
    }
    return targets;
}

template <typename T, typename Grad>
void GPT2<T, Grad>::Impl::update(const StepParams& params) {
    for (int t = 0; t < kNumTensors; t++) {
        int64_t at = layout.offset(t);
        float* master = sizeof(T) == sizeof(float) ? nullptr : mem.master + at;
        adamw_update(mem.params + at, master, mem.m + at, mem.v + at, mem.grads + at, shape(t), mem.decision,
                     params, kTensors[t].matrix ? params.weight_decay : 0.0, seed, stream);
    }
}

template <typename T, typename Grad>
typename GPT2<T, Grad>::Impl::Pending GPT2<T, Grad>::Impl::take_pending() {
    if (spare.empty()) {
        return {0, std::make_unique<PinnedMemory<StepDecision>>(1),
                std::make_unique<Event>(cudaEventDefault)};
    }
    Pending p = std::move(spare.back());
    spare.pop_back();
    return p;
}

// ---- the interface of model.h ------------------------------------------------------------------

template <typename T, typename Grad>
MemoryPlan GPT2<T, Grad>::plan(const GPT2Config& config, int B, int seq_len, const ModelSettings& settings) {
    check_config(config, B, seq_len);
    require_one_rank(settings);
    MemoryPlan plan = GPT2Memory<T, Grad>(config, B, seq_len, settings.recompute, Arena()).plan;
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    plan.available = std::max<int64_t>(0, (int64_t)free - kReserve);
    return plan;
}

template <typename T, typename Grad>
GPT2<T, Grad>::GPT2(const GPT2Config& config, int B, int seq_len, const ModelSettings& settings) {
    check_config(config, B, seq_len);
    impl_ = std::make_unique<Impl>(config, B, seq_len, settings);
}

template <typename T, typename Grad>
GPT2<T, Grad>::~GPT2() {
    cudaStreamSynchronize(impl_->stream);
}

template <typename T, typename Grad>
const GPT2Config& GPT2<T, Grad>::config() const {
    return impl_->config;
}

template <typename T, typename Grad>
void GPT2<T, Grad>::init(uint64_t seed) {
    impl_->seed = seed;
    std::vector<float> values;
    for (int t = 0; t < kNumTensors; t++) {
        int64_t total = tensor_total(impl_->config, t);
        for (int64_t first = 0; first < total; first += kInitChunk) {
            values.resize((size_t)std::min(kInitChunk, total - first));
            initial_values(impl_->config, seed, t, first, values);
            load(State::kParameter, t, first, values);
        }
    }
    int64_t bytes = impl_->layout.size() * (int64_t)sizeof(float);
    check(cudaMemsetAsync(impl_->mem.m, 0, bytes, impl_->stream));
    check(cudaMemsetAsync(impl_->mem.v, 0, bytes, impl_->stream));
    set_updates(0);
}

template <typename T, typename Grad>
void GPT2<T, Grad>::load(State state, int tensor, int64_t first, std::span<const float> values) {
    finish();
    for_each_piece(impl_->config, impl_->layout, tensor, first, (int64_t)values.size(),
                   [&](int64_t at, int64_t from, int64_t n) {
                       // on the stream that computes: cudaMemcpy() may return before all is there
                       check(cudaMemcpyAsync(impl_->state(state) + at, values.data() + from,
                                             n * sizeof(float), cudaMemcpyHostToDevice, impl_->stream));
                   });
    impl_->weights_stale |= state == State::kParameter;
}

template <typename T, typename Grad>
void GPT2<T, Grad>::save(State state, int tensor, int64_t first, std::span<float> values) const {
    impl_->wait();
    for_each_piece(impl_->config, impl_->layout, tensor, first, (int64_t)values.size(),
                   [&](int64_t at, int64_t to, int64_t n) {
                       check(cudaMemcpy(values.data() + to, impl_->state(state) + at, n * sizeof(float),
                                        cudaMemcpyDeviceToHost));
                   });
}

template <typename T, typename Grad>
std::shared_ptr<void> GPT2<T, Grad>::page_lock(std::span<float> memory) {
    if (cudaHostRegister(memory.data(), memory.size_bytes(), cudaHostRegisterDefault) != cudaSuccess) {
        cudaGetLastError();  // copies are slower then, but right
        return nullptr;
    }
    return {memory.data(), [](void* p) { cudaHostUnregister(p); }};
}

template <typename T, typename Grad>
int64_t GPT2<T, Grad>::updates() const {
    return impl_->updates;
}

template <typename T, typename Grad>
void GPT2<T, Grad>::set_updates(int64_t n) {
    finish();
    StepDecision decision{};
    decision.updates = impl_->updates = n;
    check(cudaMemcpyAsync(impl_->mem.decision, &decision, sizeof(decision), cudaMemcpyHostToDevice,
                          impl_->stream));
    impl_->weights_stale = true;  // their rounding depends on the number of updates
}

template <typename T, typename Grad>
bool GPT2<T, Grad>::enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) {
    Impl& m = *impl_;
    if (m.pending.empty()) {  // nothing is under way: the stream gets to this event at once
        m.done_at = Impl::Clock::now();
        m.done->record(m.stream);
    }
    int64_t targets = m.forward_backward(micro_batches);
    if (targets < 0) { return false; }
    sum_of_squares(m.mem.squares, m.mem.norm_scratch, m.mem.grads, m.layout.size(), m.stream);
    decide_step(m.mem.decision, m.mem.loss_sum, m.mem.squares, targets, params, m.stream);
    m.update(params);
    auto step = m.take_pending();
    step.step = params.step;
    check(cudaMemcpyAsync(step.result->data(), m.mem.decision, sizeof(StepDecision), cudaMemcpyDeviceToHost,
                          m.stream));
    step.ready->record(m.stream);
    m.pending.push_back(std::move(step));
    return true;
}

// Never fewer than one step stays queued while training: the GPU does not run dry while the host reads a
// result.
template <typename T, typename Grad>
std::optional<StepResult> GPT2<T, Grad>::poll() {
    Impl& m = *impl_;
    if (m.pending.empty() || (m.pending.size() == 1 && !m.finished)) { return std::nullopt; }
    auto& oldest = m.pending.front();
    while (!oldest.ready->passed()) { std::this_thread::sleep_for(std::chrono::microseconds(20)); }
    StepDecision d = *oldest.result->data();
    m.done_at += std::chrono::duration_cast<typename Impl::Clock::duration>(oldest.ready->since(*m.done));
    std::swap(m.done, oldest.ready);
    StepResult result{oldest.step, d.loss, d.norm, d.skipped != 0, m.done_at};
    m.updates = d.updates;
    m.spare.push_back(std::move(oldest));
    m.pending.pop_front();
    return result;
}

template <typename T, typename Grad>
void GPT2<T, Grad>::finish() {
    impl_->wait();
    impl_->finished = true;
}

template <typename T, typename Grad>
Evaluation GPT2<T, Grad>::evaluate(const Batch& batch) {
    Impl& m = *impl_;
    m.check_batch(batch);
    m.round_weights();
    int64_t N = (int64_t)batch.B * batch.T;
    auto [tokens, targets] = m.feed.upload(batch, m.stream);
    m.network.forward(batch, tokens);
    classifier_forward(m.mem.losses, m.mem.predicted, m.mem.logits, targets, N, m.config.vocab_size,
                       m.config.padded_vocab_size, m.stream);
    m.feed.done(m.stream);
    m.rows = (int)N;
    m.losses.resize(N);
    m.predicted.resize(N);
    check(
        cudaMemcpyAsync(m.losses.data(), m.mem.losses, N * sizeof(float), cudaMemcpyDeviceToHost, m.stream));
    check(cudaMemcpyAsync(m.predicted.data(), m.mem.predicted, N * sizeof(int32_t), cudaMemcpyDeviceToHost,
                          m.stream));
    m.wait();
    return {m.losses, m.predicted};
}

template <typename T, typename Grad>
std::span<const float> GPT2<T, Grad>::logits_last() const {
    Impl& m = *impl_;
    require(m.rows > 0, "GPT2: logits_last() before evaluate()");
    int64_t Vp = m.config.padded_vocab_size;
    std::vector<T> raw((size_t)m.config.vocab_size);
    check(cudaMemcpy(raw.data(), m.mem.logits + (m.rows - 1) * Vp, raw.size() * sizeof(T),
                     cudaMemcpyDeviceToHost));
    m.logits.assign(raw.begin(), raw.end());
    return m.logits;
}

template <typename T, typename Grad>
std::span<const float> GPT2<T, Grad>::logits() const {
    Impl& m = *impl_;
    std::vector<T> raw((size_t)m.rows * m.config.padded_vocab_size);
    check(cudaMemcpy(raw.data(), m.mem.logits, raw.size() * sizeof(T), cudaMemcpyDeviceToHost));
    m.logits.assign(raw.begin(), raw.end());
    return m.logits;
}

template <typename T, typename Grad>
double GPT2<T, Grad>::forward_backward(std::span<const Batch> micro_batches) {
    int64_t targets = impl_->forward_backward(micro_batches);
    finish();
    double sum;
    check(cudaMemcpy(&sum, impl_->mem.loss_sum, sizeof(sum), cudaMemcpyDeviceToHost));
    return sum / (double)targets;
}

template <typename T, typename Grad>
void GPT2<T, Grad>::save_gradient(int tensor, int64_t first, std::span<float> values) const {
    impl_->wait();
    std::vector<Grad> raw;
    for_each_piece(
        impl_->config, impl_->layout, tensor, first, (int64_t)values.size(),
        [&](int64_t at, int64_t to, int64_t n) {
            raw.resize(n);
            check(cudaMemcpy(raw.data(), impl_->mem.grads + at, n * sizeof(Grad), cudaMemcpyDeviceToHost));
            std::copy(raw.begin(), raw.end(), values.begin() + to);
        });
}

template <typename T, typename Grad>
GPT2Network<T, Grad>& GPT2<T, Grad>::network() {
    return impl_->network;
}

template <typename T, typename Grad>
Device GPT2<T, Grad>::device(const ModelSettings& settings) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    Precision precision = sizeof(T) == 2  ? Precision::kBf16
                          : settings.tf32 ? Precision::kTf32
                                          : Precision::kFp32;
    return describe_gpu(properties.name, precision);
}

template class GPT2<float, float>;
template class GPT2<__nv_bfloat16, float>;
template class GPT2<__nv_bfloat16, __nv_bfloat16>;

}  // namespace llmc
