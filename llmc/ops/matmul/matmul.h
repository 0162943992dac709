// Matrix products through cuBLASLt, and the choice of their algorithms.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "llmc/cuda/types.h"
#include "llmc/ops/column_sums/bias.h"
#include "llmc/ops/gelu.h"

struct cublasLtContext;

namespace llmc {

namespace matmul {

// cuBLASLt's numbers
template <typename T>
constexpr int64_t kDataType = std::is_same_v<T, float> ? 0 : 14;
constexpr int64_t kE4m3 = 28, kE5m2 = 29;
enum Epilogue : int64_t { kNone = 1, kBias = 4, kGeluAux = 160, kGeluAuxBias = 164, kDGelu = 192 };

// One kind of product: D (m x n) = epilogue(op(A) (m x k) op(B) (k x n)) + beta D, all packed, by columns.
struct Product {
    bool transpose_a = false, transpose_b = false;
    int64_t m = 0, n = 0, k = 0;
    int64_t inputs = 0, output = 0, epilogue = kNone;
    bool accumulate = false;  // beta = 1
    int64_t batch = 1;        // products at once; each matrix begins at a multiple of 64 elements
    int64_t usual =
        0;  // unless 0: the batch that cuBLASLt chooses the algorithm for, without splitting a sum
    int64_t second = 0;  // of FP8 inputs, which have scales: the type of B
    bool fast = false;   // FP8: sums lose bits, as the tensor cores add them up themselves
    auto operator<=>(const Product&) const = default;
};

class Plan;
class Search;

}  // namespace matmul

// A matrix in FP8, and in device memory, at a multiple of 16 bytes, what its numbers are to be multiplied with.
struct Fp8Matrix {
    const uint8_t* numbers;
    const float* inverse_scale;
};

// ---- The algorithms that ./train_gpt2cu --tune-gemm FILE found fastest for a model's matrix products, and the rule by which one
// is chosen. FILE is JSON: the machine, and for each kind of product cuBLASLt's own 64 bytes, which only the same version of
// it understands.

struct MatmulChoice {
    matmul::Product kind;
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

// ---- the products, with the epilogues that cuBLASLt has: what it does to a result before storing it. What it lacks is done by
// a kernel behind it. cuBLASLt thinks in columns: a row-major (rows, cols) tensor is a cols x rows matrix to it, so every product
// below is written transposed.
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
    ~Matmul();
    // a second one, with its own workspace
    void also_on(cudaStream_t stream, void* workspace) {
        second_stream_ = stream;
        second_workspace_ = workspace;
    }
    int64_t small_products() const { return turn_; }  // how many have taken such a place

    // out (N,OC) = inp (N,C) weight (OC,C)^T + bias (OC) or null. By columns: out (OC x N) = weight^T inp, where weight is
    // C x OC and inp C x N. Where rows are not whole 16-byte vectors cuBLASLt adds a bf16 bias to what it has already rounded;
    // there the bias goes into out first, and the product on top.
    template <typename T>
    void forward(T* out, const T* inp, const T* weight, const T* bias, int64_t N, int C, int OC,
                 cudaStream_t stream) {
        Product product{true, false, OC, N, C, kDataType<T>, kDataType<T>};
        if (bias != nullptr && sizeof(T) == 2 && !in_vectors(C, OC)) {
            bias_forward(out, bias, N, OC, stream);
            product.accumulate = true;
            bias = nullptr;
        }
        if (bias != nullptr) { product.epilogue = matmul::kBias; }
        run(product, out, weight, inp, stream, bias);
    }

    // pre (N,OC) = inp weight^T + bias; out (N,OC) = gelu(the same sum). The epilogue's GELU is exact enough for bf16 only, and
    // stores the pre-activation in rows of whole 16 bytes.
    template <typename T>
    void forward_gelu(T* out, T* pre, const T* inp, const T* weight, const T* bias, int64_t N, int C, int OC,
                      cudaStream_t stream) {
        auto epilogue = bias != nullptr ? matmul::kGeluAuxBias : matmul::kGeluAux;
        Product fused{true, false, OC, N, C, kDataType<T>, kDataType<T>, epilogue};
        if (sizeof(T) == 2 && OC % 8 == 0 && usable(fused)) {
            return run(fused, out, weight, inp, stream, bias, pre);
        }
        forward(pre, inp, weight, bias, N, C, OC, stream);
        gelu_forward(out, pre, N * OC, stream);
    }

    // dinp (N,C) = dout (N,OC) weight (OC,C). By columns: dinp (C x N) = weight dout, where weight is C x OC and dout OC x N.
    template <typename T>
    void backward_input(T* dinp, const T* dout, const T* weight, int64_t N, int C, int OC,
                        cudaStream_t stream) {
        run({false, false, C, N, OC, kDataType<T>, kDataType<T>}, dinp, weight, dout, stream);
    }

