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
    TokenFeed(void* device, int64_t capacity) : capacity_(capacity) {
        for (int i = 0; i < kSlots; i++) {
            slots_[i].inputs = (StepInputs*)((char*)device + i * slot_bytes(capacity));
        }
    }

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
        Slot& to = slots_[current_];
        to.read.hold(copy_stream_);
        check(cudaMemcpyAsync(to.inputs, from.memory.data(), slot_bytes(n), cudaMemcpyHostToDevice,
                              copy_stream_));
        from.copied.record(copy_stream_);
        from.copied.hold(compute);
        const auto* there = (const int32_t*)(to.inputs + 1);
        return {to.inputs, there, there + n};
    }
    void done(cudaStream_t compute) { slots_[current_].read.record(compute); }

private:
    static constexpr int64_t slot_bytes(int64_t tokens) {
        return (int64_t)sizeof(StepInputs) + 2 * tokens * (int64_t)sizeof(int32_t);
    }
    struct Slot {
        StepInputs* inputs = nullptr;  // then the batch's tokens and targets
        Event read;                    // passed when the batch in it is no longer needed
    };
    struct Staging {
        explicit Staging(int64_t bytes) : memory(bytes) {}
        PinnedMemory<char> memory;
        Event copied;  // passed when the memory may be written again
    };

    // As many come into being as there are batches queued at once; after the first steps none is made any
    // more.
    Staging& free_staging() {
        for (auto& staging : staging_) {
            if (staging->copied.passed()) { return *staging; }
        }
        staging_.push_back(std::make_unique<Staging>(slot_bytes(capacity_)));
        return *staging_.back();
    }

    int64_t capacity_;
    Stream copy_stream_;
    Slot slots_[kSlots];
    int current_ = 0;
    std::vector<std::unique_ptr<Staging>> staging_;
};

}  // namespace llmc
