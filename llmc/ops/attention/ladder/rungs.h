// The rungs of attention's ladders that are files of their own, in forward/ and backward/, each compiled by
// itself. Heads of 64 bf16 elements; layouts, and what is read and written, as in llmc/ops/attention/attention.h. v0 is
// the loop on paper; v3 and v7 are the kernels that train (llmc/ops/attention/attention.h), v3 where Hopper's kernels do
// not fit. Nothing may alias.
// Tensors begin at multiples of 16 bytes.
//   v1, v2          any GPU, any T
//   v4, v5, v6      has_attention_wgmma(); T of at least kWgmmaLeastT
//   scratch         as many bytes as the rung's _scratch says, at a multiple of 16; they need no
//   initialisation
#pragma once
#include <cuda_bf16.h>
#include <cstddef>

#include "llmc/cuda/types.h"
#include "llmc/ops/attention/attention.h"

namespace llmc {

// out and lse are written
using AttentionForwardRung = void(__nv_bfloat16* out, float* lse, void* scratch, const __nv_bfloat16* qkv,
                                  int B, int T, int NH, cudaStream_t stream);
// dqkv is written
using AttentionBackwardRung = void(__nv_bfloat16* dqkv, void* scratch, const __nv_bfloat16* dout,
                                   const __nv_bfloat16* qkv, const __nv_bfloat16* out, const float* lse,
                                   int B, int T, int NH, cudaStream_t stream);
using AttentionScratch = size_t(int B, int T, int NH);

// the scratch of v2 and of v4 on, forward: none; backward: attention_backward_scratch()
namespace v1 {
AttentionForwardRung attention_forward;
AttentionBackwardRung attention_backward;
AttentionScratch attention_forward_scratch, attention_backward_scratch;
}  // namespace v1
namespace v2 {
AttentionForwardRung attention_forward;
AttentionBackwardRung attention_backward;
}  // namespace v2
namespace v4 {
AttentionForwardRung attention_forward;
AttentionBackwardRung attention_backward;
}  // namespace v4
namespace v5 {
AttentionForwardRung attention_forward;
AttentionBackwardRung attention_backward;
}  // namespace v5
namespace v6 {
AttentionForwardRung attention_forward, attention_forward_lazy;
AttentionBackwardRung attention_backward;
}  // namespace v6

}  // namespace llmc
