// Matrix products on the GPU, with their epilogues, against the reference.
#include <span>

#include "dev/test/gpu/layer_test.h"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/matmul/matmul.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

struct MatmulShape {
    int N, C, OC;
    std::string text() const { return fmt::format("N={} C={} OC={}", N, C, OC); }
};
constexpr MatmulShape kShapes[] = {{1, 1, 1},       {3, 3, 5},         {1, 65, 3},      {17, 65, 97},
                                   {17, 64, 256},   {1000, 3, 769},    {1023, 769, 65}, {64, 1600, 257},
                                   {256, 768, 768}, {1000, 1600, 300}, {3, 64, 50257}};
constexpr MatmulShape kLargeShapes[] = {{1000, 1600, 1601}, {4096, 768, 2304}, {1024, 768, 50257}};

enum class Mode { kFp32, kTf32, kBf16 };
template <Mode mode>
using Element = std::conditional_t<mode == Mode::kBf16, bf16, float>;
constexpr const char* kModeNames[] = {"fp32", "tf32", "bf16"};

// The error of a sum of K products, in units of the sum of their absolute values.
//   fp32: two roundings for a product and the store, and the additions'
//   bf16: products are exact. Tensor cores cut off where fp32 would round: 2 u an addition, always
//         towards zero, so that nothing averages out
//   tf32: likewise, and both factors are cut to 10 bits behind the point: 2^-10 each
double sum_error(Mode mode, double K) {
    if (mode == Mode::kFp32) { return u * (additions(K) + 2); }
    return 2 * u * (K + 2) + (mode == Mode::kTf32 ? 2 * 0x1p-10 : 0);
}

// The matrices of one product, its true results and the sums of absolute values, each computed once.
template <Mode mode>
struct Product {
    using T = Element<mode>;
    MatmulShape s;
    DeviceArray<T> inp, weight, bias, dout;
    Vector out, out_terms;  // without the bias
    Vector dinp, dinp_terms, dweight, dweight_terms;

    explicit Product(const MatmulShape& s)
        : s(s),
          inp(floats((int64_t)s.N * s.C, 1)),
          weight(floats((int64_t)s.OC * s.C, 2, 1 / std::sqrt(s.C))),
          bias(floats(s.OC, 3)),
          dout(floats((int64_t)s.N * s.OC, 4)) {
        Vector x = inp.values(), w = weight.values(), d = dout.values();
        compute(out, dinp, dweight, x, w, d);
        compute(out_terms, dinp_terms, dweight_terms, absolute(x), absolute(w), absolute(d));
    }
    void compute(Vector& o, Vector& di, Vector& dw, const Vector& x, const Vector& w, const Vector& d) const {
        o.resize(d.size());
        di.resize(x.size());
        dw.assign(w.size(), 0.0);
        matmul_forward_cpu<double>(o.data(), x.data(), w.data(), nullptr, s.N, s.C, s.OC);
        matmul_backward_cpu<double>(di.data(), dw.data(), nullptr, d.data(), x.data(), w.data(), s.N, s.C,
                                    s.OC);
    }
    std::string name(const char* tensor, const char* more = "") const {
        return fmt::format("{} {}{} ", tensor, kModeNames[(int)mode], more) + s.text();
    }
    // fp32's error of out + bias: one more addition
    double out_error(size_t i, double b) const {
        return sum_error(mode, s.C) * (out_terms[i] + std::fabs(b)) + u * std::fabs(out[i] + b);
    }
    double dinp_error(size_t i) const { return sum_error(mode, s.OC) * dinp_terms[i]; }
    void expect_inputs_unchanged() const {
        expect_unchanged("matmul " + name("inputs"), inp, weight, bias, dout);
    }
};

// 64 MiB, and cuBLASLt's handle
struct Device {
    Scratch workspace{(int64_t)Matmul::kWorkspace};
    Matmul matmul;
    explicit Device(Mode mode) : matmul(workspace.data(), mode == Mode::kTf32) {}
};

// ---- forward -------------------------------------------------------------------------------------

template <Mode mode>
void check_forward(Matmul& matmul, const Product<mode>& p) {
    using T = Element<mode>;
    Vector bias = p.bias.values();
    for (bool with_bias : {true, false}) {
        DeviceArray<T> out(p.out.size());
        matmul.forward(out.data(), p.inp.data(), p.weight.data(), with_bias ? p.bias.data() : nullptr, p.s.N,
                       p.s.C, p.s.OC, kStream);
        auto b = [&](size_t i) { return with_bias ? bias[i % p.s.OC] : 0; };
        Vector expected = p.out;
        for (size_t i = 0; i < expected.size(); i++) { expected[i] += b(i); }
        expect_near(p.name("matmul_forward out", with_bias ? "" : " without bias"), out, expected,
                    [&](size_t i) { return stored<T>(p.out_error(i, b(i)), expected[i]); });
    }
}

