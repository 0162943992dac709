// ./test_emulated: tests of kernels without a GPU, by machine.h. Here: each layout of each of LayerNorm's regimes, with rows
// enough that the machine's few multiprocessors and clusters go through their rings, unequally often: what takes a GPU's
// worth of tests to show a race, in seconds. And attention without tensor cores.
//   ./test_emulated                              this folder's tests alone: each layout, a few rows (two minutes)
//   ./test_emulated --all                        those of dev/test/gpu, too, but the largest (hours)
//   ./test_emulated --test-case="*rings*"        doctest's options choose among all of them
//   PLUMB_EMULATION_SEED=2 ./test_emulated       another order of all that has none
#include <string_view>

#define DOCTEST_CONFIG_IMPLEMENT
#include "dev/test/gpu/attention_check.h"
#include "dev/test/gpu/layernorm_choices.h"
#include "dev/test/gpu/layernorm_runs.h"
#include "dev/test/gpu/layernorm_widths.h"
#include "llmc/ops/attention/ladder/rungs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr int kLongestOfBlock = 32768;  // columns: longer rows are shared by clusters

// for the pairs of types that are not tried at every width
constexpr int kOthers[] = {64, 257, 768, 1601, 4096, 8191, 9216, 32768, 57344, 81920, 196608};

