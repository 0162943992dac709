// What is written in FP8, with its transpose, as problems for the harness and for the tests: LayerNorm, alone and behind a
// residual, casts, GELU and its gradient; and a problem's tensors as calls. Host only.
// A byte must be what the true number rounds to, unless the number is as near to a tie as its bound; the transpose must be
// the same bytes, and amax round to the largest.
#pragma once
#include "dev/cuda/gelu_bounds.h"
#include "dev/cuda/layernorm_calls.h"
#include "dev/cuda/layernorm_problems.h"
#include "llmc/host/base/fp8.h"
#include "llmc/layernorm/layernorm_fp8.h"
#include "llmc/ops/fp8.h"

namespace llmc {

// A tensor (N,C) of numbers y, each off by error(i) at most, times a power of two in FP8.
struct Fp8Numbers {
    Dtype dtype;
    float scale;
    int64_t N;
    int C;
    Values y;
    std::function<double(const Sums& sums, int64_t i)> error;

    double rounded(double x) const {
        const auto scaled = (float)(x * scale);
        return dtype == Dtype::kE4m3 ? from_e4m3(to_e4m3(scaled)) : from_e5m2(to_e5m2(scaled));
    }
    double bound(const Sums& sums, int64_t i) const {
        const double x = (*y)[i], e = error(sums, i), truth = rounded(x);
        return std::max(std::fabs(rounded(x + e) - truth), std::fabs(rounded(x - e) - truth));
    }
    Values truth(bool columns_first) const {
        std::vector<double> all(y->size());
#pragma omp parallel for
        for (int64_t i = 0; i < (int64_t)all.size(); i++) {
            all[columns_first ? i % C * N + i / C : i] = rounded((*y)[i]);
        }
        return share(std::move(all));
    }
    // the largest |y|; its bound is made of the numbers that their errors could put first
    Output amax(const char* name) const {
        double largest = 0;
#pragma omp parallel for reduction(max : largest)
        for (int64_t i = 0; i < (int64_t)y->size(); i++) { largest = std::fmax(largest, std::fabs((*y)[i])); }
        std::vector<int64_t> candidates;
        for (int64_t i = 0; i < (int64_t)y->size(); i++) {
            if (std::fabs((*y)[i]) >= largest * 15 / 16) { candidates.push_back(i); }
        }
        auto bound = [self = *this, largest, candidates](const Sums& sums, int64_t, int64_t) {
            double least = 0, most = 0;
            for (int64_t i : candidates) {
                const double size = std::fabs((*self.y)[i]), e = self.error(sums, i);
                least = std::max(least, size - e);
                most = std::max(most, size + e);
            }
            return std::max(most - largest, largest - least);
        };
        const Values zero = share({0.0});
        return {name, Dtype::kFp32, 1, 1, share({largest}), bound, Extent::kColumns, zero};
    }
    // "" or what is wrong with bytes, their transpose and amax; stored: in which format the numbers are
    std::string disagreement(const std::vector<std::vector<std::byte>>& raw, const Format& stored) const {
        int64_t at = N * C;
        double largest = 0;
#pragma omp parallel for reduction(min : at) reduction(max : largest)
        for (int64_t i = 0; i < N * C; i++) {
            const uint64_t bits = load_bits(raw[0].data(), i, stored);
            if (bits != load_bits(raw[1].data(), i % C * N + i / C, stored)) { at = std::min(at, i); }
            largest = std::fmax(largest, std::fabs(decode(bits, stored)));
        }
        if (at < N * C) { return fmt::format("transposed[{}][{}] is not out's", at % C, at / C); }
        const double found = decode(load_bits(raw[2].data(), 0, kFormats[0]), kFormats[0]);
        if (rounded(found) == largest) { return ""; }
        return fmt::format("amax: found {}, which is not the {} of the largest byte", found, largest / scale);
    }
};

// in front of p's outputs; the CPU's version has fp32 of the same numbers
inline void add_fp8(Problem& p, const Fp8Numbers& numbers) {
    const Dtype stored = p.dtype == Dtype::kFp32 ? p.dtype : numbers.dtype;
    auto bound = [numbers](const Sums& sums, int64_t row, int64_t col) {
        return numbers.bound(sums, row * numbers.C + col);
    };
    p.in.push_back({"scale", Dtype::kFp32, share({numbers.scale}), Extent::kColumns});
    p.out.insert(p.out.begin(), {{"out", stored, p.N, p.C, numbers.truth(false), bound},
                                 {"transposed", stored, p.C, p.N, nullptr, {}},
                                 numbers.amax("amax")});
    p.agree = [numbers, stored](const auto& raw) { return numbers.disagreement(raw, format_of(stored)); };
}

constexpr double kUnit = 0x1p-24;                             // of fp32: the product with the scale
constexpr float kFp8Scale = 32, kFp8GradientScale = 0x1p16f;  // gradients to near the largest of e5m2

// behind a residual where the form drops, or its name says so
inline Problem layernorm_fp8_problem(Dtype dtype, Shape shape, Inputs kind, CallForm form,
                                     float scale = kFp8Scale) {
    const bool named = std::string_view(form.name) == "residual_layernorm_fp8",
               residual = named || form.drops;
    form.fp8 = true;
    if (named) { form.name = ""; }
    Problem p = residual ? residual_layernorm_forward_problem(dtype, shape, kind, form)
                         : layernorm_forward_problem(dtype, shape, kind, form);
    p.op = residual ? "residual_layernorm_fp8" : "layernorm_fp8";
    const Output y = p.out[0];
    p.out.erase(p.out.begin());
    auto error = [y, C = p.C](const Sums& sums, int64_t i) {
        return y.bound(sums, i / C, i % C) + kUnit * std::fabs((*y.truth)[i]);
    };
    add_fp8(p, {Dtype::kE4m3, scale, p.N, p.C, y.truth, error});
    return p;
}

// the sums of the gradient's columns, in fp32 or the rows' type, = or +=
inline void add_column_sums(Problem& p, const Fp8Numbers& numbers) {
    const int64_t N = numbers.N, C = numbers.C;
    std::vector<double> sum(C), size(C), error(C);
#pragma omp parallel for
    for (int64_t c = 0; c < C; c++) {
        for (int64_t i = c; i < N * C; i += C) {
            sum[c] += (*numbers.y)[i];
            size[c] += std::fabs((*numbers.y)[i]);
            error[c] += numbers.error({}, i);
        }
    }
    Values truth = share(std::move(sum));
    auto bound = [=](Dtype dtype) -> Bound {
        return [=, r = Roundings(dtype)](const Sums& sums, int64_t c, int64_t) {
            return error[c] + dbias_bound(r, sums, size[c], (*truth)[c]);
        };
    };
    const Dtype grads = p.form.fp32_gradients ? Dtype::kFp32 : p.dtype;
    const Values before = p.form.accumulate ? make_before(Inputs::kNormal, grads, C, 1) : nullptr;
    p.out.push_back(written_or_added(p, {"dbias", grads, C, 1, truth, {}, Extent::kColumns}, before, bound));
}

// casts, GELU, its gradient
inline Problem elementwise_fp8_problem(Shape shape, Inputs kind, const CallForm& form) {
    const std::string op = form.name;
    const bool backward = op == "gelu_backward_e5m2", gradient = backward || op == "cast_e5m2";
    const int64_t N = shape.N, n = N * shape.C;
    const int C = shape.C;
    Problem p = empty_problem(form.name, Dtype::kBf16, shape, kind, form, 1, 1);
    p.form.fp8 = true;
    p.form.name = "";
    const Values x = make_values(p.dtype, N, C, [&](int64_t row, int c) {
        return gradient && !backward ? dout_at(kind, row, c, N, C) : 2 * normal_at(kDrawInp, row * C + c);
    });
    p.in.push_back({"inp", p.dtype, x});
    Fp8Numbers main{gradient ? Dtype::kE5m2 : Dtype::kE4m3, gradient ? kFp8GradientScale : kFp8Scale, N, C, x,
                    [](const Sums&, int64_t) { return 0; }};
    if (op.starts_with("cast")) {
        add_fp8(p, main);
        if (gradient) { add_column_sums(p, main); }
        return p;
    }
    std::vector<double> value(n);
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) { value[i] = (*x)[i] * GeluParts((*x)[i]).s; }
    Fp8Numbers gelu{Dtype::kE4m3, kFp8Scale, N, C, share(std::move(value)), {}};
    gelu.error = [x, y = gelu.y](const Sums&, int64_t i) {
        return gelu_error((*x)[i], (*y)[i]) + kUnit * std::fabs((*y)[i]);
    };
    if (!backward) {
        add_fp8(p, gelu);
        return p;
    }
    const Values dy =
        make_values(p.dtype, N, C, [&](int64_t row, int c) { return dout_at(kind, row, c, N, C); });
    std::vector<double> slope(n);
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) { slope[i] = (*dy)[i] * GeluParts((*x)[i]).value((*x)[i]); }
    main.y = share(std::move(slope));
    main.error = [x, dy, y = main.y](const Sums&, int64_t i) {
        return std::fabs((*dy)[i]) * gelu_slope_error((*x)[i]) + 2 * kUnit * std::fabs((*y)[i]);
    };
    p.in.push_back({"dout", p.dtype, dy});
    p.in.push_back({"activation_scale", Dtype::kFp32, share({kFp8Scale}), Extent::kColumns});
    p.out = {
        {"activation", gelu.dtype, C, N, gelu.truth(true),
         [gelu](const Sums& sums, int64_t c, int64_t row) { return gelu.bound(sums, row * gelu.C + c); }},
        gelu.amax("activation_amax")};
    add_column_sums(p, main);
    add_fp8(p, main);
    // 4 bytes of an element in and 3 out: of the roofs that there are 3R2W is nearest
    p.reads = 3;
    p.writes = 2;
    p.stream_element = 7.0 / 5;
    return p;
}

