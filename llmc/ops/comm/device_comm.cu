// Which way the ranks' GPUs exchange: see device_comm.h.
#include "llmc/ops/comm/device_comm.h"

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "llmc/cuda/check.cuh"

namespace llmc {

namespace {

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

std::unique_ptr<DeviceComm> make_device_comm(Comm& comm, std::span<std::byte> memory) {
    const char* value = std::getenv("PLUMB_TRANSPORT");
    const std::string wanted = comm.text_from_root("PLUMB_TRANSPORT", value != nullptr ? value : "");
    if (wanted == "host" || (wanted.empty() && gpus_are_shared(comm))) { return make_host_comm(comm); }
    if (wanted == "nccl") { return make_nccl_comm(comm); }
    if (!wanted.empty() && wanted != "peer") {
        throw Error(kExitUsage,
                    fmt::format("PLUMB_TRANSPORT: expected peer, nccl or host, found \"{}\"", wanted));
    }
    auto peer = make_peer_comm(comm, memory);
    if (peer == nullptr && wanted == "peer") {
        throw Error(kExitDevice,
                    "PLUMB_TRANSPORT=peer: the ranks' GPUs do not reach each other's memory. "
                    "Leave it out: then NCCL is used.");
    }
    return peer != nullptr ? std::move(peer) : make_nccl_comm(comm);
}

}  // namespace llmc
