// What of Matmul does not depend on a type: its plans, which workspace a product takes, and the search.
#include "llmc/ops/matmul/matmul.h"

#include "llmc/cuda/device_facts.cuh"
#include "llmc/ops/matmul/plan.cuh"
#include "llmc/ops/matmul/search.cuh"

namespace llmc {

Matmul::Matmul(void* workspace, bool tf32, void* small)
    : workspace_(workspace), tf32_(tf32), small_((char*)small) {
    matmul::check(cublasLtCreate(&handle_));
}
Matmul::~Matmul() {
    plans_.clear();
    cublasLtDestroy(handle_);
}

matmul::Plan& Matmul::plan(const Product& product) {
    std::unique_ptr<matmul::Plan>& plan = plans_[product];
    if (plan) { return *plan; }
    plan = std::make_unique<matmul::Plan>(handle_, product, tf32_);
    auto choice = chosen_.find(product);
    if (choice != chosen_.end() &&
        !plan->choose(handle_, {{.algo = std::bit_cast<cublasLtMatmulAlgo_t>(choice->second)}})) {
        throw Error(kExitBadInput,
                    "{}: this cuBLASLt does not take the algorithm for m {}, n {}, k {}. Delete the file: "
                    "--tune-gemm searches again.",
                    chosen_in_, product.m, product.n, product.k);
    }
    return *plan;
}

bool Matmul::usable(const Product& product) { return plan(product).usable(); }

void Matmul::run(const Product& p, void* d, const void* a, const void* b, double alpha, double beta,
                 const void* c, cudaStream_t stream, const void* bias, const void* aux) {
    matmul::Plan& way = plan(p);
    if (!way.usable()) {
        std::string what =
            p.usual == 0 ? "a product" : fmt::format("{} and for {} products", p.usual, p.batch);
        throw Error(kExitDevice, "cuBLASLt has no algorithm for {} of m {}, n {}, k {}", what, p.m, p.n, p.k);
    }
    if (bias != nullptr) { way.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }
    if (aux != nullptr) { way.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux); }
    if (search_) { return search_->run(handle_, p, way, d, a, b, workspace_, stream); }
    const bool second = second_workspace_ != nullptr && stream == second_stream_;
    void* workspace = second ? second_workspace_ : workspace_;
    size_t bytes = kWorkspace, needs = way.workspace_bytes();
    if (small_ != nullptr && !second && needs > 0 && needs <= kSmallWorkspace) {
        workspace = small_ + kSmallWorkspace * (turn_++ % kSmallWorkspaces);
        bytes = kSmallWorkspace;
    }
    way.run(handle_, d, a, b, (float)alpha, (float)beta, c, workspace, stream, bytes);
}

void Matmul::run(const Product& p, void* d, Fp8Matrix a, Fp8Matrix b, cudaStream_t stream, const void* bias) {
    matmul::Plan& way = plan(p);
    way.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a.inverse_scale);
    way.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b.inverse_scale);
    run(p, d, a.numbers, b.numbers, stream, bias);
}

void Matmul::use(const MatmulChoices& choices, const std::string& what) {
    for (const MatmulChoice& choice : choices.choices) { chosen_[choice.kind] = choice.algorithm; }
    chosen_in_ = what;
}

MatmulChoices Matmul::machine() const {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, current_device()));
    return {properties.name, properties.multiProcessorCount, (int64_t)cublasLtGetVersion(), tf32_, {}};
}

void Matmul::begin_search() { search_ = std::make_unique<matmul::Search>(); }

bool Matmul::next_pass(cudaStream_t stream) {
    check(cudaStreamSynchronize(stream));
    return search_->next_pass();
}

MatmulChoices Matmul::end_search() {
    MatmulChoices found = machine();
    found.choices = search_->choices();
    search_.reset();
    plans_.clear();  // each holds the proposal that had its turn last
    return found;
}

}  // namespace llmc
