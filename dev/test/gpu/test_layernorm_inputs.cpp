// LayerNorm on the GPU, on inputs that break careless kernels: large means, constant rows, outliers, numbers
// of every size, denormals, infinities and NaNs, small epsilons; and integers, whose sums over rows must come
// out exact.
#include "dev/test/gpu/layernorm_runs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr Inputs kHard[] = {Inputs::kOffset, Inputs::kConstant, Inputs::kOutlier, Inputs::kDenormal};
// a shape of each regime, of rows enough that seven magnitudes of constants occur (dev/cuda/problem.h)
// and of lengths that are no powers of two, whose means have roundings
constexpr Shape kHardShapes[] = {{131, 33},  {131, 50},  {131, 64},  {131, 65}, {131, 384},
                                 {131, 769}, {67, 1024}, {35, 4096}, {5, 4097}, {35, 6400},
                                 {5, 20000}, {7, 20001}, {5, 40000}};

// ---- inputs of this file alone -------------------------------------------------------------------

Problem forward_of(const char* name, const Values& inp, Dtype dtype, Shape s, double eps) {
    Problem p{.op = "layernorm_forward",
              .dtype = dtype,
              .N = s.N,
              .C = s.C,
              .eps = (float)eps,
              .inputs = name,
              .reads = 1,
              .writes = 1,
              .in = {{"inp", dtype, inp}},
              .out = {},
              .form = {}};
    add_forward(p, inp, Inputs::kNormal);
    return p;
}

// Eighths of a row are of sizes from 10^-4 to 10^3: parts of a row with unlike spreads, which a merge of
// their statistics must weigh right.
Values unlike_parts(Dtype dtype, Shape s) {
    return make_values(dtype, s.N, s.C, [&](int64_t row, int col) {
        return normal_at(kDrawInp, row * s.C + col) * std::pow(10.0, (int64_t)col * 8 / s.C - 4);
    });
}

// + and - one number
Values alternating(Dtype dtype, Shape s, double large) {
    return make_values(dtype, s.N, s.C,
                       [&](int64_t row, int col) { return (row + col) % 2 ? large : -large; });
}

// each row of this output is `expected`, bit for bit
void check_rows(const Problem& p, const Results& results, const char* name, const Bytes& expected) {
    const Bytes& found = results[named(p.out, name) - p.out.begin()];
    REQUIRE(found.size() == p.N * expected.size());
    bool same = true;
    for (int64_t row = 0; row < p.N; row++) {
        same &= std::equal(expected.begin(), expected.end(), found.begin() + row * expected.size());
    }
    CHECK_MESSAGE(same, (name_of(p, name) + ": other bits"));
}

// ---- rows with infinities and NaNs ---------------------------------------------------------------

// What a call gives for rows without infinities and NaNs (dev/cuda/problem.h: each fourth) is what it gives
// when no row has any, bit for bit; dbias, which does not see inp, too.
void check_isolation(MakeProblem* make, Dtype dtype, Shape s) {
    Problem p = make(dtype, s, Inputs::kNonFinite, kPlain);
    Results found = check_problem(p), expected = run(make(dtype, s, Inputs::kNormal, kPlain));
    for (size_t i = 0; i < found.size(); i++) {
        const Output& t = p.out[i];
        bool sums = t.extent == Extent::kColumns, same = true;
        if (sums && std::string(t.name) != "dbias") { continue; }
        size_t bytes = sums ? found[i].size() : found[i].size() / p.N;
        for (int64_t row = 0; row < (sums ? 1 : p.N); row += 4) {
            same &= std::memcmp(&found[i][row * bytes], &expected[i][row * bytes], bytes) == 0;
        }
        CHECK_MESSAGE(same, (name_of(p, t.name) + ": not the bits of the same rows among finite ones"));
    }
}

// ---- exact sums ----------------------------------------------------------------------------------

// dweight and dbias bit for bit; dinp within its bound
void check_exact(const Problem& p) {
    Results found = check_problem(p);
    for (size_t i = 0; i < found.size(); i++) {
        const Output& t = p.out[i];
        if (t.extent != Extent::kColumns) { continue; }
        bool same = found[i] == encode_all(*t.truth, format_of(t.dtype));
        CHECK_MESSAGE(same, (name_of(p, t.name) + ": not the bits of the exact sums"));
    }
}

}  // namespace

// Constant rows become bias, bit for bit (the problem's bound is 0); kOffset: mean 1e4, deviations 1e-2 in
// fp32.
TEST_CASE("layernorm_forward regimes: hard inputs") {
    for (Dtype dtype : kDtypes) {
        for (Inputs kind : kHard) {
            for (Shape s : kHardShapes) {
                for (auto* make : kForwards) { check_problem(make(dtype, s, kind, kPlain)); }
            }
        }
    }
}

TEST_CASE("layernorm_backward regimes: hard inputs") {
    for (Dtype dtype : kDtypes) {
        for (Inputs kind : kHard) {
            for (Shape s : kHardShapes) { check_problem(layernorm_backward_problem(dtype, s, kind, kPlain)); }
        }
    }
}

