// registers: a row lives in the registers of a warp or of a block, in the type it has in memory.
// Why:    v6 and v7 stay behind v3: without a ring, whoever waits lets another block on the SM work. Loads and
//         stores carry a streaming hint; a warp's weight and bias are on their way while its row is.
// Moves:  a row once in, once out: 2 N C elements; 4 N C with a residual.
// Result: 50.1 us, 97 % of the roof at 65536x768 bf16; 96 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/layernorm_forward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/reduce.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_registers {

constexpr int kMostColumns = 16896;

// A row is shared by `warps` warps, whose lanes hold k times n elements; all but the last of the k are whole. A block
// has `rows` rows. early: weight (1), or weight and bias (2), are asked for together with the row. blocks: so many are
// to fit an SM, which limits registers.
template <int warps_, int n_, int k_, int rows_, int early_, int blocks_>
struct Layout {
    static constexpr int warps = warps_, n = n_, k = k_, rows = rows_, early = early_, blocks = blocks_;
    static constexpr int threads = rows * warps * kWarp, step = warps * kWarp * n, columns = step * k;
    static_assert(warps == 1 || rows == 1, "a block's barrier is that of one row");
    static_assert(columns <= kMostColumns);
};

// What a warp knows of its elements: their mean is about + m, two numbers since one has too few bits where the mean is
// large and the spread small; `squares` is about the mean, n their number.
struct alignas(16) Moments {
    float about, m, squares, n;
};

constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// the sum over groups of `lanes` neighbouring lanes, the same in each
template <int lanes>
__device__ inline float group_sum(float x) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(kAllLanes, x, distance);
    }
    return x;
}

// The row's moments from its warps', the same in every thread. Chan et al. 1983. Means are compared with warp 0's
// first: for equal ones everything is exact.
template <int warps>
__device__ Moments merge(const Moments& mine, float per_column) {
    if constexpr (warps == 1) { return mine; }
    __shared__ Moments of_warp[warps];
    if (threadIdx.x % kWarp == 0) { of_warp[threadIdx.x / kWarp] = mine; }
    __syncthreads();
    constexpr int lanes = power_of_two(warps);
    int w = threadIdx.x % lanes;
    Moments zero = of_warp[0], other = w < warps ? of_warp[w] : zero;
    float n = w < warps ? other.n : 0.0f, d = (other.about - zero.about) + (other.m - zero.m);
    float mean = group_sum<lanes>(n * d) * per_column;
    float squares = group_sum<lanes>(w < warps ? other.squares + n * (d - mean) * (d - mean) : 0.0f);
    return {zero.about, zero.m + mean, squares, 0};
}

template <typename T, int n, int k>
struct Slice {
    Elements<T, n> at[k];
};

// A thread's part of a row: vectors from column `first` on.
template <typename L, typename T>
struct Part {
    Slice<T, L::n, L::k> x;
    int first, C;

    __device__ bool inside(int i) const { return i < L::k - 1 || first + i * L::step < C; }
};

// of inp, or of inp + inp2 rounded, which is written to residual
template <typename L, bool kResidual, typename T, typename W>
__device__ void load_part(Part<L, T>& part, const LayerNormForward<T, W>& call, int64_t row) {
    const T* inp = call.inp + row * call.inp_stride + part.first;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        part.x.at[i] = {};
        if (part.inside(i)) { part.x.at[i] = load_streaming<L::n>(inp + i * L::step); }
    }
    if constexpr (kResidual) {
        const T* inp2 = call.inp2 + row * call.inp2_stride + part.first;
        T* residual = call.residual + row * call.residual_stride + part.first;
        Slice<T, L::n, L::k> x2;
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            x2.at[i] = {};
            if (part.inside(i)) { x2.at[i] = load_streaming<L::n>(inp2 + i * L::step); }
        }
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            float sum[L::n];
#pragma unroll
            for (int j = 0; j < L::n; j++) { sum[j] = as_float(part.x.at[i], j) + as_float(x2.at[i], j); }
            part.x.at[i] = rounded<T>(sum);
            if (part.inside(i)) { store_streaming(residual + i * L::step, part.x.at[i]); }
        }
    }
}

