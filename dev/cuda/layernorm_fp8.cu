// The ladder of the LayerNorm that writes e4m3 and its transpose: every version checked against the CPU reference, in double,
// and timed against a roof of the same bytes; and of a step in FP8 what else writes both orders: a residual first, casts,
// GELU, its gradient.
//   make dev/cuda/layernorm_fp8 && dev/cuda/layernorm_fp8               all of it
//   dev/cuda/layernorm_fp8 --check                                      correctness only
// A byte must be what the true number rounds to, unless the number is as near to a tie as its bound; the transpose must be
// the same bytes, and amax round to the largest.
#include "dev/cuda/gelu_bounds.h"
#include "dev/cuda/layernorm_rungs.cuh"
#include "llmc/layernorm/ladder/forward/v0.h"
#include "llmc/layernorm/ladder/fp8/v1.cuh"
#include "llmc/layernorm/ladder/fp8/v2.cuh"
#include "llmc/ops/fp8.h"

using namespace llmc;
using bf16 = __nv_bfloat16;

// ---- problems -------------------------------------------------------------------------------------

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
void add_fp8(Problem& p, const Fp8Numbers& numbers) {
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

constexpr double kUnit = 0x1p-24;  // of fp32: the product with the scale
constexpr float kScale = 32, kGradientScale = 1024;

Problem layernorm_problem(Dtype dtype, Shape shape, Inputs kind, bool residual) {
    const CallForm form{.fp8 = true};
    Problem p = residual ? residual_layernorm_forward_problem(dtype, shape, kind, form)
                         : layernorm_forward_problem(dtype, shape, kind, form);
    const Output y = p.out[0];
    p.out.erase(p.out.begin());
    auto error = [y, C = p.C](const Sums& sums, int64_t i) {
        return y.bound(sums, i / C, i % C) + kUnit * std::fabs((*y.truth)[i]);
    };
    add_fp8(p, {Dtype::kE4m3, kScale, p.N, p.C, y.truth, error});
    return p;
}

// the sums of the gradient's columns
Output sums_of(const Fp8Numbers& numbers) {
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
    auto bound = [truth, size, error, r = Roundings(Dtype::kFp32)](const Sums& sums, int64_t c, int64_t) {
        return error[c] + dbias_bound(r, sums, size[c], (*truth)[c]);
    };
    return {"dbias", Dtype::kFp32, C, 1, truth, bound, Extent::kColumns};
}

// casts, GELU, its gradient
Problem elementwise_problem(const std::string& op, Shape shape, Inputs kind) {
    const bool backward = op == "gelu_backward_e5m2", gradient = backward || op == "cast_e5m2";
    const int64_t N = shape.N, n = N * shape.C;
    const int C = shape.C;
    Problem p = empty_problem("", Dtype::kBf16, shape, kind, {}, 1, 1);
    const Values x = make_values(p.dtype, N, C, [&](int64_t row, int c) {
        return gradient && !backward ? dout_at(kind, row, c, N, C) : 2 * normal_at(kDrawInp, row * C + c);
    });
    p.in.push_back({"inp", p.dtype, x});
    Fp8Numbers main{gradient ? Dtype::kE5m2 : Dtype::kE4m3, gradient ? kGradientScale : kScale, N, C, x,
                    [](const Sums&, int64_t) { return 0; }};
    if (op.starts_with("cast")) {
        add_fp8(p, main);
        if (gradient) { p.out.push_back(sums_of(main)); }
        return p;
    }
    std::vector<double> value(n);
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) { value[i] = (*x)[i] * GeluParts((*x)[i]).s; }
    Fp8Numbers gelu{Dtype::kE4m3, kScale, N, C, share(std::move(value)), {}};
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
    p.in.push_back({"activation_scale", Dtype::kFp32, share({kScale}), Extent::kColumns});
    p.out = {
        {"activation", gelu.dtype, C, N, gelu.truth(true),
         [gelu](const Sums& sums, int64_t c, int64_t row) { return gelu.bound(sums, row * gelu.C + c); }},
        gelu.amax("activation_amax"),
        sums_of(main)};
    add_fp8(p, main);
    // 4 bytes of an element in and 3 out: of the roofs that there are 3R2W is nearest
    p.reads = 3;
    p.writes = 2;
    p.stream_element = 7.0 / 5;
    return p;
}

