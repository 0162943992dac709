// The two sets of bf16 kernels behind attention.h, which chooses: attention_choose.h. Arguments as there.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>

#include "llmc/cuda/stream.h"

namespace llmc {

void attention_forward_mma_sync(__nv_bfloat16* out, float* lse, const __nv_bfloat16* qkv, int B, int T,
                                int NH, int HS, cudaStream_t stream);
void attention_backward_mma_sync(__nv_bfloat16* dqkv, void* scratch, const __nv_bfloat16* dout,
                                 const __nv_bfloat16* qkv, const __nv_bfloat16* out, const float* lse, int B,
                                 int T, int NH, int HS, cudaStream_t stream);

// HS is 64, tensors begin at multiples of 16 bytes; has_attention_wgmma() of the current device
bool has_attention_wgmma();
void attention_forward_wgmma(__nv_bfloat16* out, float* lse, unsigned* counters, const __nv_bfloat16* qkv,
                             int B, int T, int NH, cudaStream_t stream);
void attention_backward_wgmma(__nv_bfloat16* dqkv, void* scratch, unsigned* counters,
                              const __nv_bfloat16* dout, const __nv_bfloat16* qkv, const __nv_bfloat16* out,
                              const float* lse, int B, int T, int NH, cudaStream_t stream);

// What the two backward kernels for Hopper hand on: rows of every head, their number rounded up to a multiple of 64.
// Those past T have lse infinity, so that their probabilities are 0, and dot 0.
struct AttentionRows {
    float *lse_log2, *dot;  // (B NH, padded): lse log2(e), and the sum of dout * out over a row
    int padded;
};
// the first backward kernel: dq, and the rows
void attention_backward_dq_wgmma(__nv_bfloat16* dqkv, const AttentionRows& rows, unsigned* counter,
                                 const __nv_bfloat16* dout, const __nv_bfloat16* qkv,
                                 const __nv_bfloat16* out, const float* lse, int B, int T, int NH,
                                 cudaStream_t stream);
// the second one: dk and dv, from the rows
void attention_backward_dkv_wgmma(__nv_bfloat16* dqkv, const AttentionRows& rows, unsigned* counter,
                                  const __nv_bfloat16* dout, const __nv_bfloat16* qkv, int B, int T, int NH,
                                  cudaStream_t stream);

}  // namespace llmc
