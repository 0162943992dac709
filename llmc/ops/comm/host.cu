// The ranks' GPUs exchange through the host's memory: see device_comm.h.
#include <vector>

#include "llmc/cuda/check.cuh"
#include "llmc/ops/comm/device_comm.h"

namespace llmc {

namespace {

using Bytes = std::vector<std::byte>;

class HostComm : public DeviceComm {
public:
    explicit HostComm(Comm& comm) : comm_(comm) {}

    void exchange(ExchangeName name, SentParts out, ArrivingParts in, cudaStream_t stream) override {
        const auto ranks = (size_t)comm_.size(), me = (size_t)comm_.rank();
        require(out.size() == ranks && in.size() == ranks, "DeviceComm: a part for each rank");
        std::vector<Bytes> sent(ranks), arrived(ranks);
        std::vector<std::span<const std::byte>> from(ranks);
        std::vector<std::span<std::byte>> to(ranks);
        for (size_t r = 0; r < ranks; r++) {
            if (r == me) { continue; }
            sent[r].resize(out[r].size());
            arrived[r].resize(in[r].size());
            from[r] = sent[r], to[r] = arrived[r];
            llmc::check(cudaMemcpyAsync(sent[r].data(), out[r].data(), out[r].size(), cudaMemcpyDeviceToHost,
                                        stream));
        }
        wait(stream);
        comm_.exchange(name.what, from, to);
        for (size_t r = 0; r < ranks; r++) {
            if (r == me) { continue; }
            llmc::check(cudaMemcpyAsync(in[r].data(), arrived[r].data(), in[r].size(), cudaMemcpyHostToDevice,
                                        stream));
        }
        wait(stream);  // `arrived` goes
    }
    void wait(cudaStream_t stream) override { llmc::check(cudaStreamSynchronize(stream)); }

private:
    Comm& comm_;
};

}  // namespace

std::unique_ptr<DeviceComm> make_host_comm(Comm& comm) { return std::make_unique<HostComm>(comm); }

}  // namespace llmc