// pre as in forward. gelu is of the same sum in fp32, or of pre as it was stored: its slope, at most 1.13,
// times either's error, and its own.
template <Mode mode>
void check_forward_gelu(Matmul& matmul, const Product<mode>& p) {
    using T = Element<mode>;
    Vector bias = p.bias.values(), sum = p.out, expected(sum.size());
    for (size_t i = 0; i < sum.size(); i++) { sum[i] += bias[i % p.s.OC]; }
    gelu_forward_cpu(expected.data(), sum.data(), (int64_t)sum.size());
    DeviceArray<T> out(p.out.size()), pre(p.out.size());
    matmul.forward_gelu(out.data(), pre.data(), p.inp.data(), p.weight.data(), p.bias.data(), p.s.N, p.s.C,
                        p.s.OC, kStream);
    auto pre_bound = [&](size_t i) { return stored<T>(p.out_error(i, bias[i % p.s.OC]), sum[i]); };
    expect_near(p.name("matmul_forward_gelu pre"), pre, sum, pre_bound);
    expect_near(p.name("matmul_forward_gelu out"), out, expected, [&](size_t i) {
        double gelu = epilogue_gelu_error<std::is_same_v<T, bf16>>(sum[i], expected[i]);
        return stored<T>(1.13 * pre_bound(i) + gelu, expected[i]);
    });
}

// ---- backward ------------------------------------------------------------------------------------

template <Mode mode>
void check_backward_input(Matmul& matmul, const Product<mode>& p) {
    using T = Element<mode>;
    DeviceArray<T> dinp(p.dinp.size());
    matmul.backward_input(dinp.data(), p.dout.data(), p.weight.data(), p.s.N, p.s.C, p.s.OC, kStream);
    expect_near(p.name("matmul_backward_input dinp"), dinp, p.dinp,
                [&](size_t i) { return stored<T>(p.dinp_error(i), p.dinp[i]); });
}

// dinp = gelu'(pre) sum: the slope times the sum's error, rounded to T where a kernel comes after the
// product; the sum times the slope's error
template <Mode mode>
void check_backward_input_gelu(Matmul& matmul, const Product<mode>& p) {
    using T = Element<mode>;
    DeviceArray<T> dinp(p.dinp.size()), pre(floats((int64_t)p.dinp.size(), 6, 1.5));
    matmul.backward_input_gelu(dinp.data(), p.dout.data(), p.weight.data(), pre.data(), p.s.N, p.s.C, p.s.OC,
                               kStream);
    Vector x = pre.values(), expected(x.size());
    gelu_backward_cpu(expected.data(), p.dinp.data(), x.data(), (int64_t)x.size());
    expect_near(p.name("matmul_backward_input_gelu dinp"), dinp, expected, [&](size_t i) {
        double slope = std::fabs(GeluParts(x[i]).value(x[i]));
        double error = slope * stored<T>(p.dinp_error(i), p.dinp[i]) +
                       std::fabs(p.dinp[i]) * epilogue_slope_error<std::is_same_v<T, bf16>>(x[i]);
        return stored<T>(error + u * std::fabs(expected[i]), expected[i]);
    });
    expect_unchanged("matmul_backward_input_gelu pre", pre);
}

// With += into bf16 cuBLASLt rounds the product before it adds it (matmul.h says so).
template <Mode mode, typename Grad>
void check_backward_weight(Matmul& matmul, const Product<mode>& p, bool accumulate) {
    int64_t n = (int64_t)p.dweight.size();
    DeviceArray<Grad> dweight(accumulate ? floats(n, 5) : Floats(n, NAN));
    Vector expected = p.dweight, before = accumulate ? dweight.values() : Vector(n, 0.0);
    for (int64_t i = 0; i < n; i++) { expected[i] += before[i]; }
    matmul.backward_weight(dweight.data(), p.dout.data(), p.inp.data(), p.s.N, p.s.C, p.s.OC, accumulate,
                           kStream);
    std::string more = fmt::format(" in {}{}", type_name<Grad>(), accumulate ? " +=" : "");
    expect_near(p.name("matmul_backward_weight dweight", more.c_str()), dweight, expected, [&](size_t i) {
        double error =
            sum_error(mode, p.s.N) * p.dweight_terms[i] + u * (std::fabs(before[i]) + std::fabs(expected[i]));
        if (accumulate) { error = stored<Grad>(error, p.dweight[i]); }
        return stored<Grad>(error, expected[i]);
    });
}

