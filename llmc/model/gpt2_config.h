// GPT-2's configuration and its one table of parameters: the 16 tensors, their shapes, their two
// orders, their first values.
//   file order (20240326, also the key of random numbers): tensor by tensor, each for all layers
//   memory order: block-major: wte, wpe, block 0 (12 tensors), block 1, ..., lnf; each tensor 256-byte
//   aligned, so that a block's gradients are one contiguous range
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "llmc/host/base/error.h"
#include "llmc/host/base/philox.h"

namespace llmc {

struct GPT2Config {
    int max_seq_len = 1024;
    int vocab_size = 50257;
    int padded_vocab_size = 50304;  // rows of wte; those past vocab_size stay zero
    int num_layers = 12;
    int num_heads = 12;
    int channels = 768;

    bool operator==(const GPT2Config&) const = default;
};

// the vocabulary rounded up to whole 64-row tiles: 50,257 -> 50,304
constexpr int padded_vocab(int vocab_size) { return (vocab_size + 63) / 64 * 64; }

// how a tensor is initialised: N(0, 0.02), the same over sqrt(2 L) for what writes the residual stream, 0, 1
enum class Init { kNormal, kResidual, kZero, kOne };

enum Tensor {
    kWte,
    kWpe,
    kLn1w,
    kLn1b,
    kQkvw,
    kQkvb,
    kAttprojw,
    kAttprojb,
    kLn2w,
    kLn2b,
    kFcw,
    kFcb,
    kFcprojw,
    kFcprojb,
    kLnfw,
    kLnfb,
    kNumTensors
};

struct TensorInfo {
    const char* name;
    Init init;
    bool per_layer;  // one for each layer
    bool matrix;     // 2-D: weight decay applies
    // elements (of one layer) = rows x cols
    int (*rows)(const GPT2Config&);
    int (*cols)(const GPT2Config&);
};

namespace table {
template <int n>
constexpr int channels(const GPT2Config& c) {
    return n * c.channels;
}
constexpr int one(const GPT2Config&) { return 1; }
constexpr int positions(const GPT2Config& c) { return c.max_seq_len; }
constexpr int padded_vocab_rows(const GPT2Config& c) { return c.padded_vocab_size; }
}  // namespace table

inline constexpr std::array<TensorInfo, kNumTensors> kTensors = {{
    {"wte", Init::kNormal, false, true, table::padded_vocab_rows, table::channels<1>},
    {"wpe", Init::kNormal, false, true, table::positions, table::channels<1>},
    {"ln1w", Init::kOne, true, false, table::one, table::channels<1>},
    {"ln1b", Init::kZero, true, false, table::one, table::channels<1>},
    {"qkvw", Init::kNormal, true, true, table::channels<3>, table::channels<1>},
    {"qkvb", Init::kZero, true, false, table::one, table::channels<3>},
    {"attprojw", Init::kResidual, true, true, table::channels<1>, table::channels<1>},
    {"attprojb", Init::kZero, true, false, table::one, table::channels<1>},
    {"ln2w", Init::kOne, true, false, table::one, table::channels<1>},
    {"ln2b", Init::kZero, true, false, table::one, table::channels<1>},
    {"fcw", Init::kNormal, true, true, table::channels<4>, table::channels<1>},
    {"fcb", Init::kZero, true, false, table::one, table::channels<4>},
    {"fcprojw", Init::kResidual, true, true, table::channels<1>, table::channels<4>},
    {"fcprojb", Init::kZero, true, false, table::one, table::channels<1>},
    {"lnfw", Init::kOne, false, false, table::one, table::channels<1>},
    {"lnfb", Init::kZero, false, false, table::one, table::channels<1>},
}};

// The weights of a block's linear layers, which --optimizer muon takes care of.
constexpr bool is_block_matrix(int tensor) { return kTensors[tensor].per_layer && kTensors[tensor].matrix; }

// A layer's copy of such a weight: `count` matrices (rows, cols), one below the other. q, k and v are three:
// each is a map of its own, and as their gradients differ in size, the largest would decide for all in one matrix.
struct BlockMatrices {
    int count, rows, cols;
    int shorter() const { return std::min(rows, cols); }
    int longer() const { return std::max(rows, cols); }
    // multiplications of one of Muon's iterations
    double work() const { return (double)count * shorter() * shorter() * (shorter() + 2.0 * longer()); }
};
inline BlockMatrices block_matrices(const GPT2Config& c, int tensor) {
    const int count = tensor == kQkvw ? 3 : 1;
    return {count, kTensors[tensor].rows(c) / count, kTensors[tensor].cols(c)};
}

// elements of one layer's copy of a tensor, and of all of its copies
inline int64_t tensor_size(const GPT2Config& c, int tensor) {
    return (int64_t)kTensors[tensor].rows(c) * kTensors[tensor].cols(c);
}
inline int64_t tensor_copies(const GPT2Config& c, int tensor) {
    return kTensors[tensor].per_layer ? c.num_layers : 1;
}
inline int64_t tensor_total(const GPT2Config& c, int tensor) {
    return tensor_size(c, tensor) * tensor_copies(c, tensor);
}

// parameters without the padding rows of wte; with them, the elements of a model file's body
inline int64_t file_elements(const GPT2Config& c) {
    int64_t n = 0;
    for (int t = 0; t < kNumTensors; t++) { n += tensor_total(c, t); }
    return n;
}
inline int64_t num_parameters(const GPT2Config& c) {
    return file_elements(c) - (int64_t)(c.padded_vocab_size - c.vocab_size) * c.channels;
}

// Where Dropout's places are: before which layernorm, by its weight. In front of the first there are the embeddings, of the
// others what attention's projection or fcproj adds to the residual stream.
inline uint32_t dropout_place(const GPT2Config& c, int layernorm, int layer) {
    return (uint32_t)(layernorm == kLnfw ? 2 * c.num_layers : 2 * layer + (layernorm == kLn2w));
}

// Where each tensor lies in memory, in elements of 4 bytes (offsets are multiples of 64 elements, 256 bytes).
class ParameterLayout {
public:
    // block_matrices = false: of what only the other tensors have, such as AdamW's second moments beside Muon
    explicit ParameterLayout(const GPT2Config& c, bool block_matrices = true)
        : block_matrices_(block_matrices) {
        for (int t = 0; t < kNumTensors; t++) {
            if (t == kLnfw) {  // behind all blocks, of which the first is placed
                block_ = size_ - first_[kLn1w];
                size_ += block_ * (c.num_layers - 1);
            }
            first_[t] = size_;
            size_ += holds(t) ? align(tensor_size(c, t)) : 0;
        }
    }
    bool holds(int tensor) const { return block_matrices_ || !is_block_matrix(tensor); }
    int64_t size() const { return size_; }         // elements of the whole arena, padding included
    int64_t block_size() const { return block_; }  // elements of one block
    int64_t offset(int tensor, int layer = 0) const { return first_[tensor] + layer * block_; }

private:
    static int64_t align(int64_t n) { return (n + 63) / 64 * 64; }
    bool block_matrices_;
    std::array<int64_t, kNumTensors> first_{};
    int64_t block_ = 0, size_ = 0;
};

// Visits the contiguous pieces (one a layer) that `count` values of a tensor, from `first` on in file order,
// have in memory: visit(offset in memory, offset in the range, values).
template <typename Visit>
void for_each_piece(const GPT2Config& c, const ParameterLayout& layout, int tensor, int64_t first,
                    int64_t count, Visit visit) {
    require(layout.holds(tensor), "a second moment that --optimizer muon does not have");
    require(first >= 0 && count >= 0 && first <= tensor_total(c, tensor) - count,
            "range outside of the tensor");
    int64_t size = tensor_size(c, tensor);
    for (int64_t done = 0; done < count;) {
        int64_t layer = (first + done) / size, inside = (first + done) % size;
        int64_t n = std::min(count - done, size - inside);
        visit(layout.offset(tensor, (int)layer) + inside, done, n);
        done += n;
    }
}

// A new model's random parameters. Each depends on the seed, the tensor and its index in file order alone.

// values = those of a tensor from `first` on, in file order; the padding rows of wte are 0
inline void initial_values(const GPT2Config& config, uint64_t seed, int tensor, int64_t first,
                           std::span<float> values) {
    int64_t real =
        tensor == kWte ? (int64_t)config.vocab_size * config.channels : tensor_total(config, tensor);
    Init init = kTensors[tensor].init;
    double sigma = init == Init::kResidual ? 0.02 / std::sqrt(2.0 * config.num_layers) : 0.02;
    bool random = init == Init::kNormal || init == Init::kResidual;
#pragma omp parallel for
    for (int64_t k = 0; k < (int64_t)values.size(); k++) {
        int64_t i = first + k;
        double x = random ? sigma * random_normal(seed, RandomUse::kInit, tensor, 0, i) : 0.0;
        values[k] = init == Init::kOne ? 1.0f : (i < real ? (float)x : 0.0f);
    }
}

}  // namespace llmc
