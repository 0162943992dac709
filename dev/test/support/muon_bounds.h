// Singular values, and how far Newton-Schulz iterations in finite precision may be from the same in double.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "llmc/model/cpu/reference.h"

namespace llmc {

// the singular values of x (rows,cols), in falling order: by Jacobi rotations that make its rows, or the
// columns of a tall one, orthogonal to each other (one-sided; Hestenes 1958). NaNs if x is not finite: the
// rotations would not end.
inline std::vector<double> singular_values(std::vector<double> x, int rows, int cols) {
    if (!std::all_of(x.begin(), x.end(), [](double value) { return std::isfinite(value); })) {
        return std::vector<double>((size_t)std::min(rows, cols), std::nan(""));
    }
    if (rows > cols) {
        std::vector<double> wide(x.size());
        transpose_cpu(wide.data(), x.data(), rows, cols);
        return singular_values(wide, cols, rows);
    }
    auto dot = [&](int i, int j) {
        double sum = 0;
        for (int k = 0; k < cols; k++) { sum += x[(size_t)i * cols + k] * x[(size_t)j * cols + k]; }
        return sum;
    };
    for (bool rotated = true; rotated;) {
        rotated = false;
        for (int i = 0; i < rows; i++) {
            for (int j = i + 1; j < rows; j++) {
                const double p = dot(i, i), q = dot(j, j), r = dot(i, j);
                if (std::fabs(r) <= 1e-14 * std::sqrt(p * q) + 1e-300) { continue; }
                rotated = true;
                const double angle = 0.5 * std::atan2(2 * r, p - q), c = std::cos(angle), s = std::sin(angle);
                for (int k = 0; k < cols; k++) {
                    double &a = x[(size_t)i * cols + k], &b = x[(size_t)j * cols + k];
                    const double turned = c * a + s * b;
                    b = c * b - s * a;
                    a = turned;
                }
            }
        }
    }
    std::vector<double> values;
    for (int i = 0; i < rows; i++) { values.push_back(std::sqrt(dot(i, i))); }
    std::sort(values.rbegin(), values.rend());
    return values;
}

// one iteration of a singular value, and all five
inline double iterated_once(double s) {
    return kNewtonSchulzA * s + kNewtonSchulzB * std::pow(s, 3) + kNewtonSchulzC * std::pow(s, 5);
}
inline double iterated(double s) {
    for (int k = 0; k < kNewtonSchulzSteps; k++) { s = iterated_once(s); }
    return s;
}

// The largest factor by which an iteration enlarges a small change of a matrix whose singular values lie
// between low and high: in the Frobenius norm that of an odd function p is the largest of |p'(s)|, |p(s) -
// p(t)| / |s - t| and (p(s) + p(t)) / (s + t); the second is a mean of the first, the third of p(s) / s.
inline double enlarged(double low, double high) {
    double most = 0;
    for (int k = 0; k <= 1000; k++) {
        const double s = low + (high - low) * k / 1000, squared = s * s;
        const double ratio = kNewtonSchulzA + (kNewtonSchulzB + kNewtonSchulzC * squared) * squared;
        const double slope = kNewtonSchulzA + (3 * kNewtonSchulzB + 5 * kNewtonSchulzC * squared) * squared;
        most = std::max({most, std::fabs(ratio), std::fabs(slope)});
    }
    return most;
}

// What a product and a stored number are off by, relative to the sum of the terms' sizes and to the number.
struct Roundoff {
    double sums, stored;
};

// ||found - expected||_F of newton_schulz(x), where s are the singular values of x, all given; products of
// errors are dropped. A product of P and Q, elementwise off by sums |P| |Q|, is off by at most sums ||P||_F
// ||Q||_F; a factor's error E becomes at most ||E||_F times the other factor's largest singular value.
inline double newton_schulz_bound(std::vector<double> s, Roundoff r) {
    auto norm = [&] {
        double squares = 0;
        for (double value : s) { squares += value * value; }
        return std::sqrt(squares);
    };
    const double length = norm();
    for (double& value : s) { value /= length; }
    double error = r.sums + r.stored;  // of x / ||x||
    const double b = std::fabs(kNewtonSchulzB), c = kNewtonSchulzC;
    for (int step = 0; step < kNewtonSchulzSteps; step++) {
        const auto [low, high] = std::minmax_element(s.begin(), s.end());
        const double largest = *high, factor = enlarged(*low, *high), x = norm(), a = x * largest;
        const double in_a = r.sums * x * x + r.stored * a;
        const double b_norm = (b + c * largest * largest) * a;
        const double in_b =
            (b + 2 * c * largest * largest) * in_a + c * r.sums * a * a + 2 * r.stored * b_norm;
        for (double& value : s) { value = iterated_once(value); }
        error =
            factor * error + in_b * largest + r.sums * (b_norm * x + kNewtonSchulzA * x) + r.stored * norm();
    }
    return error;
}

}  // namespace llmc