template <Mode mode>
void check_matmul(std::span<const MatmulShape> shapes) {
    using T = Element<mode>;
    Device device(mode);
    for (const MatmulShape& s : shapes) {
        Product<mode> p(s);
        check_forward<mode>(device.matmul, p);
        check_forward_gelu<mode>(device.matmul, p);
        check_backward_input<mode>(device.matmul, p);
        check_backward_input_gelu<mode>(device.matmul, p);
        for (bool accumulate : {false, true}) {
            check_backward_weight<mode, float>(device.matmul, p, accumulate);
            if (mode == Mode::kBf16) { check_backward_weight<mode, T>(device.matmul, p, accumulate); }
        }
        p.expect_inputs_unchanged();
    }
    check_guards("matmul workspace", device.workspace);
}

// forward, input's and weight's gradient, the latter twice, once added to itself
struct Results {
    DeviceArray<bf16> out, dinp;
    DeviceArray<float> dweight;
    explicit Results(const Product<Mode::kBf16>& p)
        : out(p.out.size()), dinp(p.dinp.size()), dweight(p.dweight.size()) {}
    void compute(Matmul& matmul, const Product<Mode::kBf16>& p) {
        const auto& s = p.s;
        matmul.forward(out.data(), p.inp.data(), p.weight.data(), p.bias.data(), s.N, s.C, s.OC, kStream);
        matmul.backward_input(dinp.data(), p.dout.data(), p.weight.data(), s.N, s.C, s.OC, kStream);
        for (bool accumulate : {false, true}) {
            matmul.backward_weight(dweight.data(), p.dout.data(), p.inp.data(), s.N, s.C, s.OC, accumulate,
                                   kStream);
        }
    }
};

}  // namespace

TEST_CASE("matmul bf16: a search") {
    const Product<Mode::kBf16> p({1024, 768, 2304});
    Device plain(Mode::kBf16), searching(Mode::kBf16), chosen(Mode::kBf16);
    Results first(p), searched(p), found(p);
    first.compute(plain.matmul, p);
    searching.matmul.begin_search();
    int passes = 0;
    do {
        searched.compute(searching.matmul, p);
        passes++;
    } while (searching.matmul.next_pass(kStream));
    const MatmulChoices choices = searching.matmul.end_search();
    REQUIRE(choices.choices.size() == 4);
    for (const MatmulChoice& choice : choices.choices) {
        CHECK(choice.ms > 0);
        CHECK(choice.ms <= choice.first_ms);
        // there cuBLASLt proposes eight, which is less than it is asked for
        if (device_facts().capability == 90) { CHECK(choice.proposals > 64); }
    }
    // eight finalists have six turns; variants have theirs, too
    if (device_facts().capability == 90) { CHECK(passes > 8 + 8 * 6); }
    chosen.matmul.use(choices, "the search's");
    found.compute(chosen.matmul, p);
    // in the order of kinds: dinp, dweight =, dweight +=, out
    const auto same_bits = [&](int k) { return choices.choices[(size_t)k].same_bits; };
    if (same_bits(0)) { expect_same("a search's choices: dinp", found.dinp, first.dinp.download()); }
    if (same_bits(1) && same_bits(2)) {
        expect_same("a search's choices: dweight", found.dweight, first.dweight.download());
    }
    if (same_bits(3)) { expect_same("a search's choices: out", found.out, first.out.download()); }
    check_guards("a search's out", searched.out);
    check_guards("a search's dinp", searched.dinp);
    check_guards("a search's dweight", searched.dweight);
    check_forward(chosen.matmul, p);
    check_backward_input(chosen.matmul, p);
    check_backward_weight<Mode::kBf16, float>(chosen.matmul, p, false);
    p.expect_inputs_unchanged();
    check_guards("matmul workspace of a search", searching.workspace);
    check_guards("matmul workspace of its choices", chosen.workspace);
}

TEST_CASE("matmul fp32: forward, backward and their epilogues") { check_matmul<Mode::kFp32>(kShapes); }
TEST_CASE("matmul tf32: forward, backward and their epilogues") { check_matmul<Mode::kTf32>(kShapes); }
TEST_CASE("matmul bf16: forward, backward and their epilogues") { check_matmul<Mode::kBf16>(kShapes); }

TEST_SUITE("thorough") {
    TEST_CASE("matmul fp32: large") { check_matmul<Mode::kFp32>(kLargeShapes); }
    TEST_CASE("matmul tf32: large") { check_matmul<Mode::kTf32>(kLargeShapes); }
    TEST_CASE("matmul bf16: large") { check_matmul<Mode::kBf16>(kLargeShapes); }
}
