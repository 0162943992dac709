// What is written in FP8, with its transpose, against reference.h in double: LayerNorm, GELU and its gradient, casts. A byte is
// right if it is what some number within the bound of the true one rounds to; the transpose is the same bytes.
//   layernorm_forward_fp8 80x784 residual at 17: found .., expected .. +- .. times ..
#include "dev/test/gpu/layer_test.h"
#include "llmc/host/base/fp8.h"
#include "llmc/layernorm/layernorm_fp8.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/fp8.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

struct Case {
    int64_t N;
    int C;
    bool residual = false;
    float scale = 37.5f, before = 0;  // what amax was
    std::string name() const {
        return fmt::format("layernorm_forward_fp8 {}x{}{}", N, C, residual ? " residual" : "");
    }
};

struct Arrays {
    Case c;
    DeviceArray<bf16> inp, inp2, weight, bias;
    DeviceArray<float> scale, amax{1}, mean, rstd;
    DeviceArray<uint8_t> out, transposed;
    DeviceArray<bf16> residual;

    explicit Arrays(const Case& given, float offset = 0.25f)
        : c(given),
          inp(shifted(floats(c.N * c.C, 1), offset)),
          inp2(floats(c.N * c.C, 2, 1.5)),
          weight(shifted(floats(c.C, 3, 0.5), 1)),
          bias(floats(c.C, 4, 0.5)),
          scale(Floats{c.scale}),
          amax(Floats{c.before}),
          mean(c.N),
          rstd(c.N),
          out(c.N * c.C),
          transposed(c.N * c.C),
          residual(c.N * c.C) {}

    static Floats shifted(Floats x, float by) {
        for (float& v : x) { v += by; }
        return x;
    }
    LayerNormForwardFp8<bf16> call() const {
        LayerNormForwardFp8<bf16> call{.out = out.data(),
                                       .transposed = transposed.data(),
                                       .amax = amax.data(),
                                       .mean = mean.data(),
                                       .rstd = rstd.data(),
                                       .inp = inp.data(),
                                       .weight = weight.data(),
                                       .bias = bias.data(),
                                       .scale = scale.data(),
                                       .N = c.N,
                                       .C = c.C};
        if (c.residual) {
            call.residual = residual.data();
            call.inp2 = inp2.data();
        }
        return call;
    }
    // what is normalised: inp, or its sum with inp2 as bf16 holds it
    Vector rows() const {
        Vector x = inp.values();
        if (!c.residual) { return x; }
        Vector y = inp2.values();
        for (size_t i = 0; i < x.size(); i++) { x[i] += y[i]; }
        return rounded<bf16>(x);
    }
};

// the order of the numbers that the bytes stand for
int order(uint8_t bits) { return bits >> 7 ? -(bits & 127) : bits; }

struct Fp8Kind {
    float (*from)(uint8_t);
    uint8_t (*to)(float);
};
constexpr Fp8Kind kE4m3{from_e4m3, to_e4m3}, kE5m2{from_e5m2, to_e5m2};

// what is wrong with bytes (N,C), or with their transpose (C,N); either may be left out
struct Fp8Tensor {
    const DeviceArray<uint8_t>*rows, *transposed;
    int C;
    float scale;
    Fp8Kind kind = kE4m3;
};
void check_bytes(const std::string& name, const Fp8Tensor& t, const Vector& truth, const Vector& bound) {
    std::vector<uint8_t> out, transposed;
    if (t.rows != nullptr) { out = t.rows->download(); }
    if (t.transposed != nullptr) {
        const std::vector<uint8_t> columns = t.transposed->download();
        const int64_t N = (int64_t)columns.size() / t.C;
        for (size_t i = 0; i < columns.size(); i++) { transposed.push_back(columns[i % t.C * N + i / t.C]); }
        check_guards(name + " transposed", *t.transposed);
    }
    if (t.rows == nullptr) { out = transposed; }
    int64_t wrong = -1, moved = -1;
    for (int64_t i = 0; i < (int64_t)out.size(); i++) {
        const int least = order(t.kind.to((float)(truth[i] - bound[i]) * t.scale));
        const int most = order(t.kind.to((float)(truth[i] + bound[i]) * t.scale));
        if (wrong < 0 && (order(out[i]) < least || order(out[i]) > most)) { wrong = i; }
        if (moved < 0 && !transposed.empty() && transposed[i] != out[i]) { moved = i; }
    }
    const int64_t at = std::max<int64_t>(wrong, 0);
    CHECK_MESSAGE(wrong < 0, fmt::format("{} at {}: found {}, expected {} +- {} times {}", name, at,
                                         t.kind.from(out[at]), truth[at], bound[at], t.scale));
    CHECK_MESSAGE(moved < 0, fmt::format("{} at {}: the transpose differs", name, moved));
    if (t.rows != nullptr) { check_guards(name, *t.rows); }
}

