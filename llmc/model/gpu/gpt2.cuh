// GPT-2 on a GPU, alone or as one of many ranks. Implements the model interface of model.h; a step is only queued, its result
// read one step later. Only evaluate(), finish(), load(), save(), gather() and parameter_hashes() wait.
//   T:    what weights and activations are computed in. float, or __nv_bfloat16 with fp32 master weights
//   Grad: what gradients of parameters are summed in over micro-batches. float, or T to save memory
// Everything is queued on one stream, but for exchanges with other ranks (gpu/optimizer.cuh) beside it, and a branch in
// recordings (gpu/network.cuh). What a micro-batch launches is recorded when it is due for the second time, and repeated as a
// graph: what changes from step to step is in StepInputs. Exchanges are not recorded: a graph ends where one begins or is
// waited for.
#pragma once
#include <cuda_bf16.h>
#include <chrono>
#include <compare>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "llmc/cuda/graph.cuh"
#include "llmc/host/base/stop_signal.h"
#include "llmc/model/gpu/network.cuh"
#include "llmc/model/gpu/optimizer.cuh"
#include "llmc/model/model.h"
#include "llmc/model/model_source.h"
#include "llmc/ops/classifier/classifier.h"

namespace llmc {

// What decides which kernels a micro-batch launches, and with which arguments.
struct MicroStep {
    int B, T;
    int group;        // of this rank
    bool accumulate;  // its gradients are added to those of the micro-batches before it
    bool ends_group, ends_step;
    AdamWConstants adamw;
    TokenFeed::Uploaded at;
    auto operator<=>(const MicroStep&) const = default;
};

// the configuration, if such a model can be; else throws Error(kExitUsage)
const GPT2Config& require_possible(const GPT2Config& c, int B, int seq_len, const ModelSettings& settings,
                                   size_t parameter_bytes);

template <typename T, typename Grad>
class GPT2 : public Model {
public:
    static MemoryPlan plan(const GPT2Config& config, int B, int seq_len, const ModelSettings& settings = {});
    static Device device(const ModelSettings& settings = {});
    static constexpr double (*measure_speed)() = nullptr;
    static std::shared_ptr<void> page_lock(std::span<float> memory) {
        if (cudaHostRegister(memory.data(), memory.size_bytes(), cudaHostRegisterDefault) != cudaSuccess) {
            cudaGetLastError();  // copies are slower then, but right
            return nullptr;
        }
        return {memory.data(), [](void* p) { cudaHostUnregister(p); }};
    }

    GPT2(const GPT2Config& c, int B, int seq_len, const ModelSettings& s = {})
        : config_(require_possible(c, B, seq_len, s, sizeof(T))),
          block_(Memory(c, B, seq_len, s, Arena()).plan.total()),
          network_(Memory(c, B, seq_len, s, Arena(block_.data())), stream_),
          feed_(mem_.feed, (int64_t)B * seq_len),
          comm_(s.ranks > 1 ? s.comm : nullptr),
          optimizer_(s, mem_, comm_ != nullptr ? make_device_comm(*comm_, block_.bytes()) : nullptr,
                     stream_) {
        if (comm_ != nullptr) {
            network_.before_forward = [this](int l) { optimizer_.wait_for_layer(l); };
        }
        if (s.muon) {
            muon_.emplace(c, mem_.logits, mem_.logits_bytes, mem_.workspace, s.tf32);
            optimizer_.update_block_matrices = [this](int tensor, std::span<const MuonCopy> copies,
                                                      const StepInputs* inputs, uint64_t seed) {
                auto update = [&](const auto* grads) {
                    muon_->update(mem_.params, mem_.low, mem_.m, grads, tensor, copies, mem_.decision, inputs,
                                  seed, stream_);
                };
                mem_.sums != nullptr ? update(mem_.sums) : update(mem_.grads);
            };
        }
        check(cudaMemsetAsync(mem_.counters, 0, kAttentionCounters * sizeof(unsigned), stream_));
        optimizer_.wait();
    }
    ~GPT2() override {
        // other ranks may not come any more
        if (comm_ != nullptr && std::uncaught_exceptions() > 0) { optimizer_.comm()->abort(stream_); }
        cudaStreamSynchronize(stream_);
    }

