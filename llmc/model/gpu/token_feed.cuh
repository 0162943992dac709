// Brings tokens and targets, and what their step's kernels read, to the GPU on a stream of their own, while
// the model computes on the batch before.
#pragma once
#include <compare>
#include <cstring>
#include <memory>
#include <vector>

#include "llmc/cuda/resources.cuh"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/ops/step_params.h"

namespace llmc {

class TokenFeed {
public:
    static constexpr int kSlots = 2;  // batches on the device at once

    // of device memory; capacity: tokens of the largest batch
    static constexpr int64_t bytes(int64_t capacity) { return kSlots * slot_bytes(capacity); }
    // device: bytes(capacity) bytes, 8-byte aligned
    TokenFeed(void* device, int64_t capacity) : device_((char*)device), capacity_(capacity) {}

    struct Uploaded {  // in device memory
        const StepInputs* inputs;
        const int32_t *tokens, *targets;  // (B,T)
        auto operator<=>(const Uploaded&) const = default;
    };

    // The batch's place on the device; what is queued on `compute` from now on sees it there. Does not wait.
    // The place is taken again by the next batch but one: call done() when all that reads it is queued.
    Uploaded upload(const Batch& batch, const StepInputs& inputs, cudaStream_t compute) {
        int64_t n = (int64_t)batch.tokens.size();
        Staging& from = free_staging();
        auto* tokens = (int32_t*)(from.memory.data() + sizeof(StepInputs));
        std::memcpy(from.memory.data(), &inputs, sizeof(StepInputs));
        std::memcpy(tokens, batch.tokens.data(), n * sizeof(int32_t));
        std::memcpy(tokens + n, batch.targets.data(), n * sizeof(int32_t));
        current_ = (current_ + 1) % kSlots;
        read_[current_].hold(copy_stream_);
        auto* to = (StepInputs*)(device_ + current_ * slot_bytes(capacity_));  // then tokens and targets
        check(cudaMemcpyAsync(to, from.memory.data(), slot_bytes(n), cudaMemcpyHostToDevice, copy_stream_));
        from.copied.record(copy_stream_);
        from.copied.hold(compute);
        const auto* there = (const int32_t*)(to + 1);
        return {to, there, there + n};
    }
    void done(cudaStream_t compute) { read_[current_].record(compute); }

private:
    static constexpr int64_t slot_bytes(int64_t tokens) {
        return (int64_t)sizeof(StepInputs) + 2 * tokens * (int64_t)sizeof(int32_t);
    }
    struct Staging {
        explicit Staging(int64_t bytes) : memory(bytes) {}
        PinnedMemory<char> memory;
        Event copied;  // passed when the memory may be written again
    };

    // As many come into being as there are batches queued at once, all in the first steps.
    Staging& free_staging() {
        for (auto& staging : staging_) {
            if (staging->copied.passed()) { return *staging; }
        }
        staging_.push_back(std::make_unique<Staging>(slot_bytes(capacity_)));
        return *staging_.back();
    }

    char* device_;
    int64_t capacity_;
    Stream copy_stream_;
    Event read_[kSlots];  // passed when the batch in a place is no longer needed
    int current_ = 0;
    std::vector<std::unique_ptr<Staging>> staging_;
};

}  // namespace llmc
