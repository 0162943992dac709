// Writing on the GPU: see make_gpu_decoder() in gpt2.h.
#include "llmc/model/gpu/gpt2.h"

#include <cuda_bf16.h>
#include <vector>

#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/graph.cuh"
#include "llmc/cuda/resources.cuh"
#include "llmc/layernorm/layernorm.h"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/decode/decode.h"
#include "llmc/ops/encoder.h"
#include "llmc/ops/matmul/matmul.h"

namespace llmc {

namespace {

// all device memory, in one block
template <typename T>
struct DecoderMemory {
    T *params, *cache;                     // cache (L,2,NH,maxT,cache_row)
    float *x, *q, *parts, *wide, *logits;  // of a step: (C), (NH,cache_row), decode_parts, (4C), (V)
    DecodeStep* step;                      // one
    T *residual, *normed, *qkv, *atty, *proj, *fch, *gelu;  // of a prompt: (maxT, C, 3C or 4C)
    float* lse;                                             // (NH,maxT)
    int32_t* tokens;                                        // (maxT)
    unsigned* counters;                                     // attention's
    void* workspace;                                        // cuBLASLt's
    int64_t bytes;

    DecoderMemory(const GPT2Config& c, int64_t layer_elements, Arena arena) {
        const int64_t C = c.channels, N = c.max_seq_len, row = cache_row<T>(c.channels / c.num_heads);
        params = arena.take<T>(ParameterLayout(c).size());
        cache = arena.take<T>(c.num_layers * layer_elements);
        x = arena.take<float>(C);
        q = arena.take<float>(c.num_heads * row);
        parts = arena.take<float>(decode_parts(c.max_seq_len, c.num_heads, c.channels / c.num_heads));
        wide = arena.take<float>(4 * C);
        logits = arena.take<float>(c.vocab_size);
        step = arena.take<DecodeStep>(1);
        for (T** rows : {&residual, &normed, &atty, &proj}) { *rows = arena.take<T>(N * C); }
        qkv = arena.take<T>(N * 3 * C);
        for (T** rows : {&fch, &gelu}) { *rows = arena.take<T>(N * 4 * C); }
        lse = arena.take<float>(N * c.num_heads);
        tokens = arena.take<int32_t>(N);
        counters = arena.take<unsigned>(kAttentionCounters);
        workspace = arena.take<char>(Matmul::kWorkspace);
        bytes = arena.used();
    }
};

template <typename T>
class GpuDecoder : public Decoder {
public:
    explicit GpuDecoder(const ModelSource& source);
    ~GpuDecoder() override { cudaStreamSynchronize(stream_); }
    const GPT2Config& config() const override { return config_; }
    std::span<const float> append(std::span<const int32_t> tokens) override;
    void clear() override { context_.clear(); }
    int length() const override { return (int)context_.size(); }
    DecoderTraffic traffic() const override;

private:
    const T* param(int tensor, int layer = 0) const { return mem_.params + layout_.offset(tensor, layer); }
    DecodeNorm<T> norm(int weight, int layer) const {  // its bias is the tensor after it
        return {param(weight, layer), param(weight + 1, layer)};
    }
    DecodeLinear<T> linear(int weight, int layer) const {
        return {param(weight, layer), param(weight + 1, layer), kTensors[weight].cols(config_),
                kTensors[weight].rows(config_)};
    }
    CacheLayer<T> cache(int layer) const {
        T* keys = mem_.cache + layer * cache_layer_;
        return {keys, keys + cache_layer_ / 2, config_.max_seq_len, config_.num_heads, head_size()};
    }
    int head_size() const { return config_.channels / config_.num_heads; }
    void load(const ModelSource& source);
    void enqueue_step();  // the token and position in given_
    void enqueue_logits();
    void enqueue_prompt();  // all of context_
    void normalise(int weight, int layer, const T* added);
    void multiply(T* out, const T* inp, int weight, int layer);

