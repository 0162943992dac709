// The machine that a run was made on: whether there is one, and what to write beside the numbers.
#pragma once
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>

#include "dev/cuda/report.h"
#include "llmc/cuda/check.cuh"

namespace llmc {

inline bool has_device() {
    int count = 0;
    bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
    cudaGetLastError();  // "no device" is an answer here, not a failure to be found later
    return found;
}

// by dev/emulate, on the CPU
inline bool is_emulated() {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    return std::string_view(properties.name) == "emulated GPU";
}

inline int device_attribute(cudaDeviceAttr attribute) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, attribute, 0));
    return value;
}

struct Machine {
    std::string gpu, driver, runtime, date;
    int sms, l2_mb, sm_mhz, memory_mhz;
    double memory_gb;

    Machine()
        : driver(kernel_driver()),
          sms(device_attribute(cudaDevAttrMultiProcessorCount)),
          l2_mb(device_attribute(cudaDevAttrL2CacheSize) >> 20),
          sm_mhz(device_attribute(cudaDevAttrClockRate) / 1000),
          memory_mhz(device_attribute(cudaDevAttrMemoryClockRate) / 1000) {
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, 0));
        gpu = properties.name;
        memory_gb = (double)properties.totalGlobalMem / 1e9;
        int version = 0;
        check(cudaRuntimeGetVersion(&version));
        runtime = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
        std::time_t now = std::time(nullptr);
        char text[32];
        std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
        date = text;
    }

    std::string str() const {
        return fmt::format(
            "{}, {} SMs, {} MB L2, {:.0f} GB, at most {} / {} MHz (SM / memory), CUDA {}, driver {}, {}", gpu,
            sms, l2_mb, memory_gb, sm_mhz, memory_mhz, runtime, driver, date);
    }
    JsonObject json() const {
        JsonObject o;
        o.set("gpu", gpu).set("cuda_runtime", runtime).set("driver", driver).set("date", date);
        return o.set({{"sms", sms},
                      {"l2_mb", l2_mb},
                      {"memory_gb", memory_gb},
                      {"max_sm_mhz", sm_mhz},
                      {"max_memory_mhz", memory_mhz}});
    }

private:
    // "580.159.03" out of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  ..."; "unknown" where
    // /proc is bare
    static std::string kernel_driver() {
        std::ifstream file("/proc/driver/nvidia/version");
        for (std::string word; file >> word;) {
            if (word.find('.') != std::string::npos &&
                word.find_first_not_of("0123456789.") == std::string::npos) {
                return word;
            }
        }
        return "unknown";
    }
};

}  // namespace llmc