// found: the amax of truth, which it may be off by as much as an element is
void check_amax(const std::string& name, const DeviceArray<float>& found, const Vector& truth,
                const Vector& bound, double before = 0) {
    double least = before, most = before;
    for (size_t i = 0; i < truth.size(); i++) {
        least = std::max(least, std::fabs(truth[i]) - bound[i]);
        most = std::max(most, std::fabs(truth[i]) + bound[i]);
    }
    const double amax = found.download()[0];
    CHECK_MESSAGE((amax >= least && amax <= most),
                  fmt::format("{} amax: found {}, expected {} to {}", name, amax, least, most));
}

void check_case(const Case& c) {
    Arrays a(c);
    layernorm_forward_fp8(a.call(), kStream);
    const Vector x = a.rows(), w = a.weight.values(), b = a.bias.values();
    Vector truth(x.size()), mean(c.N), rstd(c.N), bound(x.size()), mean_bound(c.N), rstd_bound(c.N);
    layernorm_forward_cpu(truth.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), c.N, c.C,
                          (double)1e-5f);
    for (int64_t row = 0; row < c.N; row++) {
        double size = 0;
        for (int i = 0; i < c.C; i++) { size += std::fabs(x[row * c.C + i]) / c.C; }
        const double relative = (row_additions(c.C) + 8) * u;  // of rstd and of what is multiplied by it
        mean_bound[row] = additions(row_additions(c.C) + 2) * u * size;
        rstd_bound[row] = rstd[row] * relative;
        for (int i = 0; i < c.C; i++) {
            const int64_t at = row * c.C + i;
            const double xhat = (x[at] - mean[row]) * rstd[row];
            bound[at] = std::fabs(w[i]) * (rstd[row] * mean_bound[row] + std::fabs(xhat) * relative) +
                        2 * u * std::fabs(b[i]);
        }
    }
    check_bytes(c.name(), {&a.out, &a.transposed, c.C, c.scale}, truth, bound);
    check_amax(c.name(), a.amax, truth, bound, c.before);
    expect_near(c.name() + " mean", a.mean, mean, [&](size_t i) { return mean_bound[i]; });
    expect_near(c.name() + " rstd", a.rstd, rstd, [&](size_t i) { return rstd_bound[i]; });
    if (c.residual) {
        expect_near(c.name() + " residual", a.residual, x, [](size_t) { return 0.0; });
    }
    expect_unchanged(c.name(), a.inp, a.inp2, a.weight, a.bias, a.scale);
}