    GPT2Config config_;
    ParameterLayout layout_;
    int64_t cache_layer_;  // elements of a layer's keys and values
    DeviceMemory block_;
    DecoderMemory<T> mem_;
    Stream stream_;
    Matmul matmul_;
    PinnedMemory<DecodeStep> given_{1};
    PinnedMemory<float> logits_;
    std::unique_ptr<Recording> step_;
    std::vector<int32_t> context_;
};

template <typename T>
int64_t cache_elements(const GPT2Config& c) {
    return 2 * (int64_t)c.channels / (c.channels / c.num_heads) * c.max_seq_len *
           cache_row<T>(c.channels / c.num_heads);
}

template <typename T>
GpuDecoder<T>::GpuDecoder(const ModelSource& source)
    : config_(source.config()),
      layout_(config_),
      cache_layer_(cache_elements<T>(config_)),
      block_(DecoderMemory<T>(config_, cache_layer_, Arena()).bytes),
      mem_(config_, cache_layer_, Arena(block_.data())),
      matmul_(mem_.workspace, false),
      logits_(config_.vocab_size) {
    load(source);
    check(cudaMemsetAsync(mem_.cache, 0, config_.num_layers * cache_layer_ * sizeof(T), stream_));
    check(cudaMemsetAsync(mem_.counters, 0, kAttentionCounters * sizeof(unsigned), stream_));
    *given_.data() = {0, 0};
    enqueue_step();  // a first time, which loads the kernels: a capture might not allow that
    check(cudaStreamSynchronize(stream_));
    step_ = std::make_unique<Recording>(stream_, [this](Recording&) { enqueue_step(); });
}

template <typename T>
void GpuDecoder<T>::load(const ModelSource& source) {
    std::vector<T> rounded;
    load_model(source, [&](State, int tensor, int64_t first, std::span<const float> from) {
        rounded.assign(from.begin(), from.end());
        for_each_piece(config_, layout_, tensor, first, (int64_t)from.size(),
                       [&](int64_t at, int64_t offset, int64_t n) {
                           // on the stream that computes: cudaMemcpy() may return before all is there
                           check(cudaMemcpyAsync(mem_.params + at, rounded.data() + offset, n * sizeof(T),
                                                 cudaMemcpyHostToDevice, stream_));
                       });
    });
}

template <typename T>
std::span<const float> GpuDecoder<T>::append(std::span<const int32_t> tokens) {
    require(!tokens.empty() && length() + (int64_t)tokens.size() <= config_.max_seq_len,
            "Decoder: 1 token or more, and no more than there is room for");
    for (int32_t token : tokens) {
        require(token >= 0 && token < config_.vocab_size, "Decoder: a token id is outside of the vocabulary");
    }
    context_.insert(context_.end(), tokens.begin(), tokens.end());
    if (tokens.size() == 1) {
        *given_.data() = {tokens[0], length() - 1};
        step_->repeat();
    } else {
        enqueue_prompt();
    }
    check(cudaStreamSynchronize(stream_));
    return {logits_.data(), (size_t)config_.vocab_size};
}

template <typename T>
void GpuDecoder<T>::enqueue_step() {
    const CacheLayer<T> sizes = cache(0);
    decode_encoder(mem_.x, mem_.step, given_.data(), param(kWte), param(kWpe), config_.channels, stream_);
    for (int l = 0; l < config_.num_layers; l++) {
        decode_qkv(mem_.q, cache(l), mem_.x, norm(kLn1w, l), linear(kQkvw, l), mem_.step, stream_);
        decode_attention(mem_.parts, mem_.q, cache(l), mem_.step, stream_);
        decode_attproj(mem_.x, mem_.parts, sizes, linear(kAttprojw, l), mem_.step, stream_);
        decode_fc(mem_.wide, mem_.x, norm(kLn2w, l), linear(kFcw, l), stream_);
        decode_fcproj(mem_.x, mem_.wide, linear(kFcprojw, l), stream_);
    }
    enqueue_logits();
}

template <typename T>
void GpuDecoder<T>::enqueue_logits() {
    const DecodeLinear<T> head = {param(kWte), nullptr, config_.channels, config_.vocab_size};
    decode_logits(mem_.logits, mem_.x, norm(kLnfw, 0), head, stream_);
    check(cudaMemcpyAsync(logits_.data(), mem_.logits, config_.vocab_size * sizeof(float),
                          cudaMemcpyDeviceToHost, stream_));
}

// ---- a prompt ----------------------------------------------------------------------------------

// normed = layernorm(residual), after residual += added unless that is null
template <typename T>
void GpuDecoder<T>::normalise(int weight, int layer, const T* added) {
    LayerNormForward<T> call{.out = mem_.normed,
                             .inp = mem_.residual,
                             .weight = param(weight, layer),
                             .bias = param(weight + 1, layer),
                             .N = length(),
                             .C = config_.channels};
    call.residual = added != nullptr ? mem_.residual : nullptr;
    call.inp2 = added;
    layernorm_forward(call, stream_);
}

template <typename T>
void GpuDecoder<T>::multiply(T* out, const T* inp, int weight, int layer) {
    matmul_.forward(out, inp, param(weight, layer), param(weight + 1, layer), length(),
                    kTensors[weight].cols(config_), kTensors[weight].rows(config_), stream_);
}

template <typename T>
void GpuDecoder<T>::enqueue_prompt() {
    const int N = length(), C = config_.channels, NH = config_.num_heads, L = config_.num_layers;
    check(
        cudaMemcpyAsync(mem_.tokens, context_.data(), N * sizeof(int32_t), cudaMemcpyHostToDevice, stream_));
    encoder_forward(mem_.residual, mem_.tokens, param(kWte), param(kWpe), 1, N, C, stream_);
    for (int l = 0; l < L; l++) {
        normalise(kLn1w, l, l > 0 ? mem_.proj : nullptr);
        multiply(mem_.qkv, mem_.normed, kQkvw, l);
        fill_cache(cache(l), mem_.qkv, N, stream_);
        attention_forward(mem_.atty, mem_.lse, mem_.counters, mem_.qkv, 1, N, NH, C / NH, stream_);
        multiply(mem_.proj, mem_.atty, kAttprojw, l);
        normalise(kLn2w, l, mem_.proj);
        matmul_.forward_gelu(mem_.gelu, mem_.fch, mem_.normed, param(kFcw, l), param(kFcb, l), N, C, 4 * C,
                             stream_);
        multiply(mem_.proj, mem_.gelu, kFcprojw, l);
    }
    const int64_t last = (int64_t)(N - 1) * C;
    decode_residual(mem_.x, mem_.residual + last, mem_.proj + last, C, stream_);
    enqueue_logits();
}

template <typename T>
DecoderTraffic GpuDecoder<T>::traffic() const {
    return {step_parameters(config_) * (int64_t)sizeof(T), device_facts().bandwidth};
}

}  // namespace

std::unique_ptr<Decoder> make_gpu_decoder(const ModelSource& source, bool bf16) {
    const GPT2Config& c = source.config();
    const int HS = c.channels / c.num_heads;
    if (HS > kMaxHeadSize || c.channels > kMostDecodeC) {
        throw Error(
            kExitUsage,
            fmt::format("{}: {} channels in heads of {}: the GPU's kernels have room for {} in heads of "
                        "{}. ./train_gpt2 generate uses the CPU.",
                        source.path(), c.channels, HS, kMostDecodeC, kMaxHeadSize));
    }
    if (bf16) { return std::make_unique<GpuDecoder<__nv_bfloat16>>(source); }
    return std::make_unique<GpuDecoder<float>>(source);
}

}  // namespace llmc
