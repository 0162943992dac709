// torch: as in PyTorch: one rule chooses between torch_vectorized and torch_rowwise.
// Why:    what a user of PyTorch gets for a given shape and pointer; why() says it in words.
// Moves:  whatever the chosen one moves.
// Result: 137.8 us, 36 % of the roof at 65536x768 bf16; 57 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <string>

#include "llmc/layernorm/ladder/forward/torch_rowwise.cuh"
#include "llmc/layernorm/ladder/forward/torch_vectorized.cuh"

namespace llmc::torch {

enum class Path { kVectorized, kRowwise, kRefused };

// by type, sizes and alignment alone; weight and bias may be null
template <typename T>
Path path(const T* out, const T* inp, const T* weight, const T* bias, int64_t N, int C) {
    if (N > INT32_MAX) { return Path::kRefused; }  // a block per row, and no grid has more
    if constexpr (sizeof(T) <= sizeof(float)) {
        if (torch_vectorized::takes(out, inp, weight, bias, C)) { return Path::kVectorized; }
    }
    return Path::kRowwise;
}

// the choice as a line to print
template <typename T>
std::string why(const T* out, const T* inp, const T* weight, const T* bias, int64_t N, int C) {
    switch (path(out, inp, weight, bias, N, C)) {
        case Path::kVectorized:
            return "vectorized: C is a multiple of 4, at most 2^24, pointers aligned";
        case Path::kRefused:
            return fmt::format("refused: {} rows, a grid has at most {} blocks", N, INT32_MAX);
        case Path::kRowwise:
            break;
    }
    const char* reason = C % torch_vectorized::kVector != 0 ? "C is not a multiple of 4"
                         : C > 1 << 24                      ? "C is above 2^24, which float does not count"
                         : sizeof(T) > sizeof(float)        ? "the type is double"
                                                            : "a pointer is not aligned to 4 elements";
    return fmt::format("row-wise moments, then results: {}", reason);
}

// the contract of torch_rowwise
template <typename T>
void layernorm_forward(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int = 0) {
    Path chosen = path(out, inp, weight, bias, N, C);
    require(chosen != Path::kRefused, "layernorm_forward torch: more rows than a grid has blocks");
    if constexpr (sizeof(T) <= sizeof(float)) {
        if (chosen == Path::kVectorized) {
            return torch_vectorized::layernorm_forward(out, mean, rstd, inp, weight, bias, N, C, eps, stream);
        }
    }
    torch_rowwise::layernorm_forward(out, mean, rstd, inp, weight, bias, N, C, eps, stream);
}

}  // namespace llmc::torch