    const GPT2Config& config() const override { return config_; }
    void init(uint64_t seed) override {
        constexpr int64_t kInitChunk = 16 << 20;  // values made on the host at once
        set_updates(0);
        fp8_restored_ = fp8_ready_ = false;
        optimizer_.set_seed(seed);
        graphs_.clear();  // they have the seed of before
        std::vector<float> values;
        for (int t = 0; t < kNumTensors; t++) {
            int64_t total = tensor_total(config_, t);
            for (int64_t first = 0; first < total; first += kInitChunk) {
                values.resize((size_t)std::min(kInitChunk, total - first));
                initial_values(config_, seed, t, first, values);
                load(State::kParameter, t, first, values);
            }
        }
        optimizer_.clear_moments();
    }
    void load(State state, int tensor, int64_t first, std::span<const float> values) override {
        finish();
        if (state != State::kFp8Maxima) {
            optimizer_.load(state, tensor, first, values);
        } else if (network_.settings.fp8) {
            check(cudaMemcpy(maxima(first, values.size()), values.data(), values.size_bytes(),
                             cudaMemcpyHostToDevice));
        }
        fp8_restored_ = state == State::kFp8Maxima || (fp8_restored_ && state != State::kParameter);
        fp8_ready_ = false;
    }
    void save(State state, int tensor, int64_t first, std::span<float> values) const override {
        if (state != State::kFp8Maxima) { return optimizer_.save(state, tensor, first, values); }
        optimizer_.wait();
        check(cudaMemcpy(values.data(), maxima(first, values.size()), values.size_bytes(),
                         cudaMemcpyDeviceToHost));
    }
    bool holds(State state, int tensor) const override {
        return state == State::kFp8Maxima ? network_.settings.fp8 && tensor == 0
                                          : optimizer_.holds(state, tensor);
    }
    int64_t updates() const override { return updates_; }
    void set_updates(int64_t n) override {
        finish();
        updates_ = n;
        optimizer_.set_updates(n);
    }