// form.name: which op, "" being LayerNorm. Useful streams: of bf16, a tensor in FP8 and its transpose being one.
inline Problem fp8_problem(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    const std::string_view op = form.name;
    const bool elementwise = op.starts_with("cast") || op.starts_with("gelu");
    return elementwise ? elementwise_fp8_problem(shape, kind, form)
                       : layernorm_fp8_problem(dtype, shape, kind, form);
}

// a row's sum by a warp, in vectors; a column's in any order
inline Sums fp8_sums(int64_t N, int C) {
    return {.row = std::ceil(C / 256.0) * 8 + 5, .column = (double)N + 8, .from_first = false};
}

// ---- calls: bf16

template <typename Tensors>
LayerNormForwardFp8<__nv_bfloat16> layernorm_fp8_call(const Tensors& t, const Problem& p) {
    using T = __nv_bfloat16;
    auto bytes = [&](const char* name) { return t.template rows<uint8_t>(name).data; };
    auto floats = [&](const char* name) { return t.template rows<float>(name).data; };
    auto given = [&](const char* name) { return t.template rows<T>(name).data; };
    return {bytes("out"),
            bytes("transposed"),
            floats("amax"),
            floats("mean"),
            floats("rstd"),
            given("inp"),
            given("weight"),
            given("bias"),
            floats("scale"),
            p.N,
            p.C,
            p.eps,
            given("residual"),
            given("inp2")};
}

