// GPT-2's layers for one row at a time, with a cache of keys and values: what writing a token after another
// computes.
//   T: float or __nv_bfloat16, of the weights and the cache; activations, q and sums are fp32
// The token and its position are read on the device, so that a CUDA graph serves every token. On Hopper a
// call asks for its weights while the calls before it still run: whatever else writes them must have ended
// before. Sums run in an order that the sizes alone decide. C: at most kMostDecodeC. Formulas: reference.h.
// Everything is queued on the stream.
#pragma once
#include <cstdint>

#include "llmc/cuda/types.h"

namespace llmc {

constexpr int kMostDecodeC = 12000;  // in fp32 it lies in shared memory, of which a block has 48 KB
constexpr int kDecodeChunk = 64;     // keys; their sums are added up chunk by chunk, in order

struct DecodeStep {
    int32_t token, position;  // in the vocabulary; below maxT
};

// Keys and values of one layer: for each head maxT rows of cache_row() elements, HS that count and then
// zeros, which whoever allocates the cache puts there.
template <typename T>
struct CacheLayer {
    T *keys, *values;  // (NH,maxT,cache_row), 16-byte aligned
    int maxT, NH, HS;  // HS: at most kMaxHeadSize of attention.h
};

// whole 16-byte vectors
template <typename T>
constexpr int cache_row(int HS) {
    constexpr int n = 16 / (int)sizeof(T);
    return (HS + n - 1) / n * n;
}

// floats in `parts`: of each head and chunk its largest score, the sum of exponentials, and HS sums of values
constexpr int64_t decode_parts(int maxT, int NH, int HS) {
    return (int64_t)(maxT + kDecodeChunk - 1) / kDecodeChunk * NH * (HS + 2);
}

template <typename T>
struct DecodeNorm {
    const T *weight, *bias;  // (C)
};
template <typename T>
struct DecodeLinear {
    const T *weight, *bias;  // (OC,C); (OC) or null
    int C, OC;
};

// x (C) = wte[token] + wpe[position]; *step = *given, which may be page-locked host memory
template <typename T>
void decode_encoder(float* x, DecodeStep* step, const DecodeStep* given, const T* wte, const T* wpe, int C,
                    cudaStream_t stream);

// x (C) = a (C) + b (C): a prompt's last row, from which the logits come
template <typename T>
void decode_residual(float* x, const T* a, const T* b, int C, cudaStream_t stream);

// q (NH,cache_row) and the cache's rows at the step's position = linear(layernorm(x)), OC = 3C, rounded to T
// in the cache. Elements of q's rows past HS are neither written nor read.
template <typename T>
void decode_qkv(float* q, const CacheLayer<T>& cache, const float* x, const DecodeNorm<T>& norm,
                const DecodeLinear<T>& linear, const DecodeStep* step, cudaStream_t stream);

// the same of N rows at once: keys and values of qkv (N,3C) go to the cache's rows 0 to N - 1
template <typename T>
void fill_cache(const CacheLayer<T>& cache, const T* qkv, int N, cudaStream_t stream);

// parts: q against the keys up to the step's position, chunk by chunk
template <typename T>
void decode_attention(float* parts, const float* q, const CacheLayer<T>& cache, const DecodeStep* step,
                      cudaStream_t stream);

// x (OC) += linear(attention's output, made of its parts), C = NH HS
template <typename T>
void decode_attproj(float* x, const float* parts, const CacheLayer<T>& cache, const DecodeLinear<T>& linear,
                    const DecodeStep* step, cudaStream_t stream);

// out (OC) = gelu(linear(layernorm(x)))
template <typename T>
void decode_fc(float* out, const float* x, const DecodeNorm<T>& norm, const DecodeLinear<T>& linear,
               cudaStream_t stream);

// x (OC) += linear(inp)
template <typename T>
void decode_fcproj(float* x, const float* inp, const DecodeLinear<T>& linear, cudaStream_t stream);

// logits (OC) = linear(layernorm(x))
template <typename T>
void decode_logits(float* logits, const float* x, const DecodeNorm<T>& norm, const DecodeLinear<T>& linear,
                   cudaStream_t stream);

}  // namespace llmc
