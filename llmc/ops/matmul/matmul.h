// Matrix products through cuBLASLt, and the choice of their algorithms.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llmc/cuda/types.h"

namespace llmc {

// ---- The algorithms that ./train_gpt2cu --tune-gemm FILE found fastest for a model's matrix products, and the rule by which one
// is chosen. FILE is JSON: the machine, and for each kind of product cuBLASLt's own 64 bytes, which only the same version of
// it understands.

// D (m x n) = epilogue(op(A) (m x k) op(B) (k x n)) + beta D, all packed, by columns. Types and epilogue are cuBLASLt's numbers.
struct MatmulKind {
    bool transpose_a = false, transpose_b = false;
    int64_t m = 0, n = 0, k = 0;
    int64_t inputs = 0, output = 0, epilogue = 0;
    bool accumulate = false;  // beta = 1
    auto operator<=>(const MatmulKind&) const = default;
};

struct MatmulChoice {
    MatmulKind kind;
    std::array<uint64_t, 8> algorithm{};  // cublasLtMatmulAlgo_t
    double first_ms = 0, ms = 0;  // median, within a step: of cuBLASLt's first proposal, and of the choice
    int64_t proposals = 0;        // how many algorithms were timed, variants of proposals included
    bool same_bits = false;       // as the first proposal's
};

struct MatmulChoices {
    std::string gpu;
    int64_t multiprocessors = 0, cublaslt = 0;  // cublasLtGetVersion()
    bool tf32 = false;
    std::vector<MatmulChoice> choices;
};

std::string to_json(const MatmulChoices& choices);

// what: the file, for messages. Throws Error(kExitBadInput) naming the field.
MatmulChoices parse_matmul_choices(const std::string& text, const std::string& what);
MatmulChoices read_matmul_choices(const std::string& path);

// Throws Error(kExitBadInput) where `found`, of the file `what`, was searched on another GPU, with another cuBLASLt, or for
// other products of fp32, than `here` says.
void require_same_machine(const MatmulChoices& found, const MatmulChoices& here, const std::string& what);

// Which proposal to take: the fastest of those that give the first one's bits, unless another takes over 2 % less time.
// ms: of each, above 0; same_bits: likewise, true for the first
inline size_t fastest_proposal(std::span<const double> ms, std::span<const bool> same_bits) {
    constexpr double kWorthOtherBits = 0.98;  // of the time
    size_t same = 0, any = 0;
    for (size_t i = 1; i < ms.size(); i++) {
        if (ms[i] < ms[any]) { any = i; }
        if (same_bits[i] && ms[i] < ms[same]) { same = i; }
    }
    return ms[any] < kWorthOtherBits * ms[same] ? any : same;
}

// ---- the products, with the epilogues that cuBLASLt has; what it lacks is done by a kernel behind it.
//   T: float or __nv_bfloat16, sums in fp32;  Grad: float or T
// fp32 is computed in fp32 unless tf32 is asked for. The first call with new sizes chooses an algorithm and
// keeps it; the choice depends on the sizes, and on what use() was given, alone: the same sizes give the same bits.

class Matmul {
public:
    static constexpr size_t kWorkspace = 64 << 20;  // bytes
    static constexpr size_t kSmallWorkspace = 256, kSmallWorkspaces = 1024;

    // workspace: kWorkspace bytes of device memory, 256-byte aligned, that outlive this; used by one stream.
    // small: kSmallWorkspaces * kSmallWorkspace bytes likewise, or null. A product on that stream that needs at most
    // kSmallWorkspace bytes takes the next place in turn, so that between two that share one lie kSmallWorkspaces - 1 others:
    // fill_first() (cuda/graph.cuh) relies on it.
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

}  // namespace llmc
