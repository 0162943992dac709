// Muon's rule in numbers, for the CPU and the GPU. Of a weight matrix W (rows, cols), its gradient G and a
// mean M:
//   M = mu M + (1 - mu) G,   U = mu M + (1 - mu) G,   W = (1 - lr decay) W - lr scale orthogonal(U)
// orthogonal(U) is U with all of its singular values near 1: five Newton-Schulz iterations of an odd
// polynomial,
//   X = U / (||U||_F + eps), then five times X = (a + b X X^T + c (X X^T)^2) X.
// A singular value above 0.0016 of the norm ends between 0.68 and 1.21, and nothing but matrix products is
// needed. Jordan et al. 2024, https://kellerjordan.github.io/posts/muon. The scale makes the update's
// elements as large as those of AdamW's usual update, so that the learning rate and the decay are AdamW's:
// Liu et al. 2025, arXiv:2502.16982.
#pragma once
#include <algorithm>
#include <cmath>

namespace llmc {

constexpr double kMuonMomentum = 0.95;  // mu
constexpr double kNewtonSchulzA = 3.4445, kNewtonSchulzB = -4.7750, kNewtonSchulzC = 2.0315;
constexpr int kNewtonSchulzSteps = 5;
constexpr double kNewtonSchulzEps = 1e-12;  // of a mean gradient that is zero, the direction is zero

// orthogonal(U)'s elements have a root mean square of 1 / sqrt(max(rows, cols)), an update of AdamW 0.2 to
// 0.4
inline double muon_scale(int rows, int cols) { return 0.2 * std::sqrt((double)std::max(rows, cols)); }

}  // namespace llmc
