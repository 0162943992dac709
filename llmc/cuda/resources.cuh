// Owners of what CUDA hands out: one block of device memory that tensors are carved from, pinned host memory,
// streams, events, a stream beside another one. Freed with their owner.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "llmc/cuda/check.cuh"

namespace llmc {

// Hands out 256-byte aligned pieces of one block, in order. Without a block it only adds up what they need.
class Arena {
public:
    explicit Arena(void* block = nullptr) : block_((char*)block) {}
    template <typename T>
    T* take(int64_t n) {
        T* p = (T*)(block_ + used_);
        used_ = std::min(kMost, used_ + (n * (int64_t)sizeof(T) + 255) / 256 * 256);
        return block_ != nullptr ? p : nullptr;
    }
    int64_t used() const { return used_; }  // bytes

private:
    // sums of absurd sizes read as too much, not as negative
    static constexpr int64_t kMost = (int64_t)1 << 60;
    char* block_;
    int64_t used_ = 0;
};

class DeviceMemory {
public:
    explicit DeviceMemory(int64_t bytes) : size_((size_t)bytes) { check(cudaMalloc(&data_, bytes)); }
    ~DeviceMemory() { cudaFree(data_); }
    DeviceMemory(const DeviceMemory&) = delete;
    void* data() const { return data_; }
    std::span<std::byte> bytes() const { return {(std::byte*)data_, size_}; }

private:
    void* data_ = nullptr;
    size_t size_;
};

// n values of T in page-locked host memory, which copies can read and write in the background
template <typename T>
class PinnedMemory {
public:
    explicit PinnedMemory(int64_t n) : size_(n) { check(cudaHostAlloc((void**)&data_, n * sizeof(T), 0)); }
    ~PinnedMemory() { cudaFreeHost(data_); }
    PinnedMemory(const PinnedMemory&) = delete;
    T* data() const { return data_; }
    int64_t size() const { return size_; }

private:
    T* data_ = nullptr;
    int64_t size_;
};

class Stream {
public:
    Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    operator cudaStream_t() const { return stream_; }

private:
    cudaStream_t stream_ = nullptr;
};

// A point in a stream's work. Before the first record() it counts as passed.
class Event {
public:
    explicit Event(unsigned flags = cudaEventDisableTiming) {
        check(cudaEventCreateWithFlags(&event_, flags));
    }
    ~Event() { cudaEventDestroy(event_); }
    Event(const Event&) = delete;
    void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream)); }
    void hold(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_)); }  // until passed
    bool passed() const {
        cudaError_t status = cudaEventQuery(event_);
        if (status == cudaErrorNotReady) {
            (void)cudaGetLastError();  // not an error to be found by the next check
            return false;
        }
        check(status);
        return true;
    }
    // the time from one to the other by the device's clock; both passed, and made with cudaEventDefault
    std::chrono::duration<float, std::milli> since(const Event& earlier) const {
        float ms;
        check(cudaEventElapsedTime(&ms, earlier.event_, event_));
        return std::chrono::duration<float, std::milli>(ms);
    }

private:
    cudaEvent_t event_ = nullptr;
};

// A second stream, for work that the first one need not wait for at once. In a recording it is a branch of the graph.
class Branch {
public:
    explicit Branch(cudaStream_t main) : main_(main) {}
    cudaStream_t stream() const { return stream_; }
    // stream(), where what is queued from now on begins behind all that is on the main stream by now
    cudaStream_t fork() {
        forked_.record(main_);
        forked_.hold(stream_);
        return stream_;
    }
    // the main stream goes on when all is done that is on stream() by now; after a fork()
    void join() {
        joins_++;
        joined_.record(stream_);
        joined_.hold(main_);
    }
    // A place in the branch's work, for which the main stream can wait: before it overwrites what was read there.
    class Mark {
    public:
        void set(const Branch& branch) {
            event_.record(branch.stream_);
            joins_ = branch.joins_;
        }
        // Does nothing after a join(): the mark may be of another recording, which a stream cannot wait for.
        void wait(const Branch& branch) const {
            if (joins_ == branch.joins_) { event_.hold(branch.main_); }
        }

    private:
        Event event_;
        int64_t joins_ = -1;
    };

private:
    cudaStream_t main_;
    Stream stream_;
    Event forked_, joined_;
    int64_t joins_ = 0;
};

// where work may be queued that the main stream need not wait for at once: the branch, if there is one
inline cudaStream_t beside(cudaStream_t stream, Branch* branch) {
    return branch != nullptr ? branch->fork() : stream;
}

}  // namespace llmc
