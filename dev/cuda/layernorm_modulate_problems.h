// LayerNorm with each sample's scale and shift as problems for the harness and for the tests: of each sample the truth and the
// bounds of a LayerNorm whose weight is 1 + scale; and a problem's tensors as calls. Host only.
// A form's name says which: "forward", "backward"; "gated" with a gated residual; "joined": dresidual is added to dinp.
#pragma once
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

// A problem and its samples' truths, that of a LayerNorm of each.
template <typename Truth>
struct OfSamples {
    Problem& p;
    int64_t T;
    std::vector<std::shared_ptr<const Truth>> truths{};

    // what the truths have in member, one after the other
    template <typename Member>
    Values joined(Member member) const {
        std::vector<double> all;
        for (const auto& t : truths) { all.insert(all.end(), ((*t).*member).begin(), ((*t).*member).end()); }
        return share(std::move(all));
    }
    Values add_matrix(const char* name, const Values& values) const {
        p.in.push_back({name, p.dtype, values});
        return values;
    }
    Values add_normal(const char* name, Draw draw, double size) const {
        return add_matrix(name, make_values(p.dtype, p.N, p.C, [&](int64_t row, int c) {
                              return size * normal_at(draw, row * p.C + c);
                          }));
    }
    // what each sample has for each column
    Values add_per_sample(const char* name, Draw draw, double size) const {
        p.in.push_back({name, p.dtype,
                        make_values(p.dtype, p.samples, p.C,
                                    [&](int64_t b, int c) { return size * normal_at(draw, b * p.C + c); }),
                        Extent::kColumns});
        return p.in.back().values;
    }
};

// Useful streams: inp read, out written; gated: inp2 read, residual written, too
inline void make_modulate_forward(Problem& p, int64_t T, Inputs kind) {
    OfSamples<ForwardTruth> of{p, T};
    const bool gated = is_form(p.form, "gated");
    const int C = p.C;
    p.reads = p.writes = gated ? 2 : 1;
    Values x = of.add_matrix("inp", make_inp(kind, p.dtype, p.N, C));
    const Values scale = of.add_per_sample("scale", kDrawWeight, 0.5);
    const Values shift = of.add_per_sample("shift", kDrawBias, 0.5);
    if (gated) {  // as the kernel rounds it: to float, then to T
        const Values h = of.add_matrix("inp2", make_values(p.dtype, p.N, C, [&](int64_t row, int c) {
                                           return inp2_at(kind, format_of(p.dtype), row, c, C);
                                       }));
        const Values gate = of.add_per_sample("gate", kDrawBefore, 1);
        x = make_values(p.dtype, p.N, C, [&](int64_t row, int c) {
            const int64_t at = row * C + c;
            return std::fmaf((float)(*gate)[row / T * C + c], (float)(*h)[at], (float)(*x)[at]);
        });
    }
    Problem sample = p;
    sample.N = T;
    for (int64_t b = 0; b < p.samples; b++) {
        of.truths.push_back(std::make_shared<const ForwardTruth>(
            sample, cut(x, b, T * C), one_more(cut(scale, b, C)), cut(shift, b, C)));
    }
    const Bound out = [=, truths = of.truths, r = Roundings(p.dtype)](const Sums& sums, int64_t row,
                                                                      int64_t c) {
        const ForwardTruth& t = *truths[row / T];
        const int64_t at = row % T, column = row / T * C + c;
        // xhat and xhat scale are rounded apart
        return out_bound(r, sums, t.spread(sums, at), t.rstd[at], 1 + std::fabs((*scale)[column]),
                         (*shift)[column], t.out[at * C + c]);
    };
    auto statistic = [&](const char* name, auto member, auto bound_of) {
        const Bound bound = [=, truths = of.truths, r = Roundings(Dtype::kFp32)](const Sums& sums,
                                                                                 int64_t row, int64_t) {
            const ForwardTruth& t = *truths[row / T];
            return bound_of(r, sums, t.spread(sums, row % T), (t.*member)[row % T]);
        };
        p.out.push_back({name, Dtype::kFp32, p.N, 1, of.joined(member), bound, Extent::kRows});
    };
    p.out.push_back({"out", p.dtype, p.N, C, of.joined(&ForwardTruth::out), out});
    statistic("mean", &ForwardTruth::mean, mean_bound);
    statistic("rstd", &ForwardTruth::rstd, rstd_bound);
    if (gated) {
        p.out.push_back({"residual", p.dtype, p.N, C, x, [](const Sums&, int64_t, int64_t) { return 0.0; }});
    }
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
    const int64_t T = d->T;
    const int C = p.C;
    std::vector<double> dinp2(p.N * C), dgate(p.samples * C), size(p.samples * C);
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
    const Bound bound = [=, r = Roundings(p.dtype)](const Sums& sums, int64_t b, int64_t c) {
        double error = r.u * (sums.column_error() + 1) * size[b * C + c];
        for (int64_t row = b * T; row < (b + 1) * T; row++) {
            error += std::fabs((*h)[row * C + c]) * d->error(sums, row, c);
        }
        return r.stored(error + T * r.tiny, (*truth)[b * C + c]);
    };
    p.out.push_back({"dinp2", p.dtype, p.N, C, truth2, bound2});
    p.out.push_back({"dgate", p.dtype, p.samples, C, truth, bound, Extent::kColumns});
}

