// LayerNorm on the GPU, as the model calls it, against the reference: inputs, truth and bounds are those of
// the shootouts (dev/cuda/layernorm_problems.h, dev/cuda/bounds.h); += and gradients in fp32 come on top.
// Widths at the edges of its regimes, and every form of a call: test_layernorm_regimes.cpp.
#include "dev/cuda/layernorm_problems.h"
#include "dev/test/gpu/layer_test.h"
#include "llmc/layernorm.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr Shape kShapes[] = {{1, 1},     {1, 768},   {3, 3},       {17, 65}, {17, 1600},
                             {131, 769}, {1023, 65}, {1000, 1600}, {4099, 3}};
constexpr float kEps = 1e-5f;

// A row's sum is shared by a warp at least, a lane's last vector being up to 8 elements more than its share
// (row_additions has 10 for the lanes, of which 5 are needed); a column's may be of any order.
Sums sums_of(Shape s) { return {.row = row_additions(s.C) + 6, .column = (double)s.N}; }

template <typename T>
std::string name_of(const char* tensor, Shape s, const char* more = "") {
    return strf("%s %s%s N=%d C=%d", tensor, type_name<T>(), more, (int)s.N, s.C);
}

template <typename T>
DeviceArray<T> upload(const Values& values, int offset = 0) {
    return DeviceArray<T>(convert<float>(*values), offset);
}

// Of a call's arrays, which begins one element off its alignment: offset(k) of array k is 1 there, else 0.
constexpr int kNone = -1;
auto offsets(int misaligned) {
    return [=](int k) { return (int)(k == misaligned); };
}

// ---- forward -------------------------------------------------------------------------------------

// exact: out must be the truth bit for bit, as it is for constant rows, which become bias
template <typename T>
void expect_normalised(const std::string& what, Shape s, const ForwardTruth& truth, const DeviceArray<T>& out,
                       const DeviceArray<float>& mean, const DeviceArray<float>& rstd, bool exact = false) {
    Sums sums = sums_of(s);
    std::string op = what + " ";
    expect_near(op + name_of<T>("out", s), out, *truth.out,
                [&](size_t i) { return exact ? 0 : truth.bound_of_out(sums, i / s.C, i % s.C); });
    expect_near(op + name_of<T>("mean", s), mean, *truth.mean,
                [&](size_t i) { return truth.bound_of_mean(sums, i); });
    expect_near(op + name_of<T>("rstd", s), rstd, *truth.rstd,
                [&](size_t i) { return truth.bound_of_rstd(sums, i); });
}

template <typename T>
void check_forward(Shape s, Inputs kind, int misaligned = kNone) {
    Dtype dtype = dtype_of<T>();
    auto offset = offsets(misaligned);
    Values inp_d = make_inp(kind, dtype, s.N, s.C), weight_d = make_vector(dtype, s.C, kDrawWeight),
           bias_d = make_vector(dtype, s.C, kDrawBias);
    auto inp = upload<T>(inp_d, offset(0)), weight = upload<T>(weight_d, offset(1)),
         bias = upload<T>(bias_d, offset(2));
    DeviceArray<T> out(s.N * s.C, offset(3)), out_alone(s.N * s.C, offset(3));
    DeviceArray<float> mean(s.N), rstd(s.N);
    LayerNormForward<T> call{.out = out.data(),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .inp = inp.data(),
                             .weight = weight.data(),
                             .bias = bias.data(),
                             .N = s.N,
                             .C = s.C,
                             .eps = kEps};
    layernorm_forward(call, kStream);
    ForwardTruth truth(dtype, s.N, s.C, kEps, inp_d, weight_d, bias_d);
    std::string op = strf("layernorm_forward %s", kInputsNames[(int)kind]);
    expect_normalised(op, s, truth, out, mean, rstd, kind == Inputs::kConstant);
    expect_unchanged(op, inp, weight, bias);

    call.out = out_alone.data();
    call.mean = call.rstd = nullptr;
    layernorm_forward(call, kStream);
    expect_same(op + " without statistics " + name_of<T>("out", s), out_alone, out.download());
}

