// Products of a weight matrix with one vector, and what stands before and after each of them in a layer.
//   input:  what makes the vector: it is there already, or is normalised, or made of attention's parts
//   output: where a row's sum goes: stored, through GELU, added to the residual stream, to q or the cache
// A row of the weight belongs to a team of 1 to 8 warps, by its length, so that a lane has up to kAhead
// vectors of it, all under way before the vector is there. Time is what memory needs for the weights, as long
// as enough is under way; so blocks of the kernels behind a kernel begin as soon as there is room, ask for
// their weights, and wait.
#include "llmc/ops/decode.cuh"

#include "llmc/cuda/exp2.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/gelu.cuh"

namespace llmc {

namespace {

constexpr int kBlock = 256, kWarps = kBlock / kWarp;
constexpr int kAhead = 4;      // vectors of a row that a lane asks for at once
constexpr int kResident = 4;   // blocks of a multiprocessor, at once
constexpr float kEps = 1e-5f;  // GPT-2's, of layernorm

// ---- inputs: ready() gives the vector (C) to all threads; room: C floats of shared memory, if kRoom
// ---------

struct Given {
    static constexpr bool kRoom = false;
    const float* x;
    __device__ const float* ready(float*, int) const { return x; }
};

template <typename T>
struct Normalised {
    static constexpr bool kRoom = true;
    const float* x;
    DecodeNorm<T> norm;
    __device__ const float* ready(float* room, int C) const {
        float sum = 0, squares = 0;
        for (int c = threadIdx.x; c < C; c += kBlock) { sum += room[c] = x[c]; }
        float mean = block_sum(sum) / (float)C;
        for (int c = threadIdx.x; c < C; c += kBlock) { squares += (room[c] - mean) * (room[c] - mean); }
        float rstd = rsqrtf(block_sum(squares) / (float)C + kEps);
        for (int c = threadIdx.x; c < C; c += kBlock) {
            room[c] = (room[c] - mean) * rstd * (float)norm.weight[c] + (float)norm.bias[c];
        }
        __syncthreads();
        return room;
    }
};

// attention's output: the sums of the chunks, each scaled from its own largest score to the largest of all
struct Merged {
    static constexpr bool kRoom = true;
    const float* parts;
    const DecodeStep* step;
    int HS, most_chunks;
    __device__ const float* ready(float* room, int C) const {
        int chunks = step->position / kDecodeChunk + 1;
        for (int c = threadIdx.x; c < C; c += kBlock) {
            const float* part = parts + (int64_t)(c / HS) * most_chunks * (HS + 2);
            float largest = -INFINITY, total = 0, sum = 0;
            for (int i = 0; i < chunks; i++) { largest = fmaxf(largest, part[i * (HS + 2)]); }
#pragma unroll 4
            for (int i = 0; i < chunks; i++) {
                const float* of_chunk = part + i * (HS + 2);
                float scale = exp2_approx(of_chunk[0] - largest);
                total += scale * of_chunk[1];
                sum += scale * of_chunk[2 + c % HS];
            }
            room[c] = sum / total;
        }
        __syncthreads();
        return room;
    }
};

// ---- outputs: one thread calls with each row and its sum, the bias added
// ------------------------------------

struct Store {
    float* out;
    __device__ void operator()(int row, float sum) const { out[row] = sum; }
};
struct StoreGelu {
    float* out;
    __device__ void operator()(int row, float sum) const { out[row] = gelu(sum); }
};
struct Add {
    float* out;
    __device__ void operator()(int row, float sum) const { out[row] += sum; }
};

// row h * HS + c of q's, of the keys' and of the values' NH * HS rows
template <typename T>
struct ToCache {
    float* q;
    CacheLayer<T> cache;
    const DecodeStep* step;
    __device__ void operator()(int row, float sum) const {
        int C = cache.NH * cache.HS, which = row / C, head = row % C / cache.HS, c = row % cache.HS;
        int stride = cache_row<T>(cache.HS);
        int64_t at = ((int64_t)head * cache.maxT + step->position) * stride + c;
        if (which == 0) {
            q[head * stride + c] = sum;
        } else {
            (which == 1 ? cache.keys : cache.values)[at] = (T)sum;
        }
    }
};

// ---- the product
// --------------------------------------------------------------------------------------------

// The piece i of a lane's part of a row begins at column first + i * step.
template <typename T, int n>
struct RowPart {
    Elements<T, n> x[kAhead];
    __device__ void ask(const T* row, int first, int step, int C) {
#pragma unroll
        for (int i = 0; i < kAhead; i++) {
            if (first + i * step < C) { x[i] = load_constant<n>(row + first + i * step); }
        }
    }
    __device__ static float dot(const Elements<T, n>& w, const float* x) {
        float sum = 0;
        auto v = load<n>(x);
#pragma unroll
        for (int j = 0; j < n; j++) { sum += as_float(w, j) * v.at[j]; }
        return sum;
    }
    // what was asked for, and what of the row was too much to be asked for
    __device__ float dot(const T* row, const float* vector, int first, int step, int C) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kAhead; i++) {
            if (first + i * step < C) { sum += dot(x[i], vector + first + i * step); }
        }
        for (int c = first + kAhead * step; c < C; c += step) {
            sum += dot(load_constant<n>(row + c), vector + c);
        }
        return sum;
    }
};

