// Newton-Schulz by cuBLASLt. It thinks in columns: a row-major (rows, cols) matrix is Y, cols x rows, to
// it; with `side` the shorter of both,
//   A = Y Y^T, or Y^T Y where Y has more rows than columns     side x side, as are A^2 and
//   B = b A + c A^2
//   Y = a Y + B Y, or a Y + Y B
// What is added goes in as cuBLASLt's C matrix, so that it is added in fp32 and rounded once, with the
// product.
#include "llmc/ops/muon/muon.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "llmc/ops/matmul/matmul.h"
#include "llmc/ops/matmul/plan.cuh"

namespace llmc {

using matmul::kDataType;
using matmul::Plan;
using matmul::Product;

struct NewtonSchulz::Impl {
    cublasLtHandle_t handle = nullptr;
    void* workspace;
    bool tf32;
    using Key = std::tuple<MatmulKind, int64_t, int64_t>;
    std::map<Key, Plan> plans;  // by kind, number of matrices and usual number

    // d = alpha a b + beta c, by the algorithm for the usual number of matrices
    void run(const Product& p, int usual, void* d, const void* a, const void* b, double alpha, double beta,
             const void* c, cudaStream_t stream) {
        auto [found, fresh] = plans.try_emplace({p.kind(), p.batch, usual}, handle, p, tf32);
        if (fresh && !choose(&found->second, p, usual)) {
            throw Error(kExitDevice,
                        fmt::format("cuBLASLt has no algorithm for {} and for {} products of m {}, "
                                    "n {}, k {}",
                                    usual, p.batch, p.m, p.n, p.k));
        }
        found->second.run(handle, d, a, b, (float)alpha, (float)beta, c, workspace, stream);
    }

    // A sum that is split has its parts in the workspace, whose size is another for another count.
    bool choose(Plan* plan, Product p, int usual) const {
        p.batch = usual;
        const auto proposals = Plan(handle, p, tf32).candidates(handle, 1, false);
        return !proposals.empty() && plan->choose(handle, proposals.front());
    }
};

NewtonSchulz::NewtonSchulz(void* workspace, bool tf32)
    : impl_(new Impl{.workspace = workspace, .tf32 = tf32, .plans = {}}) {
    matmul::check(cublasLtCreate(&impl_->handle));
}
NewtonSchulz::~NewtonSchulz() {
    impl_->plans.clear();
    if (impl_->handle != nullptr) { cublasLtDestroy(impl_->handle); }
}

int64_t NewtonSchulz::squares(int rows, int cols, int count) {
    const int64_t side = std::min(rows, cols);
    return 2 * count * muon_stride(side * side);
}

template <typename T>
void NewtonSchulz::run(T* out, T* x, T* squares, int rows, int cols, int count, int usual,
                       cudaStream_t stream) {
    static_assert(kNewtonSchulzSteps % 2 == 1, "the last step writes out");
    const bool tall = cols > rows;  // by columns
    const int64_t side = std::min(rows, cols), longer = std::max(rows, cols);
    T *a = squares, *b = a + count * muon_stride(side * side);
    Product gram{tall, !tall, side, side, longer, kDataType<T>, kDataType<T>};
    Product square{false, false, side, side, side, kDataType<T>, kDataType<T>};
    Product next{false, false, cols, rows, side, kDataType<T>, kDataType<T>};
    for (Product* p : {&gram, &square, &next}) { p->batch = count; }
    for (int step = 0; step < kNewtonSchulzSteps; step++) {
        impl_->run(gram, usual, a, x, x, 1, 0, a, stream);
        impl_->run(square, usual, b, a, a, kNewtonSchulzC, kNewtonSchulzB, a, stream);
        impl_->run(next, usual, out, tall ? x : b, tall ? b : x, 1, kNewtonSchulzA, x, stream);
        std::swap(out, x);
    }
}

template void NewtonSchulz::run(float*, float*, float*, int, int, int, int, cudaStream_t);
template void NewtonSchulz::run(__nv_bfloat16*, __nv_bfloat16*, __nv_bfloat16*, int, int, int, int,
                                cudaStream_t);

}  // namespace llmc
