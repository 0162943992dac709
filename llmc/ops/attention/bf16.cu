// Attention in bf16: which of its kernels take a call.
#include "llmc/ops/attention/attention.h"

#include "llmc/cuda/check.cuh"
#include "llmc/ops/attention/kernels.h"

namespace llmc {

namespace {

using bf16 = __nv_bfloat16;

int padded(int T) { return (T + 63) / 64 * 64; }

}  // namespace

AttentionKernels attention_kernels(int T, int HS, std::initializer_list<const void*> tensors) {
    require(HS >= 1 && HS <= kMaxHeadSize, "attention: head size must be 1 to 128");
    bool aligned = true;
    for (const void* at : tensors) { aligned = aligned && (uintptr_t)at % 16 == 0; }
    return choose_attention({.T = T, .HS = HS, .wgmma = has_attention_wgmma(), .aligned = aligned});
}

template <>
void attention_forward(bf16* out, float* lse, unsigned* counters, const bf16* qkv, int B, int T, int NH,
                       int HS, cudaStream_t stream) {
    if (B == 0 || T == 0) { return; }
    if (attention_kernels(T, HS, {out, qkv}) == AttentionKernels::kWgmma) {
        return attention_forward_wgmma(out, lse, counters, qkv, B, T, NH, stream);
    }
    attention_forward_mma_sync(out, lse, qkv, B, T, NH, HS, stream);
}

template <>
void attention_backward(bf16* dqkv, void* scratch, unsigned* counters, const bf16* dout, const bf16* qkv,
                        const bf16* out, const float* lse, int B, int T, int NH, int HS,
                        cudaStream_t stream) {
    if (B == 0 || T == 0) { return; }
    if (attention_kernels(T, HS, {dqkv, dout, qkv, out, scratch}) == AttentionKernels::kWgmma) {
        return attention_backward_wgmma(dqkv, scratch, counters, dout, qkv, out, lse, B, T, NH, stream);
    }
    attention_backward_mma_sync(dqkv, scratch, dout, qkv, out, lse, B, T, NH, HS, stream);
}

void attention_backward_wgmma(bf16* dqkv, void* scratch, unsigned* counters, const bf16* dout,
                              const bf16* qkv, const bf16* out, const float* lse, int B, int T, int NH,
                              cudaStream_t stream, float* sums) {
    float* numbers = (float*)scratch;
    AttentionRows rows{numbers, numbers + (int64_t)B * NH * padded(T), padded(T), sums};
    attention_backward_dq_wgmma(dqkv, rows, counters + 1, dout, qkv, out, lse, B, T, NH, stream);
    attention_backward_dkv_wgmma(dqkv, rows, counters + 2, dout, qkv, B, T, NH, stream);
}

}  // namespace llmc
