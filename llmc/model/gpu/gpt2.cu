// GPT-2 on a GPU: what is known of a model before there is one, and the hashes of its parameters. See gpt2.cuh.
#include "llmc/model/gpu/gpt2.cuh"

#include <string>

#include "llmc/cuda/checksum.cuh"
#include "llmc/cuda/device_facts.cuh"

namespace llmc {

// what FP8 blocks can be, see llmc/layernorm/fp8 and llmc/ops/fp8.h
static void require_fp8(const GPT2Config& c, int64_t tokens, bool drops, size_t parameter_bytes) {
    if (parameter_bytes != 2) { throw Error(kExitUsage, "--fp8 is for --dtype bf16"); }
    if (device_facts().capability < 90) {
        throw Error(
            kExitUsage,
            "--fp8 needs tensor cores of Hopper (H100, H200) or later; this GPU is {}.{}. Train without it.",
            device_facts().capability / 10, device_facts().capability % 10);
    }
    if (c.channels % 16 != 0 || c.channels > kMostFp8Columns || tokens % 16 != 0) {
        throw Error(kExitUsage,
                    "--fp8: {} channels and {} tokens in a micro-batch; both must be multiples of 16, "
                    "channels at most {}",
                    c.channels, tokens, kMostFp8Columns);
    }
    if (drops && c.channels > kMostFp8Dropped) {
        throw Error(kExitUsage, "--fp8 with --dropout: {} channels, at most {} are possible. Leave one out.",
                    c.channels, kMostFp8Dropped);
    }
}

const GPT2Config& require_possible(const GPT2Config& c, int B, int seq_len, const ModelSettings& settings,
                                   size_t parameter_bytes) {
    require_sizes(c, B, seq_len);
    if ((int64_t)B * seq_len > INT32_MAX) {
        throw Error(kExitUsage,
                    "{} sequences of {} tokens at once: at most 2^31 - 1 tokens are possible. Use a smaller "
                    "--batch; --total-batch adds up the gradients of several.",
                    B, seq_len);
    }
    if (c.channels / c.num_heads > kMaxHeadSize) {
        throw Error(
            kExitUsage,
            "{} channels in {} heads: heads of {}, but the GPU's attention has room for {}. Use more heads.",
            c.channels, c.num_heads, c.channels / c.num_heads, kMaxHeadSize);
    }
    if (settings.fp8) { require_fp8(c, (int64_t)B * seq_len, settings.dropout > 0, parameter_bytes); }
    return c;
}

template <typename T, typename Grad>
MemoryPlan GPT2<T, Grad>::plan(const GPT2Config& c, int B, int seq_len, const ModelSettings& settings) {
    constexpr int64_t kReserve = 256 << 20;      // bytes left free for CUDA's own modules and cuBLASLt's
    constexpr int64_t kNcclReserve = 768 << 20;  // and for what NCCL takes
    const Memory memory(require_possible(c, B, seq_len, settings, sizeof(T)), B, seq_len, settings, Arena());
    MemoryPlan plan = memory.plan;
    if (settings.fp8) {
        ModelSettings without = settings;
        without.fp8 = false;
        plan.fp8_weights = memory.fp8.weight_bytes;
        plan.fp8_saved =
            Memory(c, B, seq_len, without, Arena()).plan.activations - (plan.activations - plan.fp8_weights);
    }
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    const int64_t reserve = kReserve + (settings.ranks > 1 ? kNcclReserve : 0);
    plan.available = std::max<int64_t>(0, (int64_t)free - reserve);
    return plan;
}

template <typename T, typename Grad>
std::vector<uint64_t> GPT2<T, Grad>::parameter_hashes() const {
    optimizer_.wait();
    optimizer_.require_loaded();
    std::vector<uint64_t> hashes(kNumTensors);
    const DeviceMemory sums(kNumTensors * sizeof(uint64_t));
    check(cudaMemsetAsync(sums.data(), 0, sums.bytes().size(), stream_));
    for (int t = 0; t < kNumTensors; t++) {
        for_each_piece(config_, network_.layout, t, 0, tensor_total(config_, t),
                       [&](int64_t element, int64_t first, int64_t n) {
                           const int64_t words =
                               (n * (int64_t)sizeof(T) + 3) / 4;  // between tensors there are zeros
                           add_checksum((uint64_t*)sums.data() + t, (const uint32_t*)(mem_.params + element),
                                        words, first, stream_);
                       });
    }
    check(cudaMemcpyAsync(hashes.data(), sums.data(), sums.bytes().size(), cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    return hashes;
}

// ---- what a GPU can do by its maker's data sheet: the denominator of "% of peak"

// Dense TFLOP/s from NVIDIA's data sheets; for GeForce and L cards with fp32 accumulation. The first name
// that the device's contains counts, so the longer ones stand first.
constexpr struct {
    const char* name;
    double bf16, tf32, fp32;
} kGpuPeaks[] = {
    {"B200", 2250, 1100, 75},      {"H200", 989, 495, 67},       {"H100 PCIe", 756, 378, 51},
    {"H100 NVL", 835, 418, 60},    {"H100", 989, 495, 67},       {"GH200", 989, 495, 67},
    {"A100", 312, 156, 19.5},      {"A800", 312, 156, 19.5},     {"A40", 150, 75, 37.4},
    {"A10", 125, 62.5, 31.2},      {"L40S", 362, 183, 91.6},     {"L4", 121, 60, 30.3},
    {"RTX 4090", 165, 82.6, 82.6}, {"RTX 3090", 71, 35.6, 35.6},
};

template <typename T, typename Grad>
Device GPT2<T, Grad>::device(const ModelSettings& settings) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, current_device()));
    const std::string name = properties.name;
    for (const auto& gpu : kGpuPeaks) {
        if (name.find(gpu.name) == std::string::npos) { continue; }
        const bool bf16 = sizeof(T) == 2, tf32 = settings.tf32;
        const double peak = bf16 ? gpu.bf16 : tf32 ? gpu.tf32 : gpu.fp32;
        return {name, peak * 1e12,
                fmt::format("{:.0f} TFLOP/s, dense {}, by the data sheet", peak,
                            bf16   ? "bf16"
                            : tf32 ? "TF32"
                                   : "fp32")};
    }
    return {name, 0, ""};
}

template class GPT2<float, float>;
template class GPT2<__nv_bfloat16, float>;
template class GPT2<__nv_bfloat16, __nv_bfloat16>;

}  // namespace llmc