// Useful streams: inp and dout read, dinp written; gated: inp2 read, dinp2 written; joined: dresidual read
inline void make_modulate_backward(Problem& p, int64_t T, Inputs kind) {
    OfSamples<BackwardTruth> of{p, T};
    const bool gated = is_form(p.form, "gated"), joins = is_form(p.form, "joined");
    const int C = p.C;
    p.reads = 2 + gated + joins;
    p.writes = 1 + gated;
    if (p.reads > 3) {  // of the roofs that there are 3R2W is nearest
        p.stream_element = 6.0 / 5 * format_of(p.dtype).bytes;
        p.reads = 3;
    }
    const Values x = of.add_matrix("inp", make_inp(kind, p.dtype, p.N, C));
    const Values dout = of.add_normal("dout", kDrawDout, 0.1);
    const Values scale = of.add_per_sample("scale", kDrawWeight, 0.5);
    const auto [mean, rstd] = saved_statistics(kind, p.dtype, p.N, C, x, false);
    p.in.push_back({"mean", Dtype::kFp32, mean, Extent::kRows});
    p.in.push_back({"rstd", Dtype::kFp32, rstd, Extent::kRows});
    for (int64_t b = 0; b < p.samples; b++) {
        of.truths.push_back(std::make_shared<const BackwardTruth>(
            p.dtype, T, C, cut(dout, b, T * C), cut(x, b, T * C), one_more(cut(scale, b, C)), cut(mean, b, T),
            cut(rstd, b, T)));
    }
    std::vector<double> dinp(*of.joined(&BackwardTruth::dinp));
    if (joins) {
        const Values more = of.add_normal("dresidual", kDrawBefore, 0.3);
        for (size_t i = 0; i < dinp.size(); i++) { dinp[i] += (*more)[i]; }
    }
    auto d =
        std::make_shared<const ModulateGradient>(ModulateGradient{of.truths, T, C, share(std::move(dinp))});
    const Roundings r(p.dtype);
    const Bound of_dinp = [d, r](const Sums& sums, int64_t row, int64_t c) {
        return r.stored(d->error(sums, row, c), (*d->dinp)[row * d->C + c]);
    };
    const Bound of_dscale = [d, r](const Sums& sums, int64_t b, int64_t c) {
        const BackwardTruth& t = *d->samples[b];
        return dweight_bound(r, sums, t.abs_dweight[c], t.abs_dbias[c], d->T, t.dweight[c]);
    };
    const Bound of_dshift = [d, r](const Sums& sums, int64_t b, int64_t c) {
        return dbias_bound(r, sums, d->samples[b]->abs_dbias[c], d->samples[b]->dbias[c]);
    };
    const Values dscale = of.joined(&BackwardTruth::dweight), dshift = of.joined(&BackwardTruth::dbias);
    p.out = {{"dinp", p.dtype, p.N, C, d->dinp, of_dinp},
             {"dscale", p.dtype, p.samples, C, dscale, of_dscale, Extent::kColumns},
             {"dshift", p.dtype, p.samples, C, dshift, of_dshift, Extent::kColumns}};
    if (gated) {
        const Values h = of.add_normal("inp2", kDrawInp2, 0.5);
        add_gate_gradients(p, d, h, of.add_per_sample("gate", kDrawBefore, 1));
    }
}

// shape.T: rows of a sample
inline Problem layernorm_modulate_problem(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    Problem p = empty_problem("layernorm_modulate", dtype, {shape.N, shape.C}, kind, form, 0, 0);
    p.eps = kProblemEps;
    p.samples = shape.N / shape.T;
    is_form(form, "backward") ? make_modulate_backward(p, shape.T, kind)
                              : make_modulate_forward(p, shape.T, kind);
    return p;
}

// A number goes through at most so many additions: those of a lane, of the lanes, of the warps; a column's in any order.
inline Sums modulate_sums(int64_t tokens, int C) {
    return {.row = std::ceil(C / 32.0) + 20, .column = (double)tokens};
}

template <typename T, typename Tensors>
void launch_modulate(const Tensors& t, const Problem& p, void* scratch, cudaStream_t stream) {
    auto matrix = [&](const char* name) { return t.template rows<T>(name).data; };
    auto statistic = [&](const char* name) { return t.template rows<float>(name).data; };
    auto given = [&](const char* name) {
        const Rows<T> rows = t.template rows<T>(name);
        return PerSample<const T>{rows.data, rows.stride};
    };
    auto wanted = [&](const char* name) {
        const Rows<T> rows = t.template rows<T>(name);
        return PerSample<T>{rows.data, rows.stride};
    };
    if (is_form(p.form, "backward")) {
        return layernorm_modulate_backward<T>(
            {matrix("dinp"), wanted("dscale"), wanted("dshift"), scratch, matrix("dout"), matrix("inp"),
             statistic("mean"), statistic("rstd"), given("scale"), p.samples, p.N / p.samples, p.C,
             matrix("dresidual"), matrix("dinp2"), wanted("dgate"), matrix("inp2"), given("gate")},
            stream);
    }
    layernorm_modulate_forward<T>(
        {matrix("out"), statistic("mean"), statistic("rstd"), matrix("inp"), given("scale"), given("shift"),
         p.samples, p.N / p.samples, p.C, p.eps, matrix("residual"), matrix("inp2"), given("gate")},
        stream);
}

}  // namespace llmc
