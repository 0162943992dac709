// Attention in fp32: attention/fp32.cuh, for float tensors.
#include "llmc/ops/attention/fp32.cuh"

#include "llmc/ops/attention/attention.h"

namespace llmc {

using namespace attention_fp32;

template <>
void attention_forward(const AttentionForward<float>& c, cudaStream_t stream) {
    require(c.HS >= 1 && c.HS <= kMaxHeadSize, "attention_forward: head size must be 1 to 128");
    if (c.B == 0 || c.T == 0) { return; }
    auto* run = c.HS <= 32   ? forward<64, 32, float>
                : c.HS <= 64 ? forward<64, 64, float>
                             : forward<32, 128, float>;
    run(c.out, c.lse, c.qkv, c.B, sizes_of(c.T, c.NH, c.HS), stream);
}

template <>
void attention_backward(const AttentionBackward<float>& c, cudaStream_t stream) {
    require(c.HS >= 1 && c.HS <= kMaxHeadSize, "attention_backward: head size must be 1 to 128");
    if (c.B == 0 || c.T == 0) { return; }
    float* dot = (float*)c.scratch;
    const Sizes sizes = sizes_of(c.T, c.NH, c.HS);
    find_dots<kWarp, 1>(dot, c.dout, c.out, c.B, sizes, stream);
    auto* run = c.HS <= 32   ? backward<64, 32, float>
                : c.HS <= 64 ? backward<64, 64, float>
                             : backward<32, 128, float>;
    run(c.dqkv, c.dout, c.qkv, c.lse, dot, c.B, sizes, stream);
}

}  // namespace llmc
