// What a launcher needs to know of the GPU and of its kernels' code, asked once per device and kept.
#pragma once
#include <array>
#include <mutex>

#include "llmc/check.cuh"

namespace llmc {

struct DeviceFacts {
    int multiprocessors = 0;
    int capability = 0;  // 90 for 9.0
    int shared_bytes = 0;  // of a block, at most
};

// of the current device
inline const DeviceFacts& device_facts() {
    constexpr int kMostDevices = 64;
    static std::array<DeviceFacts, kMostDevices> facts;
    static std::array<std::once_flag, kMostDevices> asked;
    int device = 0;
    check(cudaGetDevice(&device));
    require(device < kMostDevices, "more than 64 devices");
    std::call_once(asked[device], [device] {
        auto ask = [device](cudaDeviceAttr attribute) {
            int value = 0;
            check(cudaDeviceGetAttribute(&value, attribute, device));
            return value;
        };
        facts[device] = {ask(cudaDevAttrMultiProcessorCount),
                         10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor),
                         ask(cudaDevAttrMaxSharedMemoryPerBlockOptin)};
    });
    return facts[device];
}

// Is the code of this kernel that the device runs made for Hopper or later? (Code for Ampere runs there too.)
template <typename Kernel>
bool has_hopper_code(Kernel* kernel) {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel));
    return attributes.ptxVersion >= 90;
}

}  // namespace llmc
