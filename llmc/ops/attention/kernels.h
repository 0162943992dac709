// The two sets of bf16 kernels behind attention.h, which chooses: attention/choose.h.
#pragma once
#include <cuda_bf16.h>
#include <initializer_list>

#include "llmc/ops/attention/attention.h"
#include "llmc/ops/attention/choose.h"

namespace llmc {

// which of them take a call on the current device; tensors: all of its bf16 tensors and its scratch
AttentionKernels attention_kernels(int T, int HS, std::initializer_list<const void*> tensors);

void attention_forward_mma_sync(const AttentionForward<__nv_bfloat16>& call, cudaStream_t stream);
void attention_backward_mma_sync(const AttentionBackward<__nv_bfloat16>& call, cudaStream_t stream);

// HS is 64, tensors begin at multiples of 16 bytes; has_attention_wgmma() of the current device
bool has_attention_wgmma();
void attention_forward_wgmma(const AttentionForward<__nv_bfloat16>& call, cudaStream_t stream);
// sums (B padded / 64, 3 NH 64), where padded is T rounded up to a multiple of 64, or null: for every 64 rows of a sequence the
// sums of dqkv's columns, of the values as stored. Each number has one writer, who adds in one order.
void attention_backward_wgmma(const AttentionBackward<__nv_bfloat16>& call, cudaStream_t stream,
                              float* sums = nullptr);

}  // namespace llmc
