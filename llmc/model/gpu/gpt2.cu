// GPT-2 on a GPU: see gpt2.h. The layers in order are in gpu/network.cuh, a micro-batch's way through them in
// gpu/impl.cuh, the optimizer and the other ranks in gpu/optimizer.cuh; here is what surrounds them: batches in,
// results out. Only evaluate(), finish(), load(), save(), gather() and parameter_hashes() wait.
#include "llmc/model/gpu/gpt2.h"

#include <exception>
#include <string>
#include <thread>

#include "llmc/host/base/stop_signal.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/gpu/impl.cuh"

namespace llmc {

namespace {

constexpr int64_t kReserve = 256 << 20;      // bytes left free for CUDA's own modules and cuBLASLt's
constexpr int64_t kNcclReserve = 768 << 20;  // and for what NCCL takes
constexpr int64_t kInitChunk = 16 << 20;     // values made on the host at once

void check_config(const GPT2Config& c, int B, int seq_len, const ModelSettings& s) {
    require(c.num_layers > 0 && c.num_heads > 0 && c.channels > 0 && c.vocab_size > 0 &&
                c.channels % c.num_heads == 0 && c.padded_vocab_size >= c.vocab_size,
            "GPT2: sizes must be positive, channels a multiple of heads");
    require(B > 0 && seq_len > 0 && seq_len <= c.max_seq_len,
            "GPT2: B and T must be positive, T at most max_seq_len");
    if ((int64_t)B * seq_len > INT32_MAX) {
        throw Error(
            kExitUsage,
            fmt::format("{} sequences of {} tokens at once: at most 2^31 - 1 tokens are possible. Use a "
                        "smaller --batch; --total-batch adds up the gradients of several.",
                        B, seq_len));
    }
    if (c.channels / c.num_heads > kMaxHeadSize) {
        throw Error(
            kExitUsage,
            fmt::format("{} channels in {} heads: heads of {}, but the GPU's attention has room for {}. "
                        "Use more heads.",
                        c.channels, c.num_heads, c.channels / c.num_heads, kMaxHeadSize));
    }
}

}  // namespace

template <typename T, typename Grad>
MemoryPlan GPT2<T, Grad>::plan(const GPT2Config& config, int B, int seq_len, const ModelSettings& settings) {
    check_config(config, B, seq_len, settings);
    MemoryPlan plan = GPT2Memory<T, Grad>(config, B, seq_len, settings, Arena()).plan;
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    const int64_t reserve = kReserve + (settings.ranks > 1 ? kNcclReserve : 0);
    plan.available = std::max<int64_t>(0, (int64_t)free - reserve);
    return plan;
}

template <typename T, typename Grad>
GPT2<T, Grad>::GPT2(const GPT2Config& config, int B, int seq_len, const ModelSettings& settings) {
    check_config(config, B, seq_len, settings);
    impl_ = std::make_unique<Impl>(config, B, seq_len, settings);
}

template <typename T, typename Grad>
GPT2<T, Grad>::~GPT2() {
    if (std::uncaught_exceptions() > 0) { impl_->optimizer.abort(); }  // other ranks may not come any more
    cudaStreamSynchronize(impl_->stream);
}

template <typename T, typename Grad>
const GPT2Config& GPT2<T, Grad>::config() const {
    return impl_->config;
}

template <typename T, typename Grad>
void GPT2<T, Grad>::init(uint64_t seed) {
    set_updates(0);
    impl_->optimizer.set_seed(seed);
    impl_->graphs.clear();  // they have the seed of before
    std::vector<float> values;
    for (int t = 0; t < kNumTensors; t++) {
        int64_t total = tensor_total(impl_->config, t);
        for (int64_t first = 0; first < total; first += kInitChunk) {
            values.resize((size_t)std::min(kInitChunk, total - first));
            initial_values(impl_->config, seed, t, first, values);
            load(State::kParameter, t, first, values);
        }
    }
    impl_->optimizer.clear_moments();
}

template <typename T, typename Grad>
void GPT2<T, Grad>::load(State state, int tensor, int64_t first, std::span<const float> values) {
    finish();
    impl_->optimizer.load(state, tensor, first, values);
}

template <typename T, typename Grad>
void GPT2<T, Grad>::save(State state, int tensor, int64_t first, std::span<float> values) const {
    impl_->optimizer.save(state, tensor, first, values);
}

template <typename T, typename Grad>
bool GPT2<T, Grad>::holds(State state, int tensor) const {
    return impl_->optimizer.holds(state, tensor);
}

template <typename T, typename Grad>
void GPT2<T, Grad>::gather() {
    impl_->optimizer.gather();
}

template <typename T, typename Grad>
std::vector<uint64_t> GPT2<T, Grad>::parameter_hashes() const {
    return impl_->optimizer.parameter_hashes();
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
    impl_->updates = n;
    impl_->optimizer.set_updates(n);
}

template <typename T, typename Grad>
bool GPT2<T, Grad>::enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) {
    Impl& m = *impl_;
    m.optimizer.require_loaded();
    if (m.pending.empty()) {  // nothing is under way: the stream gets to this event at once
        m.done_at = Impl::Clock::now();
        m.done->record(m.stream);
    }
    const int64_t counted = m.count_targets(micro_batches);
    const int64_t targets = params.targets > 0 ? params.targets : counted;
    const auto groups = (size_t)m.optimizer.groups_here(), each = micro_batches.size() / groups;
    require(each > 0 && each * groups == micro_batches.size(), "GPT2: groups of micro-batches of one size");
    const StepInputs inputs = step_inputs(params, targets);
    const AdamWConstants adamw = {params.beta1, params.beta2, params.eps};
    for (size_t i = 0; i < micro_batches.size(); i++) {
        const Batch& batch = micro_batches[i];
        const bool ends_step = i + 1 == micro_batches.size();
        m.enqueue(
            batch, inputs,
            {batch.B, batch.T, (int)(i / each), i % each > 0, (i + 1) % each == 0, ends_step, adamw, {}});
        if (ends_step) { break; }
        bool stop = stop_requested != 0;
        if (m.comm != nullptr) { stop = m.comm->root_says("whether to stop", stop); }
        if (stop) { return false; }
    }
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
    if (m.comm != nullptr) { m.comm->enter("a step on the GPUs"); }
    while (!oldest.ready->passed()) {
        m.optimizer.check_ranks();
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    if (m.comm != nullptr) { m.comm->leave(); }
    m.optimizer.confirm_ranks();
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
    m.optimizer.require_loaded();
    int64_t N = (int64_t)batch.B * batch.T;
    const auto at = m.feed.upload(batch, {}, m.stream);
    m.network.forward(batch.B, batch.T, at.tokens);
    classifier_forward(m.mem.losses, m.mem.predicted, m.mem.logits, at.targets, N, m.config.vocab_size,
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
    require(impl_->rows > 0, "GPT2: logits_last() before evaluate()");
    const GPT2Config& c = impl_->config;
    return impl_->download_logits((impl_->rows - 1) * (int64_t)c.padded_vocab_size, c.vocab_size);
}

template <typename T, typename Grad>
std::span<const float> GPT2<T, Grad>::logits() const {
    return impl_->download_logits(0, (int64_t)impl_->rows * impl_->config.padded_vocab_size);
}

template <typename T, typename Grad>
double GPT2<T, Grad>::forward_backward(std::span<const Batch> micro_batches) {
    Impl& m = *impl_;
    m.optimizer.require_loaded();
    const int64_t targets = m.count_targets(micro_batches);
    const StepInputs inputs = step_inputs({}, targets);
    for (const Batch& batch : micro_batches) {
        const bool accumulate = &batch != micro_batches.data();
        m.network.zero_positions(batch.T, accumulate);
        m.launch({batch.B, batch.T, 0, accumulate, false, false, {}, m.feed.upload(batch, inputs, m.stream)});
        m.feed.done(m.stream);
    }
    finish();
    double sum;
    check(cudaMemcpy(&sum, m.optimizer.loss_sum(0), sizeof(sum), cudaMemcpyDeviceToHost));
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

namespace {

// ---- what a GPU can do by its maker's data sheet: the denominator of "% of peak"

enum class Precision { kFp32, kTf32, kBf16 };

// Dense TFLOP/s from NVIDIA's data sheets; for GeForce and L cards with fp32 accumulation. The first name
// that the device's contains counts, so the longer ones stand first.
struct GpuPeak {
    const char* name;
    double bf16, tf32, fp32;
};
constexpr GpuPeak kGpuPeaks[] = {
    {"B200", 2250, 1100, 75},      {"H200", 989, 495, 67},       {"H100 PCIe", 756, 378, 51},
    {"H100 NVL", 835, 418, 60},    {"H100", 989, 495, 67},       {"GH200", 989, 495, 67},
    {"A100", 312, 156, 19.5},      {"A800", 312, 156, 19.5},     {"A40", 150, 75, 37.4},
    {"A10", 125, 62.5, 31.2},      {"L40S", 362, 183, 91.6},     {"L4", 121, 60, 30.3},
    {"RTX 4090", 165, 82.6, 82.6}, {"RTX 3090", 71, 35.6, 35.6},
};

Device describe_gpu(const std::string& name, Precision precision) {
    for (const GpuPeak& gpu : kGpuPeaks) {
        if (name.find(gpu.name) == std::string::npos) { continue; }
        bool bf16 = precision == Precision::kBf16, tf32 = precision == Precision::kTf32;
        double peak = bf16 ? gpu.bf16 : tf32 ? gpu.tf32 : gpu.fp32;
        return {name, peak * 1e12,
                fmt::format("{:.0f} TFLOP/s, dense {}, by the data sheet", peak,
                            bf16   ? "bf16"
                            : tf32 ? "TF32"
                                   : "fp32")};
    }
    return {name, 0, ""};
}

}  // namespace

template <typename T, typename Grad>
Device GPT2<T, Grad>::device(const ModelSettings& settings) {
    cudaDeviceProp properties;
    int number = 0;
    check(cudaGetDevice(&number));
    check(cudaGetDeviceProperties(&properties, number));
    Precision precision = sizeof(T) == 2  ? Precision::kBf16
                          : settings.tf32 ? Precision::kTf32
                                          : Precision::kFp32;
    return describe_gpu(properties.name, precision);
}

template class GPT2<float, float>;
template class GPT2<__nv_bfloat16, float>;
template class GPT2<__nv_bfloat16, __nv_bfloat16>;

}  // namespace llmc
