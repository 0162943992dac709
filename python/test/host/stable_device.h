// python/csrc/cuda/stable_device.h for host memory
#pragma once
#include <cstdint>

namespace plumb {

constexpr const char* kDeviceKey = "CPU";

struct StablePlace {
    explicit StablePlace(int32_t) {}
    void* stream() const { return nullptr; }
};

}  // namespace plumb
