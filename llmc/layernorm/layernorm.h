// LayerNorm as the model, the C ABI and the shootouts call it: one struct a call, defaults for what is optional; and RMSNorm,
// by the same kernels. Formulas: reference.h. Ba et al. 2016, arXiv:1607.06450; Zhang and Sennrich 2019, arXiv:1910.07467.
//   T:     float, __nv_bfloat16, __half, double      elements of the rows; computed in acc_t<T>: float, or double
//   W:     T or float                                weight and bias
//   Grad:  T or float                                gradients of weight and bias
//   Out:   T, or beside float __nv_bfloat16, __half  forward's out, backward's dout: what a product reads or has written
// Any N from 0, any C from 1, any alignment of T. The same call gives the same bits: sums over rows run in a fixed order.
// A row has the same bits in any batch, in out, mean, rstd, residual and dinp: whatever N is, whatever place the row has and
// whatever the rows beside it hold. So it is for calls of the same T, W, Out, C, eps, rms and accumulate_dinp, with the same
// pointers null, and with all pointers and strides aligned alike: each as far past a multiple of 16 bytes, also where N is 1.
// (Rows of one call, which odd strides put at other alignments, have the same bits, too.) It is not so for dweight, dbias and
// dinp_sums, which are sums over the batch, nor between GPUs of two models or between two versions of this code: another
// kernel may be chosen there, whose last bits may differ. Everything is queued on the stream, nothing waits;
// nothing is allocated. Any thread may call; a device that was reset (cudaDeviceReset()) must not be used again, as
// kernels are prepared once.
// What has no number in acc_t<T> (fp32: beyond 3.4e38): where the squares of x - mean(x) have no sum in a row (a standard
// deviation from 1.8e19 / sqrt(C) on), its rstd is 0 and out is bias; where its elements have none, out may be NaN. A row of
// equal elements gives bias, but NaN with eps = 0.
// Errors (llmc::Error): sizes below 0 or C 0, one of residual and inp2, a grid too large, dinp_sums or dropped
// without dinp, dropout or copy without what they are for, a failed launch.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/types.h"
#include "llmc/host/base/dropout.h"

namespace llmc {

// out = (x - mean(x)) * rstd * weight + bias for each row x, rstd = 1 / sqrt(var(x) + eps), the variance biased;
// x is a row of inp, or with residual of inp + inp2 rounded to T.
// out, of T, may alias inp where the rows are the same; residual may alias inp or inp2 likewise. Nothing else may alias.
template <typename T, typename W = T, typename Out = T>
struct LayerNormForward {
    Out* out;                   // (N,C) written (=)
    acc_t<T>* mean = nullptr;   // (N) written (=), or null if not wanted
    acc_t<T>* rstd = nullptr;   // (N) likewise
    const T* inp;               // (N,C)
    const W* weight = nullptr;  // (C), null = 1
    const W* bias = nullptr;    // (C), null = 0
    int64_t N;
    int C;
    double eps = 1e-5;
    T* residual = nullptr;    // (N,C) written (=): inp + inp2, rounded to T, which out normalises
    const T* inp2 = nullptr;  // (N,C), with residual
    // elements from one row to the next, 0 = C
    int64_t out_stride = 0, inp_stride = 0, residual_stride = 0, inp2_stride = 0;
    bool rms = false;  // RMSNorm: mean(x) is taken for 0, in var(x), too, and 0 is what mean gets
};

// dropout: of inp2, before it is added
template <typename T, typename W, typename Out>
void layernorm_forward(const LayerNormForward<T, W, Out>& call, cudaStream_t stream,
                       const Dropout& dropout = {});

// dinp = rstd (g - mean(g) - xhat mean(g xhat)) with g = weight dout and xhat = (inp - mean) rstd;
// dweight = sum over rows of dout xhat; dbias = sum over rows of dout.
// dinp may alias dout, of T, where the rows are the same. Nothing else may alias.
// dinp_sums = sum over rows of dinp as stored. What it is for: where inp is a residual stream, to which a linear
// layer has added its output, dinp is that layer's dout, and dinp_sums the gradient of its bias.
template <typename T, typename Grad = T, typename W = T, typename Out = T>
struct LayerNormBackward {
    T* dinp;               // (N,C) written (=); += with accumulate_dinp; null if not wanted
    Grad* dweight;         // (C) written (=); += with accumulate; null if not wanted
    Grad* dbias;           // (C) likewise
    void* scratch;         // layernorm_backward_scratch bytes, 16-byte aligned, no initialisation needed;
                           // null only if none of the sums is wanted: long rows are slower then
    const Out* dout;       // (N,C)
    const T* inp;          // (N,C): what forward normalised
    const W* weight;       // (C), null = 1
    const acc_t<T>* mean;  // (N) as saved by forward; not read with rms
    const acc_t<T>* rstd;
    int64_t N;
    int C;
    bool accumulate_dinp = false, accumulate = false;
    int64_t dinp_stride = 0, dout_stride = 0, inp_stride = 0;  // elements from row to row, 0 = C
    Grad* dinp_sums = nullptr;  // (C) like dweight, but of dinp: after its +=, rounded to T; not without dinp
    bool rms = false;           // of RMSNorm: mean, which may be null, is taken for 0, and so is mean(g)
    // (N,C) written (=), or null: dinp, as stored, behind the dropout that forward's inp2 had. dinp_sums are then sums of this
    T* dropped = nullptr;
    Dropout dropout = {};
    int64_t dropped_stride = 0;  // as dinp_stride
    // (N,C) written (=), or null: dinp, as stored, rounded to Out; with Out of 16 bits beside T float alone, without dropped
    Out* copy = nullptr;
    int64_t copy_stride = 0;  // as dinp_stride
};

// bytes for any N, T, Grad and W at this C on this machine's GPUs
size_t layernorm_backward_scratch(int C);

// branch: what adds up dweight, dbias and dinp_sums, which reads scratch, is queued there, unless dinp_sums takes another
// pass over dinp; null: on the stream.
template <typename T, typename Grad, typename W, typename Out>
void layernorm_backward(const LayerNormBackward<T, Grad, W, Out>& call, cudaStream_t stream,
                        Branch* branch = nullptr);

}  // namespace llmc
