// torch: as in PyTorch: one rule chooses between torch_vectorized and torch_rowwise.
// Why:    what a user of PyTorch gets for a given shape and pointer; why() says it in words.
// Moves:  whatever the chosen one moves.
// Result: 137.8 us, 36 % of the roof at 65536x768 bf16; 57 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <string>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/ladder/forward/torch_rowwise.cuh"

namespace llmc::torch_vectorized {

// ---- torch_vectorized: as in PyTorch's first choice: 4 warps per row, Welford's running mean, four elements
// at a time.
// Why:    no shift and no second look for the variance: mean and squares follow every element, in one
//         pass.
// Moves:  a row twice in, the second time from L1 or L2, once out; 8 bytes a load in 16-bit types.
// Result: 137.8 us, 36 % of the roof at 65536x768 bf16; 57 % at 4096x8192 fp16; H200, 2026-11-21

constexpr int kVector = 4;  // elements, whatever their type
constexpr int kWarps = 4;   // a power of two

// count elements of this mean, and the sum of squares about it
struct Welford {
    float mean = 0, squares = 0, count = 0;

    // one more element; the count's reciprocal instead of a division, as in the original
    __device__ void add(float x) {
        count += 1;
        float from_old = x - mean;
        mean += from_old * (1 / count);
        squares += from_old * (x - mean);
    }
    // Chan et al. 1983: b's elements are this many more
    __device__ void add(const Welford& b) {
        float both = count + b.count, apart = b.mean - mean;
        if (both == 0) { return; }
        float share = b.count * (1 / both);
        mean += apart * share;
        squares += b.squares + apart * apart * count * share;
        count = both;
    }
};

// of the row, in every thread. C is a multiple of kVector.
template <typename T>
__device__ Welford row_moments(const T* x, int C) {
    // from half of the warps: means and squares in pairs, then counts
    __shared__ alignas(sizeof(float2)) float handed_down[kWarps * 3 / 2];
    float2* pairs = (float2*)handed_down;
    float* counts = handed_down + kWarps;
    int lane = threadIdx.x, warp = threadIdx.y;

    Welford mine;
    for (int c = (warp * kWarp + lane) * kVector; c < C; c += kWarps * kWarp * kVector) {
        auto v = load<kVector>(x + c);
#pragma unroll
        for (int i = 0; i < kVector; i++) { mine.add((float)v.at[i]); }
    }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        Welford other{__shfl_down_sync(kAllLanes, mine.mean, distance),
                      __shfl_down_sync(kAllLanes, mine.squares, distance),
                      __shfl_down_sync(kAllLanes, mine.count, distance)};
        mine.add(other);  // lane 0's is the warp's
    }
    for (int half = kWarps / 2; half > 0; half /= 2) {  // the upper half of the warps hands down to the lower
        if (lane == 0 && warp >= half && warp < 2 * half) {
            pairs[warp - half] = {mine.mean, mine.squares};
            counts[warp - half] = mine.count;
        }
        __syncthreads();
        if (lane == 0 && warp < half) { mine.add(Welford{pairs[warp].x, pairs[warp].y, counts[warp]}); }
        __syncthreads();
    }
    if (lane == 0 && warp == 0) { pairs[0] = {mine.mean, mine.squares}; }
    __syncthreads();
    return {pairs[0].x, pairs[0].y, (float)C};
}

// the row's results; kWeight, kBias: is there one? Four cases, four loops
template <bool kWeight, bool kBias, typename T>
__device__ void write_row(T* y, const T* x, const T* weight, const T* bias, int C, float mean, float rstd) {
    int thread = threadIdx.y * kWarp + threadIdx.x;
    for (int c = thread * kVector; c < C; c += kWarps * kWarp * kVector) {
        auto v = load<kVector>(x + c);
        Elements<T, kVector> w{}, b{};
        if constexpr (kWeight) { w = load<kVector>(weight + c); }
        if constexpr (kBias) { b = load<kVector>(bias + c); }
#pragma unroll
        for (int i = 0; i < kVector; i++) {
            float result = rstd * ((float)v.at[i] - mean);
            if constexpr (kWeight) { result *= (float)w.at[i]; }
            if constexpr (kBias) { result += (float)b.at[i]; }
            v.at[i] = (T)result;
        }
        store(y + c, v);
    }
}

