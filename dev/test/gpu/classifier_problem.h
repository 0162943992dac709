// The classifier's gradient as a problem, as of dev/cuda/problem.h: logits become their gradient in place. Host only.
#pragma once
#include "dev/cuda/problem.h"

namespace llmc {

// Of one row of logits: how far off losses and gradients may be.
//
// total = sum of exp(x_v - largest), which at least a warp shares. Each term: x - largest is rounded, and
// again times log2(e) for ex2.approx, which is good to 4 u; a running maximum scales the term again by up
// to `additions` factors, of which those unlike 1 have the same errors (one such factor is counted).
// Relative, weighted by p.
struct SoftmaxRow {
    double largest = -INFINITY, total = 0, total_error = 0;

    // additions: that a term goes through, as they count (bounds.h)
    SoftmaxRow(const double* x, int V, double additions) {
        for (int v = 0; v < V; v++) { largest = std::max(largest, x[v]); }
        for (int v = 0; v < V; v++) {
            double e = std::exp(x[v] - largest);
            total += e;
            total_error += e * term_error(x[v]);
        }
        total_error = total_error / total + kRoundoff * additions;
    }
    double probability(double x) const { return std::exp(x - largest) / total; }
    double loss(double x_target) const { return std::log(total) + largest - x_target; }

    // log(total) + largest - x_target: the total's error, log's own and that of two additions
    double loss_error(double x_target) const {
        double log_total = std::log(total);
        return total_error + 4 * kRoundoff * (log_total + std::fabs(largest) + std::fabs(x_target) + 1e-3);
    }
    // dloss (p - [target]): p's error, a division, two products, the subtraction; a p below fp32's normal
    // numbers may become 0
    double gradient_error(double x, bool target, double dloss) const {
        double p = probability(x);
        return dloss *
               (p * (term_error(x) + total_error + 5 * kRoundoff) + 3 * kRoundoff * (p + target) + 0x1p-126);
    }

private:
    static constexpr double kRoundoff = 0x1p-24;
    double term_error(double x) const { return kRoundoff * (8 + 6 * std::fabs(x - largest)); }
};

constexpr float kProblemDloss = 1.0f / 1024;
// the columns of C that are no padding: GPT-2 has 50257 of 50304
constexpr int vocabulary_of(int C) { return C > 64 ? C - 47 : C; }

// An int as the harness carries it: fp32's subnormal number of the same bits.
inline double as_subnormal(int32_t x) { return std::ldexp((double)x, -149); }
inline int32_t from_subnormal(double x) { return (int32_t)std::ldexp(x, 149); }

// C: with the padding. Useful streams: logits read, their gradient written in their place.
inline Problem classifier_problem(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    Problem p = empty_problem("classifier", dtype, shape, kind, form, 1, 1);
    int C = shape.C, V = vocabulary_of(C);
    Values logits = make_inp(kind, dtype, p.N, C);
    Values targets = make_values(Dtype::kFp32, p.N, 1, [V](int64_t row, int) {
        return as_subnormal((int32_t)(uniform_at(kDrawDout, row) * V));
    });
    auto rows = std::make_shared<std::vector<SoftmaxRow>>(p.N, SoftmaxRow(nullptr, 0, 0));
#pragma omp parallel for
    for (int64_t row = 0; row < p.N; row++) {
        (*rows)[row] =
            SoftmaxRow(logits->data() + row * C, V, std::min(V / 32.0 + 10, 8 * std::sqrt(V / 32.0 + 10)));
    }
    auto target_of = [targets](int64_t row) { return from_subnormal((*targets)[row]); };
    auto logit = [logits, C](int64_t row, int64_t col) { return (*logits)[row * C + col]; };
    std::vector<double> gradient(p.N * C), losses(p.N);
#pragma omp parallel for
    for (int64_t row = 0; row < p.N; row++) {
        for (int v = 0; v < V; v++) {
            double d = (*rows)[row].probability(logit(row, v)) - (v == target_of(row));
            gradient[row * C + v] = kProblemDloss * d;
        }
        losses[row] = (*rows)[row].loss(logit(row, target_of(row)));
    }
    Values truth = share(std::move(gradient));
    auto bound = [=, r = Roundings(dtype)](const Sums&, int64_t row, int64_t col) {
        if (col >= V) { return 0.0; }
        double error = (*rows)[row].gradient_error(logit(row, col), col == target_of(row), kProblemDloss);
        return r.stored(error, (*truth)[row * C + col]);
    };
    auto loss_bound = [=](const Sums&, int64_t row, int64_t) {
        return (*rows)[row].loss_error(logit(row, target_of(row)));
    };
    p.in.push_back({"targets", Dtype::kFp32, targets, Extent::kRows});
    p.in.push_back({"dloss", Dtype::kFp32,
                    make_values(Dtype::kFp32, p.N, 1, [](int64_t, int) { return kProblemDloss; }),
                    Extent::kRows});
    p.out.push_back({"logits", dtype, p.N, C, truth, bound, Extent::kMatrix, logits});
    p.out.push_back({"losses", Dtype::kFp32, p.N, 1, share(std::move(losses)), loss_bound, Extent::kRows});
    return p;
}

}  // namespace llmc
