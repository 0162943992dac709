// Where the tensors live that the kernels take: CUDA. (python/test/host/device.h is the same for host memory,
// with which everything but the kernels is tested without a GPU.)
#pragma once
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace plumb {

constexpr c10::DeviceType kDevice = c10::kCUDA;
constexpr c10::DispatchKey kDeviceKey = c10::DispatchKey::CUDA;

inline c10::Allocator* allocator() { return c10::cuda::CUDACachingAllocator::get(); }

// The stream of a call: the current one of x's device, which is made the current device while this lives.
class Place {
public:
    explicit Place(const at::Tensor& x) : device_(x.get_device()) {
        if (c10::cuda::current_device() != device_) { guard_.emplace(device_); }
        stream_ = c10::cuda::getCurrentCUDAStream(device_).stream();
    }
    void* stream() const { return stream_; }

private:
    c10::DeviceIndex device_;
    cudaStream_t stream_;
    std::optional<c10::cuda::CUDAGuard> guard_;
};

}  // namespace plumb