// Of a warp's part of a row: two passes over the registers. The first has a mean as good as a sum of floats can be; the
// second corrects it by the mean of what is left, so a constant row's mean is its number, exactly.
template <typename L, typename T>
__device__ Moments moments_of_warp(Part<L, T>& part, float per_column) {
    float sums[2] = {}, rests = 0, squares[2] = {};  // two chains of additions, half as long
#pragma unroll
    for (int i = 0; i < L::k; i++) {  // beyond the row x is 0
#pragma unroll
        for (int j = 0; j < L::n; j++) { sums[j % 2] += as_float(part.x.at[i], j); }
    }
    int begin = part.first - threadIdx.x % kWarp * L::n + (L::k - 1) * L::step;  // of the warp's last vectors
    float n = L::warps == 1 ? part.C : (L::k - 1) * kWarp * L::n + min(max(part.C - begin, 0), kWarp * L::n);
    float per_n = L::warps == 1 ? per_column : __fdividef(1.0f, fmaxf(n, 1));
    float about = warp_sum(sums[0] + sums[1]) * per_n;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        if (!part.inside(i)) { continue; }
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            float d = as_float(part.x.at[i], j) - about;
            rests += d;
            squares[j % 2] += d * d;
        }
    }
    float2 sum = both_sums(warp_sum_pair({rests, squares[0] + squares[1]}));
    float m = sum.x * per_n;
    m = fmaf(fmaf(-m, n, sum.x), per_n, m);  // sum.x / n, correctly rounded
    float squared = fmaf(-sum.x, m, sum.y);
    return {about, m, squared < 0 ? 0.0f : squared, n};  // a NaN stays one
}

// A missing weight is read from an array of ones, a missing bias from one of zeros: no branches among the loads.
template <int bytes>
struct Filled {
    uint32_t words[bytes / 4];
    constexpr explicit Filled(uint32_t word) : words() {
        for (uint32_t& w : words) { w = word; }
    }
};
__device__ constexpr Filled<2 * kMostColumns> kOnesBf16(0x3f803f80), kOnesFp16(0x3c003c00);
__device__ constexpr Filled<4 * kMostColumns> kOnesFp32(0x3f800000), kZeros(0);

template <typename W>
__device__ const W* or_ones(const W* given) {
    const uint32_t* ones = std::is_same_v<W, float>    ? kOnesFp32.words
                           : std::is_same_v<W, __half> ? kOnesFp16.words
                                                       : kOnesBf16.words;
    return given != nullptr ? given : reinterpret_cast<const W*>(ones);
}
template <typename W>
__device__ const W* or_zeros(const W* given) {
    return given != nullptr ? given : reinterpret_cast<const W*>(kZeros.words);
}

// Is weight (1), or weight and bias (2), to be asked for with the row? As the layout says, while there is room.
template <typename L, typename T, typename W>
constexpr int early_of(int wish = L::early) {
    return wish > 0 && L::k * L::n * (sizeof(T) + wish * sizeof(W)) > 60 * 4 ? early_of<L, T, W>(wish - 1)
                                                                             : wish;
}

template <typename L, bool kResidual, typename T, typename W>
__device__ void normalise_row(const LayerNormForward<T, W>& call, float per_column, int64_t row, int first) {
    constexpr int early = early_of<L, T, W>();
    Part<L, T> part;
    part.first = first;
    part.C = call.C;
    load_part<L, kResidual>(part, call, row);
    const W *weights = or_ones(call.weight) + first, *biases = or_zeros(call.bias) + first;
    Slice<W, L::n, early >= 1 ? L::k : 1> weight;
    Slice<W, L::n, early >= 2 ? L::k : 1> bias;
#pragma unroll
    for (int i = 0; i < L::k && early >= 1; i++) {
        if (part.inside(i)) { weight.at[i] = load_constant<L::n>(weights + i * L::step); }
    }
#pragma unroll
    for (int i = 0; i < L::k && early >= 2; i++) {
        if (part.inside(i)) { bias.at[i] = load_constant<L::n>(biases + i * L::step); }
    }
    Moments mine = moments_of_warp(part, per_column), all = merge<L::warps>(mine, per_column);
    float s = rsqrtf(all.squares * per_column + (float)call.eps);
    float mean = all.about + all.m, rest = (all.about - mean) + all.m, ms = -rest * s;
    if (threadIdx.x % (L::warps * kWarp) == 0) {
        if (call.mean != nullptr) { call.mean[row] = mean; }
        if (call.rstd != nullptr) { call.rstd[row] = s; }
    }
    T* out = call.out + row * call.out_stride + first;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        if (!part.inside(i)) { continue; }
        Elements<W, L::n> w, b;
        if constexpr (early >= 1) { w = weight.at[i]; }
        if constexpr (early < 1) { w = load_constant<L::n>(weights + i * L::step); }
        if constexpr (early >= 2) { b = bias.at[i]; }
        if constexpr (early < 2) { b = load_constant<L::n>(biases + i * L::step); }
        float y[L::n];
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            float xhat = fmaf(as_float(part.x.at[i], j) - mean, s, ms);
            y[j] = fmaf(xhat, as_float(w, j), as_float(b, j));
        }
        store_streaming(out + i * L::step, rounded<T>(y));
    }
}

