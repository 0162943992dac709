// The Newton-Schulz iterations of muon_rule.h through cuBLASLt, many matrices at once: a product of small
// matrices fills a part of the GPU only. Sums in fp32; a matrix's bits do not depend on how many are computed
// at once, so that they are the same in any number of ranks.
//   T: float or __nv_bfloat16
#pragma once
#include <cstdint>
#include <memory>

#include "llmc/cuda/stream.h"
#include "llmc/ops/muon/muon.h"

namespace llmc {

class NewtonSchulz {
public:
    // workspace: Matmul::kWorkspace bytes of device memory, 256-byte aligned, that outlive this; used by one
    // stream. tf32: of fp32 products.
    NewtonSchulz(void* workspace, bool tf32);
    ~NewtonSchulz();
    NewtonSchulz(const NewtonSchulz&) = delete;

    // elements that the squares of `count` matrices take
    static int64_t squares(int rows, int cols, int count);

    // From x (count, muon_stride(rows cols)), matrices of Frobenius norm 1 at most, to out, of the same
    // shape; x is overwritten. squares: as above. All 16-byte aligned, none may overlap. usual: the number of
    // matrices for which cuBLASLt chooses the algorithm, which all counts are then computed by.
    template <typename T>
    void run(T* out, T* x, T* squares, int rows, int cols, int count, int usual, cudaStream_t stream);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