    bool enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) override {
        optimizer_.require_loaded();
        prepare_fp8();
        fp8_cast_ = false;
        if (pending_.empty()) {  // nothing is under way: the stream gets to this event at once
            done_at_ = Clock::now();
            done_->record(stream_);
        }
        const int64_t counted = count_targets(config_, mem_.B, mem_.seq_len, micro_batches);
        StepInputs inputs = step_inputs(params, params.targets > 0 ? params.targets : counted);
        const auto groups = (size_t)optimizer_.groups_here(), each = micro_batches.size() / groups;
        require(each > 0 && each * groups == micro_batches.size(),
                "GPT2: groups of micro-batches of one size");
        const AdamWConstants adamw = {params.beta1, params.beta2, params.eps};
        for (size_t i = 0; i < micro_batches.size(); i++) {
            const Batch& batch = micro_batches[i];
            const bool ends_step = i + 1 == micro_batches.size();
            inputs.dropout.first = first_row((int64_t)i, (int64_t)each);
            enqueue(
                batch, inputs,
                {batch.B, batch.T, (int)(i / each), i % each > 0, (i + 1) % each == 0, ends_step, adamw, {}});
            if (ends_step) { break; }
            bool stop = stop_requested != 0;
            if (comm_ != nullptr) { stop = comm_->root_says("whether to stop", stop); }
            if (stop) { return false; }
        }
        if (spare_.empty()) { spare_.emplace_back(); }
        Pending step = std::move(spare_.back());
        spare_.pop_back();
        step.step = params.step;
        check(cudaMemcpyAsync(step.result->data(), mem_.decision, sizeof(StepDecision),
                              cudaMemcpyDeviceToHost, stream_));
        step.ready->record(stream_);
        pending_.push_back(std::move(step));
        return true;
    }
    // While training one step at least stays queued: the GPU does not run dry while the host reads a result.
    std::optional<StepResult> poll() override {
        if (pending_.empty() || (pending_.size() == 1 && !finished_)) { return std::nullopt; }
        auto& oldest = pending_.front();
        if (comm_ != nullptr) { comm_->enter("a step on the GPUs"); }
        while (!oldest.ready->passed()) {
            if (comm_ != nullptr) { optimizer_.comm()->check(); }
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
        if (comm_ != nullptr) {
            comm_->leave();
            optimizer_.comm()->confirm();
        }
        StepDecision d = *oldest.result->data();
        done_at_ += std::chrono::duration_cast<Clock::duration>(oldest.ready->since(*done_));
        std::swap(done_, oldest.ready);
        StepResult result{oldest.step, d.loss, d.norm, d.skipped != 0, d.saturated, done_at_};
        updates_ = d.updates;
        spare_.push_back(std::move(oldest));
        pending_.pop_front();
        return result;
    }
    void finish() override {
        optimizer_.wait();
        finished_ = true;
    }
    void gather() override { optimizer_.gather(); }
    std::vector<uint64_t> parameter_hashes() const override;
    Evaluation evaluate(const Batch& batch) override {
        require_batch(config_, mem_.B, mem_.seq_len, batch);
        optimizer_.require_loaded();
        prepare_fp8();
        int64_t N = (int64_t)batch.B * batch.T;
        const auto at = feed_.upload(batch, {}, stream_);
        network_.forward(batch.B, batch.T, at.tokens,
                         {.counts = false, .cast_weights = !std::exchange(fp8_cast_, true)});
        classifier_forward(mem_.losses, mem_.predicted, mem_.logits, at.targets, N, config_.vocab_size,
                           config_.padded_vocab_size, stream_);
        feed_.done(stream_);
        rows_ = (int)N;
        losses_.resize(N);
        predicted_.resize(N);
        check(
            cudaMemcpyAsync(losses_.data(), mem_.losses, N * sizeof(float), cudaMemcpyDeviceToHost, stream_));
        check(cudaMemcpyAsync(predicted_.data(), mem_.predicted, N * sizeof(int32_t), cudaMemcpyDeviceToHost,
                              stream_));
        optimizer_.wait();
        return {losses_, predicted_};
    }
    std::span<const float> logits_last() const override {
        require(rows_ > 0, "GPT2: logits_last() before evaluate()");
        return download_logits((rows_ - 1) * (int64_t)config_.padded_vocab_size, config_.vocab_size);
    }

    // for tests: the mean loss of these batches, whose gradients are left in the gradient arena
    double forward_backward(std::span<const Batch> micro_batches) {
        optimizer_.require_loaded();
        prepare_fp8();
        const int64_t targets = count_targets(config_, mem_.B, mem_.seq_len, micro_batches);
        StepInputs inputs = step_inputs({}, targets);
        for (const Batch& batch : micro_batches) {
            const bool accumulate = &batch != micro_batches.data();
            inputs.dropout.first = (&batch - micro_batches.data()) * mem_.N;
            network_.zero_positions(batch.T, accumulate);
            launch({batch.B, batch.T, 0, accumulate, false, false, {}, feed_.upload(batch, inputs, stream_)});
            feed_.done(stream_);
        }
        finish();
        double sum;
        check(cudaMemcpy(&sum, optimizer_.loss_sum(0), sizeof(sum), cudaMemcpyDeviceToHost));
        return sum / (double)targets;
    }
    void save_gradient(int tensor, int64_t first, std::span<float> values) const {
        optimizer_.wait();
        std::vector<Grad> raw;
        for_each_piece(
            config_, network_.layout, tensor, first, (int64_t)values.size(),
            [&](int64_t at, int64_t to, int64_t n) {
                raw.resize(n);
                check(cudaMemcpy(raw.data(), mem_.grads + at, n * sizeof(Grad), cudaMemcpyDeviceToHost));
                std::copy(raw.begin(), raw.end(), values.begin() + to);
            });
    }
    std::span<const float> logits() const {  // (B,T,Vp) of the last evaluate()
        return download_logits(0, (int64_t)rows_ * config_.padded_vocab_size);
    }
    // for the profile: what it computes with, and where
    GPT2Network<T, Grad>& network() { return network_; }

private:
    using Memory = GPT2Memory<T, Grad>;
    using Clock = std::chrono::steady_clock;

    // a step on its way: the decision is copied to the host behind it
    struct Pending {
        int64_t step = 0;
        std::unique_ptr<PinnedMemory<StepDecision>> result = std::make_unique<PinnedMemory<StepDecision>>(1);
        std::unique_ptr<Event> ready = std::make_unique<Event>(cudaEventDefault);
    };

    // From a micro-batch to its gradients, and what follows the last one of a group or of the step. What this queues, but
    // for exchanges with other ranks, depends on its argument alone, and on nothing that an earlier call has left in the
    // host's memory.
    void launch(const MicroStep& s) {
        int64_t N = (int64_t)s.B * s.T;
        network_.forward(s.B, s.T, s.at.tokens, {.cast_weights = s.group == 0 && !s.accumulate},
                         &s.at.inputs->dropout);
        classifier_forward_backward(mem_.logits, mem_.losses, s.at.targets, &s.at.inputs->loss_scale, N,
                                    config_.vocab_size, config_.padded_vocab_size, stream_);
        sum_losses(optimizer_.loss_sum(s.group), mem_.losses, N, s.accumulate, stream_);
        if (comm_ != nullptr && s.ends_group) {
            network_.after_backward = [this](int l) { optimizer_.send_layer(l); };
        }
        network_.backward(s.B, s.T, s.at.tokens, s.accumulate);
        network_.after_backward = nullptr;
        if (s.ends_group) { optimizer_.add_group(s.group); }
        if (s.ends_step) {
            optimizer_.decide(s.at.inputs);
            optimizer_.update(s.at.inputs, s.adamw);
            if (const Fp8Scales& scales = mem_.fp8.scales; scales.n > 0) {
                optimizer_.share_rows("largest magnitudes", scales.amax, scales.n);
                end_fp8_step(scales, &mem_.decision->saturated, stream_);
            }
        }
    }
    // in the step, of the i-th micro-batch that this rank is given
    int64_t first_row(int64_t i, int64_t each) const {
        const int64_t rank = comm_ != nullptr ? comm_->rank() : 0;
        return micro_batch_number(i, each, rank, network_.settings.ranks) * mem_.N;
    }
    float* maxima(int64_t first, size_t n) const {
        require(network_.settings.fp8 && first >= 0 && first + (int64_t)n <= fp8_maxima(config_),
                "GPT2: a range of FP8's maxima");
        return network_.mem.fp8.scales.history + first;
    }
    // Scales of FP8 for parameters that were loaded; the pass that follows casts them.
    void prepare_fp8() {
        if (!network_.settings.fp8 || fp8_ready_) { return; }
        network_.set_first_scales(fp8_restored_);
        fp8_ready_ = true;
        fp8_cast_ = false;
    }
    // s: all but where the batch is
    void enqueue(const Batch& batch, const StepInputs& inputs, MicroStep s) {
        finished_ = false;
        network_.zero_positions(batch.T, s.accumulate);
        s.at = feed_.upload(batch, inputs, stream_);
        auto [graph, first_time] = graphs_.try_emplace(s);
        if (first_time || !network_.settings.graph) {
            launch(s);
        } else {
            if (graph->second == nullptr) { graph->second = record(s); }
            graph->second->repeat();
        }
        feed_.done(stream_);
    }
    std::unique_ptr<Recording> record(const MicroStep& s) {
        const auto enqueue = [&](Recording& recording) {
            optimizer_.recording = &recording;
            network_.recording = true;
            launch(s);
            network_.recording = false;
            optimizer_.recording = nullptr;
        };
        const std::span places((std::byte*)mem_.small_workspaces,
                               Matmul::kSmallWorkspaces * Matmul::kSmallWorkspace);
        const int64_t before = network_.matmul.small_products();
        const auto edit = [=, this](cudaGraph_t recorded) {
            fill_first(recorded, places, Matmul::kSmallWorkspace, network_.matmul.small_products() - before);
        };
        return std::make_unique<Recording>(stream_, enqueue, edit);
    }
    // from the element `first` on, as floats
    std::span<const float> download_logits(int64_t first, int64_t n) const {
        std::vector<T> raw((size_t)n);
        check(cudaMemcpy(raw.data(), mem_.logits + first, raw.size() * sizeof(T), cudaMemcpyDeviceToHost));
        logits_.assign(raw.begin(), raw.end());
        return logits_;
    }

    GPT2Config config_;
    DeviceMemory block_;
    Stream stream_;
    GPT2Network<T, Grad> network_;
    Memory& mem_ = network_.mem;
    TokenFeed feed_;
    Comm* comm_;  // null: no other ranks
    GPT2Optimizer<T, Grad> optimizer_;
    std::optional<GPT2Muon<T>> muon_;
    // of what has been due; null until it is due again
    std::map<MicroStep, std::unique_ptr<Recording>> graphs_;
    int64_t updates_ = 0;                            // as far as the host has been told
    bool fp8_restored_ = false, fp8_ready_ = false;  // are maxima those of a checkpoint? Are there scales?
    bool fp8_cast_ = false;                          // are FP8's weights of these parameters and scales?
    bool finished_ = true;                           // nothing is under way
    int rows_ = 0;                                   // of the last evaluate()
    std::deque<Pending> pending_;
    std::vector<Pending> spare_;
    // The end of the last step that was polled, or the start of the first one after a pause, and when that
    // was: from there the device's own clock counts, however late the host looks.
    std::unique_ptr<Event> done_ = std::make_unique<Event>(cudaEventDefault);
    Clock::time_point done_at_;
    std::vector<float> losses_;
    mutable std::vector<float> logits_;
    std::vector<int32_t> predicted_;
};

extern template class GPT2<float, float>;
extern template class GPT2<__nv_bfloat16, float>;
extern template class GPT2<__nv_bfloat16, __nv_bfloat16>;

// Writing on the GPU with a cache of keys and values. A prompt is computed in one pass; then each token costs
// one launch of a CUDA graph, which reads every weight once: the memory's speed is what limits it.
// bf16: weights and cache in bf16, which halves the time; else fp32. Sums are fp32 in both, the same bits each time. Throws
// Error(kExitUsage) for heads and widths that the kernels have no room for, kExitDevice without memory.
std::unique_ptr<Decoder> make_gpu_decoder(const ModelSource& source, bool bf16);

}  // namespace llmc
