// The kernels of decode.h: products of a weight matrix with one vector, with what stands before and after each of them in a
// layer, and attention of one query.
#include "llmc/ops/decode/decode.h"

#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/gelu.cuh"

namespace llmc {

namespace {

// ---- products
//   input:  what makes the vector: it is there already, or is normalised, or made of attention's parts
//   output: where a row's sum goes: stored, through GELU, added to the residual stream, to q or the cache
// A row of the weight belongs to a team of 1 to 8 warps, by its length, so that a lane has up to kAhead
// vectors of it, all under way before the vector is there. Time is what memory needs for the weights, as long
// as enough is under way; so blocks of the kernels behind a kernel begin as soon as there is room, ask for
// their weights, and wait. What they do after the wait adds to every token's time, 5 times a layer: nothing
// that could be asked for before is asked for then, and what is asked for then is asked for at once.

constexpr int kBlock = 256, kWarps = kBlock / kWarp;
constexpr int kAhead = 4;      // vectors of a row that a lane asks for at once
constexpr int kResident = 4;   // blocks of a multiprocessor, at once
constexpr float kEps = 1e-5f;  // GPT-2's, of layernorm

// ---- inputs: ask() before the wait; ready() gives the vector (C) to all threads; room: C floats of shared memory, if
// kRoom; n: columns that a thread takes at once ----------------------------------------------------------------------

struct Given {
    static constexpr bool kRoom = false;
    const float* x;
    bool is_aligned() const { return aligned(x); }
    template <int n>
    struct Asked {
        __device__ Asked(const Given&, int) {}
        __device__ const float* ready(const Given& from, float*, int) const { return from.x; }
    };
};

// The sum over all threads of a block, the same in each. of_warp is not read or written before the next
// __syncthreads(), nor since the last one.
__device__ inline float block_total(float x, float (&of_warp)[kWarps]) {
    x = warp_sum(x);
    if (threadIdx.x % kWarp == 0) { of_warp[threadIdx.x / kWarp] = x; }
    __syncthreads();
    float total = 0;
    unrolled<kWarps>([&](int w) { total += of_warp[w]; });
    return total;
}

template <typename T>
struct Normalised {
    static constexpr bool kRoom = true;
    const float* x;
    DecodeNorm<T> norm;
    bool is_aligned() const { return aligned(x) && aligned(norm.weight) && aligned(norm.bias); }
    // A thread has columns threadIdx.x * n on, in registers, and where a row is longer every kBlock * n further.
    template <int n>
    struct Asked {
        Elements<T, n> weight, bias;
        // of threads without columns the last ones: a choice of values would wait for them here
        __device__ Asked(const Normalised& from, int C)
            : weight(load_constant<n>(from.norm.weight + min((int)threadIdx.x * n, C - n))),
              bias(load_constant<n>(from.norm.bias + min((int)threadIdx.x * n, C - n))) {}
        __device__ const float* ready(const Normalised& from, float* room, int C) const {
            __shared__ float of_warp[2][kWarps];
            const int first = threadIdx.x * n, step = kBlock * n;
            Elements<float, n> mine{};
            if (first < C) { mine = load<n>(from.x + first); }
#pragma unroll 1
            for (int c = first + step; c < C; c += step) { store(room + c, load<n>(from.x + c)); }
            auto each = [&](auto use) {
                if (first < C) { use(mine, first); }
#pragma unroll 1
                for (int c = first + step; c < C; c += step) { use(load<n>(room + c), c); }
            };
            float sum = 0, squares = 0;
            each([&](const Elements<float, n>& v, int) { unrolled<n>([&](int j) { sum += v.at[j]; }); });
            float mean = block_total(sum, of_warp[0]) / (float)C;
            each([&](const Elements<float, n>& v, int) {
                unrolled<n>([&](int j) { squares += (v.at[j] - mean) * (v.at[j] - mean); });
            });
            float rstd = rsqrtf(block_total(squares, of_warp[1]) / (float)C + kEps);
            each([&](Elements<float, n> v, int c) {
                auto w = c == first ? weight : load_constant<n>(from.norm.weight + c);
                auto b = c == first ? bias : load_constant<n>(from.norm.bias + c);
                unrolled<n>(
                    [&](int j) { v.at[j] = (v.at[j] - mean) * rstd * as_float(w, j) + as_float(b, j); });
                store(room + c, v);
            });
            __syncthreads();
            return room;
        }
    };
};

// Attention's output: the sums of the chunks, each scaled from its own largest score to the largest of all.
// pair: 2, or 1 where heads are of an odd size
template <int pair>
struct Merged {
    static constexpr bool kRoom = true;
    static constexpr int kChunks = 4;  // asked for at once
    const float* parts;
    const DecodeStep* step;
    int HS, most_chunks;
    bool is_aligned() const { return true; }
    template <int>
    struct Asked {
        __device__ Asked(const Merged&, int) {}
        __device__ const float* ready(const Merged& from, float* room, int C) const {
            int chunks = from.step->position / kDecodeChunk + 1;
            for (int c = threadIdx.x * pair; c < C; c += kBlock * pair) { from.merge(room, c, chunks); }
            __syncthreads();
            return room;
        }
    };
    __device__ void merge(float* room, int c, int chunks) const {
        int head = c / HS, stride = HS + 2;
        const float *part = parts + (int64_t)head * most_chunks * stride, *values = part + 2 + c - head * HS;
        float largest = -INFINITY, total = 0, sum[pair] = {};
#pragma unroll 1
        for (int first = 0; first < chunks; first += kChunks) {
            float scores[kChunks], totals[kChunks], now = largest;
            Elements<float, pair> sums[kChunks];
            unrolled<kChunks>([&](int i) {
                int at = min(first + i, chunks - 1) * stride;  // no branch: all are asked for at once
                bool exists = first + i < chunks;
                scores[i] = exists ? part[at] : -INFINITY;
                totals[i] = part[at + 1];
                sums[i] = load<pair>(values + at);
            });
            unrolled<kChunks>([&](int i) { now = fmaxf(now, scores[i]); });
            float keep = exp2_approx(largest - now);
            largest = now;
            total *= keep;
            unrolled<pair>([&](int j) { sum[j] *= keep; });
            unrolled<kChunks>([&](int i) {
                float scale = exp2_approx(scores[i] - largest);
                total += scale * totals[i];
                unrolled<pair>([&](int j) { sum[j] += scale * sums[i].at[j]; });
            });
        }
        unrolled<pair>([&](int j) { room[c + j] = sum[j] / total; });
    }
};

// ---- outputs: one thread calls with each row, its sum, the bias added, and what was `before`, asked for ahead ----------

template <bool through_gelu>
struct Store {
    float* out;
    __device__ float before(int) const { return 0; }
    __device__ void operator()(int row, float sum, float) const { out[row] = through_gelu ? gelu(sum) : sum; }
};
struct Add {
    float* out;
    __device__ float before(int row) const { return out[row]; }
    __device__ void operator()(int row, float sum, float before) const { out[row] = before + sum; }
};

// row h * HS + c of q's, of the keys' and of the values' NH * HS rows
template <typename T>
struct ToCache {
    float* q;
    CacheLayer<T> cache;
    const DecodeStep* step;
    __device__ int before(int) const { return step->position; }
    __device__ void operator()(int row, float sum, int position) const {
        int C = cache.NH * cache.HS, which = row / C, head = row % C / cache.HS, c = row % cache.HS;
        int stride = cache_row<T>(cache.HS);
        int64_t at = ((int64_t)head * cache.maxT + position) * stride + c;
        if (which == 0) {
            q[head * stride + c] = sum;
        } else {
            (which == 1 ? cache.keys : cache.values)[at] = (T)sum;
        }
        if constexpr (kSm90) { prefetch(row, position); }
    }
    // what attention will read of one head's keys or values, into L2
    __device__ void prefetch(int number, int position) const {
        if (number >= 2 * cache.NH) { return; }
        int64_t head = (int64_t)(number / 2) * cache.maxT * cache_row<T>(cache.HS);
        bulk_prefetch((number % 2 == 0 ? cache.keys : cache.values) + head,
                      (unsigned)(position * cache_row<T>(cache.HS) * sizeof(T)));
    }
};

// ---- the product -------------------------------------------------------------------------------------------------------

// The piece i of a lane's part of a row begins at column first + i * step.
template <typename T, int n>
struct RowPart {
    Elements<T, n> x[kAhead];
    __device__ void ask(const T* row, int first, int step, int C) {
        unrolled<kAhead>([&](int i) {
            if (first + i * step < C) { x[i] = load_constant<n>(row + first + i * step); }
        });
    }
    __device__ static float dot(const Elements<T, n>& w, const float* x) {
        float sum = 0;
        auto v = load<n>(x);
        unrolled<n>([&](int j) { sum += as_float(w, j) * v.at[j]; });
        return sum;
    }
    // what was asked for, and what of the row was too much to be asked for
    __device__ float dot(const T* row, const float* vector, int first, int step, int C) const {
        float sum = 0;
        unrolled<kAhead>([&](int i) {
            // no branch: all pieces of the vector are asked for at once, some for nothing
            int c = first + i * step;
            float more = dot(x[i], vector + min(c, C - n));
            sum += c < C ? more : 0;
        });
        for (int c = first + kAhead * step; c < C; c += step) {
            sum += dot(load_constant<n>(row + c), vector + c);
        }
        return sum;
    }
};

// The first quarter of a kernel's blocks ask for the rest's weights, into L2: the kernel before leaves no room for all
// blocks, and those that begin only when it has ended find their weights there.
template <typename T>
__device__ void prefetch_weights(const DecodeLinear<T>& linear, int rows) {
    int quarter = (gridDim.x + 3) / 4;
    if (threadIdx.x != 0 || (int)blockIdx.x >= quarter) { return; }
    for (int block = blockIdx.x + quarter; block < (int)gridDim.x; block += quarter) {
        int row = block * rows;
        bulk_prefetch(linear.weight + (int64_t)row * linear.C,
                      (unsigned)(min(rows, linear.OC - row) * linear.C * sizeof(T)));
    }
}

// n: elements of a vector of the weight, whose rows are whole vectors; team: warps of a row
template <typename T, int n, typename Input, typename Output>
__global__ void __launch_bounds__(kBlock, kResident)
    matvec_kernel(DecodeLinear<T> linear, int team, Input input, Output output) {
    extern __shared__ __align__(16) float room[];
    __shared__ float of_warp[kWarps];
    int warp = threadIdx.x / kWarp, at_once = kWarps / team, mine = warp / team, C = linear.C;
    int first = threadIdx.x % (team * kWarp) * n, step = team * kWarp * n;
    int row = (int)blockIdx.x * at_once + mine;
    const T* weight = linear.weight + (int64_t)row * C;
    bool writes = first == 0;
    RowPart<T, n> part;
    Elements<T, 1> bias{};
    auto ask = [&] {
        if (row >= linear.OC) { return; }
        part.ask(weight, first, step, C);
        if (writes && linear.bias != nullptr) { bias = load_constant<1>(linear.bias + row); }
    };
    ask();
    const typename Input::template Asked<n> asked(input, C);
    if constexpr (kSm90) { prefetch_weights(linear, at_once); }
    wait_for_earlier();
    auto before = writes && row < linear.OC ? output.before(row) : 0;
    const float* vector = asked.ready(input, room, C);
    // all threads of a block go round together
    for (int begin = (int)blockIdx.x * at_once; begin < linear.OC; begin += (int)gridDim.x * at_once) {
        float sum = row < linear.OC ? part.dot(weight, vector, first, step, C) : 0;
        int now = row;
        float bias_now = as_float(bias, 0);
        auto before_now = before;
        row += (int)gridDim.x * at_once;
        weight = linear.weight + (int64_t)row * C;
        ask();
        if (writes && row < linear.OC) { before = output.before(row); }
        sum = warp_sum(sum);
        if (team > 1) {
            __syncthreads();  // of_warp may still be read
            if (threadIdx.x % kWarp == 0) { of_warp[warp] = sum; }
            __syncthreads();
            sum = 0;
            unrolled<kWarps>([&](int w) { sum += w < team ? of_warp[mine * team + w] : 0; });
        }
        if (now < linear.OC && writes) { output(now, sum + bias_now, before_now); }
    }
}

template <int n, typename T, typename Input, typename Output>
void launch(const DecodeLinear<T>& linear, const Input& input, const Output& output, cudaStream_t stream) {
    int team = 1;
    while (team < kWarps && linear.C > team * kWarp * n * kAhead) { team *= 2; }
    int blocks = std::min(ceil_div(linear.OC, kWarps / team), device_facts().multiprocessors * kResident);
    size_t bytes = Input::kRoom ? linear.C * sizeof(float) : 0;
    launch_overlapping(matvec_kernel<T, n, Input, Output>, blocks, kBlock, bytes, stream, linear, team, input,
                       output);
}

template <typename T, typename Input, typename Output>
void matvec(const DecodeLinear<T>& linear, const Input& input, const Output& output, cudaStream_t stream) {
    require(linear.C > 0 && linear.OC > 0 && (!Input::kRoom || linear.C <= kMostDecodeC),
            "decode: a layer of this width does not fit");
    constexpr int n = Vec<T>::size;
    bool vectors = linear.C % n == 0 && aligned(linear.weight) && input.is_aligned();
    auto* run = vectors ? launch<n, T, Input, Output> : launch<1, T, Input, Output>;
    run(linear, input, output, stream);
}

// ---- attention: keys and values are read once. A block has a chunk of kDecodeChunk keys of a head, so that a long context
// fills the GPU; the chunks' sums are merged in order by the product that follows. A row of keys belongs to a group of 8 to 32
// lanes, a 16-byte vector each.

constexpr int kKeyThreads = 128, kKeyWarps = kKeyThreads / kWarp;

// a lane's vector of each of its group's keys or values: keys first, first + kKeyThreads / lanes, ... below `end`,
// 0 else
template <typename T, int lanes>
struct ChunkPart {
    static constexpr int n = Vec<T>::size, keys = kDecodeChunk * lanes / kKeyThreads,
                         step = kKeyThreads / lanes;
    Vec<T> x[keys];
    __device__ void ask(const T* rows, int stride, int first, int end) {
        int c = threadIdx.x % lanes * n;
        unrolled<keys>([&](int i) {
            x[i] = {};
            int t = first + i * step;
            if (t < end && c < stride) { x[i] = Vec<T>::load(rows + (int64_t)t * stride + c); }
        });
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
        unrolled<n>([&](int j) { sum[j] = add_groups(sum[j]); });
        if (lane == 0) {
            x[0] = largest;
            x[1] = exponentials;
        }
        unrolled<n>([&](int j) {
            if (lane < lanes) { x[2 + lane * n + j] = sum[j]; }
        });
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
__device__ void merge_warps(float* part, const WarpPart<lanes, n> (&of_warp)[kKeyWarps], int HS) {
    float largest = -INFINITY, scale[kKeyWarps];
    unrolled<kKeyWarps>([&](int w) { largest = fmaxf(largest, of_warp[w].x[0]); });
    unrolled<kKeyWarps>([&](int w) { scale[w] = exp2_approx(of_warp[w].x[0] - largest); });
    for (int c = threadIdx.x; c < HS + 2; c += kKeyThreads) {
        float all = 0;
        unrolled<kKeyWarps>([&](int w) { all += scale[w] * of_warp[w].x[c]; });
        part[c] = c == 0 ? largest : all;
    }
}

// scale: of the scores, which are exponents of 2; blocks (chunk, head)
template <typename T, int lanes>
__global__ void __launch_bounds__(kKeyThreads)
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
    unrolled<Part::keys>([&](int i) {
        float dot = 0;
        unrolled<n>([&](int j) { dot += query[j] * (float)keys.x[i].at[j]; });
        dot = group_sum<lanes>(dot);
        score[i] = first + i * Part::step < end ? dot * scale : -INFINITY;
        largest = fmaxf(largest, score[i]);
    });
#pragma unroll
    for (int distance = lanes; distance < kWarp; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    float sum[n] = {}, exponentials = 0, base = largest == -INFINITY ? 0 : largest;  // a warp without keys
    unrolled<Part::keys>([&](int i) {
        float p = exp2_approx(score[i] - base);
        exponentials += p;
        unrolled<n>([&](int j) { sum[j] += p * (float)values.x[i].at[j]; });
    });
    __shared__ WarpPart<lanes, n> of_warp[kKeyWarps];
    of_warp[threadIdx.x / kWarp].store(largest, exponentials, sum);
    __syncthreads();
    merge_warps(parts + ((int64_t)head * gridDim.x + chunk) * (cache.HS + 2), of_warp, cache.HS);
}

// a thread per element of keys and values
template <typename T>
__global__ void fill_cache_kernel(CacheLayer<T> cache, const T* qkv, int64_t elements) {
    int64_t i = (int64_t)blockIdx.x * kKeyThreads + threadIdx.x;
    if (i >= elements) { return; }
    int C = cache.NH * cache.HS, c = (int)(i % (2 * C)), stride = cache_row<T>(cache.HS);
    int64_t t = i / (2 * C), head = c % C / cache.HS;
    T* to = c < C ? cache.keys : cache.values;
    to[(head * cache.maxT + t) * stride + c % cache.HS] = qkv[t * 3 * C + C + c];
}

// ---- what comes before the first layer, and the last row of a prompt

template <typename T>
__global__ void encoder_kernel(float* x, DecodeStep* step, const volatile DecodeStep* given, const T* wte,
                               const T* wpe, int C) {
    wait_for_earlier();
    int token = given->token, position = given->position;
    for (int c = threadIdx.x; c < C; c += kBlock) {
        x[c] = (float)wte[(int64_t)token * C + c] + (float)wpe[(int64_t)position * C + c];
    }
    if (threadIdx.x == 0) { *step = {token, position}; }
}

template <typename T>
__global__ void residual_kernel(float* x, const T* a, const T* b, int C) {
    wait_for_earlier();
    for (int c = threadIdx.x; c < C; c += kBlock) { x[c] = (float)a[c] + (float)b[c]; }
}

}  // namespace

template <typename T>
void decode_encoder(float* x, DecodeStep* step, const DecodeStep* given, const T* wte, const T* wpe, int C,
                    cudaStream_t stream) {
    launch_overlapping(encoder_kernel<T>, 1, kBlock, 0, stream, x, step, given, wte, wpe, C);
}

template <typename T>
void decode_residual(float* x, const T* a, const T* b, int C, cudaStream_t stream) {
    launch_overlapping(residual_kernel<T>, 1, kBlock, 0, stream, x, a, b, C);
}

template <typename T>
void decode_qkv(float* q, const CacheLayer<T>& cache, const float* x, const DecodeNorm<T>& norm,
                const DecodeLinear<T>& linear, const DecodeStep* step, cudaStream_t stream) {
    require(linear.OC == 3 * cache.NH * cache.HS, "decode_qkv: q, k and v are all heads' rows");
    matvec(linear, Normalised<T>{x, norm}, ToCache<T>{q, cache, step}, stream);
}

template <typename T>
void decode_attention(float* parts, const float* q, const CacheLayer<T>& cache, const DecodeStep* step,
                      cudaStream_t stream) {
    require(cache.HS > 0 && cache.HS <= kMaxHeadSize, "decode_attention: heads of 1 to 128");
    dim3 grid(ceil_div(cache.maxT, kDecodeChunk), cache.NH);
    float scale = kLog2e / std::sqrt((float)cache.HS);
    int vectors = cache_row<T>(cache.HS) / Vec<T>::size;
    auto launch = [&](auto* kernel) {
        launch_overlapping(kernel, grid, kKeyThreads, 0, stream, parts, q, cache, step, scale);
    };
    if (vectors <= 8) { return launch(decode_attention_kernel<T, 8>); }
    if (vectors <= 16) { return launch(decode_attention_kernel<T, 16>); }
    if constexpr (sizeof(T) == 4) { launch(decode_attention_kernel<T, 32>); }
}

template <typename T>
void fill_cache(const CacheLayer<T>& cache, const T* qkv, int N, cudaStream_t stream) {
    int64_t elements = (int64_t)N * 2 * cache.NH * cache.HS;
    fill_cache_kernel<<<grid_x(ceil_div(elements, kKeyThreads)), kKeyThreads, 0, stream>>>(cache, qkv,
                                                                                           elements);
    check_launch();
}

template <typename T>
void decode_attproj(float* x, const float* parts, const CacheLayer<T>& cache, const DecodeLinear<T>& linear,
                    const DecodeStep* step, cudaStream_t stream) {
    require(linear.C == cache.NH * cache.HS, "decode_attproj: its input is all heads' output");
    int chunks = ceil_div(cache.maxT, kDecodeChunk);
    if (cache.HS % 2 == 0) {
        return matvec(linear, Merged<2>{parts, step, cache.HS, chunks}, Add{x}, stream);
    }
    matvec(linear, Merged<1>{parts, step, cache.HS, chunks}, Add{x}, stream);
}

template <typename T>
void decode_fc(float* out, const float* x, const DecodeNorm<T>& norm, const DecodeLinear<T>& linear,
               cudaStream_t stream) {
    matvec(linear, Normalised<T>{x, norm}, Store<true>{out}, stream);
}

template <typename T>
void decode_fcproj(float* x, const float* inp, const DecodeLinear<T>& linear, cudaStream_t stream) {
    matvec(linear, Given{inp}, Add{x}, stream);
}

template <typename T>
void decode_logits(float* logits, const float* x, const DecodeNorm<T>& norm, const DecodeLinear<T>& linear,
                   cudaStream_t stream) {
    matvec(linear, Normalised<T>{x, norm}, Store<false>{logits}, stream);
}

using bf16 = __nv_bfloat16;
template decltype(decode_encoder<float>) decode_encoder<float>;
template decltype(decode_residual<float>) decode_residual<float>;
template decltype(decode_qkv<float>) decode_qkv<float>;
template decltype(fill_cache<float>) fill_cache<float>;
template decltype(decode_attention<float>) decode_attention<float>;
template decltype(decode_attproj<float>) decode_attproj<float>;
template decltype(decode_fc<float>) decode_fc<float>;
template decltype(decode_fcproj<float>) decode_fcproj<float>;
template decltype(decode_logits<float>) decode_logits<float>;
template decltype(decode_encoder<bf16>) decode_encoder<bf16>;
template decltype(decode_residual<bf16>) decode_residual<bf16>;
template decltype(decode_qkv<bf16>) decode_qkv<bf16>;
template decltype(fill_cache<bf16>) fill_cache<bf16>;
template decltype(decode_attention<bf16>) decode_attention<bf16>;
template decltype(decode_attproj<bf16>) decode_attproj<bf16>;
template decltype(decode_fc<bf16>) decode_fc<bf16>;
template decltype(decode_fcproj<bf16>) decode_fcproj<bf16>;
template decltype(decode_logits<bf16>) decode_logits<bf16>;

}  // namespace llmc