Bytes results_of(const Case& c) {
    Arrays a(c);
    layernorm_forward_fp8(a.call(), kStream);
    Bytes all = bytes_of(a.out, a.transposed), more = bytes_of(a.amax, a.mean, a.rstd);
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

// ---- casts and GELU ------------------------------------------------------------------------------

struct Tensor {
    DeviceArray<uint8_t> rows, transposed;
    DeviceArray<float> scale, amax{Floats{0}};
    Tensor(int64_t n, float scale) : rows(n), transposed(n), scale(Floats{scale}) {}
    Fp8Output output() const { return {rows.data(), transposed.data(), scale.data(), amax.data()}; }
};

// the sums of columns (N,C), in fp32 by any order
template <typename Grad>
void check_sums(const std::string& name, const DeviceArray<Grad>& found, const Vector& terms,
                const Vector& bound, const Vector& before) {
    const size_t C = before.size(), N = terms.size() / C;
    Vector sum = before, error(C);
    for (size_t c = 0; c < C; c++) {
        double size = std::fabs(before[c]);
        for (size_t row = 0; row < N; row++) {
            sum[c] += terms[row * C + c];
            size += std::fabs(terms[row * C + c]);
            error[c] += bound[row * C + c];
        }
        error[c] = stored<Grad>(error[c] + additions((double)N + 8) * u * size, sum[c]);
    }
    expect_near(name + " dbias", found, sum, [&](size_t i) { return error[i]; });
}

template <typename Grad>
void check_ops(int64_t N, int C, bool accumulate) {
    const std::string shape = fmt::format(" {}x{} {}", N, C, accumulate ? "+=" : "=");
    const int64_t n = N * C;
    DeviceArray<bf16> inp(floats(n, 5, 2)), dout(floats(n, 6, 1e-5));
    const Vector x = inp.values(), dy = dout.values();
    Vector exact(n), value(n), value_bound(n), slope(n), slope_bound(n);
    for (int64_t i = 0; i < n; i++) {
        const GeluParts g(x[i]);
        value[i] = x[i] * g.s;
        value_bound[i] = gelu_error(x[i], value[i]);
        slope[i] = dy[i] * g.value(x[i]);
        slope_bound[i] = std::fabs(dy[i]) * gelu_slope_error(x[i]) + u * std::fabs(slope[i]);
    }
    Tensor cast(n, 60), gelu(n, 50), gradient(n, 0x1p30f), slopes(n, 0x1p29f), again(n, 50);
    cast_e4m3(cast.output(), inp.data(), N, C, kStream);
    check_bytes("cast_e4m3" + shape, {&cast.rows, &cast.transposed, C, 60}, x, exact);
    check_amax("cast_e4m3" + shape, cast.amax, x, exact);
    gelu_e4m3(gelu.output(), inp.data(), N, C, kStream);
    check_bytes("gelu_e4m3" + shape, {&gelu.rows, &gelu.transposed, C, 50}, value, value_bound);
    check_amax("gelu_e4m3" + shape, gelu.amax, value, value_bound);

    const Floats start = floats(C, 7, 1e-3);
    DeviceArray<Grad> sums(start), slope_sums(start);
    const Vector before = accumulate ? sums.values() : Vector(C, 0.0);
    Scratch scratch((int64_t)fp8_sums_scratch(N, C));
    auto into = [&](const DeviceArray<Grad>& array) {
        return Fp8ColumnSums<Grad>{array.data(), scratch.data(), accumulate};
    };
    cast_e5m2(gradient.output(), into(sums), dout.data(), N, C, kStream);
    check_bytes("cast_e5m2" + shape, {&gradient.rows, &gradient.transposed, C, 0x1p30f, kE5m2}, dy, exact);
    check_amax("cast_e5m2" + shape, gradient.amax, dy, exact);
    check_sums("cast_e5m2" + shape, sums, dy, exact, before);
    gelu_backward_e5m2(slopes.output(), again.output(), into(slope_sums), dout.data(), inp.data(), N, C,
                       kStream);
    const std::string name = "gelu_backward_e5m2" + shape;
    check_bytes(name, {&slopes.rows, &slopes.transposed, C, 0x1p29f, kE5m2}, slope, slope_bound);
    check_amax(name, slopes.amax, slope, slope_bound);
    check_sums(name, slope_sums, slope, slope_bound, before);
    check_bytes(name + " activation", {nullptr, &again.transposed, C, 50}, value, value_bound);
    check_amax(name + " activation", again.amax, value, value_bound);
    expect_same(name + " activation", again.transposed, gelu.transposed.download());
    expect_unchanged(name, inp, dout);
}

// the longest rows of each layout, and a vector or two more
constexpr int kWidths[] = {16,   32,   64,   256,  272,  512,  528,  768,  784,  1024, 1040, 1280, 1296,
                           1536, 1552, 1600, 1792, 1808, 2048, 2064, 3072, 3088, 4096, 4112, 6144};

// asked before main: where there is no GPU, too
bool hopper() {
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major >= 9;
}

}  // namespace

TEST_CASE("layernorm_forward_fp8: widths" * doctest::skip(!hopper())) {
    for (int C : kWidths) {
        for (bool residual : {false, true}) { check_case({80, C, residual}); }
    }
}

// fewer rows than a tile, tiles that are not whole, several tiles a block
TEST_CASE("layernorm_forward_fp8: numbers of rows" * doctest::skip(!hopper())) {
    for (int64_t N : {16, 32, 48, 64, 272, 20000}) { check_case({N, 768, N % 64 != 0}); }
    check_case({9008, 1600});
    check_case({4512, 2048, true});
    layernorm_forward_fp8(Arrays({0, 768}).call(), kStream);
}

TEST_CASE("layernorm_forward_fp8: the same bits again" * doctest::skip(!hopper())) {
    for (Case c : {Case{4096, 768}, Case{1040, 1600, true}}) {
        check_rerun(c.name(), [&] { return results_of(c); });
    }
}