// n: elements of a vector of the weight, whose rows are whole vectors; team: warps of a row
template <typename T, int n, typename Input, typename Output>
__global__ void __launch_bounds__(kBlock, kResident)
    matvec_kernel(DecodeLinear<T> linear, int team, Input input, Output output) {
    extern __shared__ __align__(16) float room[];
    __shared__ float of_warp[kWarps];
    int warp = threadIdx.x / kWarp, at_once = kWarps / team, C = linear.C;
    int first = threadIdx.x % (team * kWarp) * n, step = team * kWarp * n;
    int row = (int)blockIdx.x * at_once + warp / team;
    const T* weight = linear.weight + (int64_t)row * C;
    RowPart<T, n> part;
    if (row < linear.OC) { part.ask(weight, first, step, C); }
    wait_for_earlier();
    const float* vector = input.ready(room, C);
    // all threads of a block go round together
    for (int begin = (int)blockIdx.x * at_once; begin < linear.OC; begin += (int)gridDim.x * at_once) {
        float sum = row < linear.OC ? part.dot(weight, vector, first, step, C) : 0;
        int now = row;
        row += (int)gridDim.x * at_once;
        weight = linear.weight + (int64_t)row * C;
        if (row < linear.OC) { part.ask(weight, first, step, C); }
        sum = warp_sum(sum);
        if (team > 1) {
            __syncthreads();  // of_warp may still be read
            if (threadIdx.x % kWarp == 0) { of_warp[warp] = sum; }
            __syncthreads();
            sum = 0;
            for (int w = 0; w < team; w++) { sum += of_warp[warp / team * team + w]; }
        }
        if (now < linear.OC && threadIdx.x % (team * kWarp) == 0) {
            output(now, sum + (linear.bias != nullptr ? (float)linear.bias[now] : 0.0f));
        }
    }
}

template <int n, typename T, typename Input, typename Output>
void launch(const DecodeLinear<T>& linear, const Input& input, const Output& output, cudaStream_t stream) {
    int team = 1;
    while (team < kWarps && linear.C > team * kWarp * n * kAhead) { team *= 2; }
    int blocks = std::min(ceil_div(linear.OC, kWarps / team), device_facts().multiprocessors * kResident);
    size_t bytes = Input::kRoom ? linear.C * sizeof(float) : 0;
    launch_decode(matvec_kernel<T, n, Input, Output>, blocks, kBlock, bytes, stream, linear, team, input,
                  output);
}

template <typename T, typename Input, typename Output>
void matvec(const DecodeLinear<T>& linear, const Input& input, const Output& output, cudaStream_t stream) {
    require(linear.C > 0 && linear.OC > 0 && (!Input::kRoom || linear.C <= kMostDecodeC),
            "decode: a layer of this width does not fit");
    constexpr int n = Vec<T>::size;
    if (linear.C % n == 0 && aligned(linear.weight)) {
        launch<n>(linear, input, output, stream);
    } else {
        launch<1>(linear, input, output, stream);
    }
}

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
    launch_decode(encoder_kernel<T>, 1, kBlock, 0, stream, x, step, given, wte, wpe, C);
}

