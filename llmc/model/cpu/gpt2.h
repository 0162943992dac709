// GPT-2 on the CPU in fp32: the layers of reference.h, with matmul and attention through a BLAS. Implements
// the model interface of model.h; every call is done when it returns.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "llmc/host/base/dropout.h"
#include "llmc/model/cpu/blas.h"
#include "llmc/model/cpu/fp8_rounding.h"
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
    bool holds(State state, int tensor) const override {
        return state == State::kFp8Maxima ? fp8_ && tensor == 0 : layout_of(state).holds(tensor);
    }
    static std::shared_ptr<void> page_lock(std::span<float>) { return nullptr; }
    int64_t updates() const override { return updates_; }
    void set_updates(int64_t n) override { updates_ = n; }

    bool enqueue_step(std::span<const Batch> micro_batches, const StepParams& params) override;
    std::optional<StepResult> poll() override;
    void finish() override {}
    void gather() override;
    std::vector<uint64_t> parameter_hashes() const override;
    Evaluation evaluate(const Batch& batch) override;
    std::span<const float> logits_last() const override {
        require(rows_ > 0, "GPT2Cpu: logits_last() before evaluate()");
        return std::span(logits_).subspan((int64_t)(rows_ - 1) * config_.padded_vocab_size,
                                          config_.vocab_size);
    }
    static Device device(const ModelSettings& settings = {});
    static constexpr double (*measure_speed)() = measure_blas_speed;

    // for tests: the mean loss of these batches, whose gradients are left in the gradient arena
    double forward_backward(std::span<const Batch> micro_batches);
    void save_gradient(int tensor, int64_t first, std::span<float> values) const;
    std::span<const float> logits() const { return logits_; }  // (B,T,Vp) of the last evaluate()

private:
    struct Norm {  // a layernorm's output (BT,C) and statistics (BT); BT = B * T rows
        std::vector<float> out, mean, rstd;
    };
    struct Layer {  // activations kept for backward
        Norm ln1, ln2;
        std::vector<float> qkv, lse, atty;  // (BT,3C), (B,NH,T), (BT,C)
        std::vector<float> residual2;       // (BT,C): the stream after attention
        std::vector<float> fch, fch_gelu;   // (BT,4C)
        std::vector<float> residual3;       // (BT,C): the stream after the MLP
    };

    float* values(State state) { return states_[(int)state].data(); }
    float* param(int tensor, int layer = 0) {
        return values(State::kParameter) + layout_.offset(tensor, layer);
    }
    float* grad(int tensor, int layer = 0) { return grads_.data() + layout_.offset(tensor, layer); }
    void linear(float* out, const std::vector<float>& inp, int weight, int l);
    void linear_backward(float* dinp, const float* dout, const std::vector<float>& inp, int weight, int l);
    // x (rows_,C), in a step with dropout that of this place, in `to`
    const float* dropped(float* to, const float* x, int layernorm, int layer) const;
    void prepare_fp8();                               // before a pass with parameters that were loaded
    bool stopping() const;                            // is this a training pass that a signal has ended?
    void forward(const Batch& batch);                 // fills the activations, up to logits_ and losses_
    void backward(const Batch& batch, double dloss);  // adds to the gradients; overwrites logits_
    bool add_gradients(std::span<const Batch> micro_batches, bool last, double dloss, double* loss);
    void update(const StepParams& params, double grad_scale);
    const ParameterLayout& layout_of(State state) const {
        return state == State::kSecondMoment ? second_layout_ : layout_;
    }

    GPT2Config config_;
    ParameterLayout layout_, second_layout_;  // of second moments, which Muon's tensors do not have
    int B_, T_;
    ModelSettings settings_;
    GradientSums sums_;
    std::vector<AdamWPiece> pieces_;        // what is updated here: all, or ZeRO-1's share
    std::vector<float> states_[3], grads_;  // by State: all parameters, moments of what is updated here
    std::vector<float> gathered_[3];        // all moments, for save(): see gather()
    std::vector<float> muon_scratch_;
    std::vector<Layer> layers_;
    Norm lnf_;
    std::vector<float> encoded_, logits_, losses_, scratch_;  // scratch_: attention's
    std::vector<float> proj_, dresidual_, dproj_, dwide_;  // (BT,C), dwide_ (BT,4C); proj_: also dropped()'s
    std::vector<int32_t> predicted_;
    std::optional<Fp8Rounding> fp8_;
    bool fp8_restored_ = false, fp8_ready_ = false;  // are maxima those of a checkpoint? Are there scales?
    bool training_ = false;                          // are forward() and backward() part of a step?
    Dropout dropout_;
    DropoutRows dropout_rows_;  // of the micro-batch under way
    int rows_ = 0;              // B * T of the last forward
    int64_t updates_ = 0;
    std::deque<StepResult> results_;  // not yet asked for, in order
};

// Writing on the CPU in fp32 with a cache of keys and values: a new token costs one row of each layer, not
// the whole context again. Holds the parameters and the cache, and no gradients.
std::unique_ptr<Decoder> make_cpu_decoder(const ModelSource& source);

}  // namespace llmc
