// The CPU reference of Muon, as plainly as it can be written; the rule is in llmc/ops/muon/muon_rule.h. Real is
// float or double, every sum is made in double.
#pragma once
#include <cstdint>
#include <vector>

#include "llmc/model/cpu/reference.h"
#include "llmc/ops/muon/muon_rule.h"

namespace llmc {

// out (n,m) = inp (m,n) transposed
template <typename Real>
void transpose_cpu(Real* out, const Real* inp, int m, int n) {
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) { out[(int64_t)j * m + i] = inp[(int64_t)i * n + j]; }
    }
}

// x (rows,cols), whose norm is 1 at most, in place: five Newton-Schulz iterations
template <typename Real>
void newton_schulz_steps_cpu(Real* x, int rows, int cols) {
    const int64_t n = (int64_t)rows * cols;
    if (rows > cols) {  // x x^T is the smaller for the transpose
        std::vector<Real> wide((size_t)n);
        transpose_cpu(wide.data(), x, rows, cols);
        newton_schulz_steps_cpu(wide.data(), cols, rows);
        return transpose_cpu(x, wide.data(), cols, rows);
    }
    const int64_t square = (int64_t)rows * rows;
    std::vector<Real> a((size_t)square), b((size_t)square), xt((size_t)n), bx((size_t)n);
    for (int step = 0; step < kNewtonSchulzSteps; step++) {
        matmul_forward_cpu(a.data(), x, x, (const Real*)nullptr, rows, cols, rows);  // x x^T
        matmul_forward_cpu(b.data(), a.data(), a.data(), (const Real*)nullptr, rows, rows,
                           rows);  // its square
        for (int64_t i = 0; i < square; i++) { b[i] = (Real)(kNewtonSchulzB * a[i] + kNewtonSchulzC * b[i]); }
        transpose_cpu(xt.data(), x, rows, cols);
        matmul_forward_cpu(bx.data(), b.data(), xt.data(), (const Real*)nullptr, rows, rows, cols);
        for (int64_t i = 0; i < n; i++) { x[i] = (Real)(kNewtonSchulzA * x[i] + bx[i]); }
    }
}

// the same, behind a division by its Frobenius norm
template <typename Real>
void newton_schulz_cpu(Real* x, int rows, int cols) {
    const int64_t n = (int64_t)rows * cols;
    const double inverse = 1 / (global_norm_cpu(x, n) + kNewtonSchulzEps);
    for (int64_t i = 0; i < n; i++) { x[i] = (Real)(inverse * x[i]); }
    newton_schulz_steps_cpu(x, rows, cols);
}

struct MuonParams {
    double lr, weight_decay;
    double grad_scale;  // what the gradient is multiplied by first: clipping
};

// m = mu m + (1 - mu) g in place, with g = scale grad; u = mu m + (1 - mu) g: what the mean will be if the
// next gradient is like this one (Nesterov). All (n).
template <typename Real>
void muon_momentum_cpu(Real* u, Real* m, const Real* grad, int64_t n, double grad_scale) {
    const Real mu = (Real)kMuonMomentum, fresh = (Real)(1 - kMuonMomentum), scale = (Real)grad_scale;
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) {
        const Real g = scale * grad[i];
        m[i] = mu * m[i] + fresh * g;
        u[i] = mu * m[i] + fresh * g;
    }
}

// param (n) = keep param - step direction
template <typename Real>
void muon_step_cpu(Real* param, const Real* direction, int64_t n, double scale, const MuonParams& p) {
    const Real keep = (Real)(1 - p.lr * p.weight_decay), step = (Real)(p.lr * scale);
#pragma omp parallel for simd
    for (int64_t i = 0; i < n; i++) { param[i] = keep * param[i] - step * direction[i]; }
}

// One matrix (rows,cols): param and m are updated in place.
template <typename Real>
void muon_cpu(Real* param, Real* m, const Real* grad, int rows, int cols, const MuonParams& p) {
    const int64_t n = (int64_t)rows * cols;
    std::vector<Real> u((size_t)n);
    muon_momentum_cpu(u.data(), m, grad, n, p.grad_scale);
    newton_schulz_cpu(u.data(), rows, cols);
    muon_step_cpu(param, u.data(), n, muon_scale(rows, cols), p);
}

}  // namespace llmc
