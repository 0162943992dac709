// LayerNorm as problems for the harness, in three ops: forward, residual + forward, backward. Inputs:
// layernorm_inputs.h; truth and bounds: layernorm_truth.h; what is tried: layernorm_lists.h. Host only.
#pragma once
#include "dev/cuda/layernorm_lists.h"
#include "dev/cuda/layernorm_truth.h"

namespace llmc {

using Bound = std::function<double(const Sums& sums, int64_t row, int64_t col)>;

// ---- forward ------------------------------------------------------------------------------------

constexpr float kProblemEps = 1e-5f;  // what the kernels get: not quite kLayernormEps

// What forward makes of rows x, alone or behind a residual: weight and bias in; out, mean and rstd out.
inline void add_forward(Problem& p, const Values& x, Inputs kind) {
    const CallForm& form = p.form;
    Dtype weights = form.fp32_weight ? Dtype::kFp32 : p.dtype, statistics = statistics_of(p.dtype);
    Values weight = form.no_weight ? nullptr : make_vector(weights, p.C, kDrawWeight);
    Values bias = form.no_bias ? nullptr : make_vector(weights, p.C, kDrawBias);
    auto t = std::make_shared<const ForwardTruth>(p.dtype, p.N, p.C, p.eps, x, weight, bias);
    bool exact = kind == Inputs::kConstant;  // out is bias, if the version's sums are of x - x[0]
    Values truth = t->out;
    if (exact) {  // as T stores it: bias may be wider
        truth = make_values(p.dtype, p.N, p.C, [&](int64_t, int col) { return bias ? (*bias)[col] : 0.0; });
    }
    Bound out = [t, exact](const Sums& sums, int64_t row, int64_t c) {
        return exact && sums.from_first ? 0 : t->bound_of_out(sums, row, c);
    };
    Bound mean = [t](const Sums& sums, int64_t row, int64_t) { return t->bound_of_mean(sums, row); };
    Bound rstd = [t](const Sums& sums, int64_t row, int64_t) { return t->bound_of_rstd(sums, row); };
    if (weight) { p.in.push_back({"weight", weights, weight, Extent::kColumns}); }
    if (bias) { p.in.push_back({"bias", weights, bias, Extent::kColumns}); }
    p.out.push_back({"out", p.dtype, p.N, p.C, truth, out});
    if (form.no_statistics) { return; }
    p.out.push_back({"mean", statistics, p.N, 1, t->mean, mean, Extent::kRows});
    p.out.push_back({"rstd", statistics, p.N, 1, t->rstd, rstd, Extent::kRows});
}

// Useful streams: inp read, out written. in_place: out takes inp's place.
inline Problem layernorm_forward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                         const CallForm& form = {}) {
    Problem p{.op = "layernorm_forward",
              .dtype = dtype,
              .N = shape.N,
              .C = shape.C,
              .eps = kProblemEps,
              .inputs = kInputsNames[(int)kind],
              .reads = 1,
              .writes = 1,
              .in = {},
              .out = {},
              .form = form};
    Values inp = make_inp(kind, dtype, p.N, p.C);
    if (!form.in_place) { p.in.push_back({"inp", dtype, inp}); }
    add_forward(p, inp, kind);
    if (form.in_place) { p.out[0].initial = inp; }
    return p;
}

// ---- residual + forward -------------------------------------------------------------------------

// Useful streams: inp, inp2 read, residual, out written. The sum of two numbers of T, rounded to double and
// then to T, is the sum rounded to T (double has more than twice T's bits, and two), and so it is by way of
// fp32: residual is exact. in_place: residual takes inp's (1) or inp2's (2) place.
inline Problem residual_layernorm_forward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                                  const CallForm& form = {}) {
    Problem p{.op = "residual_layernorm_forward",
              .dtype = dtype,
              .N = shape.N,
              .C = shape.C,
              .eps = kProblemEps,
              .inputs = kInputsNames[(int)kind],
              .reads = 2,
              .writes = 2,
              .in = {},
              .out = {},
              .form = form};
    Values inp = make_inp(kind, dtype, p.N, p.C);
    Values inp2 = make_values(dtype, p.N, p.C, [&](int64_t row, int col) {
        return inp2_at(kind, format_of(dtype), row, col, p.C);
    });
    Values residual = make_values(dtype, p.N, p.C, [&](int64_t row, int col) {
        return (*inp)[row * p.C + col] + (*inp2)[row * p.C + col];
    });
    if (form.in_place != 1) { p.in.push_back({"inp", dtype, inp}); }
    if (form.in_place != 2) { p.in.push_back({"inp2", dtype, inp2}); }
    add_forward(p, residual, kind);
    Bound none = [](const Sums&, int64_t, int64_t) { return 0.0; };
    p.out.push_back({"residual", dtype, p.N, p.C, residual, none});
    if (form.in_place) { p.out.back().initial = form.in_place == 1 ? inp : inp2; }
    return p;
}

// ---- backward -----------------------------------------------------------------------------------

