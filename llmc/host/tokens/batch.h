// What a model is fed: rows of tokens and what follows each of them.
#pragma once
#include <cstdint>
#include <vector>

namespace llmc {

constexpr int32_t kIgnoreTarget = -1;  // a target that is not predicted: no loss, no gradient

struct Batch {
    int B = 0, T = 0;
    std::vector<int32_t> tokens, targets;  // (B,T) each; targets may be kIgnoreTarget
};

}  // namespace llmc