// that are to fit an SM: fewer where a thread holds more
template <typename L, bool kResidual, typename T, typename W>
constexpr int blocks_of() {
    constexpr int more = kResidual + (sizeof(T) != sizeof(W));
    return L::blocks * (4 - more) / 4 > 1 ? L::blocks * (4 - more) / 4 : 1;
}

template <typename L, bool kResidual, typename T, typename W>
__global__ __launch_bounds__(L::threads, (blocks_of<L, kResidual, T, W>())) void layernorm_forward_kernel(
    LayerNormForward<T, W> call, float per_column) {
    int thread = threadIdx.x % (L::warps * kWarp);
    int64_t row = (int64_t)blockIdx.x * L::rows + threadIdx.x / (L::warps * kWarp);
    if (row < call.N) { normalise_row<L, kResidual>(call, per_column, row, thread * L::n); }
}

// ---- the choice ----------------------------------------------------------------------------------

template <typename L, bool kResidual, typename T, typename W>
void launch(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    auto* kernel = layernorm_forward_kernel<L, kResidual, T, W>;
    kernel<<<grid_x(ceil_div(call.N, (int64_t)L::rows)), L::threads, 0, stream>>>(call, 1.0f / call.C);
    check_launch();
}

template <typename... Layouts>
struct Choice {};

// by the first that has room for a row; false if none has
template <typename L, typename... More, typename T, typename W>
bool launch_first(Choice<L, More...>, const LayerNormForward<T, W>& call, cudaStream_t stream) {
    if (call.C <= L::columns) {
        call.residual != nullptr ? launch<L, true>(call, stream) : launch<L, false>(call, stream);
        return true;
    }
    if constexpr (sizeof...(More) > 0) { return launch_first(Choice<More...>{}, call, stream); }
    return false;
}

// Warps, n, k, rows, early, blocks, by measurement. Each begins where the one before has all its vectors but the last:
// that one may be partial. Few warps with many vectors each have more bytes under way than many with few, and cheaper
// sums; a warp alone wins up to 1792 columns of 16 bits.
using Layouts16 = Choice<Layout<1, 8, 1, 4, 2, 1>, Layout<1, 8, 2, 2, 2, 1>, Layout<1, 8, 3, 2, 2, 1>,
                         Layout<1, 8, 4, 2, 0, 16>, Layout<1, 8, 5, 2, 2, 10>, Layout<1, 8, 6, 2, 1, 10>,
                         Layout<1, 8, 7, 2, 1, 10>, Layout<2, 8, 4, 1, 1, 14>, Layout<4, 8, 3, 1, 1, 7>,
                         Layout<4, 8, 4, 1, 1, 6>, Layout<5, 8, 4, 1, 1, 5>, Layout<6, 8, 4, 1, 1, 4>,
                         Layout<7, 8, 4, 1, 1, 4>, Layout<8, 8, 4, 1, 1, 4>, Layout<9, 8, 4, 1, 1, 3>,
                         Layout<8, 8, 5, 1, 1, 3>, Layout<8, 8, 6, 1, 0, 3>, Layout<16, 8, 4, 1, 1, 2>>;
using Layouts32 = Choice<Layout<1, 4, 1, 4, 2, 1>, Layout<1, 4, 2, 2, 2, 1>, Layout<1, 4, 3, 2, 2, 1>,
                         Layout<1, 4, 4, 2, 2, 1>, Layout<2, 4, 3, 1, 2, 16>, Layout<2, 4, 4, 1, 2, 12>,
                         Layout<4, 4, 3, 1, 2, 8>, Layout<4, 4, 4, 1, 2, 7>, Layout<5, 4, 4, 1, 2, 5>,
                         Layout<6, 4, 4, 1, 2, 4>, Layout<8, 4, 4, 1, 2, 3>, Layout<10, 4, 4, 1, 1, 3>,
                         Layout<12, 4, 4, 1, 1, 2>, Layout<16, 4, 4, 1, 1, 2>>;

}  // namespace llmc::layernorm_registers

namespace llmc {

template <typename T, typename W>
bool layernorm_forward_registers(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_registers;
    using Layouts = std::conditional_t<sizeof(T) == 2, Layouts16, Layouts32>;
    return rows_are_vectors(call) && launch_first(Layouts{}, call, stream);
}

}  // namespace llmc
