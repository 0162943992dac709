// How far off a GELU in fp32 may be, alone or in a matmul's epilogue.
//   s = 1 / (1 + exp(z)), z = -kGeluScale (x + kGeluCubic x^3)
//   gelu = x s,  gelu' = s + x s (1 - s) (-dz/dx)
#pragma once
#include <cmath>

#include "dev/test/support/compare.h"
#include "llmc/model/cpu/reference.h"

namespace llmc::gpu_test {

struct GeluParts {
    double z, s, rest, slope;  // rest = 1 - s; slope = -dz/dx

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
    double exp_error() const { return kFloatRoundoff * (6 * std::fabs(z) + 4); }
    double sigmoid_error() const { return rest * exp_error() + 5 * kFloatRoundoff; }
    // beyond z = kGeluLargest the reference stops; a kernel may go on to 0
    double lost() const { return 2 * std::exp(-kGeluLargest); }
};

// y = gelu(x) written as x s, as reference.h does, so that nothing cancels: s's error and one product
inline double gelu_error(double x, double y) {
    GeluParts g(x);
    return std::fabs(y) * (g.sigmoid_error() + kFloatRoundoff) + std::fabs(x) * g.lost() + 0x1p-149;
}

// gelu'(x): s, and x s (1 - s) slope, whose two factors err by at most exp_error and 5 u each, with 8
// roundings in slope and the products; one addition
inline double gelu_slope_error(double x) {
    GeluParts g(x);
    double second = std::fabs(x) * g.s * g.rest * g.slope;
    return g.s * g.sigmoid_error() + second * (g.exp_error() + 18 * kFloatRoundoff) +
           kFloatRoundoff * (g.s + second) + (1 + std::fabs(x) * g.slope) * g.lost();
}

// An epilogue computes gelu = x/2 (1 + t), t = tanh(-z/2), and gelu' = (1 + t)/2 + x/2 (1 - t^2) slope/2.
// What t may be off by, absolutely: tanh.approx has a relative error of 2^-11 (PTX ISA), and 2^-10.5 leaves
// room for the roundings of z and of the products; in fp32 tanhf is good to 2 ulp (4 u), after z's five
// roundings.
template <bool approximate>
double tanh_error(const GeluParts& g) {
    if (approximate) { return 0x1p-10 / std::sqrt(2.0); }
    return kFloatRoundoff * (4 + 4 * g.s * g.rest * 3 * std::fabs(g.z));
}
template <bool approximate>
double epilogue_gelu_error(double x, double y) {
    GeluParts g(x);
    return std::fabs(x) / 2 * (tanh_error<approximate>(g) + 2 * kFloatRoundoff) +
           kFloatRoundoff * std::fabs(y);
}
template <bool approximate>
double epilogue_slope_error(double x) {
    GeluParts g(x);
    double t = std::fabs(g.s - g.rest), steep = std::fabs(x) * g.slope / 2;
    // d gelu' / dt = 1/2 - x t slope / 2; then 8 roundings of each term, those of 1 - t^2 being absolute
    return tanh_error<approximate>(g) * (0.5 + steep * t) +
           kFloatRoundoff * (2 + 8 * steep * 2 * g.s * g.rest + 2 * steep);
}

}  // namespace llmc::gpu_test