// form.name: which op, "" being the ladder's. Useful streams: of bf16, a tensor in FP8 and its transpose being one.
Problem problem_of(Dtype dtype, Shape shape, Inputs kind, const CallForm& form) {
    const std::string op = form.plain() ? "layernorm_fp8" : form.name;
    Problem p = op.ends_with("layernorm_fp8") ? layernorm_problem(dtype, shape, kind, !form.plain())
                                              : elementwise_problem(op, shape, kind);
    p.op = op;
    return p;
}

// ---- versions -------------------------------------------------------------------------------------

uint8_t* bytes(const TensorSet& t, const char* name) { return reinterpret_cast<uint8_t*>(t.data(name)); }

using Call = LayerNormForwardFp8<bf16>;
Call call_of(const TensorSet& t, const Problem& p) {
    Call call{.out = bytes(t, "out"),
              .transposed = bytes(t, "transposed"),
              .amax = t.get<float>("amax"),
              .mean = t.get<float>("mean"),
              .rstd = t.get<float>("rstd"),
              .inp = t.get<bf16>("inp"),
              .weight = t.get<bf16>("weight"),
              .bias = t.get<bf16>("bias"),
              .scale = t.get<float>("scale"),
              .N = p.N,
              .C = p.C,
              .eps = p.eps};
    if (p.op != "layernorm_fp8") {
        call.residual = t.get<bf16>("residual");
        call.inp2 = t.get<bf16>("inp2");
    }
    return call;
}

void launch_shipped(const TensorSet& t, const Problem& p, int) {
    if (p.op.ends_with("layernorm_fp8")) { return layernorm_forward_fp8(call_of(t, p), kStream); }
    const Fp8Output out{bytes(t, "out"), bytes(t, "transposed"), t.get<float>("scale"), t.get<float>("amax")};
    const bf16* inp = t.get<bf16>("inp");
    if (p.op == "cast_e4m3") { return cast_e4m3(out, inp, p.N, p.C, kStream); }
    if (p.op == "gelu_e4m3") { return gelu_e4m3(out, inp, p.N, p.C, kStream); }
    const Fp8ColumnSums<float> sums{t.get<float>("dbias"), t.scratch()};
    if (p.op == "cast_e5m2") { return cast_e5m2(out, sums, inp, p.N, p.C, kStream); }
    const Fp8Output activation{.transposed = bytes(t, "activation"),
                               .scale = t.get<float>("activation_scale"),
                               .amax = t.get<float>("activation_amax")};
    gelu_backward_e5m2(out, activation, sums, t.get<bf16>("dout"), inp, p.N, p.C, kStream);
}

// a row's sum by a warp, in vectors; a column's in any order
Sums sums_of_fp8(int64_t N, int C, int) {
    return {.row = sums_of_warp_vectors<bf16>(N, C, 0).row, .column = (double)N + 8, .from_first = false};
}

std::vector<Version> ladder(Dtype) {
    auto rung = [](const char* name, const char* idea, void (*launch)(const Call&, cudaStream_t)) {
        auto run = [launch](const TensorSet& t, const Problem& p, int) { launch(call_of(t, p), kStream); };
        auto takes = [](const Problem& p) { return p.dtype == Dtype::kBf16 && p.op == "layernorm_fp8"; };
        return Version{.name = name,
                       .idea = idea,
                       .launch = run,
                       .sums = sums_of_fp8,
                       .traits = {.blocks = {0}, .takes = takes}};
    };
    auto hopper = [](const Problem& p) { return p.dtype == Dtype::kBf16 && device_facts().capability >= 90; };
    return {rung("v1", "two kernels, a thread a byte", v1::layernorm_forward_fp8<bf16>),
            rung("v2", "transposing through shared memory", v2::layernorm_forward_fp8<bf16>),
            {.name = "ship",
             .idea = "both orders from one read",
             .launch = launch_shipped,
             .sums = sums_of_fp8,
             .scratch = scratch_of(fp8_sums_scratch),
             .traits = {.blocks = {0}, .takes = hopper, .overlaps = always, .every_form = true}}};
}

