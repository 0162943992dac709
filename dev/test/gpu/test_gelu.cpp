// GELU on the GPU against the reference.
#include "dev/test/gpu/gelu_bounds.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/gelu.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

struct GeluShape {
    int64_t n;
    int offset;  // elements off the alignment of every pointer
};
constexpr GeluShape kShapes[] = {{1, 0}, {3, 1}, {17, 0}, {17, 3}, {1023, 1}, {1000 * 65, 0}, {1 << 18, 5}};

// ordinary numbers, large ones, zeros of both signs and the ends of what the sigmoid tells apart
Floats gelu_inputs(int64_t n) {
    Floats x = floats(n, 1, 1.5);
    constexpr float kOthers[] = {0.0f, -0.0f, 6, -6, 12, -12, 40, -40, 1e4f, -1e4f, 1e-20f, -1e-20f};
    for (int64_t i = 16; i < n; i += 17) { x[i] = kOthers[i / 17 % std::size(kOthers)]; }
    return x;
}

template <typename T>
void check_forward(const GeluShape& s, bool alias) {
    DeviceArray<T> inp(gelu_inputs(s.n), s.offset), apart(s.n, s.offset);
    DeviceArray<T>& out = alias ? inp : apart;
    gelu_forward(out.data(), inp.data(), s.n, kStream);
    Vector x = inp.values(), expected(s.n);
    gelu_forward_cpu(expected.data(), x.data(), s.n);
    std::string name = fmt::format("gelu_forward out {} n={} offset={}{}", type_name<T>(), (int)s.n, s.offset,
                                   alias ? " in place" : "");
    expect_near(name, out, expected,
                [&](size_t i) { return stored<T>(gelu_error(x[i], expected[i]), expected[i]); });
    if (!alias) { expect_unchanged(name, inp); }
}

template <typename T>
void check_backward(const GeluShape& s, bool alias) {
    DeviceArray<T> inp(gelu_inputs(s.n), s.offset), dout(floats(s.n, 2), s.offset), apart(s.n, s.offset);
    DeviceArray<T>& dinp = alias ? dout : apart;
    gelu_backward(dinp.data(), dout.data(), inp.data(), s.n, kStream);
    Vector x = inp.values(), d = dout.values(), expected(s.n);
    gelu_backward_cpu(expected.data(), d.data(), x.data(), s.n);
    std::string name = fmt::format("gelu_backward dinp {} n={} offset={}{}", type_name<T>(), (int)s.n,
                                   s.offset, alias ? " in place" : "");
    expect_near(name, dinp, expected, [&](size_t i) {
        return stored<T>(std::fabs(d[i]) * gelu_slope_error(x[i]) + u * std::fabs(expected[i]), expected[i]);
    });
    expect_unchanged(name, inp);
}

}  // namespace

TEST_CASE_TEMPLATE("gelu: forward and backward, aligned or not, in place or not", T, float, bf16) {
    for (const GeluShape& s : kShapes) {
        for (bool alias : {false, true}) {
            check_forward<T>(s, alias);
            check_backward<T>(s, alias);
        }
    }
}

TEST_CASE_TEMPLATE("gelu: NaN stays NaN", T, float, bf16) {
    DeviceArray<T> inp(Floats{1, NAN, -1}), dout(Floats{1, 1, NAN}), out(3), dinp(3);
    gelu_forward(out.data(), inp.data(), 3, kStream);
    gelu_backward(dinp.data(), dout.data(), inp.data(), 3, kStream);
    Vector y = DeviceArray<T>::widened(out.download()), d = DeviceArray<T>::widened(dinp.download());
    CHECK(std::isfinite(y[0]));
    CHECK(std::isnan(y[1]));
    CHECK(std::isfinite(y[2]));
    CHECK(std::isfinite(d[0]));
    CHECK(std::isnan(d[1]));
    CHECK(std::isnan(d[2]));
}
