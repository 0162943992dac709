// RMSNorm on the GPU: LayerNorm's kernels, told to take the mean for 0. Widths on both sides of each layout's edges, inputs that
// break careless kernels, forms of a call, and what RMSNorm alone can get wrong: a mean that is there although none is wanted. In
// every batch: test_layernorm_repeats.cpp.
#include "dev/test/gpu/layernorm_runs.h"
#include "dev/test/gpu/layernorm_widths.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr Inputs kHard[] = {Inputs::kOffset, Inputs::kConstant, Inputs::kOutlier, Inputs::kDenormal};
// a shape of each kernel
constexpr Shape kEach[] = {{37, 7},    {37, 50},     {37, 64},    {131, 65},  {33, 768},
                           {33, 769},  {9, 4096},    {5, 4097},   {3, 16384}, {3, 20001},
                           {2, 32768}, {2, 131'073}, {2, 262'144}};

Problem rms_problem(MakeProblem* make, Dtype dtype, Shape s, Inputs kind, const CallForm& form) {
    return make(dtype, s, kind, rms_of(form));
}

void check_each(TypePair types, Shape s, Inputs kind) {
    for (auto* make : kOps) { check_problem(rms_problem(make, types.dtype, s, kind, types.plain())); }
    check_problem(rms_problem(layernorm_backward_problem, types.dtype, s, kind, types.added()));
}

// Two types at each width, in turn.
void check_widths(bool thorough) {
    int turn = 0;
    for (int C : widths(thorough)) {
        const int64_t most = thorough ? 1031 : 131;
        const Shape s = {std::clamp<int64_t>((thorough ? 300'000 : 50'000) / C, 3, most), C};
        for (int k = 0; k < (int)std::size(kTypePairs); k++) {
            if (thorough || k == turn % 2 || k == 2 + turn % 3) {
                check_each(kTypePairs[k], s, Inputs::kNormal);
            }
        }
        turn++;
    }
}

}  // namespace

TEST_CASE("rmsnorm regimes: widths") { check_widths(false); }

// A row's mean counts: of the offset ones it is all but the whole row, of the constant ones all of it.
TEST_CASE("rmsnorm regimes: hard inputs") {
    for (Dtype dtype : kDtypes) {
        for (Inputs kind : kHard) {
            for (Shape s : kEach) {
                for (auto* make : kOps) { check_problem(rms_problem(make, dtype, s, kind, kPlain)); }
            }
        }
    }
}

TEST_CASE("rmsnorm regimes: infinities and NaNs") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (Shape s : kEach) {
            for (auto* make : kOps) {
                check_problem(rms_problem(make, dtype, s, Inputs::kNonFinite, kPlain));
            }
        }
    }
}

// It is 0 to the bit, and rows with a residual have the bits of the plain call.
TEST_CASE("rmsnorm_forward regimes: the mean is 0, and a residual changes no bit") {
    for (TypePair types : kTypePairs) {
        for (Shape s : kEach) {
            Problem with = rms_problem(residual_layernorm_forward_problem, types.dtype, s, Inputs::kNormal,
                                       types.plain());
            Problem plain =
                rms_problem(layernorm_forward_problem, types.dtype, s, Inputs::kNormal, types.plain());
            named(plain.in, "inp")->values = named(with.out, "residual")->truth;
            const Results found = run(plain), expected = run(with);
            for (size_t i = 0; i < plain.out.size(); i++) {
                const std::string name = plain.out[i].name;
                const bool same = found[i] == expected[named(with.out, name) - with.out.begin()];
                CHECK_MESSAGE(same, (name_of(with, name.c_str()) + ": not the bits of the plain call"));
                const bool zero = name != "mean" || found[i] == Bytes(found[i].size());
                CHECK_MESSAGE(zero, (name_of(plain, "mean") + ": not 0"));
            }
        }
    }
}

// NaNs in its place change no bit.
TEST_CASE("rmsnorm_backward regimes: no mean is read") {
    for (TypePair types : kTypePairs) {
        for (Shape s : kEach) {
            Problem p =
                rms_problem(layernorm_backward_problem, types.dtype, s, Inputs::kNormal, types.added());
            const Results without = run(p);
            std::vector<double> nan(p.N, NAN);
            p.in.push_back({"mean", statistics_of(p.dtype), share(std::move(nan)), Extent::kRows});
            const bool same = run(p) == without;
            CHECK_MESSAGE(same, (name_of(p, "results") + ": other bits with a mean of NaN"));
        }
    }
}

// Of a row's dout, 1e38 throughout, fp32 has no sum, but it has one of dout xhat, as the signs of inp alternate: who makes c1 and
// multiplies it by 0 gets NaN. Three such numbers still have a sum, for dbias.
TEST_CASE("rmsnorm_backward regimes: a row's dout that has no sum") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (Shape s : kEach) {
            if (s.C % 8 != 0) { continue; }  // what a lane has, too, is to cancel
            s.N = std::min<int64_t>(s.N, 3);
            Values dout = make_values(dtype, s.N, s.C, [](int64_t, int) { return 1e38; });
            Values inp = make_values(dtype, s.N, s.C, [](int64_t, int col) { return col % 2 ? -1 : 1; });
            for (bool add : {false, true}) {
                const CallForm form{.name = "large", .no_weight = true, .accumulate_dinp = add, .rms = true};
                Problem p = layernorm_backward_of(inp, dtype, s, Inputs::kNormal, form);
                named(p.in, "dout")->values = dout;
                Values rstd = named(p.in, "rstd")->values;
                p.out.clear();
                add_gradients(
                    p,
                    std::make_shared<const BackwardTruth>(dtype, s.N, s.C, dout, inp, nullptr, nullptr, rstd),
                    Inputs::kNormal);
                check_problem(p);
            }
        }
    }
}

TEST_SUITE("thorough") {
    TEST_CASE("rmsnorm regimes: widths for each pair of types") { check_widths(true); }
}
