// Muon's Newton-Schulz iterations through cuBLASLt, many matrices at once: a product of small matrices fills a part of the GPU
// only. cuBLASLt thinks in columns: a row-major (rows, cols) matrix is Y, cols x rows, to it; with `side` the shorter of both,
//   A = Y Y^T, or Y^T Y where Y has more rows than columns     side x side, as are A^2 and
//   B = b A + c A^2
//   Y = a Y + B Y, or a Y + Y B
// What is added goes in as cuBLASLt's C matrix, so that it is added in fp32 and rounded once, with the
// product. Sums in fp32; a matrix's bits do not depend on how many are computed at once, so that they are the same in any
// number of ranks.
#pragma once
#include <algorithm>
#include <utility>

#include "llmc/ops/matmul/matmul.h"
#include "llmc/ops/muon/muon.h"

namespace llmc {

// elements that the squares of `count` matrices take
inline int64_t newton_schulz_squares(int rows, int cols, int count) {
    const int64_t side = std::min(rows, cols);
    return 2 * count * muon_stride(side * side);
}

// From x (count, muon_stride(rows cols)), matrices of Frobenius norm 1 at most, to out, of the same
// shape; x is overwritten. squares: as above. All 16-byte aligned, none may overlap. usual: the number of
// matrices for which cuBLASLt chooses the algorithm, which all counts are then computed by.
//   T: float or __nv_bfloat16
template <typename T>
void newton_schulz(Matmul& matmul, T* out, T* x, T* squares, int rows, int cols, int count, int usual,
                   cudaStream_t stream) {
    static_assert(kNewtonSchulzSteps % 2 == 1, "the last step writes out");
    const bool tall = cols > rows;  // by columns
    const int64_t side = std::min(rows, cols), longer = std::max(rows, cols);
    T *a = squares, *b = a + count * muon_stride(side * side);
    auto product = [&](bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k) {
        constexpr auto type = matmul::kDataType<T>;
        return matmul::Product{transpose_a, transpose_b,   m,     n,     k,    type,
                               type,        matmul::kNone, false, count, usual};
    };
    const auto gram = product(tall, !tall, side, side, longer),
               square = product(false, false, side, side, side),
               next = product(false, false, cols, rows, side);
    for (int step = 0; step < kNewtonSchulzSteps; step++) {
        matmul.run(gram, a, x, x, 1, 0, a, stream);
        matmul.run(square, b, a, a, kNewtonSchulzC, kNewtonSchulzB, a, stream);
        matmul.run(next, out, tall ? x : b, tall ? b : x, 1, kNewtonSchulzA, x, stream);
        std::swap(out, x);
    }
}

}  // namespace llmc
