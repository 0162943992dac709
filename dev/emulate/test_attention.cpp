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
