// Which way the ranks' GPUs exchange: see comm.h. And that of tests: through the host's memory.
#include "llmc/ops/comm.h"

#include <cstdlib>
#include <cstring>
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
    std::vector<int64_t> begins;
    for (int r = 0; r <= comm.size(); r++) { begins.push_back(r); }
    all[(size_t)comm.rank()] = properties.uuid;
    comm.all_gather("the GPUs' names", all.data(), begins);
    std::set<std::string> distinct;
    for (const cudaUUID_t& uuid : all) { distinct.insert(std::string(uuid.bytes, sizeof(uuid.bytes))); }
    return (int)distinct.size() < comm.size();
}

}  // namespace

std::unique_ptr<DeviceComm> make_device_comm(Comm& comm) {
    const char* wanted = std::getenv("PLUMB_TRANSPORT");
    const bool by_host =
        comm.root_says("whether by the host", wanted != nullptr && !std::strcmp(wanted, "host"));
    return gpus_are_shared(comm) || by_host ? make_host_comm(comm) : make_nccl_comm(comm);
}

}  // namespace llmc
