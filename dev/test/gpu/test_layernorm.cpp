// LayerNorm on the GPU, all of its answer: widths on both sides of each regime's edges, numbers of rows, every form of a call;
// then backward's dinp_sums. Hard inputs and exact sums: test_layernorm_inputs.cpp; the same bits again, calls without a pause,
// more than 2^31 elements: test_layernorm_repeats.cpp.
#include "dev/test/gpu/layernorm_runs.h"
#include "dev/test/gpu/layernorm_widths.h"
#include "dev/test/support/test_files.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// ---- widths --------------------------------------------------------------------------------------

// `elements` in about that many rows, of at least 3
Shape rows_of(int C, int64_t elements, int64_t most) {
    return {std::clamp<int64_t>(elements / C, 3, most), C};
}

// 4 elements off an edge, a vector of fp32, is half a vector of 16 bits: of long rows but another width without vectors
bool worth_trying(Dtype dtype, int C) { return dtype == Dtype::kFp32 || C % 8 != 4 || C < kFourthUpTo; }

// bf16 and fp32 at every width; one of the other pairs of types in turn
bool chosen(int pair, int C, int turn) { return pair < 2 || (pair == 2 + turn % 3 && C < 65536); }
template <typename Each>
void for_widths(bool thorough, Each each) {
    int turn = 0;
    for (int C : widths(thorough)) {
        for (int k = 0; k < (int)std::size(kTypePairs); k++) {
            bool tried = thorough || chosen(k, C, turn);
            Shape s = thorough ? rows_of(C, 500'000, 1031) : rows_of(C, k < 2 ? 100'000 : 30'000, 131);
            if (tried && worth_trying(kTypePairs[k].dtype, C)) { each(kTypePairs[k], s); }
        }
        turn++;
    }
}

void check_forward_widths(bool thorough) {
    for_widths(thorough, [](TypePair types, Shape s) {
        for (auto* make : kForwards) { check_problem(make(types.dtype, s, Inputs::kNormal, types.plain())); }
    });
}

void check_backward_widths(bool thorough) {
    for_widths(thorough, [](TypePair types, Shape s) {
        for (const CallForm* form : {&types.plain(), &types.added()}) {
            check_problem(layernorm_backward_problem(types.dtype, s, Inputs::kNormal, *form));
        }
    });
}

// ---- numbers of rows -----------------------------------------------------------------------------

void check_each_op(TypePair types, Shape s) {
    for (auto* make : kOps) { check_problem(make(types.dtype, s, Inputs::kNormal, types.plain())); }
    check_problem(layernorm_backward_problem(types.dtype, s, Inputs::kNormal, types.added()));
}

// ---- forms of a call -----------------------------------------------------------------------------

void check_forms(Dtype dtype, Shape s) {
    bool two_bytes = format_of(dtype).bytes == 2;
    for (bool is_backward : {false, true}) {
        for (const CallForm& form : layernorm_forms(is_backward)) {
            if ((form.fp32_weight || form.fp32_gradients) && !two_bytes) { continue; }
            if (is_backward) {
                check_problem(layernorm_backward_problem(dtype, s, Inputs::kNormal, form));
                continue;
            }
            check_problem(residual_layernorm_forward_problem(dtype, s, Inputs::kNormal, form));
            if (form.in_place == 2 || form.drops) { continue; }
            check_problem(layernorm_forward_problem(dtype, s, Inputs::kNormal, form));
        }
    }
}

const CallForm kMisaligned = {.name = "misaligned", .offset = 1};

// a form that each tensor by itself has, one after the other
void check_one_by_one(Problem p, const CallForm& form, bool matrices_alone) {
    p.form.name = form.name;
    p.form.pad = form.pad;
    p.form.offset = form.offset;
    auto check = [&](const auto& t) {
        INFO("of ", t.name, " alone");
        if (t.extent == Extent::kMatrix || !matrices_alone) { check_problem(p, t.name); }
    };
    for (const Input& t : p.in) { check(t); }
    for (const Output& t : p.out) { check(t); }
}

// the problem whose output takes an input's place
Problem in_place(Problem p, const char* input, const char* output) {
    auto taken = named(p.in, input);
    named(p.out, output)->initial = taken->values;
    p.in.erase(taken);
    return p;
}

// without one output: the others must keep their bits, if the same kernel is to run
void check_without(const Problem& p, const Results& full, const char* output, bool same_kernel) {
    Problem less = p;
    size_t at = named(less.out, output) - less.out.begin();
    less.out.erase(less.out.begin() + at);
    Results found = check_problem(less), expected = full;
    expected.erase(expected.begin() + at);
    bool same = found == expected;
    CHECK_MESSAGE((same || !same_kernel), (name_of(p, "results") + ": other bits without " + output));
}

}  // namespace