// An output to which `sum` is written (=), or added (+=) where something was there before; stored in dtype.
// bound_in(type): the bound of the sum alone, stored in that type.
inline Output written_or_added(const Problem& p, Output out, const Values& before,
                               const std::function<Bound(Dtype)>& bound_in) {
    if (!before) {
        out.bound = bound_in(out.dtype);
        return out;
    }
    std::vector<double> total(out.truth->size());
    for (size_t i = 0; i < total.size(); i++) { total[i] = (*before)[i] + (*out.truth)[i]; }
    out.truth = share(std::move(total));
    out.initial = before;
    // the sum in the accumulators' type, the addition there, the store
    auto bound = [r = Roundings(out.dtype), sum = bound_in(statistics_of(p.dtype)), truth = out.truth,
                  cols = out.cols](const Sums& sums, int64_t row, int64_t col) {
        double y = (*truth)[row * cols + col];
        return r.stored(sum(sums, row, col) + r.u * std::fabs(y), y);
    };
    out.bound = bound;
    return out;
}

// the three results, those that are wanted
inline void add_gradients(Problem& p, const std::shared_ptr<const BackwardTruth>& t, Inputs kind) {
    const CallForm& form = p.form;
    int64_t N = p.N;
    int C = p.C;
    Dtype gradients = form.fp32_gradients ? Dtype::kFp32 : p.dtype;
    bool exact = kind == Inputs::kInteger;  // sums over rows are small integers: no rounding, in any order
    auto before = [&](bool wanted, Dtype dtype, int64_t rows, int cols) {
        return wanted ? make_before(kind, dtype, rows, cols) : nullptr;
    };
    auto dinp = [t](Dtype dtype) -> Bound {
        auto s = dtype == t->dtype ? t : t->stored_in(dtype);
        return [s](const Sums& sums, int64_t row, int64_t c) { return s->bound_of_dinp(sums, row, c); };
    };
    auto dweight = [t, exact](Dtype dtype) -> Bound {
        auto s = t->stored_in(dtype);
        return [s, exact](const Sums& sums, int64_t c, int64_t) {
            return exact ? 0 : s->bound_of_dweight(sums, c);
        };
    };
    auto dbias = [t, exact](Dtype dtype) -> Bound {
        auto s = t->stored_in(dtype);
        return [s, exact](const Sums& sums, int64_t c, int64_t) {
            return exact ? 0 : s->bound_of_dbias(sums, c);
        };
    };
    if (!form.no_dinp) {
        Output out{"dinp", p.dtype, N, C, t->dinp, {}};
        p.out.push_back(written_or_added(p, out, before(form.accumulate_dinp, p.dtype, N, C), dinp));
    }
    if (!form.no_dweight) {
        Output out{"dweight", gradients, C, 1, t->dweight, {}, Extent::kColumns};
        p.out.push_back(written_or_added(p, out, before(form.accumulate, gradients, C, 1), dweight));
    }
    if (!form.no_dbias) {
        Output out{"dbias", gradients, C, 1, t->dbias, {}, Extent::kColumns};
        p.out.push_back(written_or_added(p, out, before(form.accumulate, gradients, C, 1), dbias));
    }
}

// Useful streams: inp and dout read, dinp written (and read, if added to). in_place: dinp takes dout's place.
inline Problem layernorm_backward_of(const Values& inp, Dtype dtype, Shape shape, Inputs kind,
                                     const CallForm& form) {
    int64_t N = shape.N;
    int C = shape.C;
    Dtype weights = form.fp32_weight ? Dtype::kFp32 : dtype, statistics = statistics_of(dtype);
    Values weight = form.no_weight ? nullptr : make_vector(weights, C, kDrawWeight);
    Values dout =
        make_values(dtype, N, C, [&](int64_t row, int col) { return dout_at(kind, row, col, N, C); });
    auto [mean, rstd] = saved_statistics(kind, dtype, N, C, inp);
    auto t = std::make_shared<const BackwardTruth>(dtype, N, C, dout, inp, weight, mean, rstd);
    Problem p{.op = "layernorm_backward",
              .dtype = dtype,
              .N = N,
              .C = C,
              .eps = 0,
              .inputs = kInputsNames[(int)kind],
              .reads = form.accumulate_dinp ? 3 : 2,
              .writes = 1,
              .in = {},
              .out = {},
              .form = form};
    if (!form.in_place) { p.in.push_back({"dout", dtype, dout}); }
    p.in.push_back({"inp", dtype, inp});
    if (weight) { p.in.push_back({"weight", weights, weight, Extent::kColumns}); }
    p.in.push_back({"mean", statistics, mean, Extent::kRows});
    p.in.push_back({"rstd", statistics, rstd, Extent::kRows});
    add_gradients(p, t, kind);
    if (form.in_place) { p.out[0].initial = dout; }
    return p;
}
inline Problem layernorm_backward_problem(Dtype dtype, Shape shape, Inputs kind = Inputs::kNormal,
                                          const CallForm& form = {}) {
    return layernorm_backward_of(make_inp(kind, dtype, shape.N, shape.C), dtype, shape, kind, form);
}

}  // namespace llmc
