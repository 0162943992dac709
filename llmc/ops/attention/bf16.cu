// Attention in bf16: which of its kernels take a call.
#include "llmc/cuda/check.cuh"
#include "llmc/ops/attention/kernels.h"

namespace llmc {

using bf16 = __nv_bfloat16;

AttentionKernels attention_kernels(int T, int HS, std::initializer_list<const void*> tensors) {
    require(HS >= 1 && HS <= kMaxHeadSize, "attention: head size must be 1 to 128");
    bool aligned = std::ranges::all_of(tensors, [](const void* at) { return (uintptr_t)at % 16 == 0; });
    return choose_attention({.T = T, .HS = HS, .wgmma = has_attention_wgmma(), .aligned = aligned});
}

template <>
void attention_forward(const AttentionForward<bf16>& c, cudaStream_t stream) {
    if (c.B == 0 || c.T == 0) { return; }
    bool wgmma = attention_kernels(c.T, c.HS, {c.out, c.qkv}) == AttentionKernels::kWgmma;
    (wgmma ? attention_forward_wgmma : attention_forward_mma_sync)(c, stream);
}

template <>
void attention_backward(const AttentionBackward<bf16>& c, cudaStream_t stream) {
    if (c.B == 0 || c.T == 0) { return; }
    auto kernels = attention_kernels(c.T, c.HS, {c.dqkv, c.dout, c.qkv, c.out, c.scratch});
    if (kernels == AttentionKernels::kWgmma) { return attention_backward_wgmma(c, stream); }
    attention_backward_mma_sync(c, stream);
}

}  // namespace llmc
