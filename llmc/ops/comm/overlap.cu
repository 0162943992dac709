// The ranks' GPUs exchange beside the computation, where that is wanted: by their copy engines, or by NCCL. See
// device_comm.h.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "llmc/cuda/resources.cuh"
#include "llmc/cuda/driver.cuh"
#include "llmc/ops/comm/device_comm.h"
#include "llmc/ops/comm/nccl_library.h"

namespace llmc {

namespace {

// What NCCL and the copy engines have in common: exchanges that overlap the computation are queued on a stream of
// their own, with an event at the end of each.
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

// ---- by NCCL: sends and receives alone, so that every sum is ours, in a known order ----

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

// ---- by the copy engines of one host ----
// Each rank maps the others' memory (CUDA IPC) and copies into it. Two counters for each pair of ranks, in the memory of
// the one that waits for them, order this: "I am ready for what you send" and "what I sent has arrived". The streams write
// them and wait for them, so neither the host nor a multiprocessor takes part: a kernel that counts on all multiprocessors,
// as cuBLASLt's do, is not held up by an exchange beside it.

struct Signals {
    PFN_cuStreamWriteValue32_v11070 write =
        driver_function<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", 11070);
    PFN_cuStreamWaitValue32_v11070 wait =
        driver_function<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", 11070);
};

// what another rank is told of a block of memory
struct Shared {
    cudaIpcMemHandle_t handle;
    bool shared;  // no: this rank's CUDA gives no handle
};

// another rank's block; data() is null where this rank's GPU does not reach it
class Mapped {
public:
    Mapped() = default;
    ~Mapped() {
        if (data_ != nullptr) { cudaIpcCloseMemHandle(data_); }
    }
    Mapped(const Mapped&) = delete;
    void open(const Shared& block) {
        if (cudaIpcOpenMemHandle(&data_, block.handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess) {
            (void)cudaGetLastError();
            data_ = nullptr;
        }
    }
    std::byte* data() const { return (std::byte*)data_; }

private:
    void* data_ = nullptr;
};

class PeerComm : public OverlapComm {
public:
    // in every rank or none: then usable() is false in all
    PeerComm(Comm& comm, std::span<std::byte> memory)
        : OverlapComm(comm), ranks_((size_t)comm.size()), me_((size_t)comm.rank()), memory_(memory) {
        llmc::check(cudaMemset(counters_.data(), 0, kCounterBytes));
        llmc::check(cudaDeviceSynchronize());  // before another rank counts here
        map("the GPUs' memory", memory.data(), memories_);
        map("the GPUs' counters", counters_.data(), counters_of_);
        usable_ = comm.size() == comm.local_size() && all_mapped();
    }
    bool usable() const { return usable_; }

    void exchange(ExchangeName name, std::span<const std::span<const std::byte>> out,
                  std::span<const std::span<std::byte>> in, cudaStream_t stream) override {
        require(out.size() == ranks_ && in.size() == ranks_, "DeviceComm: a part for each rank");
        const std::vector<int64_t> places = places_of(name, out, in);
        const int lane = is_side_stream(stream) ? 1 : 0;
        const uint32_t number = ++numbers_[lane];
        for (size_t r = 0; r < ranks_; r++) {
            if (r != me_ && !in[r].empty()) { write(counter(r, lane, kReady, me_), number, stream); }
        }
        // each begins with the rank after it, so that not all send to one
        for (size_t k = 1; k < ranks_; k++) {
            const size_t r = (me_ + k) % ranks_;
            if (out[r].empty()) { continue; }
            wait_for(counter(me_, lane, kReady, r), number, stream);
            llmc::check(cudaMemcpyAsync(memories_[r].data() + places[r], out[r].data(), out[r].size(),
                                        cudaMemcpyDeviceToDevice, stream));
            write(counter(r, lane, kArrived, me_), number, stream);
        }
        for (size_t r = 0; r < ranks_; r++) {
            if (r != me_ && !in[r].empty()) { wait_for(counter(me_, lane, kArrived, r), number, stream); }
        }
    }
    void check() override {}
    void confirm() override {
        uint32_t failed = 0;
        llmc::check(copy(&failed, counter(me_, kLanes, 0, 0), sizeof(failed)));
        if (failed != 0) {
            throw Error(kExitPeerLost, fmt::format("rank {}: rank {} has failed: what it sent is not used",
                                                   me_, failed - 1));
        }
    }
    // The others are told before what is queued here goes on with whatever has come. A rank that has not heard of
    // it yet lowers a counter again with what it writes next: so all are raised until nothing is left that waits.
    void abort(cudaStream_t stream) override {
        const auto failed = (uint32_t)me_ + 1;
        for (size_t r = 0; r < ranks_; r++) {
            if (r != me_) { (void)copy(counter(r, kLanes, 0, 0), &failed, sizeof(failed)); }
        }
        do {
            for (int lane = 0; lane < kLanes; lane++) {
                const std::vector<uint32_t> passed(kKinds * kMostRanks, numbers_[lane] + kFarAhead);
                (void)copy(counter(me_, lane, 0, 0), passed.data(), passed.size() * sizeof(uint32_t));
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        } while (is_busy(stream));
    }

private:
    enum { kLanes = 2 };  // in line with the computation, and beside it: each has its own order
    enum { kReady, kArrived, kKinds };
    static constexpr size_t kMostRanks = 64;
    static constexpr uint32_t kFarAhead = 1u << 30;    // counters are compared by their difference's sign
    static constexpr int64_t kCounterBytes = 2 << 20;  // CUDA shares memory in pieces of this size

    // in rank `at`: what rank `from` has written last; of the lane behind all others: whether a rank has failed
    uint32_t* counter(size_t at, int lane, int kind, size_t from) const {
        auto* counters = (uint32_t*)(at == me_ ? counters_.data() : (void*)counters_of_[at].data());
        return counters + ((size_t)lane * kKinds + (size_t)kind) * kMostRanks + from;
    }
    void write(uint32_t* at, uint32_t value, cudaStream_t stream) const {
        succeed(signals_.write(stream, (CUdeviceptr)at, value, CU_STREAM_WRITE_VALUE_DEFAULT));
    }
    void wait_for(uint32_t* at, uint32_t value, cudaStream_t stream) const {
        succeed(signals_.wait(stream, (CUdeviceptr)at, value, CU_STREAM_WAIT_VALUE_GEQ));
    }
    static void succeed(CUresult result) {
        if (result != CUDA_SUCCESS) {
            throw Error(kExitDevice, fmt::format("an exchange of the GPUs: CUDA error {}", (int)result));
        }
    }
    // beside all that is queued, which may wait for ever
    cudaError_t copy(void* to, const void* from, size_t bytes) {
        const cudaError_t status = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, urgent_);
        return status != cudaSuccess ? status : cudaStreamSynchronize(urgent_);
    }

