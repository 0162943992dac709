// LayerNorm whose scale and shift each sample has for itself, as between the layers of a diffusion transformer (adaLN; Peebles
// and Xie 2023, arXiv:2212.09748), alone or behind a gated residual. Formulas: reference.h.
//   T: float, __nv_bfloat16, __half      elements of all tensors but the statistics; computed in float
// Any numbers of samples and tokens from 0, any C from 1, any alignment of T; fast where C is at most 8192 (6144 with a gate
// in float), and rows and what each sample has are whole 16 bytes at addresses that are multiples of 16, on Hopper and later.
// The same call gives the same bits. Everything is queued on the stream, nothing waits, nothing is allocated.
// Errors (llmc::Error): sizes below 0 or C 0, one of residual, inp2 and gate without the others, a failed launch.
#pragma once
#include <cstddef>
#include <cstdint>

#include "llmc/cuda/types.h"

namespace llmc {

// (B,C): C numbers of each sample, which lie `stride` elements after those of the sample before; 0 = C. Chunks of a wider
// tensor, mostly.
template <typename T>
struct PerSample {
    T* at;
    int64_t stride = 0;
};

// out = xhat (1 + scale[b]) + shift[b] for each row x of sample b, xhat = (x - mean(x)) / sqrt(var(x) + eps), the variance
// biased; x is a row of inp, or with residual of inp + gate[b] inp2 rounded to T.
// out or residual may alias inp. Nothing else may alias.
template <typename T>
struct LayerNormModulateForward {
    T* out;                 // (B,T,C) written (=)
    float* mean = nullptr;  // (B,T) written (=), or null if not wanted
    float* rstd = nullptr;  // (B,T) likewise
    const T* inp;           // (B,T,C)
    PerSample<const T> scale, shift;
    int64_t samples, tokens;  // B, T
    int C;
    double eps = 1e-6;
    T* residual = nullptr;    // (B,T,C) written (=): inp + gate[b] inp2, rounded to T, which out normalises
    const T* inp2 = nullptr;  // (B,T,C), with residual
    PerSample<const T> gate{};
};

template <typename T>
void layernorm_modulate_forward(const LayerNormModulateForward<T>& call, cudaStream_t stream);

// With g = dout (1 + scale[b]): dinp = rstd (g - mean(g) - xhat mean(g xhat)) + dresidual; and, summed over the sample's rows,
// dscale[b] = sum of dout xhat, dshift[b] = sum of dout. With a gate: dinp2 = gate[b] dinp, dgate[b] = sum of dinp inp2, with
// dinp before it is rounded to T.
// dinp may alias dout or dresidual, dinp2 may alias inp2. Nothing else may alias.
template <typename T>
struct LayerNormModulateBackward {
    T* dinp;                      // (B,T,C) written (=)
    PerSample<T> dscale, dshift;  // written (=)
    void* scratch;  // layernorm_modulate_backward_scratch bytes, 16-byte aligned, no initialisation needed
    const T* dout;  // (B,T,C)
    const T* inp;   // (B,T,C): what forward normalised, its inp or its residual
    const float* mean;  // (B,T) as saved by forward
    const float* rstd;
    PerSample<const T> scale;
    int64_t samples, tokens;
    int C;
    const T* dresidual =
        nullptr;         // (B,T,C): what is added to dinp, the gradient of residual's other uses; null = 0
    T* dinp2 = nullptr;  // (B,T,C) written (=); null: no gate, and the next three are not used
    PerSample<T> dgate{};
    const T* inp2 = nullptr;  // (B,T,C)
    PerSample<const T> gate{};
};

// bytes for any call with this C on this machine's GPUs
size_t layernorm_modulate_backward_scratch(int C);

template <typename T>
void layernorm_modulate_backward(const LayerNormModulateBackward<T>& call, cudaStream_t stream);

}  // namespace llmc