template <typename T>
void decode_residual(float* x, const T* a, const T* b, int C, cudaStream_t stream) {
    launch_decode(residual_kernel<T>, 1, kBlock, 0, stream, x, a, b, C);
}

template <typename T>
void decode_qkv(float* q, const CacheLayer<T>& cache, const float* x, const DecodeNorm<T>& norm,
                const DecodeLinear<T>& linear, const DecodeStep* step, cudaStream_t stream) {
    require(linear.OC == 3 * cache.NH * cache.HS, "decode_qkv: q, k and v are all heads' rows");
    matvec(linear, Normalised<T>{x, norm}, ToCache<T>{q, cache, step}, stream);
}

template <typename T>
void decode_attproj(float* x, const float* parts, const CacheLayer<T>& cache, const DecodeLinear<T>& linear,
                    const DecodeStep* step, cudaStream_t stream) {
    require(linear.C == cache.NH * cache.HS, "decode_attproj: its input is all heads' output");
    matvec(linear, Merged{parts, step, cache.HS, ceil_div(cache.maxT, kDecodeChunk)}, Add{x}, stream);
}

template <typename T>
void decode_fc(float* out, const float* x, const DecodeNorm<T>& norm, const DecodeLinear<T>& linear,
               cudaStream_t stream) {
    matvec(linear, Normalised<T>{x, norm}, StoreGelu{out}, stream);
}

template <typename T>
void decode_fcproj(float* x, const float* inp, const DecodeLinear<T>& linear, cudaStream_t stream) {
    matvec(linear, Given{inp}, Add{x}, stream);
}

template <typename T>
void decode_logits(float* logits, const float* x, const DecodeNorm<T>& norm, const DecodeLinear<T>& linear,
                   cudaStream_t stream) {
    matvec(linear, Normalised<T>{x, norm}, Store{logits}, stream);
}

using bf16 = __nv_bfloat16;
template void decode_encoder(float*, DecodeStep*, const DecodeStep*, const float*, const float*, int,
                             cudaStream_t);
template void decode_encoder(float*, DecodeStep*, const DecodeStep*, const bf16*, const bf16*, int,
                             cudaStream_t);
template void decode_residual(float*, const float*, const float*, int, cudaStream_t);
template void decode_residual(float*, const bf16*, const bf16*, int, cudaStream_t);
template void decode_qkv(float*, const CacheLayer<float>&, const float*, const DecodeNorm<float>&,
                         const DecodeLinear<float>&, const DecodeStep*, cudaStream_t);
template void decode_qkv(float*, const CacheLayer<bf16>&, const float*, const DecodeNorm<bf16>&,
                         const DecodeLinear<bf16>&, const DecodeStep*, cudaStream_t);
template void decode_attproj(float*, const float*, const CacheLayer<float>&, const DecodeLinear<float>&,
                             const DecodeStep*, cudaStream_t);
template void decode_attproj(float*, const float*, const CacheLayer<bf16>&, const DecodeLinear<bf16>&,
                             const DecodeStep*, cudaStream_t);
template void decode_fc(float*, const float*, const DecodeNorm<float>&, const DecodeLinear<float>&,
                        cudaStream_t);
template void decode_fc(float*, const float*, const DecodeNorm<bf16>&, const DecodeLinear<bf16>&,
                        cudaStream_t);
template void decode_fcproj(float*, const float*, const DecodeLinear<float>&, cudaStream_t);
template void decode_fcproj(float*, const float*, const DecodeLinear<bf16>&, cudaStream_t);
template void decode_logits(float*, const float*, const DecodeNorm<float>&, const DecodeLinear<float>&,
                            cudaStream_t);
template void decode_logits(float*, const float*, const DecodeNorm<bf16>&, const DecodeLinear<bf16>&,
                            cudaStream_t);

}  // namespace llmc
