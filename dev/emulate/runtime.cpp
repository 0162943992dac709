// The part of CUDA's runtime that the library and its tests call, for the machine of machine.h: some devices, whose
// memory is the host's and whose streams do at once what they are asked. Takes libcudart's place at linking.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <cuda_runtime_api.h>

#include "dev/emulate/machine.h"
#include "llmc/host/base/error.h"

namespace emulation {

namespace {

struct Device {
    int multiprocessors, major;  // major: of its compute capability
    size_t shared;               // bytes that a block may have
    unsigned cluster = 16;       // blocks of the largest cluster that there is room for
};
// Few multiprocessors, so that rows soon go round; as many as few rows want whose blocks, up to 8, have one each; as the
// first, but with the shared memory of the GPUs that are for graphics; and with that of an A100, before Hopper. The others
// are for tests of the choice of kernels alone: dev/test/gpu/layernorm_choices.h.
constexpr Device kDevices[] = {{3, 9, kMostShared},  {16, 9, kMostShared},     {3, 12, 99 << 10},
                               {8, 8, 163 << 10},    {132, 9, kMostShared},    {108, 8, 163 << 10},
                               {84, 8, 99 << 10},    {132, 9, kMostShared, 8}, {170, 12, 99 << 10, 8},
                               {132, 8, kMostShared}};
constexpr int kClusters = 2;                       // of long rows each has several
constexpr size_t kDeviceMemory = (size_t)4 << 30;  // it says

std::map<const std::byte*, size_t> allocated;  // by where it begins
cudaError_t last_error = cudaSuccess;
int current = 0;  // device

// what a graph repeats; what is queued now goes there, if anything is recorded
using Recorded = std::vector<std::function<void()>>;
std::unique_ptr<Recorded> recorded;

cudaError_t do_or_record(const std::function<void()>& work) {
    if (recorded != nullptr) {
        recorded->push_back(work);
    } else {
        work();
    }
    return cudaSuccess;
}

template <typename... What>
cudaError_t done(What&&...) {
    return cudaSuccess;
}
cudaError_t keep(cudaError_t error) {
    if (error != cudaSuccess) { last_error = error; }
    return error;
}

}  // namespace

void check_global(const void* p, uint32_t bytes, const char* what) {
    const auto* at = static_cast<const std::byte*>(p);
    auto after = allocated.upper_bound(at);
    if (after != allocated.begin()) {
        auto [begin, size] = *std::prev(after);
        if (at + bytes <= begin + size) { return; }
    }
    machine().fail(fmt::format("{} of {} bytes, not within an allocation of device memory", what, bytes));
}

void run_or_keep_error(const Launch& launch, const std::function<void()>& kernel) {
    if (instead_of_launch) { return instead_of_launch(launch); }
    size_t threads = (size_t)launch.block.x * launch.block.y * launch.block.z;
    size_t blocks = (size_t)launch.grid.x * launch.grid.y * launch.grid.z;
    bool possible = threads > 0 && threads <= kMostThreads && blocks > 0 &&
                    launch.shared <= kDevices[current].shared && launch.cluster <= kMostClusterBlocks &&
                    blocks % launch.cluster == 0;
    if (!possible) {
        keep(cudaErrorInvalidConfiguration);
        return;
    }
    do_or_record([launch, kernel] {
        try {
            machine().run(launch, kernel);
        } catch (const std::runtime_error& e) {
            if (watcher.failed != nullptr) {
                watcher.failed(e.what());
            } else {
                std::fprintf(stderr, "emulated kernel: %s\n", e.what());
            }
            keep(cudaErrorLaunchFailure);
        }
    });
}

}  // namespace emulation

using namespace emulation;

