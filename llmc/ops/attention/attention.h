// Causal self-attention without the T x T matrix: tiles of scores live in registers, forward keeps only the
// log of each row's sum of exponentials. Dao et al. 2022, arXiv:2205.14135; formulas: reference.h.
//   Real: float (on the CUDA cores, in fp32) or __nv_bfloat16 (tensor cores, fp32 accumulation; which kernels:
//   attention/choose.h)
// qkv and dqkv (B,T,3,NH,HS): q, k and v by strides, as the matmul leaves them. out, dout (B,T,NH,HS); lse
// (B,NH,T). Any B, T, NH; HS from 1 to kMaxHeadSize. bf16 tensors begin at
// multiples of 16 bytes. Deterministic: no atomics on results. Nothing may alias.
#pragma once
#include <cuda_bf16.h>
#include <cstddef>

#include "llmc/cuda/types.h"
#include "llmc/ops/attention/choose.h"

namespace llmc {

constexpr int kMaxHeadSize = 128;

// Device memory that hands out work: kAttentionCounters numbers, 0 before the first call, and each call leaves them 0.
// Calls that may run at once need their own: two streams, two graphs.
constexpr int kAttentionCounters = 3;

template <typename Real>
struct AttentionForward {
    Real* out;  // written (=), as is lse
    float* lse;
    unsigned* counters;
    const Real* qkv;
    int B, T, NH, HS;
};
template <typename Real>
void attention_forward(const AttentionForward<Real>& call, cudaStream_t stream);

// bytes of scratch that attention_backward needs, at a multiple of 16; they need no initialisation. Two numbers a row, of
// whole tiles, whichever kernels take the call: the model plans its memory before it knows the batch.
inline size_t attention_backward_scratch(int B, int T, int NH) {
    return 2 * sizeof(float) * B * NH * ((T + 63) / 64 * 64);
}

template <typename Real>
struct AttentionBackward {
    Real* dqkv;     // written (=)
    void* scratch;  // attention_backward_scratch() bytes
    unsigned* counters;
    const Real *dout, *qkv, *out;  // out and lse as forward left them
    const float* lse;
    int B, T, NH, HS;
};
template <typename Real>
void attention_backward(const AttentionBackward<Real>& call, cudaStream_t stream);

// The same, and the gradient of qkv's bias: dbias (3 NH HS) = or, with accumulate, += the sums of dqkv's columns over all
// B T rows, in fp32, of the values as dqkv has them. Hopper's kernels add up what they store; behind the others
// bias_backward() reads dqkv again. Grad: float, or Real.
// branch: what adds up the sums, which reads scratch and may read dqkv, is queued there; null: on the stream.
template <typename Real, typename Grad>
void attention_backward_bias(Grad* dbias, bool accumulate, const AttentionBackward<Real>& call,
                             cudaStream_t stream, Branch* branch = nullptr);
size_t attention_backward_bias_scratch(int B, int T, int NH, int HS);  // as attention_backward_scratch()

// ---- the two sets of bf16 kernels behind these functions, which choose by choose.h

void attention_forward_mma_sync(const AttentionForward<__nv_bfloat16>& call, cudaStream_t stream);
void attention_backward_mma_sync(const AttentionBackward<__nv_bfloat16>& call, cudaStream_t stream);

// HS is 64; has_attention_wgmma() of the current device
bool has_attention_wgmma();
bool attention_by_wgmma(int T, int HS);  // do they take this call on the current device?
void attention_forward_wgmma(const AttentionForward<__nv_bfloat16>& call, cudaStream_t stream);
// sums (B padded / 64, 3 NH 64), where padded is T rounded up to a multiple of 64, or null: for every 64 rows of a sequence the
// sums of dqkv's columns, of the values as stored. Each number has one writer, who adds in one order.
void attention_backward_wgmma(const AttentionBackward<__nv_bfloat16>& call, cudaStream_t stream,
                              float* sums = nullptr);

}  // namespace llmc
