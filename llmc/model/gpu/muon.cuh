// Muon's update of a model's tensors on the GPU, in pieces for which there is room. Everything is queued on one stream.
#pragma once
#include <algorithm>
#include <span>

#include "llmc/cuda/resources.cuh"
#include "llmc/model/gpt2_config.h"
#include "llmc/ops/muon/newton_schulz.h"

namespace llmc {

template <typename T>
class GPT2Muon {
public:
    // room: `bytes` of device memory that an optimizer step may overwrite; workspace: cuBLASLt's
    GPT2Muon(const GPT2Config& c, void* room, int64_t bytes, void* workspace, bool tf32)
        : config_(c), room_(room), bytes_(bytes), products_(workspace, tf32) {}

    // bytes of a layer's copy of the largest tensor: less is not enough
    static int64_t least_room(const GPT2Config& c) {
        const MuonCopy one{};
        int64_t most = 0;
        for (int t = 0; t < kNumTensors; t++) {
            if (is_block_matrix(t)) {
                most = std::max(most, Piece{Arena(), shape_of(c, t, {&one, 1})}.bytes);
            }
        }
        return most;
    }

    // of a block's matrices, in the layers that this rank takes care of; copies: in device memory; low: null in fp32
    template <typename Grad>
    void update(T* param, uint16_t* low, float* m, const Grad* grad, int tensor,
                std::span<const MuonCopy> copies, const StepDecision* decision, const StepInputs* inputs,
                uint64_t seed, cudaStream_t stream) {
        const int64_t each = Piece{Arena(), shape_of(config_, tensor, copies.first(1))}.bytes;
        const auto at_once = (size_t)std::max<int64_t>(bytes_ / each, 1);
        const int usual = block_matrices(config_, tensor).count * config_.num_layers;
        for (size_t first = 0; first < copies.size(); first += at_once) {
            const MuonTensor shape =
                shape_of(config_, tensor, copies.subspan(first, std::min(at_once, copies.size() - first)));
            const Piece piece{Arena(room_), shape};
            muon_direction(piece.x, piece.norms, m, grad, shape, decision, stream);
            newton_schulz(products_, piece.out, piece.x, piece.squares, shape.rows, shape.cols, shape.count(),
                          usual, stream);
            muon_update(param, low, piece.out, shape, decision, inputs, seed, stream);
        }
    }

private:
    // what some copies of a tensor take
    struct Piece {
        Arena arena;
        MuonTensor shape;
        int64_t n = shape.count() * muon_stride(shape.size());
        T *x = arena.take<T>(n), *out = arena.take<T>(n);
        T* squares = arena.take<T>(newton_schulz_squares(shape.rows, shape.cols, shape.count()));
        void* norms = arena.take<char>((int64_t)muon_scratch(shape.count()));
        int64_t bytes = arena.used();
    };

    static MuonTensor shape_of(const GPT2Config& c, int tensor, std::span<const MuonCopy> copies) {
        const auto [count, rows, cols] = block_matrices(c, tensor);
        return {tensor, rows, cols, count, copies.data(), (int)copies.size()};
    }

    GPT2Config config_;
    void* room_;
    int64_t bytes_;
    Matmul products_;
};

}  // namespace llmc