// Of a row's mean times rstd fp32 has no number, but of each element less the mean: a lane without a column of the row must
// not take a zero for it.
TEST_CASE("layernorm_backward regimes: constant rows of large numbers") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (int C :
             {5, 7, 13, 50, 64, 100, 257, 768, 769, 1600, 4096, 4097, 20'001, 20'480, 100'000, 240'004}) {
            Shape s = {C < 1000 ? 37 : 3, C};
            Values inp = make_values(dtype, s.N, s.C, [](int64_t, int) { return 0x1p121; });
            for (const CallForm* form : {&kPlain, &kAllAdded}) {
                check_problem(layernorm_backward_of(inp, dtype, s, Inputs::kNormal, *form));
            }
        }
    }
}

// Each cluster takes at least 8 rows on 132 multiprocessors: twice as many as its blocks' moments have places.
TEST_CASE("layernorm_forward regimes: rings that go round") {
    auto check = [](Dtype dtype, Shape s) {
        check_problem(layernorm_forward_problem(dtype, s, Inputs::kNormal, kPlain));
    };
    check(Dtype::kBf16, {400, 32776});
    check(Dtype::kFp32, {67, 262136});
    constexpr Shape shapes[] = {{133, 65544},  {67, 131080},  {150, 70'000},  {150, 77'832},
                                {150, 90'000}, {60, 105'000}, {100, 120'008}, {90, 150'000},
                                {90, 190'000}, {40, 220'000}, {60, 237'000}};
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (Shape s : shapes) { check(dtype, s); }
    }
}

TEST_CASE("layernorm_forward regimes: unlike parts and alternating signs and epsilons") {
    for (Dtype dtype : kDtypes) {
        for (Shape s : kHardShapes) {
            check_problem(forward_of("unlike parts", unlike_parts(dtype, s), dtype, s, 1e-5));
            double large = dtype == Dtype::kFp16 ? 65504 : 0x1p50;
            check_problem(forward_of("alternating", alternating(dtype, s, large), dtype, s, 1e-5));
            for (double eps : {0.0, 1e-12, 0.5}) {
                check_problem(
                    forward_of("other eps", make_inp(Inputs::kNormal, dtype, s.N, s.C), dtype, s, eps));
            }
        }
    }
}

// What layernorm.h says of rows whose squared deviations have no sum in fp32: right up to there, then rstd 0 and out bias.
TEST_CASE("layernorm_forward regimes: the largest spread that fp32 has room for") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (Shape s : kHardShapes) {
            int half = (127 - (int)std::ceil(std::log2(s.C))) / 2;  // C squares of 2^half: at most 2^127
            auto of_size = [&](int exponent) {
                return forward_of("largest", alternating(dtype, s, std::ldexp(1, exponent)), dtype, s, 1e-5);
            };
            check_problem(of_size(half));
            Problem p = of_size(half + 2);
            const Input& bias = *named(p.in, "bias");
            Results results = run(p);
            check_rows(p, results, "out", encode_all(*bias.values, format_of(bias.dtype)));
            check_rows(p, results, "rstd", Bytes(sizeof(float)));
        }
    }
}

TEST_CASE("layernorm_forward regimes: constant rows without epsilon are NaN") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16}) {
        for (Shape s : kHardShapes) {
            Problem p = forward_of("constant", make_inp(Inputs::kConstant, dtype, s.N, s.C), dtype, s, 0.0);
            const Bytes out = run(p)[named(p.out, "out") - p.out.begin()];
            const Format& f = format_of(dtype);
            int64_t numbers = 0;
            for (int64_t i = 0; i < s.N * s.C; i++) {
                numbers += !std::isnan(decode(load_bits(out.data(), i, f), f));
            }
            CHECK_MESSAGE(numbers == 0, name_of(p, "out"));
        }
    }
}

TEST_CASE("layernorm regimes: infinities and NaNs stay in their rows") {
    for (Dtype dtype : kDtypes) {
        constexpr Shape shapes[] = {{131, 33}, {131, 65},  {131, 100},  {131, 768}, {67, 769}, {35, 4096},
                                    {9, 4097}, {9, 16384}, {9, 20'001}, {9, 32768}, {9, 65536}};
        for (Shape s : shapes) {
            for (auto* make : kOps) { check_isolation(make, dtype, s); }
        }
    }
}

// Sums over rows that are small integers have no roundings: no row may be lost or counted twice (bound 0).
TEST_CASE("layernorm_backward regimes: exact sums over rows") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        constexpr Shape shapes[] = {{4099, 3},   {4099, 8},   {4099, 36},   {2003, 65},
                                    {1400, 256}, {1031, 769}, {1031, 1024}, {133, 4097},
                                    {67, 8192},  {35, 20480}, {9, 65536}};
        for (Shape s : shapes) {
            for (const CallForm* form : {&kPlain, &kAllAdded}) {
                check_exact(layernorm_backward_problem(dtype, s, Inputs::kInteger, *form));
            }
        }
    }
}

