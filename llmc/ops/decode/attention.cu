// Attention of one query: keys and values are read once. A block has a chunk of kDecodeChunk keys of a head,
// so that a long context fills the GPU; the chunks' sums are merged in order by the product that follows. A
// row of keys belongs to a group of 8 to 32 lanes, a 16-byte vector each.
#include "llmc/cuda/launch.cuh"
#include "llmc/ops/decode/decode.h"

#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/attention/attention.h"

namespace llmc {

namespace {

constexpr int kBlock = 128, kWarps = kBlock / kWarp;

// a lane's vector of each of its group's keys or values: keys first, first + kBlock / lanes, ... below `end`,
// 0 else
template <typename T, int lanes>
struct ChunkPart {
    static constexpr int n = Vec<T>::size, keys = kDecodeChunk * lanes / kBlock, step = kBlock / lanes;
    Vec<T> x[keys];
    __device__ void ask(const T* rows, int stride, int first, int end) {
        int c = threadIdx.x % lanes * n;
#pragma unroll
        for (int i = 0; i < keys; i++) {
            x[i] = {};
            int t = first + i * step;
            if (t < end && c < stride) { x[i] = Vec<T>::load(rows + (int64_t)t * stride + c); }
        }
    }
};

// What a warp has of its keys, and what a chunk has: the largest score, the sum of exponentials relative to it, and the
// sums of values, each of which its lanes' groups have in part.
template <int lanes, int n>
struct WarpPart {
    float x[2 + lanes * n];
    __device__ void store(float largest, float exponentials, float (&sum)[n]) {
        int lane = threadIdx.x % kWarp;
        exponentials = add_groups(exponentials);
#pragma unroll
        for (int j = 0; j < n; j++) { sum[j] = add_groups(sum[j]); }
        if (lane == 0) {
            x[0] = largest;
            x[1] = exponentials;
        }
#pragma unroll
        for (int j = 0; j < n; j++) {
            if (lane < lanes) { x[2 + lane * n + j] = sum[j]; }
        }
    }
    __device__ static float add_groups(float a) {
#pragma unroll
        for (int distance = lanes; distance < kWarp; distance *= 2) {
            a += __shfl_xor_sync(kAllLanes, a, distance);
        }
        return a;
    }
};

// part (HS + 2) = what the block's warps have, warp after warp
template <int lanes, int n>
__device__ void merge_warps(float* part, const WarpPart<lanes, n> (&of_warp)[kWarps], int HS) {
    float largest = -INFINITY, scale[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; w++) { largest = fmaxf(largest, of_warp[w].x[0]); }
#pragma unroll
    for (int w = 0; w < kWarps; w++) { scale[w] = exp2_approx(of_warp[w].x[0] - largest); }
    for (int c = threadIdx.x; c < HS + 2; c += kBlock) {
        float all = 0;
#pragma unroll
        for (int w = 0; w < kWarps; w++) { all += scale[w] * of_warp[w].x[c]; }
        part[c] = c == 0 ? largest : all;
    }
}

// scale: of the scores, which are exponents of 2; blocks (chunk, head)
template <typename T, int lanes>
__global__ void __launch_bounds__(kBlock)
    decode_attention_kernel(float* parts, const float* q, CacheLayer<T> cache, const DecodeStep* step,
                            float scale) {
    using Part = ChunkPart<T, lanes>;
    constexpr int n = Part::n;
    wait_for_earlier();
    int chunk = blockIdx.x, head = blockIdx.y, end = step->position + 1;
    if (chunk * kDecodeChunk >= end) { return; }
    int stride = cache_row<T>(cache.HS), c = threadIdx.x % lanes * n;
    int first = chunk * kDecodeChunk + threadIdx.x / lanes;
    end = min(end, (chunk + 1) * kDecodeChunk);
    int64_t of_head = (int64_t)head * cache.maxT * stride;
    Part keys, values;
    keys.ask(cache.keys + of_head, stride, first, end);
    values.ask(cache.values + of_head, stride, first, end);
    float query[n] = {}, score[Part::keys], largest = -INFINITY;
    for (int j = 0; j < n; j++) {
        if (c + j < cache.HS) { query[j] = q[head * stride + c + j]; }
    }
#pragma unroll
    for (int i = 0; i < Part::keys; i++) {
        float dot = 0;
#pragma unroll
        for (int j = 0; j < n; j++) { dot += query[j] * (float)keys.x[i].at[j]; }
        dot = group_sum<lanes>(dot);
        score[i] = first + i * Part::step < end ? dot * scale : -INFINITY;
        largest = fmaxf(largest, score[i]);
    }
#pragma unroll
    for (int distance = lanes; distance < kWarp; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    float sum[n] = {}, exponentials = 0, base = largest == -INFINITY ? 0 : largest;  // a warp without keys
#pragma unroll
    for (int i = 0; i < Part::keys; i++) {
        float p = exp2_approx(score[i] - base);
        exponentials += p;
#pragma unroll
        for (int j = 0; j < n; j++) { sum[j] += p * (float)values.x[i].at[j]; }
    }
    __shared__ WarpPart<lanes, n> of_warp[kWarps];
    of_warp[threadIdx.x / kWarp].store(largest, exponentials, sum);
    __syncthreads();
    merge_warps(parts + ((int64_t)head * gridDim.x + chunk) * (cache.HS + 2), of_warp, cache.HS);
}

// a thread per element of keys and values
template <typename T>
__global__ void fill_cache_kernel(CacheLayer<T> cache, const T* qkv, int64_t elements) {
    int64_t i = (int64_t)blockIdx.x * kBlock + threadIdx.x;
    if (i >= elements) { return; }
    int C = cache.NH * cache.HS, c = (int)(i % (2 * C)), stride = cache_row<T>(cache.HS);
    int64_t t = i / (2 * C), head = c % C / cache.HS;
    T* to = c < C ? cache.keys : cache.values;
    to[(head * cache.maxT + t) * stride + c % cache.HS] = qkv[t * 3 * C + C + c];
}

}  // namespace

template <typename T>
void decode_attention(float* parts, const float* q, const CacheLayer<T>& cache, const DecodeStep* step,
                      cudaStream_t stream) {
    require(cache.HS > 0 && cache.HS <= kMaxHeadSize, "decode_attention: heads of 1 to 128");
    dim3 grid(ceil_div(cache.maxT, kDecodeChunk), cache.NH);
    float scale = kLog2e / std::sqrt((float)cache.HS);
    int vectors = cache_row<T>(cache.HS) / Vec<T>::size;
    auto launch = [&](auto* kernel) {
        launch_overlapping(kernel, grid, kBlock, 0, stream, parts, q, cache, step, scale);
    };
    if (vectors <= 8) {
        launch(decode_attention_kernel<T, 8>);
    } else if (vectors <= 16) {
        launch(decode_attention_kernel<T, 16>);
    } else if constexpr (sizeof(T) == 4) {
        launch(decode_attention_kernel<T, 32>);
    }
}

template <typename T>
void fill_cache(const CacheLayer<T>& cache, const T* qkv, int N, cudaStream_t stream) {
    int64_t elements = (int64_t)N * 2 * cache.NH * cache.HS;
    fill_cache_kernel<<<grid_x(ceil_div(elements, kBlock)), kBlock, 0, stream>>>(cache, qkv, elements);
    check_launch();
}

using bf16 = __nv_bfloat16;
template void decode_attention(float*, const float*, const CacheLayer<float>&, const DecodeStep*,
                               cudaStream_t);
template void decode_attention(float*, const float*, const CacheLayer<bf16>&, const DecodeStep*,
                               cudaStream_t);
template void fill_cache(const CacheLayer<float>&, const float*, int, cudaStream_t);
template void fill_cache(const CacheLayer<bf16>&, const bf16*, int, cudaStream_t);

}  // namespace llmc