// Rows of a problem: a dozen, of which a block has four; nine where one of the two clusters has five; of short ones enough for
// each team of a block.
Shape few(int C) { return {C > kLongestOfBlock ? 9 : std::max(11, 48'000 / C), C}; }

// one of runtime.cpp's devices, for as long as this lives
struct OnDevice {
    explicit OnDevice(int device) { check_cuda(cudaSetDevice(device)); }
    ~OnDevice() { cudaSetDevice(0); }
};

CallForm unchanged(CallForm form) { return form; }

void check_forward(const TypePair& types, Shape s, CallForm (*as)(CallForm) = unchanged) {
    check_problem(layernorm_forward_problem(types.dtype, s, Inputs::kNormal, as(types.plain())));
}
void check_backward(const TypePair& types, Shape s, CallForm (*as)(CallForm) = unchanged) {
    for (const CallForm* form : {&types.plain(), &types.added()}) {
        check_problem(layernorm_backward_problem(types.dtype, s, Inputs::kNormal, as(*form)));
    }
}
void check(const TypePair& types, Shape s, CallForm (*as)(CallForm) = unchanged) {
    check_forward(types, s, as);
    check_backward(types, s, as);
}
void check_residual(const TypePair& types, Shape s) {
    check_problem(residual_layernorm_forward_problem(types.dtype, s, Inputs::kNormal, types.plain()));
}

// In fp32 and in bf16 each pass at the edges of its own layouts, less `off` columns, that are beyond `low` and at most `high`.
template <typename Edges>
void check_edges(const Edges& edges, int off, int low, int high) {
    for (int pair : {0, 1}) {
        for (Pass pass : {Pass::kForward, Pass::kBackward}) {
            for (int edge : edges(pair == 0 ? 4 : 8, pass)) {
                const int C = std::max(1, edge - off);
                if (C <= low || C > high) { continue; }
                if (pass == Pass::kBackward) {
                    check_backward(kTypePairs[pair], few(C));
                    continue;
                }
                check_forward(kTypePairs[pair], few(C));
                if (high <= kLongestOfBlock) { check_residual(kTypePairs[pair], few(C)); }
            }
        }
    }
}

// ---- the same bits in any batch: layernorm.h's promise

// of the machine's first device
constexpr choices::Gpu kSmall = {"3 multiprocessors", 0, {true, 3, 227 << 10, 16}};
constexpr int kLongestBatch = 8192;  // columns: what chooses among longer rows is what chooses among these

// The columns on both sides of each of choose.h's thresholds, for calls that differ in op, type and alignment: those where a
// layout takes over from another, and from one kernel to the next.
void check_thresholds(const choices::Case& c) {
    const bool backward = !c.forward();
    CallForm form = c.same ? CallForm{} : kFp32Weight;
    form.fp32_gradients = backward && c.bytes == 2;
    form.accumulate_dinp = c.op == choices::Op::kAccumulate;
    form.offset = c.whole() ? 0 : c.piece;
    auto* make = backward                         ? layernorm_backward_problem
                 : c.op == choices::Op::kResidual ? residual_layernorm_forward_problem
                                                  : layernorm_forward_problem;
    int turn = 0;
    for (const choices::Run& run : runs_of(kSmall, c)) {
        for (int C : {run.first, run.last}) {
            if (C > kLongestBatch) { continue; }
            form.rms = ++turn % 2 == 0;
            const Dtype dtype = c.bytes == 4 ? Dtype::kFp32 : turn % 4 < 2 ? Dtype::kBf16 : Dtype::kFp16;
            check_batch_sizes(make(dtype, {3, C}, Inputs::kNormal, form), {2, 11});
        }
    }
}

// ---- attention's first rungs, and fp32's kernels, which are the second: those without tensor cores

template <AttentionForwardRung* forward, AttentionScratch* forward_scratch, AttentionBackwardRung* backward,
          AttentionScratch* backward_scratch>
constexpr AttentionCalls<bf16> kRung = {
    [](const AttentionForward<bf16>& c, cudaStream_t stream) {
        Scratch scratch(forward_scratch(c.B, c.T, c.NH));
        forward(c.out, c.lse, scratch.data(), c.qkv, c.B, c.T, c.NH, stream);
        check_cuda(cudaDeviceSynchronize());
    },
    [](const AttentionBackward<bf16>& c, cudaStream_t stream) {
        Scratch scratch(backward_scratch(c.B, c.T, c.NH));
        backward(c.dqkv, scratch.data(), c.dout, c.qkv, c.out, c.lse, c.B, c.T, c.NH, stream);
        check_cuda(cudaDeviceSynchronize());
    }};

size_t no_scratch(int, int, int) { return 16; }

constexpr AttentionShape kShapes[] = {{2, 1, 2, 64}, {1, 65, 3, 64}, {1, 130, 1, 64}};

}  // namespace

TEST_SUITE("emulated") {
    TEST_CASE("emulated layernorm: rows of one block") { check_edges(whole_edges, 0, 0, kLongestOfBlock); }
    TEST_CASE("emulated layernorm: rows that are no whole vectors") {
        check_edges(unaligned_edges, 1, 0, kLongestOfBlock);
    }
    TEST_CASE("emulated layernorm: short rows that are no whole vectors") {
        for (int off : {0, 1}) { check_edges(piece_edges, off, 0, kLongestOfBlock); }
    }
    TEST_CASE("emulated layernorm: rows of clusters that are no whole vectors") {
        check_edges(unaligned_edges, 1, kLongestOfBlock, 1 << 20);
    }
    TEST_CASE("emulated layernorm: rows of clusters") {
        check_edges(whole_edges, 0, kLongestOfBlock, 1 << 20);
    }
    TEST_CASE("emulated layernorm: residuals of clusters") {
        for (int C : {65536, 131072, 262144}) {  // a cluster for each row
            check_residual(kTypePairs[0], {3, C});
            check_residual(kTypePairs[1], {3, C});
        }
    }
    TEST_CASE("emulated layernorm: other types") {
        for (int pair = 2; pair < (int)std::size(kTypePairs); pair++) {
            for (int C : kOthers) { check(kTypePairs[pair], few(C)); }
        }
    }
    // shorter ones: the next test
    TEST_CASE("emulated rmsnorm: rows of clusters") {
        for (int C : {16'384, 20'001, 32'776, 65'536, 131'080, 262'144}) {
            for (int pair : {0, 1}) { check(kTypePairs[pair], {3, C}, rms_of); }
        }
    }
    TEST_CASE("emulated layernorm: the same bits in any batch") {
        for (const choices::Case& c : choices::cases()) {
            if (c.bytes < 8 && c.N == 4096 && !c.lines && c.aligned_weights) { check_thresholds(c); }
        }
    }
}

// on devices that are unlike the first
TEST_SUITE("emulated") {
    TEST_CASE("emulated layernorm: too little shared memory for the rings") {
        OnDevice device(2);
        for (int C : {64, 768, 769, 4096, 12288, 65536, 98304, 114688}) {
            check(kTypePairs[0], {3, C});
            check(kTypePairs[1], {3, C});
        }
    }
    TEST_CASE("emulated layernorm: before Hopper") {
        OnDevice device(3);
        // rows of teams; in 16 bits of a block, with 3 and 4 vectors to a lane, of 3 blocks and of 8
        for (int C : {1024, 10248, 12288, 14344, 20480, 65536}) {
            for (int types : {0, 1, 3}) { check(kTypePairs[types], {17, C}); }
            check(kTypePairs[1], {9, C}, rms_of);
        }
    }
    // of the only threshold of choose.h that is a number of rows
    TEST_CASE("emulated layernorm: few rows") {
        OnDevice device(1);  // where three of these are few, nine are not
        auto check = [](const TypePair& types, int C) {
            for (auto* problem_of : kForwards) {
                check_problem(problem_of(types.dtype, {1, C}, Inputs::kNormal, types.plain()));
                check_batches(problem_of(types.dtype, {9, C}, Inputs::kNormal, types.plain()));
            }
            check_backward(types, {1, C});
        };
        // rows of more than four warps have kernels of their own where rows are few
        for (const auto& row : layouts::kRowInRegisters32) {
            if (row.cluster == 1 && row.warps > 4) { check(kTypePairs[0], row.columns(4)); }
        }
        for (const auto& row : layouts::kRowInRegisters16) {
            if (row.cluster == 1 && row.warps > 4) { check(kTypePairs[1], row.columns(8)); }
        }
    }
}

TEST_SUITE("emulated") {
    TEST_CASE("attention's ladders: v1, emulated") {
        for (const AttentionShape& s : kShapes) {
            check_attention<bf16>(s, kRung<v1::attention_forward, v1::attention_forward_scratch,
                                           v1::attention_backward, v1::attention_backward_scratch>);
        }
    }

    TEST_CASE("attention's ladders: v2, emulated") {
        for (const AttentionShape& s : kShapes) {
            check_attention<bf16>(
                s,
                kRung<v2::attention_forward, no_scratch, v2::attention_backward, attention_backward_scratch>);
        }
    }

    TEST_CASE("attention in fp32, emulated") {
        for (int HS : {17, 64, 100}) { check_attention<float>({1, 70, 2, HS}); }
    }
}

int main(int argc, char** argv) {
    std::vector<char*> options;
    bool all = false, chosen = false;
    for (int i = 0; i < argc; i++) {
        std::string_view option = argv[i];
        all |= option == "--all";
        chosen |= option.starts_with("-tc") || option.starts_with("--test-");
        if (option != "--all" && option != "--thorough") { options.push_back(argv[i]); }  // as of test_gpt2cu
    }
    doctest::Context context;
    if (all) {
        context.setOption("test-suite-exclude", "thorough");
        context.setOption("test-case-exclude", "*2^*");
    } else if (!chosen) {
        context.setOption("test-suite", "emulated,decode,fp8,groups,mixed");
    }
    context.applyCommandLine((int)options.size(), options.data());
    return context.run();
}