    // dinp (N,C) = gelu'(pre (N,C)) * (dout weight)
    template <typename T>
    void backward_input_gelu(T* dinp, const T* dout, const T* weight, const T* pre, int64_t N, int C, int OC,
                             cudaStream_t stream) {
        Product fused{false, false, C, N, OC, kDataType<T>, kDataType<T>, matmul::kDGelu};
        if (sizeof(T) == 2 && in_vectors(C, OC) && usable(fused)) {
            return run(fused, dinp, weight, dout, stream, nullptr, pre);
        }
        backward_input(dinp, dout, weight, N, C, OC, stream);
        gelu_backward(dinp, dinp, pre, N * C, stream);
    }

    // dweight (OC,C) = dout^T inp; += with accumulate, where the product may be rounded to Grad before it is added. By columns:
    // dweight (C x OC) = inp dout^T, where inp is C x N and dout OC x N.
    template <typename T, typename Grad>
    void backward_weight(Grad* dweight, const T* dout, const T* inp, int64_t N, int C, int OC,
                         bool accumulate, cudaStream_t stream) {
        Product product{false, true, C, OC, N, kDataType<T>, kDataType<Grad>};
        product.accumulate = accumulate;
        run(product, dweight, inp, dout, stream);
    }

    // The same three products of FP8 matrices, which Hopper's tensor cores read only with the dimension that is summed over
    // last: backward needs transposes. inp, weight: e4m3; dout: e5m2. Sizes are multiples of 16. The gradient of a weight
    // sums over N, too long for what fast sums lose.
    template <typename T>
    void forward(T* out, Fp8Matrix inp, Fp8Matrix weight, const T* bias, int64_t N, int C, int OC,
                 cudaStream_t stream) {
        Product product{true, false, OC, N, C, matmul::kE4m3, kDataType<T>};
        product.second = matmul::kE4m3, product.fast = true;
        if (bias != nullptr) { product.epilogue = matmul::kBias; }
        run(product, out, weight, inp, stream, bias);
    }
    // weight_t (C,OC)
    template <typename T>
    void backward_input(T* dinp, Fp8Matrix dout, Fp8Matrix weight_t, int64_t N, int C, int OC,
                        cudaStream_t stream) {
        Product product{true, false, C, N, OC, matmul::kE4m3, kDataType<T>};
        product.second = matmul::kE5m2, product.fast = true;
        run(product, dinp, weight_t, dout, stream);
    }
    // dout_t (OC,N), inp_t (C,N)
    template <typename Grad>
    void backward_weight(Grad* dweight, Fp8Matrix dout_t, Fp8Matrix inp_t, int64_t N, int C, int OC,
                         bool accumulate, cudaStream_t stream) {
        Product product{true, false, C, OC, N, matmul::kE4m3, kDataType<Grad>};
        product.second = matmul::kE5m2, product.accumulate = accumulate;
        run(product, dweight, inp_t, dout_t, stream);
    }

    // any product: d = epilogue(alpha op(a) op(b)) + beta c; c is as d, and may be d. bias, aux: the epilogue's
    void run(const matmul::Product& product, void* d, const void* a, const void* b, double alpha, double beta,
             const void* c, cudaStream_t stream, const void* bias = nullptr, const void* aux = nullptr);

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
    using Product = matmul::Product;
    template <typename T>
    static constexpr auto kDataType = matmul::kDataType<T>;

    // are bf16 rows of C and of OC elements whole 16-byte vectors?
    static bool in_vectors(int C, int OC) { return C % 8 == 0 && OC % 8 == 0; }
    matmul::Plan& plan(const Product& product);
    bool usable(const Product& product);
    void run(const Product& p, void* d, const void* a, const void* b, cudaStream_t stream,
             const void* bias = nullptr, const void* aux = nullptr) {
        run(p, d, a, b, 1, p.accumulate ? 1 : 0, d, stream, bias, aux);
    }
    void run(const Product& p, void* d, Fp8Matrix a, Fp8Matrix b, cudaStream_t stream,
             const void* bias = nullptr);

    cublasLtContext* handle_ = nullptr;
    void* workspace_;
    bool tf32_;
    char* small_;
    int64_t turn_ = 0;  // of the small workspaces
    cudaStream_t second_stream_ = nullptr;
    void* second_workspace_ = nullptr;
    std::map<Product, std::unique_ptr<matmul::Plan>> plans_;
    std::map<Product, std::array<uint64_t, 8>> chosen_;  // by use()
    std::string chosen_in_;
    std::unique_ptr<matmul::Search> search_;
};

}  // namespace llmc
