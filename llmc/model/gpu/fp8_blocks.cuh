// With --fp8 the products of the blocks' four linear layers are of FP8 matrices: what they lie in, and the products.
// Activations and weights are in e4m3, gradients in e5m2. What is read for a gradient of a weight is there transposed, from the
// same read: of forward the input of each layer, but for GELU's output, which backward makes again. No header of CUDA: what is
// taken is tested without one.
#pragma once
#include <array>
#include <vector>

#include "llmc/host/ranks/comm.h"
#include "llmc/layernorm/layernorm_fp8.h"
#include "llmc/model/fp8_tensors.h"
#include "llmc/model/model.h"
#include "llmc/ops/fp8.h"
#include "llmc/ops/matmul/matmul.h"

namespace llmc {

struct Fp8Memory {
    struct Layer {
        std::array<uint8_t*, kFp8Linears> input_t{};         // (C,N); of fcproj none
        std::array<uint8_t*, kFp8Linears> weight, weight_t;  // (OC,C), (C,OC)
    };
    GPT2Config config;
    int rank = 0;
    std::vector<Layer> layers;
    Fp8Scales scales;
    int64_t weight_bytes = 0;  // of weight and weight_t
    // Of one layer, in turn: its input (N,4C), in backward GELU's output (4C,N); the gradient of its output (N,4C) and
    // (4C,N); and (C,N) of the residual stream's.
    uint8_t *input = nullptr, *gradient = nullptr, *gradient_t = nullptr, *dresidual_t = nullptr;

    Fp8Memory() = default;
    // with Recompute::kBlock layers keep nothing for backward, which computes it again
    template <typename Arena>
    Fp8Memory(const GPT2Config& c, int64_t N, const ModelSettings& s, Arena& arena)
        : config(c), rank(s.comm != nullptr ? s.comm->rank() : 0) {
        const bool shared = s.recompute == Recompute::kBlock;
        auto take = [&](int64_t n) { return arena.template take<uint8_t>(n); };
        auto floats = [&](int64_t n) { return arena.template take<float>(n); };
        const int64_t C = c.channels, n = fp8_tensors(c);
        scales = {n,         fp8_gradients_from(c),  s.ranks, floats(s.ranks * n), floats(n * kFp8History),
                  floats(n), floats(n * kFp8Inverse)};
        for (int l = 0; l < c.num_layers; l++) {
            Layer& layer = layers.emplace_back();
            for (int i = 0; i < kFp8Linears; i++) {
                const TensorInfo& weight = kTensors[kFp8Weights[i]];
                const int64_t size = (int64_t)weight.rows(c) * weight.cols(c);
                if (kFp8Weights[i] != kFcprojw) {
                    layer.input_t[i] = shared && l > 0 ? layers[0].input_t[i] : take(N * C);
                }
                const int64_t before = arena.used();
                layer.weight[i] = take(size);
                layer.weight_t[i] = take(size);
                weight_bytes += arena.used() - before;
            }
        }
        input = take(4 * N * C);
        gradient = take(4 * N * C);
        gradient_t = take(4 * N * C);
        dresidual_t = take(N * C);
    }

    int64_t place(Fp8Role role, int weight, int l) const { return fp8_place(config, role, weight, l); }
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