TEST_CASE("layernorm_forward_fp8: scales, and an amax from before" * doctest::skip(!hopper())) {
    for (float scale : {1.0f, 0x1p-12f, 1e30f}) { check_case({64, 256, false, scale}); }
    check_case({64, 256, true, 1, 1e6f});
    Arrays a({64, 256});
    LayerNormForwardFp8<bf16> call = a.call();
    call.amax = call.mean = call.rstd = nullptr;
    call.transposed = nullptr;
    layernorm_forward_fp8(call, kStream);
    Arrays whole({64, 256});
    layernorm_forward_fp8(whole.call(), kStream);
    CHECK(a.out.download() == whole.out.download());
}

TEST_CASE("layernorm_forward_fp8: a row of NaN is NaN, and no amax" * doctest::skip(!hopper())) {
    Arrays a({32, 256});
    const bf16 nan = NAN;
    check_cuda(cudaMemcpy(a.inp.data() + 256, &nan, sizeof(nan), cudaMemcpyHostToDevice));
    layernorm_forward_fp8(a.call(), kStream);
    const std::vector<uint8_t> out = a.out.download();
    CHECK(std::all_of(&out[256], &out[512], [](uint8_t b) { return (b & 127) == 127; }));
    CHECK(std::none_of(&out[512], &out[768], [](uint8_t b) { return (b & 127) == 127; }));
    CHECK(a.amax.download()[0] < 10);
}

TEST_CASE("layernorm_forward_fp8: a call that it cannot take is refused" * doctest::skip(!hopper())) {
    auto refused = [](auto change) {
        Arrays a({32, 256});
        LayerNormForwardFp8<bf16> call = a.call();
        change(call);
        CHECK_THROWS_AS(layernorm_forward_fp8(call, kStream), Error);
    };
    refused([](auto& call) { call.N = 8; });
    refused([](auto& call) { call.C = 24; });
    refused([](auto& call) { call.C = kMostFp8Columns + 16; });
    refused([](auto& call) { call.inp++; });
    refused([](auto& call) { call.transposed++; });
    refused([](auto& call) { call.residual = const_cast<bf16*>(call.inp); });
}

TEST_CASE("fp8 casts and gelu: shapes" * doctest::skip(!hopper())) {
    for (int C : {16, 112, 128, 144, 768, 3072}) {
        for (int64_t N : {16, 64, 80, 272}) {
            check_ops<float>(N, C, false);
            check_ops<bf16>(N, C, true);
        }
    }
    check_ops<float>(8208, 1600, true);
}

// The transpose alone, or the rows alone; no amax, no sums. Numbers beyond the format's range are its largest.
TEST_CASE("fp8 casts and gelu: what is not wanted, and what is too large" * doctest::skip(!hopper())) {
    constexpr int64_t N = 64;
    constexpr int C = 128;
    DeviceArray<bf16> inp(floats(N * C, 8, 1000));
    Tensor whole(N * C, 1), rows(N * C, 1), columns(N * C, 1);
    cast_e4m3(whole.output(), inp.data(), N, C, kStream);
    cast_e4m3<bf16>({.rows = rows.rows.data(), .scale = rows.scale.data()}, inp.data(), N, C, kStream);
    cast_e4m3<bf16>({.transposed = columns.transposed.data(), .scale = rows.scale.data()}, inp.data(), N, C,
                    kStream);
    expect_same("rows alone", rows.rows, whole.rows.download());
    expect_same("transpose alone", columns.transposed, whole.transposed.download());
    const std::vector<uint8_t> bytes = whole.rows.download();
    CHECK(std::count(bytes.begin(), bytes.end(), to_e4m3(448)) > 100);
    CHECK(std::none_of(bytes.begin(), bytes.end(), [](uint8_t b) { return (b & 127) == 127; }));
    cast_e5m2<bf16, float>(whole.output(), {}, inp.data(), N, C, kStream);
    check_bytes("cast_e5m2 without sums", {&whole.rows, &whole.transposed, C, 1, kE5m2}, inp.values(),
                Vector(N * C));
    CHECK_THROWS_AS(cast_e4m3(whole.output(), inp.data(), 8, C, kStream), Error);
    CHECK_THROWS_AS(cast_e4m3(whole.output(), inp.data() + 1, N, C, kStream), Error);
    CHECK_THROWS_AS(cast_e4m3(whole.output(), inp.data(), N, C - 8, kStream), Error);
}