// Each team takes more than twice as many rows as its ring has stages on 132 multiprocessors, in a block of
// many teams, of few, and in clusters; += has another ring. And where a lane has more rows than are under way.
TEST_CASE("layernorm_backward regimes: exact sums by rings that go round") {
    constexpr Shape kRings[] = {{10600, 256}, {10600, 65},  {2700, 1280},  {3400, 1281}, {600, 4096},
                                {400, 8704},  {200, 20480}, {35, 65536},   {60'000, 64}, {60'000, 128},
                                {60'000, 64}, {60'000, 65}, {60'000, 100}, {60'000, 90}, {600, 24584}};
    for (int i = 0; i < (int)std::size(kRings); i++) {
        const CallForm& form = i % 4 < 2 ? kFp32Added : kPlain;
        check_exact(layernorm_backward_problem(Dtype::kBf16, kRings[i], Inputs::kInteger, form));
    }
    // the fallback: each of its warps has rows of a group
    check_exact(layernorm_backward_problem(Dtype::kFp64, {10600, 65}, Inputs::kInteger, kAllAdded));
}

// Rows for 16 blocks, and those that their registers do not hold: several for each cluster.
TEST_CASE("layernorm_backward regimes: exact sums of long rows") {
    check_exact(layernorm_backward_problem(Dtype::kFp32, {35, 98304}, Inputs::kInteger, kAllAdded));
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16}) {
        for (const CallForm* form : {&kPlain, &kAllAdded}) {
            check_exact(layernorm_backward_problem(dtype, {17, 262144}, Inputs::kInteger, *form));
        }
    }
}

// rings that go round, where rows have statistics of their own: those of a later row would be seen
TEST_CASE("layernorm_backward regimes: statistics by rings that go round") {
    constexpr Shape shapes[] = {{60'000, 64}, {60'000, 65}, {56'000, 256}, {3400, 1281}, {200, 20480},
                                {600, 24584}, {90, 90'000}, {50, 190'000}, {17, 262144}};
    for (Shape s : shapes) {
        check_problem(layernorm_backward_problem(Dtype::kBf16, s, Inputs::kNormal, kPlain));
    }
    check_problem(layernorm_backward_problem(Dtype::kFp32, {40, 150'004}, Inputs::kNormal, kPlain));
}

TEST_SUITE("thorough") {
    TEST_CASE("layernorm regimes: hard inputs in long rows") {
        for (TypePair types : kTypePairs) {
            for (Inputs kind : kHard) {
                constexpr Shape shapes[] = {{1031, 8},  {1031, 9},   {131, 1600}, {131, 1601},
                                            {35, 8192}, {35, 8193},  {9, 16384},  {7, 16385},
                                            {7, 65536}, {7, 131072}, {7, 262144}, {7, 262151}};
                for (Shape s : shapes) {
                    for (auto* make : kOps) { check_problem(make(types.dtype, s, kind, types.plain())); }
                }
            }
        }
    }

    TEST_CASE("layernorm_backward regimes: exact sums over many rows") {
        for (TypePair types : {kTypePairs[0], kTypePairs[1], kTypePairs[4]}) {
            constexpr Shape shapes[] = {
                {300'007, 3}, {300'007, 8}, {20'011, 256}, {20'011, 257}, {10'007, 768}, {10'007, 769},
                {5003, 1280}, {5003, 1281}, {5003, 1600},  {5003, 1601},  {4099, 2048},  {4099, 2049},
                {2003, 4096}, {2003, 4097}, {1031, 8192},  {1031, 8193},  {573, 16384},  {573, 16385},
                {267, 32768}, {133, 65536}, {67, 131072},  {35, 262144},  {35, 262152},  {35, 262145}};
            for (Shape s : shapes) {
                for (const CallForm* form : {&types.plain(), &types.added()}) {
                    check_exact(layernorm_backward_problem(types.dtype, s, Inputs::kInteger, *form));
                }
            }
        }
    }
    TEST_CASE("layernorm_backward regimes: rings that go round") {
        for (TypePair types : kTypePairs) {
            constexpr Shape shapes[] = {
                {60'000, 64},   {10600, 256},  {2700, 1280},  {3400, 1281},  {1100, 4096},  {1100, 4097},
                {573, 8704},    {573, 9001},   {400, 15'001}, {267, 20'001}, {150, 33'001}, {90, 100'001},
                {573, 16384},   {267, 20480},  {400, 28672},  {150, 40'000}, {133, 65536},  {90, 90'000},
                {100, 105'000}, {50, 150'000}, {50, 170'000}, {50, 190'000}, {50, 220'000}, {40, 250'000}};
            for (Shape s : shapes) {
                for (const CallForm* form : {&types.plain(), &types.added()}) {
                    check_problem(layernorm_backward_problem(types.dtype, s, Inputs::kNormal, *form));
                }
            }
        }
    }
}