TEST_CASE("layernorm_forward regimes: widths") { check_forward_widths(false); }
TEST_CASE("layernorm_backward regimes: widths") { check_backward_widths(false); }

// a million short rows, in vectors and in single elements
TEST_CASE("layernorm regimes: 2^20 rows") {
    check_problem(residual_layernorm_forward_problem(Dtype::kBf16, {1 << 20, 3}));
    check_problem(layernorm_backward_problem(Dtype::kBf16, {1 << 20, 8}));
}

// nulls, strides, unaligned arrays, results in place of inputs, +=
TEST_CASE("layernorm regimes: every form of a call") {
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp64}) {
        for (Shape s : kRegimes) { check_forms(dtype, s); }
    }
}

// Whoever looks at one tensor's stride or alignment and uses it for another is found out. Of short rows halves and
// quarters of vectors, too.
TEST_CASE("layernorm regimes: strides and alignment of one tensor after the other") {
    const CallForm kApart[] = {{.name = "vectors apart", .pad = 8}, {.name = "rows apart", .pad = 1}};
    const CallForm kPieces[] = {{.name = "halves apart", .pad = 4},
                                {.name = "quarters apart", .pad = 2},
                                {.name = "off by a half", .offset = 4},
                                {.name = "off by a quarter", .offset = 2}};
    for (Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
        for (auto* make : kOps) {
            Problem p = make(dtype, {37, 40}, Inputs::kNormal, kPlain);
            check_one_by_one(p, kMisaligned, false);
            for (const CallForm& form : kPieces) { check_one_by_one(p, form, form.pad > 0); }
        }
    }
    for (Dtype dtype : {Dtype::kBf16, Dtype::kFp32, Dtype::kFp16}) {
        for (Shape s : {Shape{17, 768}, {5, 4096}, {5, 4097}, {3, 16384}, {3, 32768}}) {
            if (dtype != Dtype::kBf16 && s.C != 768) { continue; }
            for (auto* make : kOps) {
                Problem p = make(dtype, s, Inputs::kNormal, kPlain);
                check_one_by_one(p, kMisaligned, false);
                for (const CallForm& form : kApart) { check_one_by_one(p, form, true); }
            }
            Problem added = layernorm_backward_problem(dtype, s, Inputs::kNormal, kAllAdded);
            check_one_by_one(added, kMisaligned, false);
        }
    }
}

// One row has no sums over rows: backward may write dweight and dbias in one go, if their alignment allows.
TEST_CASE("layernorm regimes: one row") {
    for (Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
        for (int C : {256, 1592, 4096, 16376}) {
            check_forms(dtype, {1, C});
            Problem added = layernorm_backward_problem(dtype, {1, C}, Inputs::kNormal, kAllAdded);
            check_one_by_one(added, kMisaligned, false);
        }
    }
}

TEST_CASE("layernorm regimes: out and dinp in place of an input") {
    for (Dtype dtype : kDtypes) {
        for (Shape s : kRegimes) {
            // behind a residual: out over inp, residual by itself, and over inp2
            check_problem(in_place(
                residual_layernorm_forward_problem(dtype, s, Inputs::kNormal, {.name = "out in place"}),
                "inp", "out"));
            check_problem(in_place(residual_layernorm_forward_problem(
                                       dtype, s, Inputs::kNormal, {.name = "both in place", .in_place = 2}),
                                   "inp", "out"));
            // dinp += where dinp holds dout: the bits of the same call with dout a copy
            Problem apart = layernorm_backward_problem(dtype, s, Inputs::kNormal,
                                                       {.name = "dinp += dout", .accumulate_dinp = true});
            named(apart.out, "dinp")->initial = named(apart.in, "dout")->values;
            bool same = run(in_place(apart, "dout", "dinp")) == run(apart);
            CHECK_MESSAGE(same, (name_of(apart, "dinp") + ": other bits in place of dout"));
        }
    }
}

