// Matrix products through cuBLASLt, with the epilogues it has; what it lacks is done by a kernel behind it.
//   T: float or __nv_bfloat16, sums in fp32;  Grad: float or T
// fp32 is computed in fp32 unless tf32 is asked for. The first call with new sizes chooses an algorithm and
// keeps it; the choice depends on the sizes, and on what use() was given, alone: the same sizes give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "llmc/cuda/stream.h"
#include "llmc/ops/matmul/choices.h"

namespace llmc {

class Matmul {
public:
    static constexpr size_t kWorkspace = 64 << 20;  // bytes
    static constexpr size_t kSmallWorkspace = 256, kSmallWorkspaces = 1024;

    // workspace: kWorkspace bytes of device memory, 256-byte aligned, that outlive this; used by one stream.
    // small: kSmallWorkspaces * kSmallWorkspace bytes likewise, or null. A product on that stream that needs at most
    // kSmallWorkspace bytes takes the next place in turn, so that between two that share one lie kSmallWorkspaces - 1 others:
    // fill_first() (graph_fills.cuh) relies on it.
    Matmul(void* workspace, bool tf32, void* small = nullptr);
    void also_on(cudaStream_t stream, void* workspace);  // a second one, with its own workspace
    int64_t small_products() const;                      // how many have taken such a place
    ~Matmul();
    Matmul(const Matmul&) = delete;

    // out (N,OC) = inp (N,C) weight (OC,C)^T + bias (OC) or null
    template <typename T>
    void forward(T* out, const T* inp, const T* weight, const T* bias, int64_t N, int C, int OC,
                 cudaStream_t stream);

    // pre (N,OC) = inp weight^T + bias; out (N,OC) = gelu(the same sum)
    template <typename T>
    void forward_gelu(T* out, T* pre, const T* inp, const T* weight, const T* bias, int64_t N, int C, int OC,
                      cudaStream_t stream);

    // dinp (N,C) = dout (N,OC) weight (OC,C)
    template <typename T>
    void backward_input(T* dinp, const T* dout, const T* weight, int64_t N, int C, int OC,
                        cudaStream_t stream);

    // dinp (N,C) = gelu'(pre (N,C)) * (dout weight)
    template <typename T>
    void backward_input_gelu(T* dinp, const T* dout, const T* weight, const T* pre, int64_t N, int C, int OC,
                             cudaStream_t stream);

    // dweight (OC,C) = dout^T inp; += with accumulate, where the product may be rounded to Grad before it is
    // added
    template <typename T, typename Grad>
    void backward_weight(Grad* dweight, const T* dout, const T* inp, int64_t N, int C, int OC,
                         bool accumulate, cudaStream_t stream);

    // For kinds of product that it names, these algorithms, found on a machine like machine(). Before the first product.
    // what: the file that they are of, for messages.
    void use(const MatmulChoices& choices, const std::string& what);
    MatmulChoices machine() const;  // without choices

    // The search for the fastest algorithms. From begin_search() on a product is computed by one of cuBLASLt's after
    // the other; results are right, but for the first call of each kind with accumulate. A pass is a forward and a backward
    // pass; next_pass() waits for its end and is false after the last. end_search() gives what was found.
    void begin_search();
    bool next_pass(cudaStream_t stream);
    MatmulChoices end_search();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// every row of out (N,OC) = bias (OC)
template <typename T>
void bias_forward(T* out, const T* bias, int64_t N, int OC, cudaStream_t stream);

size_t bias_backward_scratch(int OC);  // bytes; no initialisation needed

// dbias (OC) = column sums of dout (N,OC) in fp32, in a fixed order; += with accumulate
template <typename T, typename Grad>
void bias_backward(Grad* dbias, void* scratch, const T* dout, int64_t N, int OC, bool accumulate,
                   cudaStream_t stream);

}  // namespace llmc
