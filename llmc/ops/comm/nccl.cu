// The ranks' GPUs exchange by NCCL: see device_comm.h. Sends and receives alone, so that every sum is ours, in a
// known order.
#include "llmc/ops/comm/nccl_library.h"
#include "llmc/ops/comm/overlap.cuh"

namespace llmc {

namespace {

class NcclComm : public OverlapComm {
public:
    explicit NcclComm(Comm& comm) : OverlapComm(comm) {
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

    void exchange(ExchangeName name, std::span<const std::span<const std::byte>> out,
                  std::span<const std::span<std::byte>> in, cudaStream_t stream) override {
        const auto ranks = (size_t)comm_.size(), me = (size_t)comm_.rank();
        require(out.size() == ranks && in.size() == ranks, "DeviceComm: a part for each rank");
        succeed(nccl_.group_start(), name.what);
        for (size_t r = 0; r < ranks; r++) {
            if (r == me) { continue; }
            if (!out[r].empty()) {
                succeed(nccl_.send(out[r].data(), out[r].size(), Nccl::kBytes, (int)r, handle_, stream),
                        name.what);
            }
            if (!in[r].empty()) {
                succeed(nccl_.receive(in[r].data(), in[r].size(), Nccl::kBytes, (int)r, handle_, stream),
                        name.what);
            }
        }
        succeed(nccl_.group_end(), name.what);
    }
    void check() override {
        Nccl::Result result = Nccl::kSuccess;
        succeed(nccl_.async_error(handle_, &result), "ncclCommGetAsyncError");
        if (result != Nccl::kInProgress) { succeed(result, "an exchange of the GPUs"); }
    }
    void abort(cudaStream_t) override {
        if (handle_ != nullptr) { nccl_.abort(std::exchange(handle_, nullptr)); }
    }

private:
    void succeed(Nccl::Result result, const char* what) const {
        if (result == Nccl::kSuccess) { return; }
        throw Error(kExitPeerLost, fmt::format("rank {}: NCCL {}: {} ({}; NCCL_DEBUG=WARN says more)",
                                               comm_.rank(), what, nccl_.error_text(result), nccl_.path));
    }

    const Nccl& nccl_ = nccl();
    Nccl::Handle handle_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceComm> make_nccl_comm(Comm& comm) { return std::make_unique<NcclComm>(comm); }

}  // namespace llmc
