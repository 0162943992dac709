// The ranks' GPUs exchange beside the computation, where that is wanted: by their copy engines, or by NCCL; and which way
// they take. See device_comm.h.
#include "llmc/ops/comm/device_comm.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "llmc/cuda/driver.cuh"
#include "llmc/cuda/resources.cuh"
#include "llmc/ops/comm/nccl_library.h"

namespace llmc {

namespace {

// of the environment
std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

// What NCCL and the copy engines have in common: exchanges that overlap the computation are queued on a stream of
// their own, with an event at the end of each.
class OverlapComm : public DeviceComm {
public:
    explicit OverlapComm(Comm& comm) : comm_(comm) {}

    int64_t exchange_overlapped(ExchangeName name, SentParts out, ArrivingParts in,
                                cudaStream_t stream) override {
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

    Comm& comm_;
    Stream side_stream_;

private:
    static constexpr int64_t kEvents = 256;
    const bool overlaps_ = variable("PLUMB_OVERLAP") != "0";
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

    void exchange(ExchangeName name, SentParts out, ArrivingParts in, cudaStream_t stream) override {
        const auto ranks = (size_t)comm_.size(), me = (size_t)comm_.rank();
        require(out.size() == ranks && in.size() == ranks, "DeviceComm: a part for each rank");
        const auto queue = [&](auto call, auto part, size_t r) {
            if (r == me || part.empty()) { return; }
            succeed(call(part.data(), part.size(), Nccl::kBytes, (int)r, handle_, stream), name.what);
        };
        succeed(nccl_.group_start(), name.what);
        for (size_t r = 0; r < ranks; r++) {
            queue(nccl_.send, out[r], r);
            queue(nccl_.receive, in[r], r);
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
        throw Error(kExitPeerLost, "rank {}: NCCL {}: {} ({}; NCCL_DEBUG=WARN says more)", comm_.rank(), what,
                    nccl_.error_text(result), nccl_.path);
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

struct CloseMapped {
    void operator()(std::byte* data) const { cudaIpcCloseMemHandle(data); }
};
// another rank's block; null where this rank's GPU does not reach it
using Mapped = std::unique_ptr<std::byte, CloseMapped>;

class PeerComm : public OverlapComm {
public:
    PeerComm(Comm& comm, std::span<std::byte> memory)
        : OverlapComm(comm), ranks_((size_t)comm.size()), me_((size_t)comm.rank()), memory_(memory) {
        llmc::check(cudaMemset(counters_.data(), 0, kCounterBytes));
        llmc::check(cudaDeviceSynchronize());  // before another rank counts here
        map("the GPUs' memory", memory.data(), memories_);
        map("the GPUs' counters", counters_.data(), counters_of_);
    }
    // whether each rank reaches the others' memory; every rank calls this
    bool usable() {
        std::vector<char> good(ranks_, 1);
        for (size_t r = 0; r < ranks_; r++) {
            const bool here = r == me_ || (memories_[r] != nullptr && counters_of_[r] != nullptr);
            good[me_] = good[me_] && here && ranks_ <= kMostRanks && comm_.size() == comm_.local_size();
        }
        comm_.all_gather("whether the GPUs reach each other", good);
        return std::find(good.begin(), good.end(), 0) == good.end();
    }

    void exchange(ExchangeName name, SentParts out, ArrivingParts in, cudaStream_t stream) override {
        require(out.size() == ranks_ && in.size() == ranks_, "DeviceComm: a part for each rank");
        const std::vector<int64_t> places = places_of(name, out, in);
        const int lane = stream == (cudaStream_t)side_stream_ ? 1 : 0;
        const uint32_t number = ++numbers_[lane];
        for (size_t r = 0; r < ranks_; r++) {
            if (r != me_ && !in[r].empty()) { write(counter(r, lane, kReady, me_), number, stream); }
        }
        // each begins with the rank after it, so that not all send to one
        for (size_t k = 1; k < ranks_; k++) {
            const size_t r = (me_ + k) % ranks_;
            if (out[r].empty()) { continue; }
            wait_for(counter(me_, lane, kReady, r), number, stream);
            llmc::check(cudaMemcpyAsync(memories_[r].get() + places[r], out[r].data(), out[r].size(),
                                        cudaMemcpyDeviceToDevice, stream));
            write(counter(r, lane, kArrived, me_), number, stream);
        }
        for (size_t r = 0; r < ranks_; r++) {
            if (r != me_ && !in[r].empty()) { wait_for(counter(me_, lane, kArrived, r), number, stream); }
        }
    }
    void confirm() override {
        uint32_t failed = 0;
        llmc::check(copy(&failed, counter(me_, kLanes, 0, 0), sizeof(failed)));
        if (failed != 0) {
            throw Error(kExitPeerLost, "rank {}: rank {} has failed: what it sent is not used", me_,
                        failed - 1);
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
        auto* counters = (uint32_t*)(at == me_ ? counters_.data() : (void*)counters_of_[at].get());
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
            throw Error(kExitDevice, "an exchange of the GPUs: CUDA error {}", (int)result);
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
            if (r == me_ || !all[r].shared) { continue; }
            void* block = nullptr;
            if (cudaIpcOpenMemHandle(&block, all[r].handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess) {
                to[r].reset((std::byte*)block);
            }
            (void)cudaGetLastError();
        }
    }

    // Where in each rank's memory this rank's part belongs. Ranks ask each other, but for what has a number
    // only once.
    std::vector<int64_t> places_of(ExchangeName name, SentParts out, ArrivingParts in) {
        if (name.number == ExchangeName::kOnce) { return ask_for_places(name.what, out, in); }
        auto [at, is_new] = places_.try_emplace({name.what, name.number});
        if (is_new) { at->second = ask_for_places(name.what, out, in); }
        return at->second;
    }
    std::vector<int64_t> ask_for_places(const char* what, SentParts out, ArrivingParts in) {
        struct Part {
            int64_t place, size;
        };
        std::vector<Part> all(ranks_ * ranks_);  // by rank, what comes to it from each
        for (size_t r = 0; r < ranks_; r++) {
            Part& part = all[me_ * ranks_ + r];
            part = {in[r].empty() ? 0 : in[r].data() - memory_.data(), (int64_t)in[r].size()};
            require(r == me_ || (part.place >= 0 && part.place + part.size <= (int64_t)memory_.size()),
                    "DeviceComm: what arrives lies elsewhere");
        }
        comm_.all_gather(what, all);
        std::vector<int64_t> places;
        for (size_t r = 0; r < ranks_; r++) {
            const Part& there = all[r * ranks_ + me_];
            require(r == me_ || there.size == (int64_t)out[r].size(), "DeviceComm: ranks disagree");
            places.push_back(there.place);
        }
        return places;
    }

    const size_t ranks_, me_;
    const std::span<std::byte> memory_;
    const Signals signals_;
    DeviceMemory counters_{kCounterBytes};
    Stream urgent_;
    std::vector<Mapped> memories_{ranks_}, counters_of_{ranks_};
    uint32_t numbers_[kLanes] = {};  // of exchanges so far
    std::map<std::pair<std::string, int>, std::vector<int64_t>> places_;
};

// whether two ranks of the job have the same GPU
bool gpus_are_shared(Comm& comm) {
    int device = 0;
    cudaDeviceProp properties;
    check(cudaGetDevice(&device));
    check(cudaGetDeviceProperties(&properties, device));
    std::vector<cudaUUID_t> all((size_t)comm.size());
    all[(size_t)comm.rank()] = properties.uuid;
    comm.all_gather("the GPUs' names", all);
    std::set<std::string> distinct;
    for (const cudaUUID_t& uuid : all) { distinct.insert(std::string(uuid.bytes, sizeof(uuid.bytes))); }
    return (int)distinct.size() < comm.size();
}

}  // namespace

std::unique_ptr<DeviceComm> make_peer_comm(Comm& comm, std::span<std::byte> memory) {
    auto peer = std::make_unique<PeerComm>(comm, memory);
    return peer->usable() ? std::move(peer) : nullptr;
}

std::unique_ptr<DeviceComm> make_device_comm(Comm& comm, std::span<std::byte> memory) {
    const std::string wanted = comm.text_from_root("PLUMB_TRANSPORT", variable("PLUMB_TRANSPORT"));
    if (wanted == "host" || (wanted.empty() && gpus_are_shared(comm))) { return make_host_comm(comm); }
    if (wanted == "nccl") { return std::make_unique<NcclComm>(comm); }
    if (!wanted.empty() && wanted != "peer") {
        throw Error(kExitUsage, "PLUMB_TRANSPORT: expected peer, nccl or host, found \"{}\"", wanted);
    }
    auto peer = make_peer_comm(comm, memory);
    if (peer == nullptr && wanted == "peer") {
        throw Error(kExitDevice,
                    "PLUMB_TRANSPORT=peer: the ranks' GPUs do not reach each other's memory. "
                    "Leave it out: then NCCL is used.");
    }
    if (peer != nullptr) { return peer; }
    return std::make_unique<NcclComm>(comm);
}

}  // namespace llmc
