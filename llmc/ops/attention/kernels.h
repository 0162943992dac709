// The two sets of bf16 kernels behind attention.h, which chooses: attention/choose.h. Arguments as there.
#pragma once
#include <cuda_bf16.h>
#include <cstdint>
#include <initializer_list>

#include "llmc/cuda/types.h"
#include "llmc/ops/attention/choose.h"

namespace llmc {

void attention_forward_mma_sync(__nv_bfloat16* out, float* lse, const __nv_bfloat16* qkv, int B, int T,
                                int NH, int HS, cudaStream_t stream);
void attention_backward_mma_sync(__nv_bfloat16* dqkv, void* scratch, const __nv_bfloat16* dout,
                                 const __nv_bfloat16* qkv, const __nv_bfloat16* out, const float* lse, int B,
                                 int T, int NH, int HS, cudaStream_t stream);

// which of them take a call on the current device; tensors: all of its bf16 tensors and its scratch
AttentionKernels attention_kernels(int T, int HS, std::initializer_list<const void*> tensors);

// HS is 64, tensors begin at multiples of 16 bytes; has_attention_wgmma() of the current device
bool has_attention_wgmma();
void attention_forward_wgmma(__nv_bfloat16* out, float* lse, unsigned* counters, const __nv_bfloat16* qkv,
                             int B, int T, int NH, cudaStream_t stream);
void attention_backward_wgmma(__nv_bfloat16* dqkv, void* scratch, unsigned* counters,
                              const __nv_bfloat16* dout, const __nv_bfloat16* qkv, const __nv_bfloat16* out,
                              const float* lse, int B, int T, int NH, cudaStream_t stream,
                              float* sums = nullptr);

// What the two backward kernels for Hopper hand on: rows of every head, their number rounded up to a multiple of 64.
// Those past T have lse infinity, so that their probabilities are 0, and dot 0.
struct AttentionRows {
    float *lse_log2, *dot;  // (B NH, padded): lse log2(e), and the sum of dout * out over a row
    int padded;
    // (B padded / 64, 3 NH 64), or null: for every 64 rows of a sequence the sums of dqkv's columns, of the values as
    // stored. Each number has one writer, who adds in one order.
    float* sums = nullptr;
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
