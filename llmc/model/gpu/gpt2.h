// GPT-2 on a GPU, alone or as one of many ranks. Implements the model interface of model.h; a step is only
// queued, its result read one step later.
//   T:    what weights and activations are computed in. float, or __nv_bfloat16 with fp32 master weights
//   Grad: what gradients of parameters are summed in over micro-batches. float, or T to save memory
// Instantiated for <float, float>, <__nv_bfloat16, float> and <__nv_bfloat16, __nv_bfloat16>.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/model/model_source.h"

namespace llmc {

template <typename T, typename Grad>
struct GPT2Network;

template <typename T, typename Grad>
class GPT2 : public Model {
public:
    static MemoryPlan plan(const GPT2Config& config, int B, int seq_len, const ModelSettings& settings = {});
    GPT2(const GPT2Config& config, int B, int seq_len, const ModelSettings& settings = {});
    ~GPT2() override;

    const GPT2Config& config() const override;
    void init(uint64_t seed) override;
    void load(State state, int tensor, int64_t first, std::span<const float> values) override;
    void save(State state, int tensor, int64_t first, std::span<float> values) const override;
    bool holds(State state, int tensor) const override;
    static std::shared_ptr<void> page_lock(std::span<float> memory);
    int64_t updates() const override;
    void set_updates(int64_t n) override;

    bool enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) override;
    std::optional<StepResult> poll() override;
    void finish() override;
    void gather() override;
    std::vector<uint64_t> parameter_hashes() const override;
    Evaluation evaluate(const Batch& batch) override;
    std::span<const float> logits_last() const override;
    static Device device(const ModelSettings& settings = {});
    static constexpr double (*measure_speed)() = nullptr;

    // For tests: the gradients of the mean loss of these batches, left in the gradient arena; returns the
    // loss.
    double forward_backward(std::span<const Batch> micro_batches);
    void save_gradient(int tensor, int64_t first, std::span<float> values) const;
    std::span<const float> logits() const;  // (B,T,Vp) of the last evaluate()
    // for the profile: what it computes with, and where
    GPT2Network<T, Grad>& network();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Writing on the GPU with a cache of keys and values. A prompt is computed in one pass; then each token costs
// one launch of a CUDA graph, which reads every weight once: the memory's speed is what limits it.

// bf16: weights and cache in bf16, which halves the time; else fp32. Sums are fp32 in both, the same bits
// each time. Throws Error(kExitUsage) for heads and widths that the kernels have no room for, kExitDevice
// without memory.
std::unique_ptr<Decoder> make_gpu_decoder(const ModelSource& source, bool bf16);

}  // namespace llmc
