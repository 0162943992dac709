// What NCCL and the copy engines have in common: exchanges that overlap the computation are queued on a stream of
// their own, with an event at the end of each.
#pragma once
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "llmc/cuda/device_memory.cuh"
#include "llmc/ops/comm/device_comm.h"

namespace llmc {

class OverlapComm : public DeviceComm {
public:
    explicit OverlapComm(Comm& comm) : comm_(comm) {}

    int64_t exchange_overlapped(ExchangeName name, std::span<const std::span<const std::byte>> out,
                                std::span<const std::span<std::byte>> in, cudaStream_t stream) override {
        if (!overlaps_) {
            exchange(name, out, in, stream);
            return 0;
        }
        begin_.record(stream);
        begin_.hold(side_stream_);
        exchange(name, out, in, side_stream_);
        done_[++overlapped_ % kEvents].record(side_stream_);
        return overlapped_;
    }
    // An event that has been recorded again since is a later point: to wait for it is right as well.
    void join(int64_t number, cudaStream_t stream) override { done_[number % kEvents].hold(stream); }
    void wait(cudaStream_t stream) override {
        comm_.enter("a step on the GPUs");
        for (cudaStream_t each : {stream, (cudaStream_t)side_stream_}) {
            cudaError_t status = cudaStreamQuery(each);
            for (; status == cudaErrorNotReady; status = cudaStreamQuery(each)) {
                (void)cudaGetLastError();  // not an error to be found by the next check
                check();
                std::this_thread::sleep_for(std::chrono::microseconds(20));
            }
            llmc::check(status);
        }
        confirm();
        comm_.leave();
    }

protected:
    // whether something of what is queued is still to be done; not if the device has failed
    bool is_busy(cudaStream_t stream) const {
        for (cudaStream_t each : {stream, (cudaStream_t)side_stream_}) {
            if (cudaStreamQuery(each) == cudaErrorNotReady) { return true; }
        }
        return false;
    }
    bool is_side_stream(cudaStream_t stream) const { return stream == (cudaStream_t)side_stream_; }

    Comm& comm_;

private:
    static bool overlap_is_wanted() {
        const char* wanted = std::getenv("PLUMB_OVERLAP");
        return wanted == nullptr || std::strcmp(wanted, "0") != 0;
    }

    static constexpr int64_t kEvents = 256;
    const bool overlaps_ = overlap_is_wanted();
    Stream side_stream_;
    Event begin_, done_[kEvents];
    int64_t overlapped_ = 0;
};

}  // namespace llmc
