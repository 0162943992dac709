// The first rungs of attention's ladders, and fp32's kernels, which are the second: those without tensor
// cores.
#include "dev/test/gpu/attention_check.h"
#include "llmc/ops/attention/ladder/rungs.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

template <AttentionForwardRung* forward, AttentionScratch* forward_scratch, AttentionBackwardRung* backward,
          AttentionScratch* backward_scratch>
constexpr AttentionCalls<bf16> kRung = {
    [](bf16* out, float* lse, unsigned*, const bf16* qkv, int B, int T, int NH, int, cudaStream_t stream) {
        Scratch scratch(forward_scratch(B, T, NH));
        forward(out, lse, scratch.data(), qkv, B, T, NH, stream);
        check_cuda(cudaDeviceSynchronize());
    },
    [](bf16* dqkv, void*, unsigned*, const bf16* dout, const bf16* qkv, const bf16* out, const float* lse,
       int B, int T, int NH, int, cudaStream_t stream) {
        Scratch scratch(backward_scratch(B, T, NH));
        backward(dqkv, scratch.data(), dout, qkv, out, lse, B, T, NH, stream);
        check_cuda(cudaDeviceSynchronize());
    }};

size_t no_scratch(int, int, int) { return 16; }

constexpr AttentionShape kShapes[] = {{2, 1, 2, 64}, {1, 65, 3, 64}, {1, 130, 1, 64}};

}  // namespace

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

}  // TEST_SUITE
