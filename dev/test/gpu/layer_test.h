// What the tests of the GPU's layers share. A result is compared element by element with reference.h in
// double, computed from the numbers the kernel read; a failure names layer, tensor, type, shape, element:
//   layernorm_backward dinp bf16 N=3 C=65 at 17: found .. expected .. bound ..
//
// How far off a correct kernel may be (each test derives the bounds of its op from these):
//   u = 2^-24          one rounding in fp32, in which everything is computed
//   stored<T>          the last rounding: half a unit of T's last place, 2^-8 of the value for bf16, 2^-11
//                      for fp16
//   additions(n)       a sum through which a number goes n additions errs by min(n, 8 sqrt(n)) u sum|terms|:
//                      dev/cuda/bounds.h says why the roundings of random terms count as independent
//   row_additions(C)   n for a sum over a row of C elements that at least the 32 lanes of a warp share
// Products of errors are dropped: what the constants have to spare pays for them.
#pragma once
#include <cstdlib>
#include <map>

#include "dev/cuda/gelu_bounds.h"
#include "dev/cuda/problem.h"
#include "dev/test/gpu/device_array.h"
#include "dev/test/support/compare.h"
#include "llmc/model/cpu/reference.h"

namespace llmc::gpu_test {

using bf16 = __nv_bfloat16;
using half = __half;
using Vector = std::vector<double>;
using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

constexpr double u = kFloatRoundoff;
constexpr cudaStream_t kStream = nullptr;  // the default one: copies wait for it

// ---- types ---------------------------------------------------------------------------------------

template <typename T>
constexpr Dtype dtype_of() {
    if constexpr (std::is_same_v<T, bf16>) { return Dtype::kBf16; }
    if constexpr (std::is_same_v<T, half>) { return Dtype::kFp16; }
    return Dtype::kFp32;
}
template <typename T>
const char* type_name() {
    return format_of(dtype_of<T>()).name;
}
// "bf16", or "bf16 with fp32 gradients"
template <typename T, typename Grad>
std::string type_names() {
    std::string name = type_name<T>();
    return std::is_same_v<T, Grad> ? name : name + " with " + type_name<Grad>() + " gradients";
}

template <typename T>
inline const Roundings kRoundings{dtype_of<T>()};

// an error made in fp32, and then the result is stored in T
template <typename T>
double stored(double error, double result) {
    return kRoundings<T>.stored(error, result);
}
inline double additions(double n) { return Sums{.column = n}.column_error(); }
inline double row_additions(double C) { return std::ceil(C / 32) + 10; }

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

// ---- inputs --------------------------------------------------------------------------------------

// standard normal numbers times scale, a function of the seed alone
inline Floats floats(int64_t n, uint64_t seed, double scale = 1) {
    Floats x((size_t)n);
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(scale * random_normal(seed, RandomUse::kFixture, 0, 0, i));
    }
    return x;
}
inline Vector absolute(Vector x) {
    for (double& v : x) { v = std::fabs(v); }
    return x;
}
// the same numbers, each rounded to T
template <typename T>
Vector rounded(Vector x) {
    round_all(x, format_of(dtype_of<T>()));
    return x;
}

// ---- verdicts ------------------------------------------------------------------------------------

// PLUMB_BOUNDS=1: the largest error / bound of each op and tensor, printed by main in the end. One near 1
// is about to fail; one near 0 belongs to a bound that sees nothing.
inline std::map<std::string, double>& worst_ratios() {
    static std::map<std::string, double> worst;
    return worst;
}
template <typename Bound>
void note_ratio(const std::string& name, const Vector& found, const Vector& expected, Bound bound) {
    static const bool wanted = std::getenv("PLUMB_BOUNDS") != nullptr;
    if (!wanted) { return; }
    double worst = 0;
    for (size_t i = 0; i < found.size(); i++) {
        worst = std::max(worst, error_ratio(found[i], expected[i], bound(i)));
    }
    double& kept = worst_ratios()[name.substr(0, name.rfind(' ', name.find('=')))];
    kept = std::max(kept, worst);
}

template <typename T>
void check_guards(const std::string& name, const DeviceArray<T>& x) {
    std::string damage = x.damage();
    CHECK_MESSAGE(damage.empty(), (name + ": written outside, " + damage));
}

// every element within bound(i) of what is expected; waits for the kernel
template <typename T, typename Bound>
void expect_near(const std::string& name, const DeviceArray<T>& array, const Vector& expected, Bound bound) {
    check_guards(name, array);
    Vector found = DeviceArray<T>::widened(array.download());
    check_near(name, found, expected, bound);
    note_ratio(name, found, expected, bound);
}

// every bit the same
template <typename T>
void expect_same(const std::string& name, const DeviceArray<T>& array, const std::vector<T>& expected) {
    check_guards(name, array);
    std::vector<T> found = array.download();
    REQUIRE_MESSAGE(found.size() == expected.size(), name);
    size_t at = 0;
    while (at < found.size() && std::memcmp(&found[at], &expected[at], sizeof(T)) == 0) { at++; }
    CHECK_MESSAGE(at == found.size(),
                  fmt::format("{} at {} of {}: not the same bits", name, at, found.size()));
}

// inputs are inputs
template <typename... T>
void expect_unchanged(const std::string& name, const DeviceArray<T>&... inputs) {
    (check_guards(name + " input", inputs), ...);
    CHECK_MESSAGE((inputs.unchanged() && ...), (name + ": an input was written to"));
}

// all the bytes of some arrays
template <typename... T>
Bytes bytes_of(const DeviceArray<T>&... arrays) {
    Bytes all;
    auto add = [&](const auto& x) {
        auto* raw = reinterpret_cast<const std::byte*>(x.data());
        all.insert(all.end(), raw, raw + x.size() * sizeof(x[0]));
    };
    (add(arrays.download()), ...);
    return all;
}

// run() makes its outputs and returns their bytes; it must do so three times alike
template <typename Run>
void check_rerun(const std::string& name, Run run) {
    Bytes first = run();
    for (int again = 0; again < 2; again++) {
        CHECK_MESSAGE(run() == first, (name + ": other bits when run again"));
    }
}

}  // namespace llmc::gpu_test