template <typename T>
__global__ void layernorm_forward_kernel(T* out, float* mean, float* rstd, const T* inp, const T* weight,
                                         const T* bias, int C, float eps) {
    int64_t row = blockIdx.x;
    const T* x = inp + row * C;
    T* y = out + row * C;
    Welford all = row_moments(x, C);
    float m = all.mean, s = rsqrtf(all.squares / C + eps);
    if (weight != nullptr && bias != nullptr) {
        write_row<true, true>(y, x, weight, bias, C, m, s);
    } else if (weight != nullptr) {
        write_row<true, false>(y, x, weight, bias, C, m, s);
    } else if (bias != nullptr) {
        write_row<false, true>(y, x, weight, bias, C, m, s);
    } else {
        write_row<false, false>(y, x, weight, bias, C, m, s);
    }
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        mean[row] = m;
        rstd[row] = s;
    }
}

// does PyTorch take this path? Rows start on a vector, and float can count the columns.
template <typename T>
bool takes(const T* out, const T* inp, const T* weight, const T* bias, int C) {
    auto starts_vector = [](const T* p) { return (uintptr_t)p % (kVector * sizeof(T)) == 0; };
    return C % kVector == 0 && C <= 1 << 24 && starts_vector(out) && starts_vector(inp) &&
           starts_vector(weight) && starts_vector(bias);
}

// out, inp (N,C); mean, rstd (N); weight, bias (C) or null; all written (=). Nothing may alias. block: 128.
template <typename T>
void layernorm_forward(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int block = kWarps * kWarp) {
    if (N == 0) { return; }
    require(block == kWarps * kWarp, "layernorm_forward torch_vectorized: block is 128, always");
    require(takes(out, inp, weight, bias, C),
            "layernorm_forward torch_vectorized: C must be a multiple of 4, at most 2^24, and every pointer "
            "aligned "
            "to 4 elements; torch_rowwise takes the rest");
    unsigned grid = grid_x(N);
    layernorm_forward_kernel<<<grid, dim3(kWarp, kWarps), 0, stream>>>(out, mean, rstd, inp, weight, bias, C,
                                                                       eps);
    check_launch();
}

}  // namespace llmc::torch_vectorized

namespace llmc::torch {

// ---- which of the two

enum class Path { kVectorized, kRowwise, kRefused };

// by type, sizes and alignment alone; weight and bias may be null
template <typename T>
Path path(const T* out, const T* inp, const T* weight, const T* bias, int64_t N, int C) {
    if (N > INT32_MAX) { return Path::kRefused; }  // a block per row, and no grid has more
    if constexpr (sizeof(T) <= sizeof(float)) {
        if (torch_vectorized::takes(out, inp, weight, bias, C)) { return Path::kVectorized; }
    }
    return Path::kRowwise;
}

// the choice as a line to print
template <typename T>
std::string why(const T* out, const T* inp, const T* weight, const T* bias, int64_t N, int C) {
    switch (path(out, inp, weight, bias, N, C)) {
        case Path::kVectorized:
            return "vectorized: C is a multiple of 4, at most 2^24, pointers aligned";
        case Path::kRefused:
            return fmt::format("refused: {} rows, a grid has at most {} blocks", N, INT32_MAX);
        case Path::kRowwise:
            break;
    }
    const char* reason = C % torch_vectorized::kVector != 0 ? "C is not a multiple of 4"
                         : C > 1 << 24                      ? "C is above 2^24, which float does not count"
                         : sizeof(T) > sizeof(float)        ? "the type is double"
                                                            : "a pointer is not aligned to 4 elements";
    return fmt::format("row-wise moments, then results: {}", reason);
}

// the contract of torch_rowwise
template <typename T>
void layernorm_forward(T* out, acc_t<T>* mean, acc_t<T>* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int = 0) {
    Path chosen = path(out, inp, weight, bias, N, C);
    require(chosen != Path::kRefused, "layernorm_forward torch: more rows than a grid has blocks");
    if constexpr (sizeof(T) <= sizeof(float)) {
        if (chosen == Path::kVectorized) {
            return torch_vectorized::layernorm_forward(out, mean, rstd, inp, weight, bias, N, C, eps, stream);
        }
    }
    torch_rowwise::layernorm_forward(out, mean, rstd, inp, weight, bias, N, C, eps, stream);
}

}  // namespace llmc::torch