// residual = inp + inp2: one addition and the rounding to T. out is that of the residual as it was stored.
template <typename T>
void check_residual_forward(Shape s, bool alias, int misaligned = kNone) {
    Dtype dtype = dtype_of<T>();
    auto offset = offsets(misaligned);
    Values weight_d = make_vector(dtype, s.C, kDrawWeight), bias_d = make_vector(dtype, s.C, kDrawBias);
    auto weight = upload<T>(weight_d), bias = upload<T>(bias_d);
    DeviceArray<T> inp(floats(s.N * s.C, 1), offset(0)), inp2(floats(s.N * s.C, 2, 0.3), offset(1)),
        apart(s.N * s.C, offset(2)), out(s.N * s.C);
    DeviceArray<T>& residual = alias ? inp : apart;
    DeviceArray<float> mean(s.N), rstd(s.N);
    LayerNormForward<T> call{.out = out.data(),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .inp = inp.data(),
                             .weight = weight.data(),
                             .bias = bias.data(),
                             .N = s.N,
                             .C = s.C,
                             .eps = kEps,
                             .residual = residual.data(),
                             .inp2 = inp2.data()};
    layernorm_forward(call, kStream);
    Vector sum = inp.values(), addend = inp2.values();
    for (size_t i = 0; i < sum.size(); i++) { sum[i] += addend[i]; }
    std::string op = alias ? "residual_layernorm_forward in place" : "residual_layernorm_forward";
    expect_near(op + " " + name_of<T>("residual", s), residual, sum,
                [&](size_t i) { return stored<T>(u * std::fabs(sum[i]), sum[i]); });
    ForwardTruth truth(dtype, s.N, s.C, kEps, share(DeviceArray<T>::widened(residual.download())), weight_d,
                       bias_d);
    expect_normalised(op, s, truth, out, mean, rstd);
    expect_unchanged(op, inp2, weight, bias);
}

// a row alone gives the bits it gives among others
template <typename T>
void check_row_alone(Shape s) {
    DeviceArray<T> inp(floats(s.N * s.C, 1)), weight(floats(s.C, 2)), bias(floats(s.C, 3));
    DeviceArray<T> out(s.N * s.C), one(s.C);
    LayerNormForward<T> call{.out = out.data(),
                             .inp = inp.data(),
                             .weight = weight.data(),
                             .bias = bias.data(),
                             .N = s.N,
                             .C = s.C,
                             .eps = kEps};
    layernorm_forward(call, kStream);
    call.out = one.data();
    call.inp = inp.data() + (s.N - 1) * s.C;
    call.N = 1;
    layernorm_forward(call, kStream);
    std::vector<T> all = out.download();
    expect_same("layernorm_forward one row " + name_of<T>("out", s), one,
                std::vector<T>(all.end() - s.C, all.end()));
}

// ---- backward ------------------------------------------------------------------------------------

// What is added to `before` (0 where the result is written) errs in fp32 by bounds.h's bound for an fp32
// result; then comes the addition, and the rounding to T.
template <typename T>
double added(double fp32_bound, double before, double result) {
    return stored<T>(fp32_bound + u * (std::fabs(before) + std::fabs(result)), result);
}