// ---- device --------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) { return done(*count = (int)std::size(kDevices)); }
cudaError_t cudaGetDevice(int* device) { return done(*device = current); }
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= (int)std::size(kDevices)) { return keep(cudaErrorInvalidDevice); }
    current = device;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    const Device& d = kDevices[device];
    const bool h100 = device % 2 == 0;  // or an H200
    const std::map<cudaDeviceAttr, int> values = {{cudaDevAttrMultiProcessorCount, d.multiprocessors},
                                                  {cudaDevAttrComputeCapabilityMajor, d.major},
                                                  {cudaDevAttrComputeCapabilityMinor, 0},
                                                  {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)d.shared},
                                                  {cudaDevAttrMemoryClockRate, h100 ? 2'619'000 : 3'201'000},
                                                  {cudaDevAttrGlobalMemoryBusWidth, h100 ? 5120 : 6144}};
    const auto found = values.find(attribute);
    if (found == values.end()) { return keep(cudaErrorNotSupported); }
    *value = found->second;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    *properties = {};
    std::string_view("emulated GPU").copy(properties->name, sizeof(properties->name) - 1);
    properties->multiProcessorCount = kDevices[device].multiprocessors;
    properties->major = kDevices[device].major;
    properties->l2CacheSize = 1 << 20;
    properties->totalGlobalMem = kDeviceMemory;
    properties->sharedMemPerBlockOptin = kDevices[device].shared;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return done(*version = CUDART_VERSION); }
cudaError_t cudaDeviceSynchronize() { return cudaGetLastError(); }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorLaunchFailure  ? "cudaErrorLaunchFailure"
           : error == cudaErrorNotSupported ? "cudaErrorNotSupported"
                                            : "an error";
}
const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorLaunchFailure  ? "a kernel failed in the emulation"
           : error == cudaErrorNotSupported ? "the emulation checks results and times nothing: use --check"
                                            : "not possible in the emulation";
}

// ---- kernels -------------------------------------------------------------------------------------

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
    bool shared = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
    return keep(shared && (size_t)value > kDevices[current].shared ? cudaErrorInvalidValue : cudaSuccess);
}
// as CUDA does: none where the launch asks for no clusters
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
    bool asked = std::any_of(config->attrs, config->attrs + config->numAttrs, [](const auto& attribute) {
        return attribute.id == cudaLaunchAttributeClusterDimension &&
               attribute.val.clusterDim.x <= kDevices[current].cluster;
    });
    *clusters = asked ? kClusters : 0;
    return cudaSuccess;
}

// ---- memory --------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** p, size_t bytes) {
    size_t size = std::max<size_t>(256, (bytes + 255) / 256 * 256);
    *p = std::aligned_alloc(256, size);
    if (*p == nullptr) { return keep(cudaErrorMemoryAllocation); }
    allocated[static_cast<std::byte*>(*p)] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    allocated.erase(static_cast<std::byte*>(p));
    std::free(p);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    return done(std::memcpy(to, from, bytes));
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                         size_t rows, cudaMemcpyKind) {
    for (size_t row = 0; row < rows; row++) {
        std::memcpy((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    return do_or_record([=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaFreeHost(void* p) {
    std::free(p);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* p, int value, size_t bytes) { return done(std::memset(p, value, bytes)); }
cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) {
    return do_or_record([=] { std::memset(p, value, bytes); });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) { return done(*free = *total = kDeviceMemory); }

// ---- what times kernels: a GPU's --------------------------------------------------------------------------------

template <typename... Any>
static cudaError_t refuse(Any...) {
    return keep(cudaErrorNotSupported);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return refuse(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return refuse(event); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return refuse(event, stream); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return refuse(stream, event);
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) { return refuse(ms, a, b); }

// ---- graphs ------------------------------------------------------------------------------------------------------

cudaError_t cudaStreamSynchronize(cudaStream_t) {
    return recorded != nullptr ? keep(cudaErrorStreamCaptureUnsupported) : cudaDeviceSynchronize();
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    if (recorded != nullptr) { return keep(cudaErrorIllegalState); }
    recorded = std::make_unique<Recorded>();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
    if (recorded == nullptr) { return keep(cudaErrorIllegalState); }
    *graph = reinterpret_cast<cudaGraph_t>(recorded.release());
    return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
    return done(*count = reinterpret_cast<Recorded*>(graph)->size());
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
    return done(*exec = reinterpret_cast<cudaGraphExec_t>(new Recorded(*reinterpret_cast<Recorded*>(graph))));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
    for (const auto& work : *reinterpret_cast<Recorded*>(exec)) { do_or_record(work); }
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete reinterpret_cast<Recorded*>(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete reinterpret_cast<Recorded*>(exec);
    return cudaSuccess;
}
