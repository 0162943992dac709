// Matrix products by cuBLASLt. It thinks in columns: a row-major (rows, cols) tensor is a cols x rows matrix
// to it, so every product below is written transposed. An epilogue is what it does to a result before storing
// it.
#include "llmc/ops/matmul/matmul.h"

#include <map>

#include "llmc/cuda/device_facts.cuh"
#include "llmc/ops/column_sums/bias.h"
#include "llmc/ops/gelu.h"
#include "llmc/ops/matmul/plan.cuh"
#include "llmc/ops/matmul/search.cuh"

namespace llmc {

using matmul::kDataType;
using matmul::Plan;
using matmul::Product;

namespace {

// are bf16 rows of C and of OC elements whole 16-byte vectors?
bool in_vectors(int C, int OC) { return C % 8 == 0 && OC % 8 == 0; }

}  // namespace

struct Matmul::Impl {
    cublasLtHandle_t handle = nullptr;
    void* workspace;
    bool tf32;
    char* small;
    int64_t turn = 0;  // of the small workspaces
    cudaStream_t second_stream = nullptr;
    void* second_workspace = nullptr;
    std::map<MatmulKind, Plan> plans;
    std::map<MatmulKind, std::array<uint64_t, 8>> chosen;  // by use()
    std::string chosen_in;
    std::unique_ptr<matmul::Search> search;

    Plan& plan(const Product& product) {
        const MatmulKind kind = product.kind();
        auto at = plans.find(kind);
        if (at != plans.end()) { return at->second; }
        Plan& plan = plans.try_emplace(kind, handle, product, tf32).first->second;
        auto choice = chosen.find(kind);
        if (choice != chosen.end() && !plan.choose(handle, choice->second)) {
            throw Error(kExitBadInput,
                        fmt::format("{}: this cuBLASLt does not take the algorithm for m {}, n {}, k {}. "
                                    "Delete the file: --tune-gemm searches again.",
                                    chosen_in, kind.m, kind.n, kind.k));
        }
        return plan;
    }
    void run(const Product& product, void* d, const void* a, const void* b, cudaStream_t stream,
             const void* bias = nullptr, const void* aux = nullptr) {
        Plan& way = plan(product);
        if (!way.usable()) {
            throw Error(kExitDevice,
                        fmt::format("cuBLASLt has no algorithm for a product of m {}, n {}, k {}", product.m,
                                    product.n, product.k));
        }
        if (bias != nullptr) { way.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }
        if (aux != nullptr) { way.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux); }
        if (search) { return search->run(handle, product.kind(), way, d, a, b, workspace, stream); }
        const bool second = second_workspace != nullptr && stream == second_stream;
        const size_t needs = way.workspace_bytes();
        if (small != nullptr && !second && needs > 0 && needs <= kSmallWorkspace) {
            void* mine = small + kSmallWorkspace * (turn++ % kSmallWorkspaces);
            return way.run(handle, d, a, b, product.accumulate, mine, stream, kSmallWorkspace);
        }
        way.run(handle, d, a, b, product.accumulate, second ? second_workspace : workspace, stream);
    }
};

Matmul::Matmul(void* workspace, bool tf32, void* small)
    : impl_(new Impl{.workspace = workspace, .tf32 = tf32, .small = (char*)small}) {
    matmul::check(cublasLtCreate(&impl_->handle));
}
Matmul::~Matmul() {
    impl_->plans.clear();
    if (impl_->handle != nullptr) { cublasLtDestroy(impl_->handle); }
}

void Matmul::also_on(cudaStream_t stream, void* workspace) {
    impl_->second_stream = stream;
    impl_->second_workspace = workspace;
}

int64_t Matmul::small_products() const { return impl_->turn; }

void Matmul::use(const MatmulChoices& choices, const std::string& what) {
    for (const MatmulChoice& choice : choices.choices) { impl_->chosen[choice.kind] = choice.algorithm; }
    impl_->chosen_in = what;
}

MatmulChoices Matmul::machine() const {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, current_device()));
    return {properties.name, properties.multiProcessorCount, (int64_t)cublasLtGetVersion(), impl_->tf32, {}};
}

void Matmul::begin_search() { impl_->search = std::make_unique<matmul::Search>(); }

bool Matmul::next_pass(cudaStream_t stream) {
    check(cudaStreamSynchronize(stream));
    return impl_->search->next_pass();
}

MatmulChoices Matmul::end_search() {
    MatmulChoices found = machine();
    found.choices = impl_->search->choices();
    impl_->search.reset();
    impl_->plans.clear();  // each holds the proposal that had its turn last
    return found;
}

