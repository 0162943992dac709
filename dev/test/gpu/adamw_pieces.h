// The pieces in which adamw_update() takes a tensor whose arrays are all whole; second_stride: from one copy's second
// moments to the next one's.
#pragma once
#include <algorithm>
#include <vector>

#include "llmc/ops/adamw.h"

namespace llmc::gpu_test {

// A tensor in all its copies (layers), which lie `stride` elements apart: `size` elements each.
struct CopiedTensor {
    int tensor;
    int64_t size;
    int copies;
    int64_t stride;  // any value if copies is 1
    int64_t first = 0;

    // act(part, at) for each copy, which begins at element `at`
    template <typename Act>
    void for_each_copy(const Act& act) const {
        for (int copy = 0; copy < copies; copy++) {
            act(AdamWTensor{tensor, size, first + copy * size}, copy * stride);
        }
    }
};

inline std::vector<AdamWPiece> adamw_pieces(const CopiedTensor& tensor, bool decays, int64_t second_stride) {
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
