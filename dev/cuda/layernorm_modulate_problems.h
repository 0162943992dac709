// LayerNorm with each sample's scale and shift as problems for the harness and for the tests: of each sample the truth and the
// bounds of a LayerNorm whose weight is 1 + scale; and a problem's tensors as calls. Host only.
// A form's name says which: "forward", "backward"; "gated" with a gated residual; "joined": dresidual is added to dinp.
#pragma once
#include <array>
#include <string_view>

#include "dev/cuda/layernorm_problems.h"
#include "llmc/layernorm/layernorm_modulate.h"

namespace llmc {

inline bool is_form(const CallForm& form, const char* word) {
    return std::string_view(form.name).find(word) != std::string_view::npos;
}

// of a sample: `count` of what lies there for each
inline Values cut(const Values& all, int64_t sample, int64_t count) {
    const auto begin = all->begin() + sample * count;
    return share(std::vector<double>(begin, begin + count));
}
inline Values one_more(const Values& x) {
    std::vector<double> more(*x);
    for (double& v : more) { v += 1; }
    return share(std::move(more));
}

// What the samples' truths have in member, one after the other.
template <typename Truths, typename Member>
Values joined(const Truths& truths, Member member) {
    std::vector<double> all;
    for (const auto& t : truths) {
        const std::vector<double>& part = (*t).*member;
        all.insert(all.end(), part.begin(), part.end());
    }
    return share(std::move(all));
}

// Values that a sample has for each column: normal numbers.
inline Values make_per_sample(Dtype dtype, int64_t samples, int C, Draw draw, double size) {
    return make_values(dtype, samples, C,
                       [&](int64_t b, int c) { return size * normal_at(draw, b * C + c); });
}

inline Problem modulate_problem(const char* op, Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    Problem p = empty_problem(op, dtype, {shape.N, shape.C}, kind, form, 0, 0);
    p.eps = kProblemEps;
    return p;
}
inline void add_per_sample(Problem& p, const char* name, const Values& values) {
    p.in.push_back({name, p.dtype, values, Extent::kColumns});
}

// shape.T: rows of a sample. Useful streams: inp read, out written; gated: inp2 read, residual written, too
inline Problem modulate_forward_problem(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    Problem p = modulate_problem("layernorm_modulate", dtype, shape, kind, form);
    const bool gated = is_form(form, "gated");
    const int64_t T = shape.T, B = p.N / T;
    const int C = p.C;
    p.reads = p.writes = gated ? 2 : 1;
    const Values scale = make_per_sample(dtype, B, C, kDrawWeight, 0.5);
    const Values shift = make_per_sample(dtype, B, C, kDrawBias, 0.5);
    Values x = make_inp(kind, dtype, p.N, C);
    p.in = {{"inp", dtype, x}};
    add_per_sample(p, "scale", scale);
    add_per_sample(p, "shift", shift);
    if (gated) {  // as the kernel rounds it: to float, then to T
        const Values gate = make_per_sample(dtype, B, C, kDrawBefore, 1);
        const Values h = make_values(
            dtype, p.N, C, [&](int64_t row, int c) { return inp2_at(kind, format_of(dtype), row, c, C); });
        p.in.push_back({"inp2", dtype, h});
        add_per_sample(p, "gate", gate);
        x = make_values(dtype, p.N, C, [&](int64_t row, int c) {
            const int64_t at = row * C + c;
            return std::fmaf((float)(*gate)[row / T * C + c], (float)(*h)[at], (float)(*x)[at]);
        });
    }
    std::vector<std::shared_ptr<const ForwardTruth>> truths;
    Problem sample = modulate_problem("sample", dtype, {T, C}, kind, {});
    for (int64_t b = 0; b < B; b++) {
        truths.push_back(std::make_shared<const ForwardTruth>(sample, cut(x, b, T * C),
                                                              one_more(cut(scale, b, C)), cut(shift, b, C)));
    }
    const Bound out = [=, r = Roundings(dtype)](const Sums& sums, int64_t row, int64_t c) {
        const ForwardTruth& t = *truths[row / T];
        const int64_t of = row % T, column = row / T * C + c;
        // xhat and xhat scale are rounded apart
        return out_bound(r, sums, t.spread(sums, of), t.rstd[of], 1 + std::fabs((*scale)[column]),
                         (*shift)[column], t.out[of * C + c]);
    };
    const Bound mean = [=, r = Roundings(Dtype::kFp32)](const Sums& sums, int64_t row, int64_t) {
        const ForwardTruth& t = *truths[row / T];
        return mean_bound(r, sums, t.spread(sums, row % T), t.mean[row % T]);
    };
    const Bound rstd = [=, r = Roundings(Dtype::kFp32)](const Sums& sums, int64_t row, int64_t) {
        const ForwardTruth& t = *truths[row / T];
        return rstd_bound(r, sums, t.spread(sums, row % T), t.rstd[row % T]);
    };
    p.out = {{"out", dtype, p.N, C, joined(truths, &ForwardTruth::out), out},
             {"mean", Dtype::kFp32, p.N, 1, joined(truths, &ForwardTruth::mean), mean, Extent::kRows},
             {"rstd", Dtype::kFp32, p.N, 1, joined(truths, &ForwardTruth::rstd), rstd, Extent::kRows}};
    if (gated) {
        p.out.push_back({"residual", dtype, p.N, C, x, [](const Sums&, int64_t, int64_t) { return 0.0; }});
    }
    return p;
}

// dinp, and its error before it is stored
struct ModulateGradient {
    std::vector<std::shared_ptr<const BackwardTruth>> samples;
    int64_t T;
    int C;
    Values dinp;  // with dresidual