template <typename Tensors>
Fp8Output fp8_output(const Tensors& t, const char* rows = "out", const char* transposed = "transposed",
                     const char* scale = "scale", const char* amax = "amax") {
    return {t.template rows<uint8_t>(rows).data, t.template rows<uint8_t>(transposed).data,
            t.template rows<float>(scale).data, t.template rows<float>(amax).data};
}

template <typename Grad, typename Tensors>
void launch_fp8_gradient(const Tensors& t, const Problem& p, void* scratch, cudaStream_t stream) {
    using T = __nv_bfloat16;
    const Fp8ColumnSums<Grad> sums{t.template rows<Grad>("dbias").data, scratch, p.form.accumulate};
    const T* inp = t.template rows<T>("inp").data;
    if (p.op == "cast_e5m2") { return cast_e5m2(fp8_output(t), sums, inp, p.N, p.C, stream); }
    gelu_backward_e5m2(fp8_output(t), fp8_output(t, "", "activation", "activation_scale", "activation_amax"),
                       sums, t.template rows<T>("dout").data, inp, p.N, p.C, stream);
}

template <typename Tensors>
void launch_fp8(const Tensors& t, const Problem& p, void* scratch, cudaStream_t stream,
                const Dropout& dropout = {}) {
    using T = __nv_bfloat16;
    if (p.op.ends_with("layernorm_fp8")) {
        return layernorm_forward_fp8(layernorm_fp8_call(t, p), stream, dropout);
    }
    const T* inp = t.template rows<T>("inp").data;
    if (p.op == "cast_e4m3") { return cast_e4m3(fp8_output(t), inp, p.N, p.C, stream); }
    if (p.op == "gelu_e4m3") { return gelu_e4m3(fp8_output(t), inp, p.N, p.C, stream); }
    p.form.fp32_gradients ? launch_fp8_gradient<float>(t, p, scratch, stream)
                          : launch_fp8_gradient<T>(t, p, scratch, stream);
}

}  // namespace llmc