    void map(const char* what, void* data, std::vector<Mapped>& to) {
        std::vector<Shared> all(ranks_);
        all[me_].shared = cudaIpcGetMemHandle(&all[me_].handle, data) == cudaSuccess;
        if (!all[me_].shared) { (void)cudaGetLastError(); }
        comm_.all_gather(what, all);
        for (size_t r = 0; r < ranks_; r++) {
            if (r != me_ && all[r].shared) { to[r].open(all[r]); }
        }
    }
    bool all_mapped() {
        std::vector<char> good(ranks_, 1);
        for (size_t r = 0; r < ranks_; r++) {
            const bool here = memories_[r].data() != nullptr && counters_of_[r].data() != nullptr;
            good[me_] = good[me_] && (r == me_ || here) && ranks_ <= kMostRanks;
        }
        comm_.all_gather("whether the GPUs reach each other", good);
        return std::find(good.begin(), good.end(), 0) == good.end();
    }

    // Where in each rank's memory this rank's part belongs. Ranks ask each other, but for what has a number
    // only once.
    std::vector<int64_t> places_of(ExchangeName name, std::span<const std::span<const std::byte>> out,
                                   std::span<const std::span<std::byte>> in) {
        if (name.number == ExchangeName::kOnce) { return ask_for_places(name.what, out, in); }
        auto [at, is_new] = places_.try_emplace({name.what, name.number});
        if (is_new) { at->second = ask_for_places(name.what, out, in); }
        return at->second;
    }
    std::vector<int64_t> ask_for_places(const char* what, std::span<const std::span<const std::byte>> out,
                                        std::span<const std::span<std::byte>> in) {
        struct Part {
            int64_t place, size;
        };
        std::vector<Part> mine(ranks_), theirs(ranks_);
        std::vector<std::span<const std::byte>> to;
        std::vector<std::span<std::byte>> from;
        for (size_t r = 0; r < ranks_; r++) {
            mine[r] = {in[r].empty() ? 0 : in[r].data() - memory_.data(), (int64_t)in[r].size()};
            require(
                r == me_ || (mine[r].place >= 0 && mine[r].place + mine[r].size <= (int64_t)memory_.size()),
                "DeviceComm: what arrives lies elsewhere");
            to.push_back(std::as_bytes(std::span(&mine[r], 1)));
            from.push_back(std::as_writable_bytes(std::span(&theirs[r], 1)));
        }
        comm_.exchange(what, to, from);
        std::vector<int64_t> places;
        for (size_t r = 0; r < ranks_; r++) {
            require(r == me_ || theirs[r].size == (int64_t)out[r].size(), "DeviceComm: ranks disagree");
            places.push_back(theirs[r].place);
        }
        return places;
    }

    const size_t ranks_, me_;
    const std::span<std::byte> memory_;
    const Signals signals_;
    DeviceMemory counters_{kCounterBytes};
    Stream urgent_;
    std::vector<Mapped> memories_{ranks_}, counters_of_{ranks_};
    bool usable_ = false;
    uint32_t numbers_[kLanes] = {};  // of exchanges so far
    std::map<std::pair<std::string, int>, std::vector<int64_t>> places_;
};

}  // namespace

std::unique_ptr<DeviceComm> make_nccl_comm(Comm& comm) { return std::make_unique<NcclComm>(comm); }

std::unique_ptr<DeviceComm> make_peer_comm(Comm& comm, std::span<std::byte> memory) {
    auto peer = std::make_unique<PeerComm>(comm, memory);
    return peer->usable() ? std::move(peer) : nullptr;
}

}  // namespace llmc
