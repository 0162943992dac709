// What a launcher needs to know of the GPU and of its kernels' code, asked once per device and kept.
#pragma once
#include <algorithm>
#include <array>
#include <mutex>

#include "llmc/cuda/check.cuh"

namespace llmc {

constexpr int kMostDevices = 64;

inline int current_device() {
    int device = 0;
    check(cudaGetDevice(&device));
    require(device < kMostDevices, "more than 64 devices");
    return device;
}

// An X for each device, which make() makes the first time that it is asked for with this device current; a static of the
// function that asks. Any thread may ask; the others wait.
template <typename X>
class PerDevice {
public:
    template <typename Make>
    const X& operator()(const Make& make) {
        int device = current_device();
        std::call_once(made_[device], [&] { all_[device] = make(); });
        return all_[device];
    }

private:
    std::array<std::once_flag, kMostDevices> made_;
    std::array<X, kMostDevices> all_{};
};

struct DeviceFacts {
    int multiprocessors = 0;
    int capability = 0;    // 90 for 9.0
    int shared_bytes = 0;  // of a block, at most
    double bandwidth = 0;  // of the memory by its clock and width, bytes per second
};

// of the current device
inline const DeviceFacts& device_facts() {
    static PerDevice<DeviceFacts> facts;
    return facts([] {
        auto ask = [device = current_device()](cudaDeviceAttr attribute) {
            int value = 0;
            check(cudaDeviceGetAttribute(&value, attribute, device));
            return value;
        };
        double transfers = 2e3 * ask(cudaDevAttrMemoryClockRate);  // two a clock
        return DeviceFacts{
            ask(cudaDevAttrMultiProcessorCount),
            10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor),
            ask(cudaDevAttrMaxSharedMemoryPerBlockOptin),
            transfers * ask(cudaDevAttrGlobalMemoryBusWidth) / 8};
    });
}

// Half of Hopper's SM's shared memory, so that a block has the SM to itself: blocks of the next launch, which may start
// before this one ends, would else begin in pairs where an SM is free first, and leave others idle.
inline int alone_bytes() { return std::min(114 << 10, device_facts().shared_bytes); }

// Is the code of this kernel that the device runs made for Hopper or later? (Code for Ampere runs there too.)
template <typename Kernel>
bool has_hopper_code(Kernel* kernel) {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel));
    return attributes.ptxVersion >= 90;
}

// Is the current device Hopper or later, and this kernel's code for it made so? Kernels of one file have one answer:
// ask for one of each type, of which the first call decides, for each device.
template <typename Kernel>
bool runs_hopper_code(Kernel* kernel) {
    static PerDevice<bool> answers;
    return answers([&] { return device_facts().capability >= 90 && has_hopper_code(kernel); });
}

// Does the current device have wgmma, and this kernel, which uses it, code for it? setmaxnreg makes the compiler give
// such a kernel the most registers that its launch bounds allow, 96 or more; built for another target than sm_90a its
// body is empty and needs a handful. Asked once a device.
template <auto* kernel>
bool runs_wgmma_code() {
    static PerDevice<bool> answers;
    return answers([] {
        cudaFuncAttributes attributes;
        check(cudaFuncGetAttributes(&attributes, kernel));
        return device_facts().capability == 90 && attributes.numRegs >= 96;
    });
}

// lets a kernel have so much dynamic shared memory, once a device
template <auto* kernel>
void allow_shared_bytes(int bytes) {
    static PerDevice<bool> allowed;
    allowed([bytes] {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
        return true;
    });
}

}  // namespace llmc
