// Attention in fp32: attention/fp32.cuh, for float tensors.
#include "llmc/ops/attention/fp32.cuh"

#include "llmc/ops/attention/attention.h"

namespace llmc {

template <>
void attention_forward(float* out, float* lse, unsigned*, const float* qkv, int B, int T, int NH, int HS,
                       cudaStream_t stream) {
    using namespace attention_fp32;
    require(HS >= 1 && HS <= kMaxHeadSize, "attention_forward: head size must be 1 to 128");
    if (B == 0 || T == 0) { return; }
    Sizes sizes = sizes_of(T, NH, HS);
    if (HS <= 32) { return forward<64, 32>(out, lse, qkv, B, sizes, stream); }
    if (HS <= 64) { return forward<64, 64>(out, lse, qkv, B, sizes, stream); }
    forward<32, 128>(out, lse, qkv, B, sizes, stream);
}

template <>
void attention_backward(float* dqkv, void* scratch, unsigned*, const float* dout, const float* qkv,
                        const float* out, const float* lse, int B, int T, int NH, int HS,
                        cudaStream_t stream) {
    using namespace attention_fp32;
    require(HS >= 1 && HS <= kMaxHeadSize, "attention_backward: head size must be 1 to 128");
    if (B == 0 || T == 0) { return; }
    float* dot = (float*)scratch;
    Sizes sizes = sizes_of(T, NH, HS);
    find_dots(dot, dout, out, B, sizes, stream);
    if (HS <= 32) { return backward<64, 32>(dqkv, dout, qkv, lse, dot, B, sizes, stream); }
    if (HS <= 64) { return backward<64, 64>(dqkv, dout, qkv, lse, dot, B, sizes, stream); }
    backward<32, 128>(dqkv, dout, qkv, lse, dot, B, sizes, stream);
}

}  // namespace llmc