// Recomputation starts from the residual stream, with the plain call: it must find what came with the residual.
TEST_CASE("layernorm regimes: rows with a residual have the bits of the plain call") {
    for (TypePair types : kTypePairs) {
        for (int C : {1, 7, 12, 36, 50, 56, 64, 100, 255, 266, 521, 768, 769, 1601, 2084, 4097, 16641, 65544,
                      131072}) {
            const Shape s = rows_of(C, 20'000, 131);
            Problem with = residual_layernorm_forward_problem(types.dtype, s, Inputs::kNormal, types.plain());
            Problem plain = layernorm_forward_problem(types.dtype, s, Inputs::kNormal, types.plain());
            named(plain.in, "inp")->values = named(with.out, "residual")->truth;
            const Results found = run(plain), expected = run(with);
            for (size_t i = 0; i < plain.out.size(); i++) {
                const size_t at = named(with.out, plain.out[i].name) - with.out.begin();
                const bool same = found[i] == expected[at];
                CHECK_MESSAGE(same, (name_of(with, plain.out[i].name) + ": not the bits of the plain call"));
            }
        }
    }
}

TEST_CASE("layernorm regimes: without one of the results") {
    for (Dtype dtype : kDtypes) {
        for (Shape s : kRegimes) {
            for (auto* make : kOps) {
                Problem p = make(dtype, s, Inputs::kNormal, kPlain);
                Results full = run(p);
                for (const char* name : {"mean", "rstd", "dweight", "dbias", "dinp"}) {
                    bool same_kernel = std::string(name) != "dinp";
                    if (named(p.out, name) != p.out.end()) { check_without(p, full, name, same_kernel); }
                }
            }
        }
    }
}

// ---- dinp_sums -----------------------------------------------------------------------------------
//
// Sums over the rows of dinp as it is stored: against the dinp that came back, added up on the host. The other results are
// those of the same call without them, to the bit. A failure reads
//   layernorm_backward dinp_sums bf16 33x768 all += normal: dinp_sums[5]: found .., expected .. within ..

namespace {

constexpr const char* kExact = "integer dinp";  // inputs whose sums have no roundings

// dinp_sums is another output, of the type of dbias, poisoned or added to as that is.
Problem with_sums(Problem p) {
    Output sums = *named(p.out, "dbias");
    sums.name = "dinp_sums";
    p.out.push_back(sums);
    return p;
}

// The last output's truth and bound, from the rows of dinp. Its errors are those of a sum over N rows, of what it
// is added to, and of the store.
Output judged_sums(const Problem& p, const Bytes& dinp) {
    const Format& f = format_of(p.dtype);
    Output out = p.out.back();
    std::vector<double> sums(p.C), sizes(p.C);
#pragma omp parallel for
    for (int c = 0; c < p.C; c++) {
        long double sum = out.initial ? (*out.initial)[c] : 0.0, size = std::fabs(sum);
        for (int64_t row = 0; row < p.N; row++) {
            double x = decode(load_bits(dinp.data(), row * p.C + c, f), f);
            sum += x;
            size += std::fabs(x);
        }
        sums[c] = (double)sum;
        sizes[c] = (double)size;
    }
    out.truth = share(std::vector<double>(sums));
    out.bound = [r = Roundings(out.dtype), exact = p.inputs == kExact, sums, sizes](const Sums& chain,
                                                                                    int64_t c, int64_t) {
        return exact ? 0 : r.stored(r.u * (chain.column_error() + 2) * sizes[c], sums[c]);
    };
    return out;
}

// p: a problem with dinp_sums as the last of its outputs
void check_sums(Problem p) {
    Tensors tensors(p);
    Results found = run(p, tensors);
    Problem judged = p, without = p;
    const char* of = p.form.drops ? "dropped" : "dinp";
    judged.out = {judged_sums(p, found[named(p.out, of) - p.out.begin()])};
    judge_results(judged, {found.back()});
    tensors.reset();
    bool same = run(p, tensors) == found;
    CHECK_MESSAGE(same, (name_of(p, "results") + ": other bits when run again"));
    without.out.pop_back();
    found.pop_back();
    bool untouched = run(without) == found;
    CHECK_MESSAGE(untouched, (name_of(p, "results") + ": other bits with dinp_sums than without"));
}
void check_sums(Dtype dtype, Shape s, const CallForm& form) {
    check_sums(with_sums(layernorm_backward_problem(dtype, s, Inputs::kNormal, form)));
}
void check_both(TypePair types, Shape s) {
    for (const CallForm* form : {&types.plain(), &types.added()}) { check_sums(types.dtype, s, *form); }
}

// Where dout is 0, dinp stays what it was: small integers, so that no row may be lost or counted twice.
void check_exact(TypePair types, Shape s) {
    CallForm form{
        .name = "dinp +=", .fp32_weight = types.fp32_weight, .fp32_gradients = true, .accumulate_dinp = true};
    Problem p = layernorm_backward_problem(types.dtype, s, Inputs::kNormal, form);
    p.inputs = kExact;
    named(p.in, "dout")->values = make_values(p.dtype, p.N, p.C, [](int64_t, int) { return 0.0; });
    named(p.out, "dinp")->initial = make_before(Inputs::kInteger, p.dtype, p.N, p.C);
    check_sums(with_sums(p));
}

// the longest row of each layout of the ring that sums dinp, in 16 or in 32 bits, and a vector more
constexpr int kWidths[] = {64,   256,  264,  512,  520,  768,  776,  1024, 1032, 1280,
                           1288, 1536, 1544, 1600, 1608, 1792, 1800, 2048, 2056};

}  // namespace

TEST_CASE("layernorm_backward dinp_sums: every regime") {
    for (Shape s : kRegimes) {
        for (TypePair types : kTypePairs) { check_both(types, s); }
        for (const CallForm* form : {&kPlain, &kAllAdded}) {
            check_sums(Dtype::kBf16, s, *form);  // and of bf16
            check_sums(Dtype::kFp64, s, *form);
        }
    }
    for (int C : {131072 + 8, 262144 + 8}) { check_sums(Dtype::kBf16, {3, C}, kAllAdded); }
}

TEST_CASE("layernorm_backward dinp_sums: widths") {
    for (int C : kWidths) {
        for (TypePair types : kTypePairs) {
            check_sums(types.dtype, {std::min(131, 100'000 / C), C}, types.added());
        }
    }
}

// ---- dropout

namespace {

CallForm dropping(CallForm form) {
    form.name = "dropout";
    form.drops = true;
    return form;
}
void check_dropout(TypePair types, Shape s) {
    check_problem(
        residual_layernorm_forward_problem(types.dtype, s, Inputs::kNormal, dropping(types.plain())));
    for (const CallForm* form : {&types.plain(), &types.added()}) {
        check_problem(layernorm_backward_problem(types.dtype, s, Inputs::kNormal, dropping(*form)));
        check_sums(types.dtype, s, dropping(*form));
    }
}

}  // namespace

// fp16, weights of fp32 and what is no whole vectors are dropped by kernels of their own
TEST_CASE("layernorm dropout: every regime") {
    for (TypePair types : kTypePairs) {
        for (Shape s : kRegimes) { check_dropout(types, s); }
    }
}

// of layouts with dropout the longest row, and a vector more
TEST_CASE("layernorm dropout: widths") {
    for (int C : {16,   24,   32,   40,   64,   72,   128,  192,   256,   384,   392,  512,  768,
                  776,  1024, 1280, 1536, 1544, 1600, 1792, 2048,  2056,  2560,  3072, 3904, 4096,
                  4104, 5120, 6144, 7168, 8192, 8200, 9216, 12288, 14336, 16384, 16392}) {
        for (int pair : {0, 1}) { check_dropout(kTypePairs[pair], {std::max(5, 4'000 / C), C}); }
    }
}

TEST_CASE("layernorm dropout: rows by themselves have the masks that they have among all") {
    for (Shape s : {Shape{67, 64}, {33, 768}, {17, 1600}, {9, 4096}, {17, 769}}) {
        for (Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
            check_batches(residual_layernorm_forward_problem(dtype, s, Inputs::kNormal, dropping(kPlain)));
            check_batches(layernorm_backward_problem(dtype, s, Inputs::kNormal, dropping(kPlain)));
        }
    }
}

TEST_CASE("layernorm dropout: refused where there is nothing to drop") {
    Problem p = layernorm_backward_problem(Dtype::kFp32, {3, 64}, Inputs::kNormal, {.drops = true});
    p.out.erase(named(p.out, "dropped"));
    check_error(error_of([&] { run(p); }), kExitUsage, {"dropped, dropout and dinp go together"});
    p = layernorm_forward_problem(Dtype::kFp32, {3, 64}, Inputs::kNormal, {.drops = true});
    check_error(error_of([&] { run(p); }), kExitUsage, {"inp2 is null"});
}

// With sums over dinp and without. Around the number of an H200's multiprocessors. No rows: += leaves what there was, = writes
// zeros.
TEST_CASE("layernorm regimes: numbers of rows") {
    for (TypePair types : {kTypePairs[0], kTypePairs[1]}) {
        for (int C : {1, 8, 65, 768, 2048, 4097, 16384, 65536}) {
            for (int64_t N : {0, 1, 2, 131, 132, 133, 1000}) {
                if (C * N > 300'000) { continue; }
                check_each_op(types, {N, C});
                check_both(types, {N, C});
            }
        }
    }
}

// strides, arrays off their alignment, dinp in place of dout; dinp and its sums without dweight and dbias
TEST_CASE("layernorm_backward dinp_sums: forms of a call") {
    std::vector<CallForm> forms = layernorm_forms(true);
    forms.push_back({.name = "all +=, vectors apart", .accumulate_dinp = true, .accumulate = true, .pad = 8});
    for (Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp64}) {
        bool two_bytes = format_of(dtype).bytes == 2;
        for (Shape s : {Shape{33, 768}, {33, 769}, {5, 4096}}) {
            for (const CallForm& form : forms) {
                if (form.no_dinp || form.no_dbias || (form.fp32_gradients && !two_bytes)) { continue; }
                check_sums(dtype, s, form);
            }
            Problem p = with_sums(layernorm_backward_problem(dtype, s, Inputs::kNormal, kAllAdded));
            for (const char* name : {"dweight", "dbias"}) {  // without one, then without both
                p.out.erase(named(p.out, name));
                check_sums(p);
            }
        }
    }
}

// Each team takes more rows than its ring has stages on 132 multiprocessors; then, without a ring that sums, many
// rows for a group.
TEST_CASE("layernorm_backward dinp_sums: exact by rings that go round") {
    constexpr Shape shapes[] = {{6500, 64},   {6500, 256},  {2100, 768}, {1700, 1280},
                                {1300, 1600}, {1100, 2048}, {4099, 65},  {573, 2056}};
    for (Shape s : shapes) { check_exact(kTypePairs[1], s); }
    for (Shape s : {Shape{2100, 768}, {1300, 1600}}) { check_exact(kTypePairs[0], s); }
    check_exact(kTypePairs[2], {2100, 768});
}

TEST_CASE("layernorm_backward dinp_sums: refused without dinp") {
    Problem p = with_sums(layernorm_backward_problem(Dtype::kFp32, {3, 64}));
    p.out.erase(named(p.out, "dinp"));
    check_error(error_of([&] { run(p); }), kExitUsage, {"dinp_sums are wanted, but dinp is null"});
}

TEST_SUITE("thorough") {
    TEST_CASE("layernorm_forward regimes: widths for each pair of types") { check_forward_widths(true); }
    TEST_CASE("layernorm_backward regimes: widths for each pair of types") { check_backward_widths(true); }

    TEST_CASE("layernorm regimes: 2^20 rows for each pair of types") {
        for (TypePair types : kTypePairs) {
            for (int C : {3, 8}) { check_each_op(types, {1 << 20, C}); }
        }
    }

    TEST_CASE("layernorm regimes: every form of a call in fp16 and on long rows") {
        for (Shape s : kRegimes) { check_forms(Dtype::kFp16, s); }
        for (Dtype dtype : kDtypes) {
            constexpr Shape shapes[] = {{1031, 8},   {133, 1600}, {67, 8192},  {3, 131072},
                                        {3, 262144}, {3, 262152}, {3, 270'337}};
            for (Shape s : shapes) { check_forms(dtype, s); }
        }
    }

    TEST_CASE("layernorm_backward dinp_sums: many rows for each pair of types") {
        for (TypePair types : kTypePairs) {
            constexpr Shape shapes[] = {{300'007, 8},  {20'011, 256}, {10'007, 768},
                                        {10'007, 769}, {5003, 1280},  {5003, 1600},
                                        {4099, 2048},  {4099, 2056},  {133, 65536}};
            for (Shape s : shapes) {
                check_exact(types, s);
                check_both(types, s);
            }
        }
    }
}
