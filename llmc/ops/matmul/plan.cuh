// One product of cuBLASLt: its objects there, and the algorithms that cuBLASLt proposes for it.
#pragma once
#include <cublasLt.h>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/ops/matmul/matmul.h"

namespace llmc::matmul {

inline void check(cublasStatus_t status, std::source_location at = std::source_location::current()) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    throw Error(kExitDevice, "{}:{}: cuBLASLt: {}", at.file_name(), at.line(),
                cublasLtGetStatusString(status));
}

static_assert(kDataType<float> == CUDA_R_32F && kDataType<__nv_bfloat16> == CUDA_R_16BF &&
              kE4m3 == CUDA_R_8F_E4M3 && kE5m2 == CUDA_R_8F_E5M2);
static_assert((int)kNone == CUBLASLT_EPILOGUE_DEFAULT && (int)kBias == CUBLASLT_EPILOGUE_BIAS &&
              (int)kGeluAux == CUBLASLT_EPILOGUE_GELU_AUX && (int)kDGelu == CUBLASLT_EPILOGUE_DGELU &&
              (int)kGeluAuxBias == CUBLASLT_EPILOGUE_GELU_AUX_BIAS);

// a way to compute a product; a struct with a name, as nvcc takes no vector of cuBLASLt's own
struct Candidate {
    cublasLtMatmulHeuristicResult_t result;
};

// cuBLASLt's objects for a product, and the algorithm chosen for it
class Plan {
public:
    // not usable() if cuBLASLt has no algorithm for the product
    Plan(cublasLtHandle_t handle, const Product& p, bool tf32) {
        bool single = p.inputs == CUDA_R_32F;
        auto compute = single && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
        check(cublasLtMatmulDescCreate(&operation_, compute, CUDA_R_32F));
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, (cublasLtEpilogue_t)p.epilogue);
        bool aux = p.epilogue == kGeluAux || p.epilogue == kGeluAuxBias || p.epilogue == kDGelu;
        if (aux) { set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.m); }
        if (p.fast) { set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, (int8_t)1); }
        int64_t lda = p.transpose_a ? p.k : p.m, ldb = p.transpose_b ? p.n : p.k;
        create(&a_, p.inputs, lda, p.transpose_a ? p.m : p.k, p.batch);
        create(&b_, p.second != 0 ? p.second : p.inputs, ldb, p.transpose_b ? p.k : p.n, p.batch);
        create(&d_, p.output, p.m, p.n, p.batch);
        if (p.usual == 0) {
            if (auto first = candidates(handle, 1); !first.empty()) { choose(first.front()); }
            return;
        }
        // A sum that is split has its parts in the workspace, whose size is another for another batch.
        Product usual = p;
        usual.batch = std::exchange(usual.usual, 0);
        auto first = Plan(handle, usual, tf32).candidates(handle, 1, false);
        if (!first.empty()) { choose(handle, first.front()); }
    }
    ~Plan() {
        for (auto layout : {a_, b_, d_}) { cublasLtMatrixLayoutDestroy(layout); }
        cublasLtMatmulDescDestroy(operation_);
    }
    Plan(const Plan&) = delete;

    bool usable() const { return choice_.has_value(); }
    size_t workspace_bytes() const { return choice_->workspaceSize; }  // that the algorithm needs
    template <typename Value>
    void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
        check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)));
    }
    void run(cublasLtHandle_t handle, void* d, const void* a, const void* b, bool accumulate, void* workspace,
             cudaStream_t stream) {
        run(handle, d, a, b, 1, accumulate ? 1 : 0, d, workspace, stream);
    }
    // d = epilogue(alpha op(a) op(b)) + beta c; c is as d, and may be d
    void run(cublasLtHandle_t handle, void* d, const void* a, const void* b, float alpha, float beta,
             const void* c, void* workspace, cudaStream_t stream,
             size_t workspace_bytes = Matmul::kWorkspace) {
        check(cublasLtMatmul(handle, operation_, &alpha, a, a_, b, b_, &beta, c, d_, d, d_, &choice_->algo,
                             workspace, workspace_bytes, stream));
    }

    // cuBLASLt's proposals, the one it takes for the fastest first. Where one splits a sum, the parts must be added in a fixed
    // order (not in place) and in fp32: parts rounded to bf16 would lose digits. split_sums: may it be split?
    std::vector<Candidate> candidates(cublasLtHandle_t handle, int most, bool split_sums = true) const {
        cublasLtMatmulPreference_t preference;
        check(cublasLtMatmulPreferenceCreate(&preference));
        auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)Matmul::kWorkspace);
        auto schemes = split_sums ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (uint32_t)schemes);
        for (auto pointer :
             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
            prefer(pointer, (uint32_t)16);
        }
        auto found = std::make_unique<cublasLtMatmulHeuristicResult_t[]>(most);
        int count = 0;
        auto status = cublasLtMatmulAlgoGetHeuristic(handle, operation_, a_, b_, d_, d_, preference, most,
                                                     found.get(), &count);
        cublasLtMatmulPreferenceDestroy(preference);
        std::vector<Candidate> good;
        for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; i++) {
            if (found[i].state == CUBLAS_STATUS_SUCCESS) { good.push_back({found[i]}); }
        }
        return good;
    }
    // one that was proposed for another product, or that a search has found; false if cuBLASLt does not take it for this one
    bool choose(cublasLtHandle_t handle, Candidate c) {
        auto status = cublasLtMatmulAlgoCheck(handle, operation_, a_, b_, d_, d_, &c.result.algo, &c.result);
        if (status != CUBLAS_STATUS_SUCCESS || c.result.workspaceSize > Matmul::kWorkspace) { return false; }
        choose(c);
        return true;
    }
    void choose(const Candidate& candidate) { choice_ = candidate.result; }

private:
    // a packed matrix by columns, or a batch of them
    static void create(cublasLtMatrixLayout_t* layout, int64_t type, int64_t rows, int64_t cols,
                       int64_t batch) {
        check(cublasLtMatrixLayoutCreate(layout, (cudaDataType_t)type, rows, cols, rows));
        if (batch == 1) { return; }
        auto set = [&](cublasLtMatrixLayoutAttribute_t attribute, auto value) {
            check(cublasLtMatrixLayoutSetAttribute(*layout, attribute, &value, sizeof(value)));
        };
        const int64_t stride = (rows * cols + 63) / 64 * 64;
        set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (int32_t)batch);
        set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
    }

    cublasLtMatmulDesc_t operation_ = nullptr;
    cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
    std::optional<cublasLtMatmulHeuristicResult_t> choice_;
};

}  // namespace llmc::matmul
