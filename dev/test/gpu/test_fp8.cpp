// What is written in FP8, with its transpose, against reference.h in double: LayerNorm, GELU and its gradient, casts. Problems
// and bounds are the shootout's. A failure reads
//   layernorm_fp8 out bf16 80x784 normal: out[0][17]: found .., expected .. within ..
#include "dev/test/gpu/layernorm_runs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr CallForm kResidual{.name = "residual_layernorm_fp8"}, kDropped{.name = "dropped", .drops = true};

void check_layernorm(Shape s, const CallForm& form = {}, Inputs kind = Inputs::kNormal) {
    check_problem(layernorm_fp8_problem(Dtype::kBf16, s, kind, form));
}

// sums in fp32, =, or in bf16, +=
void check_ops(Shape s, bool adds) {
    auto check = [&](CallForm form) {
        form.fp32_gradients = !adds;
        form.accumulate = adds;
        const Problem p = fp8_problem(Dtype::kBf16, s, Inputs::kNormal, form);
        return std::pair{p, check_problem(p)};
    };
    auto result = [](const auto& found, const char* name) {
        return found.second[named(found.first.out, name) - found.first.out.begin()];
    };
    check({.name = "cast_e4m3"});
    check({.name = "cast_e5m2"});
    const auto gelu = check({.name = "gelu_e4m3"}), slope = check({.name = "gelu_backward_e5m2"});
    const bool same = result(gelu, "transposed") == result(slope, "activation");
    CHECK_MESSAGE(same, (name_of(slope.first, "activation") + ": not the bytes of gelu_e4m3"));
}

// the longest rows of each layout, and a vector or two more
constexpr int kWidths[] = {16,   32,   64,   256,  272,  512,  528,  768,  784,  1024, 1040, 1280, 1296,
                           1536, 1552, 1600, 1792, 1808, 2048, 2064, 3072, 3088, 4096, 4112, 6144};

// asked before main: where there is no GPU, too
bool hopper() {
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess && major >= 9;
}

}  // namespace

TEST_CASE("layernorm_fp8: widths" * doctest::skip(!hopper())) {
    for (int C : kWidths) {
        check_layernorm({80, C});
        check_layernorm({80, C}, kResidual);
        if (C <= kMostFp8Dropped) { check_layernorm({80, C}, kDropped); }
    }
}

// fewer rows than a tile, tiles that are not whole, several tiles a block
TEST_CASE("layernorm_fp8: numbers of rows" * doctest::skip(!hopper())) {
    for (int64_t N : {0, 16, 32, 48, 64, 272, 20000}) {
        check_layernorm({N, 768}, N % 64 != 0 ? kResidual : CallForm{});
    }
    check_layernorm({9008, 1600});
    check_layernorm({4512, 2048}, kResidual);
}

TEST_CASE("fp8 casts and gelu: shapes" * doctest::skip(!hopper())) {
    for (int C : {16, 112, 128, 144, 768, 3072}) {
        for (int64_t N : {16, 64, 80, 272}) {
            check_ops({N, C}, false);
            check_ops({N, C}, true);
        }
    }
    check_ops({8208, 1600}, true);
}

TEST_SUITE_BEGIN("fp8");  // of which dev/emulate runs these, too

TEST_CASE("layernorm_fp8: hard inputs" * doctest::skip(!hopper())) {
    for (Inputs kind : {Inputs::kOffset, Inputs::kOutlier, Inputs::kDenormal, Inputs::kNonFinite}) {
        check_layernorm({144, 768}, {}, kind);
        check_layernorm({80, 1600}, kResidual, kind);
    }
}

TEST_CASE("layernorm_fp8: scales, an amax from before, and what is not wanted" * doctest::skip(!hopper())) {
    for (float scale : {1.0f, 0x1p-12f, 1e30f}) {
        check_problem(layernorm_fp8_problem(Dtype::kBf16, {64, 256}, Inputs::kNormal, {}, scale));
    }
    Problem p = layernorm_fp8_problem(Dtype::kBf16, {64, 256}, Inputs::kNormal, {});
    const Results whole = run(p);
    named(p.out, "amax")->initial = share({1e6});
    CHECK(run(p)[named(p.out, "amax") - p.out.begin()] == encode_all({1e6}, format_of(Dtype::kFp32)));
    p.out.erase(p.out.begin() + 1, p.out.end());
    CHECK(run(p) == Results{whole[0]});
}

TEST_CASE("layernorm_fp8: a call that it cannot take is refused" * doctest::skip(!hopper())) {
    const Problem p = layernorm_fp8_problem(Dtype::kBf16, {32, 256}, Inputs::kNormal, {});
    const Tensors tensors(p);
    auto refused = [&](auto change) {
        LayerNormForwardFp8<bf16> call = layernorm_fp8_call(tensors, p);
        change(call);
        CHECK_THROWS_AS(layernorm_forward_fp8(call, kStream), Error);
    };
    refused([](auto& call) { call.N = 8; });
    refused([](auto& call) { call.C = 24; });
    refused([](auto& call) { call.C = kMostFp8Columns + 16; });
    refused([](auto& call) { call.inp++; });
    refused([](auto& call) { call.transposed++; });
    refused([](auto& call) { call.residual = const_cast<bf16*>(call.inp); });
}

// The transpose alone, or the rows alone; no amax, no sums. Numbers beyond the format's range are its largest.
TEST_CASE("fp8 casts and gelu: what is not wanted, and what is too large" * doctest::skip(!hopper())) {
    const CallForm form{.name = "cast_e4m3"};
    Problem p = fp8_problem(Dtype::kBf16, {64, 128}, Inputs::kNormal, form);
    const Results whole = run(p);
    for (const char* one : {"out", "transposed"}) {
        Problem alone = p;
        std::erase_if(alone.out, [&](const Output& t) { return std::string_view(t.name) != one; });
        CHECK(run(alone) == Results{whole[named(p.out, one) - p.out.begin()]});
    }
    named(p.in, "scale")->values = share({1e4});
    const Bytes large = run(p)[0];
    CHECK(std::count(large.begin(), large.end(), (std::byte)to_e4m3(448)) > 100);
    CHECK(std::none_of(large.begin(), large.end(), [](std::byte b) { return ((int)b & 127) == 127; }));

    Problem gradient = fp8_problem(Dtype::kBf16, {64, 128}, Inputs::kNormal, {.name = "cast_e5m2"});
    gradient.out.pop_back();  // dbias
    judge_results(gradient, run(gradient));
    const Tensors tensors(p);
    const Fp8Output out = fp8_output(tensors);
    const bf16* inp = tensors.rows<bf16>("inp").data;
    CHECK_THROWS_AS(cast_e4m3(out, inp, 8, 128, kStream), Error);
    CHECK_THROWS_AS(cast_e4m3(out, inp + 1, 64, 128, kStream), Error);
    CHECK_THROWS_AS(cast_e4m3(out, inp, 64, 120, kStream), Error);
}
