// What GPT2 (gpt2.h) is made of, and a micro-batch's way through it. Everything is queued on one stream, but
// for exchanges beside it, and a branch in recordings (gpu/network.cuh). What a micro-batch launches is recorded when
// it is due for the second time, and repeated as a graph: what changes from step to step is in StepInputs. Exchanges
// with other ranks are not recorded: a graph ends where one begins or is waited for.
#pragma once
#include <cuda_bf16.h>
#include <chrono>
#include <compare>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "llmc/cuda/graph.cuh"
#include "llmc/model/gpu/gpt2.h"
#include "llmc/model/gpu/network.cuh"
#include "llmc/model/gpu/optimizer.cuh"
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
    Comm* comm;  // null: no other ranks
    GPT2Optimizer<T, Grad> optimizer;
    std::optional<GPT2Muon<T>> muon;
    // of what has been due; null until it is due again
    std::map<MicroStep, std::unique_ptr<Recording>> graphs;
    int64_t updates = 0;   // as far as the host has been told
    bool finished = true;  // nothing is under way
    int rows = 0;          // of the last evaluate()
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
          block(Memory(c, B, seq_len, s, Arena()).plan.total()),
          network(c, s, Memory(c, B, seq_len, s, Arena(block.data())), stream),
          feed(mem.feed, (int64_t)B * seq_len),
          comm(s.ranks > 1 ? s.comm : nullptr),
          optimizer(c, s, mem, comm != nullptr ? make_device_comm(*comm, block.bytes()) : nullptr, stream) {
        if (comm != nullptr) {
            network.before_forward = [this](int l) { optimizer.wait_for_layer(l); };
        }
        if (s.muon) {
            muon.emplace(c, mem.muon, s.tf32);
            optimizer.update_block_matrices = [this](auto... args) { update_by_muon(args...); };
        }
        check(cudaMemsetAsync(mem.counters, 0, kAttentionCounters * sizeof(unsigned), stream));
        wait();
    }

    void wait() const { optimizer.wait(); }

    void check_batch(const Batch& batch) const;
    int64_t count_targets(std::span<const Batch> micro_batches) const;
    void launch(const MicroStep& s);
    void update_by_muon(int tensor, std::span<const MuonCopy> copies, const StepInputs* inputs,
                        uint64_t seed);
    void enqueue(const Batch& batch, const StepInputs& inputs, MicroStep s);
    Pending take_pending();
    std::span<const float> download_logits(int64_t first, int64_t n);
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

template <typename T, typename Grad>
int64_t GPT2<T, Grad>::Impl::count_targets(std::span<const Batch> micro_batches) const {
    int64_t targets = 0;
    for (const Batch& batch : micro_batches) {
        check_batch(batch);
        for (int32_t target : batch.targets) { targets += target != kIgnoreTarget; }
    }
    require(targets > 0, "GPT2: no target to learn from");
    return targets;
}

// From a micro-batch to its gradients, and what follows the last one of a group or of the step. What this queues, but
// for exchanges with other ranks, depends on its argument alone, and on nothing that an earlier call has left in the
// host's memory.
template <typename T, typename Grad>
void GPT2<T, Grad>::Impl::launch(const MicroStep& s) {
    int64_t N = (int64_t)s.B * s.T;
    network.forward(s.B, s.T, s.at.tokens);
    classifier_forward_backward(mem.logits, mem.losses, s.at.targets, &s.at.inputs->loss_scale, N,
                                config.vocab_size, config.padded_vocab_size, stream);
    sum_losses(optimizer.loss_sum(s.group), mem.losses, N, s.accumulate, stream);
    if (comm != nullptr && s.ends_group) {
        network.after_backward = [this](int l) { optimizer.send_layer(l); };
    }
    network.backward(s.B, s.T, s.at.tokens, s.accumulate);
    network.after_backward = nullptr;
    if (s.ends_group) { optimizer.add_group(s.group); }
    if (s.ends_step) {
        optimizer.decide(s.at.inputs);
        optimizer.update(s.at.inputs, s.adamw);
    }
}

template <typename T, typename Grad>
void GPT2<T, Grad>::Impl::update_by_muon(int tensor, std::span<const MuonCopy> copies,
                                         const StepInputs* inputs, uint64_t seed) {
    auto update = [&](const auto* grads) {
        muon->update(mem.params, mem.low, mem.m, grads, tensor, copies, mem.decision, inputs, seed, stream);
    };
    if (mem.sums != nullptr) {
        update(mem.sums);
    } else {
        update(mem.grads);
    }
}

// s: all but where the batch is
template <typename T, typename Grad>
void GPT2<T, Grad>::Impl::enqueue(const Batch& batch, const StepInputs& inputs, MicroStep s) {
    finished = false;
    network.zero_positions(batch.T, s.accumulate);
    s.at = feed.upload(batch, inputs, stream);
    auto [graph, first_time] = graphs.try_emplace(s);
    if (first_time || !network.settings.graph) {
        launch(s);
    } else {
        if (graph->second == nullptr) {
            const auto record = [&](Recording& recording) {
                optimizer.recording = &recording;
                network.recording = true;
                launch(s);
                network.recording = false;
                optimizer.recording = nullptr;
            };
            const std::span places((std::byte*)mem.small_workspaces,
                                   Matmul::kSmallWorkspaces * Matmul::kSmallWorkspace);
            const int64_t before = network.matmul.small_products();
            const auto edit = [=, this](cudaGraph_t recorded) {
                fill_first(recorded, places, Matmul::kSmallWorkspace,
                           network.matmul.small_products() - before);
            };
            graph->second = std::make_unique<Recording>(stream, record, edit);
        }
        graph->second->repeat();
    }
    feed.done(stream);
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

// from the element `first` on, as floats
template <typename T, typename Grad>
std::span<const float> GPT2<T, Grad>::Impl::download_logits(int64_t first, int64_t n) {
    std::vector<T> raw((size_t)n);
    check(cudaMemcpy(raw.data(), mem.logits + first, raw.size() * sizeof(T), cudaMemcpyDeviceToHost));
    logits.assign(raw.begin(), raw.end());
    return logits;
}

}  // namespace llmc
