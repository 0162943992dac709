// The ranks' GPUs exchange by NCCL: see comm.h. Sends and receives alone, so that every sum is ours, in a
// known order.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "llmc/cuda/device_memory.cuh"
#include "llmc/host/nccl_library.h"
#include "llmc/ops/comm.h"

namespace llmc {

namespace {

class NcclComm : public DeviceComm {
public:
    explicit NcclComm(Comm& comm) : comm_(comm) {
        Nccl::Id id = {};
        if (comm.root()) { succeed(nccl_.get_unique_id(&id), "ncclGetUniqueId"); }
        comm.from_root("NCCL's id", std::span<char>(id.bytes));
        comm.enter("NCCL's start");
        succeed(nccl_.init_rank(&handle_, comm.size(), id, comm.rank()), "ncclCommInitRank");
        comm.leave();
    }
    ~NcclComm() override {
        if (handle_ != nullptr) { nccl_.destroy(handle_); }
    }

    void exchange(const char* what, std::span<const std::span<const std::byte>> out,
                  std::span<const std::span<std::byte>> in, cudaStream_t stream) override {
        const auto ranks = (size_t)comm_.size(), me = (size_t)comm_.rank();
        require(out.size() == ranks && in.size() == ranks, "DeviceComm: a part for each rank");
        succeed(nccl_.group_start(), what);
        for (size_t r = 0; r < ranks; r++) {
            if (r == me) { continue; }
            if (!out[r].empty()) {
                succeed(nccl_.send(out[r].data(), out[r].size(), Nccl::kBytes, (int)r, handle_, stream),
                        what);
            }
            if (!in[r].empty()) {
                succeed(nccl_.receive(in[r].data(), in[r].size(), Nccl::kBytes, (int)r, handle_, stream),
                        what);
            }
        }
        succeed(nccl_.group_end(), what);
    }
    int64_t exchange_aside(const char* what, std::span<const std::span<const std::byte>> out,
                           std::span<const std::span<std::byte>> in, cudaStream_t stream) override {
        if (!beside_) {
            exchange(what, out, in, stream);
            return 0;
        }
        begin_.record(stream);
        begin_.hold(aside_);
        exchange(what, out, in, aside_);
        done_[++asides_ % kEvents].record(aside_);
        return asides_;
    }
    // An event that has been recorded again since is a later point: to wait for it is right as well.
    void join(int64_t number, cudaStream_t stream) override { done_[number % kEvents].hold(stream); }
    void check() override {
        Nccl::Result result = Nccl::kSuccess;
        succeed(nccl_.async_error(handle_, &result), "ncclCommGetAsyncError");
        if (result != Nccl::kInProgress) { succeed(result, "an exchange of the GPUs"); }
    }
    void wait(cudaStream_t stream) override {
        comm_.enter("a step on the GPUs");
        for (cudaStream_t each : {stream, (cudaStream_t)aside_}) {
            cudaError_t status = cudaStreamQuery(each);
            for (; status == cudaErrorNotReady; status = cudaStreamQuery(each)) {
                (void)cudaGetLastError();  // not an error to be found by the next check
                check();
                std::this_thread::sleep_for(std::chrono::microseconds(20));
            }
            llmc::check(status);
        }
        comm_.leave();
    }
    void abort() override {
        if (handle_ != nullptr) { nccl_.abort(std::exchange(handle_, nullptr)); }
    }

private:
    void succeed(Nccl::Result result, const char* what) const {
        if (result == Nccl::kSuccess) { return; }
        throw Error(kExitPeerLost, strf("rank %d: NCCL %s: %s (%s; NCCL_DEBUG=WARN says more)", comm_.rank(),
                                        what, nccl_.error_text(result), nccl_.path.c_str()));
    }

    static bool overlap_is_wanted() {
        const char* wanted = std::getenv("PLUMB_OVERLAP");
        return wanted == nullptr || std::strcmp(wanted, "0") != 0;
    }

    static constexpr int64_t kEvents = 256;
    const bool beside_ = overlap_is_wanted();
    Comm& comm_;
    Stream aside_;
    Event begin_, done_[kEvents];
    int64_t asides_ = 0;
    const Nccl& nccl_ = nccl();
    Nccl::Handle handle_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceComm> make_nccl_comm(Comm& comm) { return std::make_unique<NcclComm>(comm); }

}  // namespace llmc
