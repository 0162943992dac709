// Writing on the GPU: see make_gpu_decoder() in gpt2.cuh.
#include "llmc/model/gpu/gpt2.cuh"

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
    GPT2Config c;
    Arena arena;
    int C = c.channels, NH = c.num_heads, HS = C / NH, row = cache_row<T>(HS);
    int64_t N = c.max_seq_len;
    int64_t cache_layer = 2 * NH * N * row;  // elements of a layer's keys and values

    T* params = arena.take<T>(ParameterLayout(c).size());
    T* cache = arena.take<T>(c.num_layers * cache_layer);  // (L,2,NH,maxT,cache_row)
    // of a step
    float *x = arena.take<float>(C), *q = arena.take<float>(NH * row), *wide = arena.take<float>(4 * C);
    float *parts = arena.take<float>(decode_parts(c.max_seq_len, NH, HS)),
          *logits = arena.take<float>(c.vocab_size);
    DecodeStep* step = arena.take<DecodeStep>(1);
    // of a prompt
    T *residual = take_rows(C), *normed = take_rows(C), *atty = take_rows(C), *proj = take_rows(C);
    T *qkv = take_rows(3 * C), *fch = take_rows(4 * C), *gelu = take_rows(4 * C);
    float* lse = arena.take<float>(N * NH);
    int32_t* tokens = arena.take<int32_t>(N);
    unsigned* counters = arena.take<unsigned>(kAttentionCounters);  // attention's
    void* workspace = arena.take<char>(Matmul::kWorkspace);         // cuBLASLt's

    T* take_rows(int64_t width) { return arena.take<T>(N * width); }
};

template <typename T>
class GpuDecoder : public Decoder {
public:
    explicit GpuDecoder(const ModelSource& source)
        : config_(source.config()),
          block_(DecoderMemory<T>{config_, Arena()}.arena.used()),
          mem_{config_, Arena(block_.data())},
          matmul_(mem_.workspace, false),
          logits_(config_.vocab_size) {
        load(source);
        check(cudaMemsetAsync(mem_.cache, 0, config_.num_layers * mem_.cache_layer * sizeof(T), stream_));
        check(cudaMemsetAsync(mem_.counters, 0, kAttentionCounters * sizeof(unsigned), stream_));
        *given_.data() = {0, 0};
        enqueue_step();  // a first time, which loads the kernels: a capture might not allow that
        check(cudaStreamSynchronize(stream_));
        step_ = std::make_unique<Recording>(stream_, [this](Recording&) { enqueue_step(); });
    }
    ~GpuDecoder() override { cudaStreamSynchronize(stream_); }
    const GPT2Config& config() const override { return config_; }
    std::span<const float> append(std::span<const int32_t> tokens) override {
        require_tokens(tokens);
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
    void clear() override { context_.clear(); }
    int length() const override { return (int)context_.size(); }
    DecoderTraffic traffic() const override {
        return {step_parameters(config_) * (int64_t)sizeof(T), device_facts().bandwidth};
    }

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
        T* keys = mem_.cache + layer * mem_.cache_layer;
        return {keys, keys + mem_.cache_layer / 2, config_.max_seq_len, mem_.NH, mem_.HS};
    }
    void load(const ModelSource& source) {
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
    void enqueue_step() {  // the token and position in given_
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
    void enqueue_logits() {
        const DecodeLinear<T> head = {param(kWte), nullptr, config_.channels, config_.vocab_size};
        decode_logits(mem_.logits, mem_.x, norm(kLnfw, 0), head, stream_);
        check(cudaMemcpyAsync(logits_.data(), mem_.logits, config_.vocab_size * sizeof(float),
                              cudaMemcpyDeviceToHost, stream_));
    }

    // ---- a prompt: all of context_

    // normed = layernorm(residual), after residual += added unless that is null
    void normalise(int weight, int layer, const T* added) {
        const LayerNormForward<T> call{.out = mem_.normed,
                                       .inp = mem_.residual,
                                       .weight = param(weight, layer),
                                       .bias = param(weight + 1, layer),
                                       .N = length(),
                                       .C = config_.channels,
                                       .residual = added != nullptr ? mem_.residual : nullptr,
                                       .inp2 = added};
        layernorm_forward(call, stream_);
    }
    void multiply(T* out, const T* inp, int weight, int layer) {
        const DecodeLinear<T> by = linear(weight, layer);
        matmul_.forward(out, inp, by.weight, by.bias, length(), by.C, by.OC, stream_);
    }
    void enqueue_prompt() {
        const int N = length(), C = config_.channels;
        check(cudaMemcpyAsync(mem_.tokens, context_.data(), N * sizeof(int32_t), cudaMemcpyHostToDevice,
                              stream_));
        encoder_forward(mem_.residual, mem_.tokens, param(kWte), param(kWpe), 1, N, C, stream_);
        for (int l = 0; l < config_.num_layers; l++) {
            normalise(kLn1w, l, l > 0 ? mem_.proj : nullptr);
            multiply(mem_.qkv, mem_.normed, kQkvw, l);
            fill_cache(cache(l), mem_.qkv, N, stream_);
            attention_forward<T>({mem_.atty, mem_.lse, mem_.counters, mem_.qkv, 1, N, mem_.NH, mem_.HS},
                                 stream_);
            multiply(mem_.proj, mem_.atty, kAttprojw, l);
            normalise(kLn2w, l, mem_.proj);
            matmul_.forward_gelu(mem_.gelu, mem_.fch, mem_.normed, param(kFcw, l), param(kFcb, l), N, C,
                                 4 * C, stream_);
            multiply(mem_.proj, mem_.gelu, kFcprojw, l);
        }
        const int64_t last = (int64_t)(N - 1) * C;
        decode_residual(mem_.x, mem_.residual + last, mem_.proj + last, C, stream_);
        enqueue_logits();
    }

    GPT2Config config_;
    ParameterLayout layout_{config_};
    DeviceMemory block_;
    DecoderMemory<T> mem_;
    Stream stream_;
    Matmul matmul_;
    PinnedMemory<DecodeStep> given_{1};
    PinnedMemory<float> logits_;
    std::unique_ptr<Recording> step_;
    std::vector<int32_t> context_;
};

}  // namespace

std::unique_ptr<Decoder> make_gpu_decoder(const ModelSource& source, bool bf16) {
    const GPT2Config& c = source.config();
    const int HS = c.channels / c.num_heads;
    if (HS > kMaxHeadSize || c.channels > kMostDecodeC) {
        throw Error(kExitUsage,
                    "{}: {} channels in heads of {}: the GPU's kernels have room for {} in heads of {}. "
                    "./train_gpt2 generate uses the CPU.",
                    source.path(), c.channels, HS, kMostDecodeC, kMaxHeadSize);
    }
    if (bf16) { return std::make_unique<GpuDecoder<__nv_bfloat16>>(source); }
    return std::make_unique<GpuDecoder<float>>(source);
}

}  // namespace llmc
