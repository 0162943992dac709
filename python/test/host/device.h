// python/csrc/cuda/device.h for host memory: the extension as it is, over CPU tensors
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

namespace plumb {

constexpr c10::DeviceType kDevice = c10::kCPU;
constexpr c10::DispatchKey kDeviceKey = c10::DispatchKey::CPU;

inline c10::Allocator* allocator() { return c10::GetAllocator(c10::kCPU); }

struct Place {
    explicit Place(const at::Tensor&) {}
    void* stream() const { return nullptr; }
};

}  // namespace plumb
