// With --fp8 the products of the blocks' four linear layers are of FP8 matrices: what they lie in, and the products.
// Activations and weights are in e4m3, gradients in e5m2. What is read for a gradient of a weight is there transposed, from the
// same read: of forward the input of each layer, but for GELU's output, which backward makes again.
#pragma once
#include <algorithm>
#include <array>
#include <vector>

#include "llmc/host/ranks/comm.h"
#include "llmc/layernorm/fp8/layernorm_fp8.h"
#include "llmc/model/model.h"
#include "llmc/ops/fp8.h"
#include "llmc/ops/fp8_scales.h"
#include "llmc/ops/matmul/matmul.h"

namespace llmc {

// a block's linear layers
constexpr std::array kFp8Weights = {kQkvw, kAttprojw, kFcw, kFcprojw};
constexpr int kFp8Linears = std::size(kFp8Weights);
constexpr int fp8_linear(int weight) {
    return (int)(std::ranges::find(kFp8Weights, weight) - kFp8Weights.begin());
}
// what a linear layer has in FP8: its input, its weight, the gradient of its output
enum class Fp8Role { kInput, kWeight, kGradient };

struct Fp8Memory {
    struct Layer {
        std::array<uint8_t*, kFp8Linears> input_t{};         // (C,N); of fcproj none
        std::array<uint8_t*, kFp8Linears> weight, weight_t;  // (OC,C), (C,OC)
    };
    int L = 0, rank = 0;
    std::vector<Layer> layers;
    Fp8Scales scales;
    // Of one layer, in turn: its input (N,4C), in backward GELU's output (4C,N); the gradient of its output (N,4C) and
    // (4C,N); and (C,N) of the residual stream's.
    uint8_t *input = nullptr, *gradient = nullptr, *gradient_t = nullptr, *dresidual_t = nullptr;

    Fp8Memory() = default;
    // with Recompute::kBlock layers keep nothing for backward, which computes it again
    template <typename Arena>
    Fp8Memory(const GPT2Config& c, int64_t N, const ModelSettings& s, Arena& arena)
        : L(c.num_layers), rank(s.comm != nullptr ? s.comm->rank() : 0) {
        const bool shared = s.recompute == Recompute::kBlock;
        auto take = [&](int64_t n) { return arena.template take<uint8_t>(n); };
        auto floats = [&](int64_t n) { return arena.template take<float>(n); };
        const int64_t C = c.channels, tensors = (int64_t)kFp8Linears * L;
        const int64_t n = 3 * tensors;
        scales = {n,
                  2 * tensors,
                  s.ranks,
                  floats(s.ranks * n),
                  floats(n * kFp8History),
                  floats(n),
                  floats(n * kFp8Inverse)};
        for (int l = 0; l < L; l++) {
            Layer& layer = layers.emplace_back();
            for (int i = 0; i < kFp8Linears; i++) {
                const TensorInfo& weight = kTensors[kFp8Weights[i]];
                const int64_t size = (int64_t)weight.rows(c) * weight.cols(c);
                if (kFp8Weights[i] != kFcprojw) {
                    layer.input_t[i] = shared && l > 0 ? layers[0].input_t[i] : take(N * C);
                }
                layer.weight[i] = take(size);
                layer.weight_t[i] = take(size);
            }
        }
        input = take(4 * N * C);
        gradient = take(4 * N * C);
        gradient_t = take(4 * N * C);
        dresidual_t = take(N * C);
    }

    // Scales where nothing is known yet: an input is mostly below 56, and a gradient of the loss's mean over these rows, times
    // them, below 112. What is larger is that for one step.
    void set_first_scales(int64_t rows, cudaStream_t stream) const {
        const float gradients = std::ldexp(512.0f, std::ilogb((float)rows));
        std::vector<float> first(scales.n, gradients), inverse(scales.n * kFp8Inverse);
        std::fill_n(first.begin(), scales.activations, 8.0f);
        for (size_t i = 0; i < first.size(); i++) { inverse[i * kFp8Inverse] = 1 / first[i]; }
        for (auto [to, from] : {std::pair{scales.scale, &first}, {scales.inverse, &inverse}}) {
            check(cudaMemcpyAsync(to, from->data(), from->size() * sizeof(float), cudaMemcpyHostToDevice,
                                  stream));
        }
        check(cudaStreamSynchronize(stream));  // they go
    }

    int64_t place(Fp8Role role, int weight, int l) const {
        return ((int64_t)role * L + l) * kFp8Linears + fp8_linear(weight);
    }
    const float* scale(Fp8Role role, int weight, int l) const {
        return scales.scale + place(role, weight, l);
    }
    float* amax(Fp8Role role, int weight, int l) const {
        return scales.amax + rank * scales.n + place(role, weight, l);
    }
    Fp8Matrix matrix(const uint8_t* numbers, Fp8Role role, int weight, int l) const {
        return {numbers, scales.inverse + place(role, weight, l) * kFp8Inverse};
    }
    // where a tensor is written; raise: its largest magnitude counts for the scales of the steps that follow
    Fp8Output output(uint8_t* rows, uint8_t* transposed, Fp8Role role, int weight, int l, bool raise) const {
        return {rows, transposed, scale(role, weight, l), raise ? amax(role, weight, l) : nullptr};
    }
};

}  // namespace llmc
