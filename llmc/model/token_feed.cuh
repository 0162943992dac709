// Brings tokens and targets to the GPU on a stream of their own, while the model computes on the batch
// before.
#pragma once
#include <cstring>
#include <memory>
#include <vector>

#include "llmc/cuda/device_memory.cuh"
#include "llmc/host/batch.h"

namespace llmc {

class TokenFeed {
public:
    static constexpr int kSlots = 2;  // batches on the device at once

    // device: room for kSlots * 2 * capacity values; capacity: tokens of the largest batch
    TokenFeed(int32_t* device, int64_t capacity) : capacity_(capacity) {
        for (int i = 0; i < kSlots; i++) { slots_[i].tokens = device + i * 2 * capacity; }
    }

    struct Uploaded {
        const int32_t *tokens, *targets;  // (B,T), in device memory
    };

    // The batch's place on the device; what is queued on `compute` from now on sees it there. Does not wait.
    // The place is taken again by the next batch but one: call done() when all that reads it is queued.
    Uploaded upload(const Batch& batch, cudaStream_t compute) {
        int64_t n = (int64_t)batch.tokens.size();
        Staging& from = free_staging();
        std::memcpy(from.memory.data(), batch.tokens.data(), n * sizeof(int32_t));
        std::memcpy(from.memory.data() + n, batch.targets.data(), n * sizeof(int32_t));
        current_ = (current_ + 1) % kSlots;
        Slot& to = slots_[current_];
        to.read.hold(copy_stream_);
        check(cudaMemcpyAsync(to.tokens, from.memory.data(), 2 * n * sizeof(int32_t), cudaMemcpyHostToDevice,
                              copy_stream_));
        from.copied.record(copy_stream_);
        from.copied.hold(compute);
        return {to.tokens, to.tokens + n};
    }
    void done(cudaStream_t compute) { slots_[current_].read.record(compute); }

private:
    struct Slot {
        int32_t* tokens = nullptr;
        Event read;  // passed when the batch in it is no longer needed
    };
    struct Staging {
        explicit Staging(int64_t n) : memory(n) {}
        PinnedMemory<int32_t> memory;
        Event copied;  // passed when the memory may be written again
    };

    // As many come into being as there are batches queued at once; after the first steps none is made any
    // more.
    Staging& free_staging() {
        for (auto& staging : staging_) {
            if (staging->copied.passed()) { return *staging; }
        }
        staging_.push_back(std::make_unique<Staging>(2 * capacity_));
        return *staging_.back();
    }

    int64_t capacity_;
    Stream copy_stream_;
    Slot slots_[kSlots];
    int current_ = 0;
    std::vector<std::unique_ptr<Staging>> staging_;
};

}  // namespace llmc
