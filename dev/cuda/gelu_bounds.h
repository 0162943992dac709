// How far off GELU and its gradient may be. Host only.
#pragma once
#include <algorithm>
#include <cmath>

#include "llmc/model/cpu/reference.h"

namespace llmc {

// How far off a GELU in fp32 may be, alone or in a matmul's epilogue.
//   s = 1 / (1 + exp(z)), z = -kGeluScale (x + kGeluCubic x^3)
//   gelu = x s,  gelu' = s + x s (1 - s) (-dz/dx)
struct GeluParts {
    static constexpr double u = 0x1p-24;  // of fp32
    double z, s, rest, slope;             // rest = 1 - s; slope = -dz/dx

    explicit GeluParts(double x) {
        z = std::min(-kGeluScale * (x + kGeluCubic * x * x * x), kGeluLargest);
        double e = std::exp(-std::fabs(z)), small = e / (1 + e);
        s = z > 0 ? small : 1 / (1 + e);
        rest = z > 0 ? 1 / (1 + e) : small;
        slope = kGeluScale * (1 + 3 * kGeluCubic * x * x);
    }
    double value(double x) const { return s + x * s * rest * slope; }  // gelu'

    // Relative error of exp(z): 5 roundings make z; ex2.approx is given z log2(e), one more rounding of it,
    // and is good to 2 units of the last place (4 u). s inherits it times rest, and adds an addition and a
    // division (2 ulp).
    double exp_error() const { return u * (6 * std::fabs(z) + 4); }
    double sigmoid_error() const { return rest * exp_error() + 5 * u; }
    // beyond z = kGeluLargest the reference stops; a kernel may go on to 0
    double lost() const { return 2 * std::exp(-kGeluLargest); }
};

// y = gelu(x) written as x s, as reference.h does, so that nothing cancels: s's error and one product
inline double gelu_error(double x, double y) {
    GeluParts g(x);
    return std::fabs(y) * (g.sigmoid_error() + GeluParts::u) + std::fabs(x) * g.lost() + 0x1p-149;
}

// gelu'(x): s, and x s (1 - s) slope, whose two factors err by at most exp_error and 5 u each, with 8
// roundings in slope and the products; one addition
inline double gelu_slope_error(double x) {
    GeluParts g(x);
    double second = std::fabs(x) * g.s * g.rest * g.slope;
    return g.s * g.sigmoid_error() + second * (g.exp_error() + 18 * GeluParts::u) +
           GeluParts::u * (g.s + second) + (1 + std::fabs(x) * g.slope) * g.lost();
}

}  // namespace llmc
