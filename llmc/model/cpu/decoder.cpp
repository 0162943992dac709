// Writing on the CPU: see make_cpu_decoder() in cpu/gpt2.h.
#include "llmc/model/cpu/gpt2.h"

#include <algorithm>
#include <cmath>

#include "llmc/host/base/resources.h"
#include "llmc/model/cpu/blas.h"
#include "llmc/model/cpu/reference.h"

namespace llmc {

namespace {

constexpr int kMostRows = 128;  // of a long prompt at a time, so that activations stay small

class CpuDecoder : public Decoder {
public:
    explicit CpuDecoder(const ModelSource& source) : config_(source.config()) {
        const int64_t C = config_.channels, cached = (int64_t)config_.num_layers * config_.max_seq_len * C;
        constexpr int64_t kBytes = sizeof(float);
        require_room({.parameters = layout_.size() * kBytes,
                      .activations = 2 * cached * kBytes,
                      .available = available_memory()},
                     source.path());
        params_.resize((size_t)layout_.size());
        load_model(source, [&](State, int tensor, int64_t first, std::span<const float> from) {
            for_each_piece(config_, layout_, tensor, first, (int64_t)from.size(),
                           [&](int64_t at, int64_t offset, int64_t n) {
                               std::copy_n(from.data() + offset, n, params_.data() + at);
                           });
        });
        for (auto* cache : {&keys_, &values_}) { cache->resize((size_t)cached); }
        for (auto* rows : {&x_, &normed_, &atty_, &proj_}) { rows->resize((size_t)(kMostRows * C)); }
        qkv_.resize((size_t)(kMostRows * 3 * C));
        for (auto* rows : {&wide_, &gelu_}) { rows->resize((size_t)(kMostRows * 4 * C)); }
        logits_.resize((size_t)config_.padded_vocab_size);
    }
    const GPT2Config& config() const override { return config_; }
    std::span<const float> append(std::span<const int32_t> tokens) override {
        require_tokens(tokens);
        int rows = 0;
        for (size_t at = 0; at < tokens.size(); at += (size_t)rows) {
            rows = (int)std::min<size_t>(kMostRows, tokens.size() - at);
            forward(tokens.subspan(at, (size_t)rows));
        }
        const int C = config_.channels;
        std::copy_n(x_.begin() + (int64_t)(rows - 1) * C, C, x_.begin());
        norm(kLnfw, 0, 1);
        matmul_forward_blas(logits_.data(), config_.padded_vocab_size, normed_.data(), param(kWte), nullptr,
                            1, C, config_.vocab_size);
        return std::span(logits_).first((size_t)config_.vocab_size);
    }
    void clear() override { length_ = 0; }
    int length() const override { return length_; }

private:
    const float* param(int tensor, int layer = 0) const {
        return params_.data() + layout_.offset(tensor, layer);
    }
    // adds them to the cache; fills x_
    void forward(std::span<const int32_t> tokens) {
        const int C = config_.channels, rows = (int)tokens.size();
        encoder_forward_cpu(x_.data(), tokens.data(), param(kWte), param(kWpe) + (int64_t)length_ * C, 1,
                            rows, C);
        for (int l = 0; l < config_.num_layers; l++) {
            norm(kLn1w, l, rows);
            linear(qkv_, normed_, kQkvw, l, rows);
            attention(l, rows);
            add_linear(atty_, kAttprojw, l, rows);
            norm(kLn2w, l, rows);
            linear(wide_, normed_, kFcw, l, rows);
            gelu_forward_cpu(gelu_.data(), wide_.data(), (int64_t)rows * 4 * C);
            add_linear(gelu_, kFcprojw, l, rows);
        }
        length_ += rows;
    }
    // normed_ from x_; a layer's bias is the tensor behind its weight
    void norm(int weight, int layer, int rows) {
        layernorm_forward_cpu<float>(normed_.data(), nullptr, nullptr, x_.data(), param(weight, layer),
                                     param(weight + 1, layer), rows, config_.channels, kLayernormEps);
    }
    void linear(std::vector<float>& out, const std::vector<float>& inp, int weight, int layer, int rows) {
        const int C = kTensors[weight].cols(config_), OC = kTensors[weight].rows(config_);
        matmul_forward_blas(out.data(), OC, inp.data(), param(weight, layer), param(weight + 1, layer), rows,
                            C, OC);
    }
    void add_linear(const std::vector<float>& inp, int weight, int layer, int rows) {  // x_ +=
        linear(proj_, inp, weight, layer, rows);
        for (int64_t i = 0; i < (int64_t)rows * config_.channels; i++) { x_[(size_t)i] += proj_[(size_t)i]; }
    }
    // atty_ from qkv_ and the cache
    void attention(int layer, int rows) {
        const int C = config_.channels, NH = config_.num_heads, HS = C / NH;
        const int64_t first = (int64_t)layer * config_.max_seq_len * C;
        float *keys = keys_.data() + first, *values = values_.data() + first;
        for (int row = 0; row < rows; row++) {
            const float* qkv = qkv_.data() + (int64_t)row * 3 * C;
            std::copy_n(qkv + C, C, keys + (int64_t)(length_ + row) * C);
            std::copy_n(qkv + 2 * C, C, values + (int64_t)(length_ + row) * C);
        }
        const double scale = 1.0 / std::sqrt((double)HS);
        // few rows are not worth waking the other threads for, unless the context is long
#pragma omp parallel for collapse(2) if ((int64_t)rows * (length_ + rows) * C > (1 << 16))
        for (int row = 0; row < rows; row++) {
            for (int head = 0; head < NH; head++) {
                const int seen = length_ + row + 1;
                const float *q = qkv_.data() + (int64_t)row * 3 * C + head * HS, *k = keys + head * HS,
                            *v = values + head * HS;
                std::vector<float> weight((size_t)seen), sum((size_t)HS);
                float largest = -INFINITY;
                for (int t = 0; t < seen; t++) {
                    float dot = 0;
#pragma omp simd reduction(+ : dot)
                    for (int c = 0; c < HS; c++) { dot += q[c] * k[(int64_t)t * C + c]; }
                    weight[(size_t)t] = (float)(dot * scale);
                    largest = std::max(largest, weight[(size_t)t]);
                }
                double total = 0;
                for (float& w : weight) {
                    w = std::exp(w - largest);
                    total += w;
                }
                for (int t = 0; t < seen; t++) {
                    const float w = weight[(size_t)t];
#pragma omp simd
                    for (int c = 0; c < HS; c++) { sum[(size_t)c] += w * v[(int64_t)t * C + c]; }
                }
                float* out = atty_.data() + (int64_t)row * C + head * HS;
                for (int c = 0; c < HS; c++) { out[c] = (float)(sum[(size_t)c] / total); }
            }
        }
    }

    GPT2Config config_;
    ParameterLayout layout_{config_};
    std::vector<float> params_;
    std::vector<float> keys_, values_;  // (L,maxT,C)
    std::vector<float> x_, normed_, qkv_, atty_, wide_, gelu_, proj_, logits_;
    int length_ = 0;
};

}  // namespace

std::unique_ptr<Decoder> make_cpu_decoder(const ModelSource& source) {
    return std::make_unique<CpuDecoder>(source);
}

}  // namespace llmc
