// GPT-2 on the CPU in fp32: the layers of reference.h, with matmul and attention through a BLAS. Implements
// the model interface of model.h; every call is done when it returns.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "llmc/model/cpu/gradient_sums.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/model/model_source.h"

namespace llmc {

class GPT2Cpu : public Model {
public:
    static MemoryPlan plan(const GPT2Config& config, int B, int T, const ModelSettings& settings = {});
    GPT2Cpu(const GPT2Config& config, int B, int T, const ModelSettings& settings = {});

    const GPT2Config& config() const override { return config_; }
    void init(uint64_t seed) override;
    void load(State state, int tensor, int64_t first, std::span<const float> values) override;
    void save(State state, int tensor, int64_t first, std::span<float> values) const override;
    bool holds(State state, int tensor) const override { return layout_of(state).holds(tensor); }
    static std::shared_ptr<void> page_lock(std::span<float>) { return nullptr; }
    int64_t updates() const override { return updates_; }
    void set_updates(int64_t n) override { updates_ = n; }

    bool enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) override;
    std::optional<StepResult> poll() override;
    void finish() override {}
    void gather() override;
    std::vector<uint64_t> parameter_hashes() const override;
    Evaluation evaluate(const Batch& batch) override;
    std::span<const float> logits_last() const override;
    static Device device(const ModelSettings& settings = {});
    static double measure_speed();

    // For tests: the gradients of the mean loss of these batches, left in the gradient arena; returns the
    // loss.
    double forward_backward(std::span<const Batch> micro_batches);
    void save_gradient(int tensor, int64_t first, std::span<float> values) const;
    std::span<const float> logits() const { return logits_; }  // (B,T,Vp) of the last evaluate()

private:
    struct Layer {                                   // activations kept for backward; BT = B * T rows
        std::vector<float> ln1, ln1_mean, ln1_rstd;  // (BT,C), (BT), (BT)
        std::vector<float> qkv, lse, atty;           // (BT,3C), (B,NH,T), (BT,C)
        std::vector<float> residual2;                // (BT,C): the stream after attention
        std::vector<float> ln2, ln2_mean, ln2_rstd;
        std::vector<float> fch, fch_gelu;  // (BT,4C)
        std::vector<float> residual3;      // (BT,C): the stream after the MLP
    };

    float* param(int tensor, int layer = 0) { return params_.data() + layout_.offset(tensor, layer); }
    float* grad(int tensor, int layer = 0) { return grads_.data() + layout_.offset(tensor, layer); }
    void check_batch(const Batch& batch) const;
    bool stopping() const;                            // is this a training pass that a signal has ended?
    void forward(const Batch& batch);                 // fills the activations, up to logits_
    void backward(const Batch& batch, double dloss);  // adds to the gradients; overwrites logits_
    int64_t count_targets(std::span<const Batch> micro_batches) const;
    bool add_gradients(std::span<const Batch> micro_batches, bool last, double dloss, double* loss);
    void update(const StepParams& params, double grad_scale);
    void update_by_muon(int tensor, const MuonCopy& copy, const float* gradient, const StepParams& params,
                        double grad_scale);
    const ParameterLayout& layout_of(State state) const {
        return state == State::kSecondMoment ? second_layout_ : layout_;
    }

    GPT2Config config_;
    ParameterLayout layout_, second_layout_;  // of second moments, which Muon's tensors do not have
    int B_, T_;
    ModelSettings settings_;
    GradientSums sums_;
    std::vector<AdamWPiece> pieces_;     // what is updated here: all, or ZeRO-1's share
    std::vector<float> params_, grads_;  // all elements
    std::vector<float> m_, v_;           // of what is updated here
    std::vector<float> muon_scratch_;
    std::vector<float> gathered_m_, gathered_v_;  // all, for save(): see gather()
    std::vector<Layer> layers_;
    std::vector<float> encoded_, lnf_, lnf_mean_, lnf_rstd_, logits_, losses_;
    std::vector<float> proj_, dresidual_, dproj_, dwide_,
        scratch_;  // (BT,C), (BT,C), (BT,C), (BT,4C), attention's
    std::vector<int32_t> predicted_;
    bool training_ = false;  // are forward() and backward() part of a step?
    int rows_ = 0;           // B * T of the last forward
    int64_t updates_ = 0;
    std::deque<StepResult> results_;  // not yet asked for, in order
};

// Writing on the CPU in fp32 with a cache of keys and values: a new token costs one row of each layer, not
// the whole context again. Holds the parameters and the cache, and no gradients.
class CpuDecoder : public Decoder {
public:
    explicit CpuDecoder(const ModelSource& source);
    const GPT2Config& config() const override { return config_; }
    std::span<const float> append(std::span<const int32_t> tokens) override;
    void clear() override { length_ = 0; }
    int length() const override { return length_; }

private:
    const float* param(int tensor, int layer = 0) const {
        return params_.data() + layout_.offset(tensor, layer);
    }
    void forward(std::span<const int32_t> tokens);         // adds them to the cache; fills x_
    void attention(int layer, int rows);                   // atty_ from qkv_ and the cache
    void norm(int weight, int bias, int layer, int rows);  // normed_ from x_
    void add_product(int weight, int bias, int layer, const float* inp, int rows, int inner);  // x_ +=

    GPT2Config config_;
    ParameterLayout layout_;
    std::vector<float> params_;
    std::vector<float> keys_, values_;  // (L,maxT,C)
    std::vector<float> x_, normed_, qkv_, atty_, wide_, gelu_, proj_, logits_;
    int length_ = 0;
};

}  // namespace llmc
