// What tests of numbers share: random inputs, and comparisons that make one assertion per tensor. A failure
// names layer, tensor, shape and index:
//   layernorm_backward dinp N=3 C=65 at 17: found .. expected .. bound ..
#pragma once
#include <omp.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "llmc/host/base/error.h"
#include "llmc/host/base/philox.h"

namespace llmc {

constexpr double kFloatRoundoff = 0x1p-24;   // u: the relative error of one rounding to float
constexpr double kDoubleRoundoff = 0x1p-53;  // and to double

// standard normal numbers, a function of the seed alone
template <typename Real>
std::vector<Real> random_vector(int64_t n, uint64_t seed, double scale = 1) {
    std::vector<Real> x((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (Real)(scale * random_normal(seed, RandomUse::kFixture, 0, 0, i));
    }
    return x;
}

// tokens or targets in [0, V)
inline std::vector<int32_t> random_tokens(int64_t n, int V, uint64_t seed) {
    std::vector<int32_t> x((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (int32_t)(random_bits(seed, RandomUse::kFixture, 1, 0, i)[0] % V);
    }
    return x;
}

// what an output holds before the call: whoever forgets to write an element, or adds to it, leaves a NaN
template <typename Real>
std::vector<Real> poisoned(int64_t n) {
    return std::vector<Real>((size_t)n, std::numeric_limits<Real>::quiet_NaN());
}

template <typename To, typename From>
std::vector<To> convert(const std::vector<From>& x) {
    return std::vector<To>(x.begin(), x.end());
}

// every element within its bound (a number, one for each, or a function of the index) of what is expected; NaN is in none
template <typename Found, typename Expected, typename Bound>
void check_near(const std::string& name, const Found& found, const Expected& expected, const Bound& bound) {
    REQUIRE_MESSAGE(found.size() == expected.size(), name);
    const auto bound_of = [&](size_t i) -> double {
        if constexpr (std::is_arithmetic_v<Bound>) { return bound; }
        if constexpr (std::is_invocable_v<Bound, size_t>) { return bound(i); }
        if constexpr (requires { bound.size(); }) { return bound[i]; }
    };
    double worst = 0;  // error / bound
    size_t at = 0;
    for (size_t i = 0; i < found.size(); i++) {
        double error = std::fabs((double)found[i] - (double)expected[i]);
        double ratio = error == 0 ? 0 : error / bound_of(i);
        if (std::isnan(ratio)) { ratio = INFINITY; }
        if (ratio > worst) {
            worst = ratio;
            at = i;
        }
    }
    CHECK_MESSAGE(worst <= 1, fmt::format("{} at {}: found {:.12g} expected {:.12g} bound {:.3g}", name, at,
                                          (double)found[at], (double)expected[at], bound_of(at)));
}

// every bit the same
template <typename Real>
void check_same(const std::string& name, const std::vector<Real>& found, const std::vector<Real>& expected) {
    using Bits = std::conditional_t<sizeof(Real) == 8, uint64_t, uint32_t>;
    REQUIRE_MESSAGE(found.size() == expected.size(), name);
    size_t at = 0;
    while (at < found.size() && std::bit_cast<Bits>(found[at]) == std::bit_cast<Bits>(expected[at])) { at++; }
    CHECK_MESSAGE(at == found.size(), fmt::format("{} at {}: found {:.17g} expected {:.17g} bound 0", name,
                                                  at, (double)found[at], (double)expected[at]));
}

// sets the number of OpenMP threads for a scope
class ThreadCount {
public:
    explicit ThreadCount(int n) : before_(omp_get_max_threads()) { omp_set_num_threads(n); }
    ~ThreadCount() { omp_set_num_threads(before_); }
    ThreadCount(const ThreadCount&) = delete;

private:
    int before_;
};

// ---- gradients by central differences ----------------------------------------------------------

// The function that is differentiated: L = sum of out * dout, whose gradient with respect to out is dout.
struct Loss {
    double value = 0, magnitude = 0;  // magnitude: the sum of the terms' absolute values
    Loss& add(const std::vector<double>& out, const std::vector<double>& dout) {
        for (size_t i = 0; i < out.size(); i++) {
            value += out[i] * dout[i];
            magnitude += std::fabs(out[i] * dout[i]);
        }
        return *this;
    }
};

// gradient[i] == start[i] + dL/dx[i] for each i; loss() evaluates L from what x holds at that moment.
// D(h) = (L(x + h) - L(x - h)) / 2h errs by h^2/6 L''' (D(2h) - D(h) measures three times that) and by the
// rounding of L, 100 eps of its magnitude for sums of up to 100 terms, over h.
template <typename Evaluate>
void check_gradient(const std::string& name, std::vector<double>& x, const std::vector<double>& gradient,
                    const std::vector<double>& start, Evaluate loss) {
    constexpr double h = 1e-4;
    const ThreadCount one(1);  // of many small calls each would wait for its threads
    double rounding = 200 * kDoubleRoundoff * loss().magnitude / h;
    std::vector<double> expected(x.size()), bounds(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        auto difference = [&, before = x[i]](double step) {
            x[i] = before + step;
            double above = loss().value;
            x[i] = before - step;
            double below = loss().value;
            x[i] = before;
            return (above - below) / (2 * step);
        };
        double d = difference(h);
        expected[i] = start[i] + d;
        bounds[i] = std::fabs(difference(2 * h) - d) + rounding + 1e-15 * std::fabs(start[i]);
    }
    check_near(name, gradient, expected, bounds);
}

}  // namespace llmc
