// What the ranks of a job send each other from their GPUs' memory: Comm::exchange(), queued on a stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "llmc/cuda/types.h"
#include "llmc/host/ranks/comm.h"

namespace llmc {

// What an exchange is called in messages. With a number it is one that comes again and again: `what` and the
// number stand for the same parts in every call of a rank, so that the ranks agree once on where they lie.
struct ExchangeName {
    const char* what;
    int number = kOnce;
    static constexpr int kOnce = -1;
};

class DeviceComm {
public:
    virtual ~DeviceComm() = default;
    // out[r] goes to rank r, in[r] comes from rank r; both have a part for each rank, in device memory. A
    // part may be empty; a rank's own is not looked at. No out may overlap an in. What is queued on the stream
    // behind this finds in[r] filled, and may change out[r]. Every rank makes the same calls in the same
    // order. Throws Error(kExitPeerLost).
    virtual void exchange(ExchangeName name, SentParts out, ArrivingParts in, cudaStream_t stream) = 0;
    // As exchange(), but it may run beside what is queued on the stream behind it, up to where join() is
    // called with the number that this returns, or with a later one.
    virtual int64_t exchange_overlapped(ExchangeName name, SentParts out, ArrivingParts in,
                                        cudaStream_t stream) {
        exchange(name, out, in, stream);
        return 0;
    }
    virtual void join(int64_t, cudaStream_t) {}
    // Throws Error(kExitPeerLost) if something has gone wrong since. Never waits.
    virtual void check() {}
    // The same, of all exchanges that are done: what they brought may be used.
    virtual void confirm() { check(); }
    // until all that is queued on the stream, or runs beside it, is done; throws as confirm()
    virtual void wait(cudaStream_t stream) = 0;
    // What is queued on the stream, or runs beside it, ends, with wrong results: so that a rank that fails does
    // not wait for the others. Never throws; only the destructor may be called after it.
    virtual void abort(cudaStream_t) {}
};

// By the GPUs' copy engines where all ranks are on one host and their GPUs reach each other's memory; else by
// NCCL, which takes no two ranks on one GPU; through the host's memory, which is for tests, where ranks share a GPU.
// PLUMB_TRANSPORT = peer, nccl or host in rank 0 chooses. Every rank calls this, with its device chosen. What arrives
// lies in `memory`, one cudaMalloc's block. Throws Error(kExitDevice) if that way is not there. comm and memory must outlive it.
std::unique_ptr<DeviceComm> make_device_comm(Comm& comm, std::span<std::byte> memory);

// by the copy engines; null, in every rank, if one of them does not reach another's memory
std::unique_ptr<DeviceComm> make_peer_comm(Comm& comm, std::span<std::byte> memory);
// through the host's memory: every call waits
std::unique_ptr<DeviceComm> make_host_comm(Comm& comm);

}  // namespace llmc
