// csrc/cuda/device.h over PyTorch's stable ABI
#pragma once
#include <optional>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

namespace plumb {

constexpr const char* kDeviceKey = "CUDA";

class StablePlace {
public:
    explicit StablePlace(int32_t device) {
        if (torch::stable::accelerator::getCurrentDeviceIndex() != device) { guard_.emplace(device); }
        TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream_));
    }
    void* stream() const { return stream_; }

private:
    std::optional<torch::stable::accelerator::DeviceGuard> guard_;
    void* stream_ = nullptr;
};

}  // namespace plumb