    double error(const Sums& sums, int64_t row, int64_t c) const {
        const BackwardTruth& t = *samples[row / T];
        const int64_t of = row % T;
        const Roundings r(Dtype::kFp32);
        return dinp_bound(r, sums, t.rows[of], (*t.rstd)[of], t.xhat(of, c), t.g(of, c), t.dinp[of * C + c]) +
               r.u * std::fabs((*dinp)[row * C + c]);
    }
};

// dinp2 and dgate
inline void add_gate_gradients(Problem& p, const std::shared_ptr<const ModulateGradient>& d, const Values& h,
                               const Values& gate) {
    const int64_t T = d->T, B = p.N / T;
    const int C = p.C;
    std::vector<double> dinp2(p.N * C), dgate(B * C), size(B * C);
    for (int64_t row = 0; row < p.N; row++) {
        for (int c = 0; c < C; c++) {
            const int64_t at = row * C + c, column = row / T * C + c;
            dinp2[at] = (*gate)[column] * (*d->dinp)[at];
            dgate[column] += (*d->dinp)[at] * (*h)[at];
            size[column] += std::fabs((*d->dinp)[at] * (*h)[at]);
        }
    }
    const Values truth2 = share(std::move(dinp2)), truth = share(std::move(dgate));
    const Bound bound2 = [=, r = Roundings(p.dtype)](const Sums& sums, int64_t row, int64_t c) {
        const double y = (*truth2)[row * C + c], g = (*gate)[row / T * C + c];
        return r.stored(std::fabs(g) * d->error(sums, row, c) + r.u * std::fabs(y) + r.tiny, y);
    };
    const Bound bound = [=, r = Roundings(p.dtype)](const Sums& sums, int64_t column, int64_t) {
        double error = r.u * (sums.column_error() + 1) * size[column];
        for (int64_t row = column / C * T, c = column % C, t = 0; t < T; t++, row++) {
            error += std::fabs((*h)[row * C + c]) * d->error(sums, row, c);
        }
        return r.stored(error + T * r.tiny, (*truth)[column]);
    };
    p.out.push_back({"dinp2", p.dtype, p.N, C, truth2, bound2});
    p.out.push_back({"dgate", p.dtype, B * C, 1, truth, bound, Extent::kColumns});
}

// in: dout, inp, scale, mean and rstd
inline ModulateGradient gradient_of(const Problem& p, int64_t T, const std::array<Values, 5>& in) {
    const auto& [dout, x, scale, mean, rstd] = in;
    ModulateGradient d{{}, T, p.C, nullptr};
    for (int64_t b = 0; b < p.N / T; b++) {
        d.samples.push_back(std::make_shared<const BackwardTruth>(
            p.dtype, T, p.C, cut(dout, b, T * p.C), cut(x, b, T * p.C), one_more(cut(scale, b, p.C)),
            cut(mean, b, T), cut(rstd, b, T)));
    }
    return d;
}

// Useful streams: inp and dout read, dinp written; gated: inp2 read, dinp2 written; joined: dresidual read
inline Problem modulate_backward_problem(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    Problem p = modulate_problem("layernorm_modulate", dtype, shape, kind, form);
    const bool gated = is_form(form, "gated"), joins = is_form(form, "joined");
    const int64_t T = shape.T, B = p.N / T;
    const int C = p.C;
    p.reads = 2 + gated + joins;
    p.writes = 1 + gated;
    if (p.reads > 3) {  // of the roofs that there are 3R2W is nearest
        p.stream_element = 6.0 / 5 * format_of(dtype).bytes;
        p.reads = 3;
    }
    auto rows_of = [&](Draw draw, double size) {
        return make_values(dtype, p.N, C,
                           [&](int64_t row, int c) { return size * normal_at(draw, row * C + c); });
    };
    const Values scale = make_per_sample(dtype, B, C, kDrawWeight, 0.5);
    const Values x = make_inp(kind, dtype, p.N, C), dout = rows_of(kDrawDout, 0.1);
    const auto [mean, rstd] = saved_statistics(kind, dtype, p.N, C, x, false);
    p.in = {{"inp", dtype, x},
            {"dout", dtype, dout},
            {"mean", Dtype::kFp32, mean, Extent::kRows},
            {"rstd", Dtype::kFp32, rstd, Extent::kRows}};
    add_per_sample(p, "scale", scale);
    auto d = std::make_shared<ModulateGradient>(gradient_of(p, T, {dout, x, scale, mean, rstd}));
    const auto& samples = d->samples;
    std::vector<double> dinp(*joined(samples, &BackwardTruth::dinp));
    if (joins) {
        const Values more = rows_of(kDrawBefore, 0.3);
        for (size_t i = 0; i < dinp.size(); i++) { dinp[i] += (*more)[i]; }
        p.in.push_back({"dresidual", dtype, more});
    }
    d->dinp = share(std::move(dinp));
    const Roundings r(dtype);
    const Bound of_dinp = [d, r](const Sums& sums, int64_t row, int64_t c) {
        return r.stored(d->error(sums, row, c), (*d->dinp)[row * d->C + c]);
    };
    const Bound of_dscale = [d, r](const Sums& sums, int64_t at, int64_t) {
        const BackwardTruth& t = *d->samples[at / d->C];
        const int64_t c = at % d->C;
        return dweight_bound(r, sums, t.abs_dweight[c], t.abs_dbias[c], d->T, t.dweight[c]);
    };
    const Bound of_dshift = [d, r](const Sums& sums, int64_t at, int64_t) {
        const BackwardTruth& t = *d->samples[at / d->C];
        return dbias_bound(r, sums, t.abs_dbias[at % d->C], t.dbias[at % d->C]);
    };
    p.out = {
        {"dinp", dtype, p.N, C, d->dinp, of_dinp},
        {"dscale", dtype, B * C, 1, joined(samples, &BackwardTruth::dweight), of_dscale, Extent::kColumns},
        {"dshift", dtype, B * C, 1, joined(samples, &BackwardTruth::dbias), of_dshift, Extent::kColumns}};
    if (gated) {
        const Values h = rows_of(kDrawInp2, 0.5), gate = make_per_sample(dtype, B, C, kDrawBefore, 1);
        p.in.push_back({"inp2", dtype, h});
        add_per_sample(p, "gate", gate);
        add_gate_gradients(p, d, h, gate);
    }
    return p;
}

inline Problem layernorm_modulate_problem(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    return is_form(form, "backward") ? modulate_backward_problem(dtype, shape, kind, form)
                                     : modulate_forward_problem(dtype, shape, kind, form);
}

// A number goes through at most so many additions: those of a lane, of the lanes, of the warps; a column's in any order.
inline Sums modulate_sums(int64_t tokens, int C) {
    return {.row = std::ceil(C / 32.0) + 20, .column = (double)tokens};
}

// ---- calls: Tensors has get<T>(name) and stride(name), from one sample to the next

template <typename T, typename Tensors>
void launch_modulate(const Tensors& t, const Problem& p, int64_t samples, void* scratch,
                     cudaStream_t stream) {
    const bool gated = is_form(p.form, "gated");
    auto per_sample = [&]<typename X>(const char* name) {
        return PerSample<X>{t.template get<T>(name), t.stride(name)};
    };
    const PerSample<const T> scale = per_sample.template operator()<const T>("scale");
    PerSample<const T> gate{};
    const T* inp2 = nullptr;
    if (gated) {
        inp2 = t.template get<T>("inp2");
        gate = per_sample.template operator()<const T>("gate");
    }
    if (!is_form(p.form, "backward")) {
        return layernorm_modulate_forward<T>({.out = t.template get<T>("out"),
                                              .mean = t.template get<float>("mean"),
                                              .rstd = t.template get<float>("rstd"),
                                              .inp = t.template get<T>("inp"),
                                              .scale = scale,
                                              .shift = per_sample.template operator()<const T>("shift"),
                                              .samples = samples,
                                              .tokens = p.N / samples,
                                              .C = p.C,
                                              .eps = p.eps,
                                              .residual = gated ? t.template get<T>("residual") : nullptr,
                                              .inp2 = inp2,
                                              .gate = gate},
                                             stream);
    }
    const bool joins = is_form(p.form, "joined");
    LayerNormModulateBackward<T> call{.dinp = t.template get<T>("dinp"),
                                      .dscale = per_sample.template operator()<T>("dscale"),
                                      .dshift = per_sample.template operator()<T>("dshift"),
                                      .scratch = scratch,
                                      .dout = t.template get<T>("dout"),
                                      .inp = t.template get<T>("inp"),
                                      .mean = t.template get<float>("mean"),
                                      .rstd = t.template get<float>("rstd"),
                                      .scale = scale,
                                      .samples = samples,
                                      .tokens = p.N / samples,
                                      .C = p.C,
                                      .dresidual = joins ? t.template get<T>("dresidual") : nullptr};
    if (gated) {
        call.dinp2 = t.template get<T>("dinp2");
        call.dgate = per_sample.template operator()<T>("dgate");
        call.inp2 = inp2;
        call.gate = gate;
    }
    layernorm_modulate_backward<T>(call, stream);
}

}  // namespace llmc
