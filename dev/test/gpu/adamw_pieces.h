// The pieces in which adamw_update() takes a tensor whose arrays are all whole; second_stride: from one copy's second
// moments to the next one's.
#pragma once
#include <algorithm>
#include <vector>

#include "llmc/ops/adamw.h"

namespace llmc::gpu_test {

inline std::vector<AdamWPiece> adamw_pieces(const AdamWTensor& tensor, bool decays, int64_t second_stride) {
    std::vector<AdamWPiece> pieces;
    for (int copy = 0; copy < tensor.copies; copy++) {
        for (int64_t i = 0; i < tensor.size; i += kNormChunk) {
            const int64_t at = copy * tensor.stride + i, number = tensor.first + copy * tensor.size + i;
            const int64_t second = copy * second_stride + i;
            const auto size = (int32_t)std::min(kNormChunk, tensor.size - i);
            pieces.push_back({at, at, second, number, size, (int16_t)tensor.tensor, decays});
        }
    }
    return pieces;
}

}  // namespace llmc::gpu_test