void run_cpu(FloatTensors& out, const FloatTensors& in, const Problem& p) {
    v0::layernorm_forward_cpu(out[0].data(), out[3].data(), out[4].data(), in[0].data(), in[1].data(),
                              in[2].data(), 1, (int)p.N, p.C, p.eps);
    out[2][0] = 0;
    for (int64_t i = 0; i < p.N * p.C; i++) {
        out[2][0] = std::max(out[2][0], std::fabs(out[0][i]));
        out[0][i] = out[1][i % p.C * p.N + i / p.C] = from_e4m3(to_e4m3(out[0][i] * in[3][0]));
    }
}

// ---- what is tried --------------------------------------------------------------------------------

constexpr CallForm kResidual{.name = "residual_layernorm_fp8"};
constexpr CallForm kElementwise[] = {
    {.name = "cast_e4m3"}, {.name = "cast_e5m2"}, {.name = "gelu_e4m3"}, {.name = "gelu_backward_e5m2"}};

std::vector<CheckItem> checks() {
    std::vector<CheckItem> list = {{Dtype::kFp32, {80, 784}}};
    for (const CallForm& form : {CallForm{}, kResidual}) {
        // the longest rows of layouts and some vectors more; tiles that are not whole, several a block
        static constexpr Shape kShapes[] = {{80, 16},   {80, 272},    {16, 768},  {272, 784},
                                            {80, 1040}, {80, 1280},   {80, 1600}, {80, 2064},
                                            {80, 4112}, {20000, 768}, {80, 6144}};
        for (Shape shape : kShapes) {
            list.push_back({.dtype = Dtype::kBf16, .shape = shape, .reruns = 20, .form = form});
        }
        for (Inputs kind : {Inputs::kOffset, Inputs::kOutlier, Inputs::kDenormal, Inputs::kNonFinite}) {
            for (Shape shape : {Shape{144, 768}, {80, 1600}}) {
                list.push_back({.dtype = Dtype::kBf16, .shape = shape, .inputs = kind, .form = form});
            }
        }
    }
    for (const CallForm& form : kElementwise) {
        for (Shape shape : {Shape{16, 16}, {80, 144}, {272, 768}, {8208, 1600}}) {
            list.push_back({.dtype = Dtype::kBf16, .shape = shape, .reruns = 20, .form = form});
        }
    }
    return list;
}

// of GPT-2 124M, 774M and 1558M; GELU has four times the channels
std::vector<RaceItem> races() {
    std::vector<RaceItem> list;
    for (const CallForm& form : {CallForm{}, kResidual}) {
        for (Shape shape : {Shape{65536, 768}, {16384, 1280}, {8192, 1600}}) {
            list.push_back({Dtype::kBf16, shape, form});
        }
    }
    for (const CallForm& form : kElementwise) {
        const bool gelu = std::string_view(form.name).starts_with("gelu");
        for (int C : {768, 1280, 1600}) {
            list.push_back({Dtype::kBf16, {gelu ? 8192 : 16384, gelu ? 4 * C : C}, form});
        }
    }
    return list;
}

int main(int argc, char** argv) {
    Shootout shootout{
        .op = "layernorm_fp8",
        .cpu = {.run = run_cpu,
                .sums = [](int64_t, int C) { return Sums{.row = (double)C, .from_first = false}; },
                .shape = {2048, 768}},
        .ladder = ladder,
        .problem = problem_of,
        .checks = checks(),
        .races = races(),
    };
    return shootout_main(shootout, argc, argv);
}
