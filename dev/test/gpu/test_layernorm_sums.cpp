// LayerNorm backward's dinp_sums, sums over the rows of dinp as it is stored: against the dinp that came back,
// added up on the host. The other results are those of the same call without them, to the bit. A failure reads
//   layernorm_backward dinp_sums bf16 33x768 all += normal: dinp_sums[5]: found .., expected .. within ..
#include "dev/test/gpu/layernorm_runs.h"
#include "dev/test/support/test_files.h"

using namespace llmc;
using namespace llmc::gpu_test;

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
    judged.out = {judged_sums(p, found[named(p.out, "dinp") - p.out.begin()])};
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

// No rows: += leaves what there was, = writes zeros.
TEST_CASE("layernorm_backward dinp_sums: numbers of rows") {
    for (TypePair types : {kTypePairs[0], kTypePairs[1]}) {
        for (int C : {1, 8, 65, 768, 2048, 4097}) {
            for (int64_t N : {0, 1, 2, 131, 132, 133, 1000}) {
                if (C * N <= 300'000) { check_both(types, {N, C}); }
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
    for (Shape s : {Shape{6500, 64},
                    {6500, 256},
                    {2100, 768},
                    {1700, 1280},
                    {1300, 1600},
                    {1100, 2048},
                    {4099, 65},
                    {573, 2056}}) {
        check_exact(kTypePairs[1], s);
    }
    for (Shape s : {Shape{2100, 768}, {1300, 1600}}) { check_exact(kTypePairs[0], s); }
    check_exact(kTypePairs[2], {2100, 768});
}

TEST_CASE("layernorm_backward dinp_sums: refused without dinp") {
    Problem p = with_sums(layernorm_backward_problem(Dtype::kFp32, {3, 64}));
    p.out.erase(named(p.out, "dinp"));
    check_error(error_of([&] { run(p); }), kExitUsage, {"dinp_sums are wanted, but dinp is null"});
}

TEST_SUITE("thorough") {
    TEST_CASE("layernorm_backward dinp_sums: many rows for each pair of types") {
        for (TypePair types : kTypePairs) {
            for (Shape s : {Shape{300'007, 8},
                            {20'011, 256},
                            {10'007, 768},
                            {10'007, 769},
                            {5003, 1280},
                            {5003, 1600},
                            {4099, 2048},
                            {4099, 2056},
                            {133, 65536}}) {
                check_exact(types, s);
                check_both(types, s);
            }
        }
    }
}