template <typename T, typename Grad>
void check_backward(Shape s, bool accumulate, int misaligned = kNone) {
    Dtype dtype = dtype_of<T>();
    auto offset = offsets(misaligned);
    Values inp_d = make_inp(Inputs::kNormal, dtype, s.N, s.C),
           weight_d = make_vector(dtype, s.C, kDrawWeight);
    Values dout_d = make_values(
        dtype, s.N, s.C, [&](int64_t row, int col) { return dout_at(Inputs::kNormal, row, col, s.N, s.C); });
    auto [mean_d, rstd_d] = saved_statistics(Inputs::kNormal, dtype, s.N, s.C, inp_d);
    BackwardTruth truth(Dtype::kFp32, s.N, s.C, dout_d, inp_d, weight_d, mean_d,
                        rstd_d);  // bounds of fp32 results

    auto inp = upload<T>(inp_d, offset(0)), weight = upload<T>(weight_d, offset(1)),
         dout = upload<T>(dout_d, offset(2));
    auto mean = upload<float>(mean_d), rstd = upload<float>(rstd_d);
    auto start = [&](int64_t n, uint64_t seed) { return accumulate ? floats(n, seed) : Floats(n, NAN); };
    DeviceArray<T> dinp(start(s.N * s.C, 5), offset(3));
    DeviceArray<Grad> dweight(start(s.C, 6), offset(4)), dbias(start(s.C, 7), offset(5));
    Scratch scratch(layernorm_backward_scratch(s.C));
    layernorm_backward(LayerNormBackward<T, Grad>{.dinp = dinp.data(),
                                                  .dweight = dweight.data(),
                                                  .dbias = dbias.data(),
                                                  .scratch = scratch.data(),
                                                  .dout = dout.data(),
                                                  .inp = inp.data(),
                                                  .weight = weight.data(),
                                                  .mean = mean.data(),
                                                  .rstd = rstd.data(),
                                                  .N = s.N,
                                                  .C = s.C,
                                                  .accumulate_dinp = accumulate,
                                                  .accumulate = accumulate},
                       kStream);

    Sums sums = sums_of(s);
    std::string op = "layernorm_backward ";
    std::string shape = type_names<T, Grad>() + strf("%s N=%d C=%d", accumulate ? " +=" : "", (int)s.N, s.C);
    auto expect = [&](const char* tensor, const auto& found, const Vector& sum, auto bound) {
        using Result = std::remove_cvref_t<decltype(found.uploaded()[0])>;
        Vector before = accumulate ? found.values() : Vector(sum.size(), 0.0), expected = sum;
        for (size_t i = 0; i < sum.size(); i++) { expected[i] += before[i]; }
        expect_near(op + tensor + " " + shape, found, expected,
                    [&](size_t i) { return added<Result>(bound(i), before[i], expected[i]); });
    };
    expect("dinp", dinp, *truth.dinp, [&](size_t i) { return truth.bound_of_dinp(sums, i / s.C, i % s.C); });
    expect("dweight", dweight, *truth.dweight, [&](size_t i) { return truth.bound_of_dweight(sums, i); });
    expect("dbias", dbias, *truth.dbias, [&](size_t i) { return truth.bound_of_dbias(sums, i); });
    check_guards(op + "scratch " + shape, scratch);
    expect_unchanged(op + shape, inp, weight, dout, mean, rstd);
}

}  // namespace

TEST_CASE_TEMPLATE("layernorm_forward", T, float, bf16, half) {
    for (Shape s : kShapes) { check_forward<T>(s, Inputs::kNormal); }
    for (Inputs kind : {Inputs::kOffset, Inputs::kConstant, Inputs::kOutlier}) {
        check_forward<T>({131, 769}, kind);
    }
}

TEST_CASE_TEMPLATE("layernorm_forward: residual + layernorm, apart and in place", T, float, bf16, half) {
    for (Shape s : kShapes) {
        for (bool alias : {false, true}) { check_residual_forward<T>(s, alias); }
    }
}

TEST_CASE_TEMPLATE("layernorm_forward: a row's result does not depend on its batch", T, float, bf16, half) {
    for (Shape s : kShapes) { check_row_alone<T>(s); }
}

TEST_CASE_TEMPLATE("layernorm_backward", T, float, bf16, half) {
    for (Shape s : kShapes) {
        for (bool accumulate : {false, true}) {
            check_backward<T, float>(s, accumulate);
            if (!std::is_same_v<T, float>) { check_backward<T, T>(s, accumulate); }
        }
    }
}

// rows of whole 16-byte vectors that lie on no 16 bytes: one array after the other
TEST_CASE_TEMPLATE("layernorm: arrays one element off their alignment", T, float, bf16, half) {
    constexpr Shape s = {17, 768};
    for (int misaligned = 0; misaligned < 6; misaligned++) {
        CAPTURE(misaligned);
        if (misaligned < 4) { check_forward<T>(s, Inputs::kNormal, misaligned); }
        if (misaligned < 3) { check_residual_forward<T>(s, false, misaligned); }
        for (bool accumulate : {false, true}) {
            check_backward<T, float>(s, accumulate, misaligned);
            if (!std::is_same_v<T, float>) { check_backward<T, T>(s, accumulate, misaligned); }
        }
    }
}