// By columns: out (OC x N) = weight^T inp, where weight is C x OC and inp C x N. Where rows are not whole
// 16-byte vectors cuBLASLt adds a bf16 bias to what it has already rounded; there the bias goes into out
// first, and the product on top.
template <typename T>
void Matmul::forward(T* out, const T* inp, const T* weight, const T* bias, int64_t N, int C, int OC,
                     cudaStream_t stream) {
    Product product{true, false, OC, N, C, kDataType<T>, kDataType<T>};
    if (bias != nullptr && sizeof(T) == 2 && !in_vectors(C, OC)) {
        bias_forward(out, bias, N, OC, stream);
        product.accumulate = true;
        bias = nullptr;
    }
    if (bias != nullptr) { product.epilogue = CUBLASLT_EPILOGUE_BIAS; }
    impl_->run(product, out, weight, inp, stream, bias);
}

// The epilogue's GELU is exact enough for bf16 only.
template <typename T>
void Matmul::forward_gelu(T* out, T* pre, const T* inp, const T* weight, const T* bias, int64_t N, int C,
                          int OC, cudaStream_t stream) {
    auto epilogue = bias != nullptr ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    Product fused{true, false, OC, N, C, kDataType<T>, kDataType<T>, epilogue};
    if (sizeof(T) == 2 && OC % 8 == 0 &&
        impl_->plan(fused).usable()) {  // the pre-activation's rows: 16 bytes
        return impl_->run(fused, out, weight, inp, stream, bias, pre);
    }
    forward(pre, inp, weight, bias, N, C, OC, stream);
    gelu_forward(out, pre, N * OC, stream);
}

// by columns: dinp (C x N) = weight dout, where weight is C x OC and dout OC x N
template <typename T>
void Matmul::backward_input(T* dinp, const T* dout, const T* weight, int64_t N, int C, int OC,
                            cudaStream_t stream) {
    impl_->run({false, false, C, N, OC, kDataType<T>, kDataType<T>}, dinp, weight, dout, stream);
}

template <typename T>
void Matmul::backward_input_gelu(T* dinp, const T* dout, const T* weight, const T* pre, int64_t N, int C,
                                 int OC, cudaStream_t stream) {
    Product fused{false, false, C, N, OC, kDataType<T>, kDataType<T>, CUBLASLT_EPILOGUE_DGELU};
    if (sizeof(T) == 2 && in_vectors(C, OC) && impl_->plan(fused).usable()) {
        return impl_->run(fused, dinp, weight, dout, stream, nullptr, pre);
    }
    backward_input(dinp, dout, weight, N, C, OC, stream);
    gelu_backward(dinp, dinp, pre, N * C, stream);
}

// by columns: dweight (C x OC) = inp dout^T, where inp is C x N and dout OC x N
template <typename T, typename Grad>
void Matmul::backward_weight(Grad* dweight, const T* dout, const T* inp, int64_t N, int C, int OC,
                             bool accumulate, cudaStream_t stream) {
    Product product{false,     true, C, OC, N, kDataType<T>, kDataType<Grad>, CUBLASLT_EPILOGUE_DEFAULT,
                    accumulate};
    impl_->run(product, dweight, inp, dout, stream);
}

using bf16 = __nv_bfloat16;
template void Matmul::forward(float*, const float*, const float*, const float*, int64_t, int, int,
                              cudaStream_t);
template void Matmul::forward(bf16*, const bf16*, const bf16*, const bf16*, int64_t, int, int, cudaStream_t);
template void Matmul::forward_gelu(float*, float*, const float*, const float*, const float*, int64_t, int,
                                   int, cudaStream_t);
template void Matmul::forward_gelu(bf16*, bf16*, const bf16*, const bf16*, const bf16*, int64_t, int, int,
                                   cudaStream_t);
template void Matmul::backward_input(float*, const float*, const float*, int64_t, int, int, cudaStream_t);
template void Matmul::backward_input(bf16*, const bf16*, const bf16*, int64_t, int, int, cudaStream_t);
template void Matmul::backward_input_gelu(float*, const float*, const float*, const float*, int64_t, int, int,
                                          cudaStream_t);
template void Matmul::backward_input_gelu(bf16*, const bf16*, const bf16*, const bf16*, int64_t, int, int,
                                          cudaStream_t);
template void Matmul::backward_weight(float*, const float*, const float*, int64_t, int, int, bool,
                                      cudaStream_t);
template void Matmul::backward_weight(float*, const bf16*, const bf16*, int64_t, int, int, bool,
                                      cudaStream_t);
template void Matmul::backward_weight(bf16*, const bf16*, const bf16*, int64_t, int, int, bool, cudaStream_t);

}  // namespace llmc
