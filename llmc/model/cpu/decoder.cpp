// Writing on the CPU: see CpuDecoder in cpu/gpt2.h.
#include "llmc/model/cpu/gpt2.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "llmc/host/base/resources.h"
#include "llmc/model/cpu/blas.h"
#include "llmc/model/cpu/reference.h"

namespace llmc {

namespace {

constexpr int kMostRows = 128;  // of a long prompt at a time, so that activations stay small

}  // namespace

CpuDecoder::CpuDecoder(const ModelSource& source) : config_(source.config()), layout_(config_) {
    MemoryPlan plan;
    plan.parameters = layout_.size() * (int64_t)sizeof(float);
    plan.activations =
        2LL * config_.num_layers * config_.max_seq_len * config_.channels * (int64_t)sizeof(float);
    plan.available = available_memory();
    require_room(plan, source.path());
    params_.resize((size_t)layout_.size());
    load_model(source, [&](State, int tensor, int64_t first, std::span<const float> from) {
        for_each_piece(config_, layout_, tensor, first, (int64_t)from.size(),
                       [&](int64_t at, int64_t offset, int64_t n) {
                           std::copy_n(from.data() + offset, n, params_.data() + at);
                       });
    });
    const int64_t C = config_.channels;
    for (auto* cache : {&keys_, &values_}) {
        cache->resize((size_t)((int64_t)config_.num_layers * config_.max_seq_len * C));
    }
    for (auto* rows : {&x_, &normed_, &atty_, &proj_}) { rows->resize((size_t)(kMostRows * C)); }
    qkv_.resize((size_t)(kMostRows * 3 * C));
    for (auto* rows : {&wide_, &gelu_}) { rows->resize((size_t)(kMostRows * 4 * C)); }
    logits_.resize((size_t)config_.padded_vocab_size);
}

std::span<const float> CpuDecoder::append(std::span<const int32_t> tokens) {
    require(!tokens.empty() && length_ + (int64_t)tokens.size() <= config_.max_seq_len,
            "Decoder: 1 token or more, and no more than there is room for");
    for (int32_t token : tokens) {
        require(token >= 0 && token < config_.vocab_size, "Decoder: a token id is outside of the vocabulary");
    }
    int rows = 0;
    for (size_t at = 0; at < tokens.size(); at += (size_t)rows) {
        rows = (int)std::min<size_t>(kMostRows, tokens.size() - at);
        forward(tokens.subspan(at, (size_t)rows));
    }
    const int C = config_.channels;
    std::memmove(x_.data(), x_.data() + (int64_t)(rows - 1) * C, (size_t)C * sizeof(float));
    norm(kLnfw, kLnfb, 0, 1);
    matmul_forward_blas(logits_.data(), config_.padded_vocab_size, normed_.data(), param(kWte), nullptr, 1, C,
                        config_.vocab_size);
    return std::span(logits_).first((size_t)config_.vocab_size);
}

void CpuDecoder::forward(std::span<const int32_t> tokens) {
    const int C = config_.channels, rows = (int)tokens.size();
    for (int row = 0; row < rows; row++) {
        const float *token = param(kWte) + (int64_t)tokens[(size_t)row] * C,
                    *position = param(kWpe) + (int64_t)(length_ + row) * C;
        for (int c = 0; c < C; c++) { x_[(size_t)row * C + c] = token[c] + position[c]; }
    }
    for (int l = 0; l < config_.num_layers; l++) {
        norm(kLn1w, kLn1b, l, rows);
        matmul_forward_blas(qkv_.data(), 3 * C, normed_.data(), param(kQkvw, l), param(kQkvb, l), rows, C,
                            3 * C);
        attention(l, rows);
        add_product(kAttprojw, kAttprojb, l, atty_.data(), rows, C);
        norm(kLn2w, kLn2b, l, rows);
        matmul_forward_blas(wide_.data(), 4 * C, normed_.data(), param(kFcw, l), param(kFcb, l), rows, C,
                            4 * C);
        gelu_forward_cpu(gelu_.data(), wide_.data(), (int64_t)rows * 4 * C);
        add_product(kFcprojw, kFcprojb, l, gelu_.data(), rows, 4 * C);
    }
    length_ += rows;
}

void CpuDecoder::norm(int weight, int bias, int layer, int rows) {
    layernorm_forward_cpu<float>(normed_.data(), nullptr, nullptr, x_.data(), param(weight, layer),
                                 param(bias, layer), rows, config_.channels, kLayernormEps);
}

void CpuDecoder::add_product(int weight, int bias, int layer, const float* inp, int rows, int inner) {
    const int C = config_.channels;
    matmul_forward_blas(proj_.data(), C, inp, param(weight, layer), param(bias, layer), rows, inner, C);
    for (int64_t i = 0; i < (int64_t)rows * C; i++) { x_[(size_t)i] += proj_[(size_t)i]; }
}

void CpuDecoder::attention(int layer, int rows) {
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

}  // namespace llmc
