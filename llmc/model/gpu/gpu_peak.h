// What a GPU can do by its maker's data sheet: the denominator of "% of peak".
#pragma once
#include <string>

#include "llmc/host/base/error.h"
#include "llmc/model/model.h"

namespace llmc {

enum class Precision { kFp32, kTf32, kBf16 };

// Dense TFLOP/s from NVIDIA's data sheets; for GeForce and L cards with fp32 accumulation. The first name
// that the device's contains counts, so the longer ones stand first.
struct GpuPeak {
    const char* name;
    double bf16, tf32, fp32;
};
inline constexpr GpuPeak kGpuPeaks[] = {
    {"B200", 2250, 1100, 75},      {"H200", 989, 495, 67},       {"H100 PCIe", 756, 378, 51},
    {"H100 NVL", 835, 418, 60},    {"H100", 989, 495, 67},       {"GH200", 989, 495, 67},
    {"A100", 312, 156, 19.5},      {"A800", 312, 156, 19.5},     {"A40", 150, 75, 37.4},
    {"A10", 125, 62.5, 31.2},      {"L40S", 362, 183, 91.6},     {"L4", 121, 60, 30.3},
    {"RTX 4090", 165, 82.6, 82.6}, {"RTX 3090", 71, 35.6, 35.6},
};

inline Device describe_gpu(const std::string& name, Precision precision) {
    for (const GpuPeak& gpu : kGpuPeaks) {
        if (name.find(gpu.name) == std::string::npos) { continue; }
        bool bf16 = precision == Precision::kBf16, tf32 = precision == Precision::kTf32;
        double peak = bf16 ? gpu.bf16 : tf32 ? gpu.tf32 : gpu.fp32;
        return {name, peak * 1e12,
                fmt::format("{:.0f} TFLOP/s, dense {}, by the data sheet", peak,
                            bf16   ? "bf16"
                            : tf32 ? "TF32"
                                   : "fp32")};
    }
    return {name, 0, ""};
}

}  // namespace llmc
