// registers: a row lives in the registers of a team, in the type it has in memory: a warp, a block, a
// cluster. Why:    v6 and v7 stay behind v3: without a ring, whoever waits lets another block on the SM work.
// Loads and
//         stores carry a streaming hint; a warp's weight and bias are on their way while its row is.
// Moves:  a row once in, once out: 2 N C elements; 4 N C with a residual.
// Result: 51.8 us, 95 % of the roof at 65536x768 bf16; 75 % at 4096x8192 fp16; H200, 2026-11-21
#include <algorithm>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/layernorm_forward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_registers {

enum class Team { kWarp, kBlock, kCluster };

constexpr int kMaxWarps = 32, kMaxBlocks = 16;  // of a block; of a cluster
constexpr int kRowsPerBlock = 2;                // of one-warp teams
constexpr int kMaxEarly = 60;  // registers for row, weight and bias, if these are loaded early

// of a block, so that what a thread holds fits its registers
constexpr int most_warps(Team team, int n, bool residual) {
    if (team == Team::kWarp) { return kRowsPerBlock; }
    return n == 1 || (team == Team::kCluster && residual) ? 16 : kMaxWarps;
}

// What a warp knows of its elements: their number, their mean less the row's shift, the squares about it.
struct Moments {
    float n, m, squares;
};

// of all warps of the team: mean less shift, and the sum of squares about it. Chan et al. 1983.
__device__ inline Moments merge(const Moments* of_warp, int warps, int C) {
    // the mean first, about warp 0's: for equal means it is exact
    float sum = 0, squares = 0, m0 = of_warp[0].m;
#pragma unroll 1
    for (int w = threadIdx.x % kWarp; w < warps; w += kWarp) { sum += of_warp[w].n * (of_warp[w].m - m0); }
    float d0 = warp_sum(sum) / C;
#pragma unroll 1
    for (int w = threadIdx.x % kWarp; w < warps; w += kWarp) {
        float d = (of_warp[w].m - m0) - d0;
        squares += of_warp[w].squares + of_warp[w].n * d * d;
    }
    return {(float)C, m0 + d0, warp_sum(squares)};
}

// the team's moments, the same in every thread
template <Team team>
__device__ Moments exchange(const Moments& mine, int C) {
    if constexpr (team == Team::kWarp) {
        return mine;
    } else if constexpr (team == Team::kBlock) {
        __shared__ Moments of_warp[kMaxWarps];
        if (threadIdx.x % kWarp == 0) { of_warp[threadIdx.x / kWarp] = mine; }
        __syncthreads();
        return merge(of_warp, blockDim.x / kWarp, C);
    } else {
        __shared__ Moments of_warp[kMaxBlocks * kMaxWarps];
        int warps = blockDim.x / kWarp, blocks = (int)cluster_blocks();
        Moments* place = &of_warp[(int)cluster_rank() * warps + threadIdx.x / kWarp];
        cluster_sync();  // every block of the cluster has started: its shared memory is there
        for (int b = threadIdx.x % kWarp; b < blocks; b += kWarp) {
            store_remote(&place->n, mine.n, b);
            store_remote(&place->m, mine.m, b);
            store_remote(&place->squares, mine.squares, b);
        }
        cluster_sync();
        return merge(of_warp, blocks * warps, C);
    }
}

// n elements at a time, k times: what a thread holds of a row
template <typename T, int n, int k>
struct Slice {
    Elements<T, n> at[k];
};

// Between two passes over a row: makes the compiler unpack it again. Else it keeps every element as a float
// as well, in twice the registers.
template <typename T, int n, int k>
__device__ inline void forget(Slice<T, n, k>& x) {
#pragma unroll
    for (int i = 0; i < k; i++) {
        if constexpr (sizeof(T) * n % 4 == 0) {
            uint32_t* words = reinterpret_cast<uint32_t*>(&x.at[i]);
#pragma unroll
            for (int j = 0; j < (int)sizeof(T) * n / 4; j++) { asm volatile("" : "+r"(words[j])); }
        }
    }
}

// Is weight (1), or weight and bias (2), to be on its way while the row is? In wider teams more blocks on an
// SM do more.
template <Team team, typename T, typename W, int n, int k>
constexpr int kEarly = n == 1 || team != Team::kWarp                       ? 0
                       : k* n*(sizeof(T) + 2 * sizeof(W)) / 4 <= kMaxEarly ? 2
                       : k* n*(sizeof(T) + sizeof(W)) / 4 <= kMaxEarly     ? 1
                                                                           : 0;

// A thread's part of its row: elements first + i step ... + n - 1, i < k, below C, a multiple of n.
struct Place {
    int64_t row;
    int first, step;
    bool leads;  // is it the thread that writes the statistics?
};

template <Team team>
__device__ Place place_of_thread(int n) {
    int lane = threadIdx.x % kWarp;
    if constexpr (team == Team::kWarp) {
        return {(int64_t)blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp, lane * n, kWarp * n,
                lane == 0};
    } else if constexpr (team == Team::kBlock) {
        return {blockIdx.x, (int)threadIdx.x * n, (int)blockDim.x * n, threadIdx.x == 0};
    } else {
        int blocks = (int)cluster_blocks(), thread = (int)(cluster_rank() * blockDim.x + threadIdx.x);
        return {blockIdx.x / blocks, thread * n, (int)blockDim.x * blocks * n, thread == 0};
    }
}

// x = this thread's part of a row of inp, or of inp + inp2 rounded; returns the row's first element. Any
// element would do as the shift; with this one a constant row's differences are exactly 0.
template <bool kResidual, int n, int k, typename T, typename W>
__device__ float load_row(Slice<T, n, k>& x, const LayerNormForward<T, W>& call, const Place& at) {
    const T* inp = call.inp + at.row * call.inp_stride;
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (at.first + i * at.step < call.C) { x.at[i] = load_streaming<n>(inp + at.first + i * at.step); }
    }
    float shift = (float)inp[0];
    if constexpr (kResidual) {
        const T* inp2 = call.inp2 + at.row * call.inp2_stride;
        Slice<T, n, k> x2;
#pragma unroll
        for (int i = 0; i < k; i++) {
            if (at.first + i * at.step < call.C) {
                x2.at[i] = load_streaming<n>(inp2 + at.first + i * at.step);
            }
        }
        shift = (float)(T)(shift + (float)inp2[0]);
#pragma unroll
        for (int i = 0; i < k; i++) {
            float sum[n];
#pragma unroll
            for (int j = 0; j < n; j++) { sum[j] = as_float(x.at[i], j) + as_float(x2.at[i], j); }
            x.at[i] = rounded<T>(sum);
        }
    }
    return shift;
}

// of the whole row, in each of its threads: two passes over the registers
template <Team team, int n, int k, typename T>
__device__ Moments moments_of_row(Slice<T, n, k>& x, float shift, int C, const Place& at) {
    float sum = 0, squares = 0, count = 0;
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (at.first + i * at.step >= C) { continue; }
#pragma unroll
        for (int j = 0; j < n; j++) { sum += as_float(x.at[i], j) - shift; }
    }
    if constexpr (team != Team::kWarp) {
#pragma unroll
        for (int i = 0; i < k; i++) {
            count += n * __popc(__ballot_sync(kAllLanes, at.first + i * at.step < C));
        }
    }
    forget(x);
    float m = warp_sum(sum) / (team == Team::kWarp ? (float)C : fmaxf(count, 1));
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (at.first + i * at.step >= C) { continue; }
#pragma unroll
        for (int j = 0; j < n; j++) {
            float d = (as_float(x.at[i], j) - shift) - m;
            squares += d * d;
        }
    }
    forget(x);
    return exchange<team>({count, m, warp_sum(squares)}, C);
}

template <Team team, int n, int k, bool kResidual, typename T, typename W>
__device__ void normalise_row(const LayerNormForward<T, W>& call) {
    Place at = place_of_thread<team>(n);
    if (at.row >= call.N) { return; }
    Slice<T, n, k> x;
    float shift = load_row<kResidual>(x, call, at);
    constexpr int early = kEarly<team, T, W, n, k>;
    Slice<W, n, early >= 1 ? k : 1> weight;
    Slice<W, n, early >= 2 ? k : 1> bias;
#pragma unroll
    for (int i = 0; i < k; i++) {
        int c = at.first + i * at.step;
        if (early >= 1 && c < call.C) { weight.at[early >= 1 ? i : 0] = load_or<n>(call.weight, c, (W)1.0f); }
        if (early >= 2 && c < call.C) { bias.at[early >= 2 ? i : 0] = load_or<n>(call.bias, c, (W)0.0f); }
    }
    Moments all = moments_of_row<team>(x, shift, call.C, at);
    forget(weight);
    forget(bias);
    float s = rsqrtf(all.squares / call.C + (float)call.eps), ms = -all.m * s;
    if (at.leads && call.mean != nullptr) { call.mean[at.row] = shift + all.m; }
    if (at.leads && call.rstd != nullptr) { call.rstd[at.row] = s; }

#pragma unroll
    for (int i = 0; i < k; i++) {
        int c = at.first + i * at.step;
        if (c >= call.C) { continue; }
        if constexpr (kResidual) {
            store_streaming(call.residual + at.row * call.residual_stride + c, x.at[i]);
        }
        Elements<W, n> w, b;
        if constexpr (early >= 1) { w = weight.at[i]; }
        if constexpr (early < 1) { w = load_or<n>(call.weight, c, (W)1.0f); }
        if constexpr (early >= 2) { b = bias.at[i]; }
        if constexpr (early < 2) { b = load_or<n>(call.bias, c, (W)0.0f); }
        float y[n];
#pragma unroll
        for (int j = 0; j < n; j++) {
            float xhat = fmaf(as_float(x.at[i], j) - shift, s, ms);  // (x - mean) s, of small numbers
            y[j] = fmaf(xhat, as_float(w, j), as_float(b, j));
        }
        store_streaming(call.out + at.row * call.out_stride + c, rounded<T>(y));
    }
}

template <Team team, int n, int k, bool kResidual, typename T, typename W>
__global__ __launch_bounds__(most_warps(team, n, kResidual) * kWarp,
                             n == 1 ? 0 : 1) void layernorm_forward_kernel(LayerNormForward<T, W> call) {
    if constexpr (kSm90 || team != Team::kCluster) { normalise_row<team, n, k, kResidual>(call); }
}

// ---- the choice ----------------------------------------------------------------------------------

// How a row of C elements is shared out: `warps` in a block, `blocks` in a cluster, `each` accesses a thread
// at most.
struct Shape {
    Team team;
    int warps, blocks, each;
    bool fits;
};

// accesses = C / n, of n elements each
inline Shape shape_of(int64_t accesses, bool wide, bool residual, bool clusters) {
    auto each = [&](int64_t warps) { return (int)ceil_div(accesses, warps * kWarp); };
    if (wide) {
        // a warp: registers allow 7 vectors beside weight and bias
        if (accesses <= 7 * kWarp) { return {Team::kWarp, 1, 1, each(1), true}; }
        // few vectors a thread: blocks are light, several share an SM
        for (int64_t warps : {4, 6, 8, 10, 12, 14, 16}) {
            if (each(warps) <= (warps < 8 ? 2 : warps < 16 ? 3 : 4)) {
                return {Team::kBlock, (int)warps, 1, each(warps), true};
            }
        }
        if (each(32) <= 4) { return {Team::kBlock, 32, 1, 4, true}; }
        for (int blocks : {4, 8, 16}) {
            if (clusters && each(16 * blocks) <= 4) { return {Team::kCluster, 16, blocks, 4, true}; }
        }
        if (clusters && !residual && each(32 * 16) <= 4) { return {Team::kCluster, 32, 16, 4, true}; }
        return {Team::kWarp, 0, 0, 0, false};
    }
    if (accesses <= 32 * kWarp) { return {Team::kWarp, 1, 1, each(1), true}; }
    for (int64_t warps : {4, 8, 16}) {
        if (each(warps) <= 16) { return {Team::kBlock, (int)warps, 1, 16, true}; }
    }
    return {Team::kWarp, 0, 0, 0, false};
}

template <Team team, int n, int k, bool kResidual, typename T, typename W>
void launch(const LayerNormForward<T, W>& call, const Shape& shape, cudaStream_t stream) {
    auto* kernel = layernorm_forward_kernel<team, n, k, kResidual, T, W>;
    int threads = kWarp * (team == Team::kWarp ? kRowsPerBlock : shape.warps);
    int64_t rows = team == Team::kWarp ? ceil_div(call.N, (int64_t)kRowsPerBlock) : call.N;
    if constexpr (team == Team::kCluster) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
        cudaLaunchAttribute cluster{
            cudaLaunchAttributeClusterDimension, {}, {.clusterDim = {(unsigned)shape.blocks, 1, 1}}};
        cudaLaunchConfig_t config{grid_x(rows * shape.blocks), (unsigned)threads, 0, stream, &cluster, 1};
        check(cudaLaunchKernelEx(&config, kernel, call));
    } else {
        kernel<<<grid_x(rows), threads, 0, stream>>>(call);
        check_launch();
    }
}

// the kernel for `each` accesses a thread: the smallest of these that holds them
template <Team team, int n, bool kResidual, int k, int... more, typename T, typename W>
void launch_each(const LayerNormForward<T, W>& call, const Shape& shape, cudaStream_t stream) {
    if constexpr (sizeof...(more) > 0) {
        if (shape.each > k) { return launch_each<team, n, kResidual, more...>(call, shape, stream); }
    }
    launch<team, n, k, kResidual>(call, shape, stream);
}

template <bool kResidual, typename T, typename W>
bool launch_shape(const LayerNormForward<T, W>& call, const Shape& shape, bool vectors, cudaStream_t stream) {
    constexpr int n = Vec<T>::size;
    if (!shape.fits) { return false; }
    if (!vectors && shape.team == Team::kWarp) {
        launch_each<Team::kWarp, 1, kResidual, 4, 8, 16, 25, 32>(call, shape, stream);
    } else if (!vectors) {
        launch_each<Team::kBlock, 1, kResidual, 16>(call, shape, stream);
    } else if (shape.team == Team::kWarp) {
        launch_each<Team::kWarp, n, kResidual, 1, 2, 3, 4, 5, 7>(call, shape, stream);
    } else if (shape.team == Team::kBlock) {
        launch_each<Team::kBlock, n, kResidual, 2, 3, 4>(call, shape, stream);
    } else {
        launch_each<Team::kCluster, n, kResidual, 4>(call, shape, stream);
    }
    return true;
}

template <typename T, typename W>
bool clusters_possible() {
    static const bool compiled =
        has_hopper_code(layernorm_forward_kernel<Team::kCluster, Vec<T>::size, 4, false, T, W>);
    return compiled && device_facts().capability >= 90;
}

}  // namespace llmc::layernorm_registers

namespace llmc {

template <typename T, typename W>
bool layernorm_forward_registers(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_registers;
    bool vectors = rows_are_vectors(call), residual = call.residual != nullptr;
    int64_t accesses = vectors ? call.C / Vec<T>::size : call.C;
    Shape shape = shape_of(accesses, vectors, residual, clusters_possible<T, W>());
    return residual ? launch_shape<true>(call, shape, vectors, stream)
                    : launch_shape<false>(call, shape, vectors, stream);
}

using bf16 = __nv_bfloat16;
template bool layernorm_forward_registers(const LayerNormForward<float, float>&, cudaStream_t);
template bool layernorm_forward_registers(const LayerNormForward<bf16, bf16>&, cudaStream_t);
template bool layernorm_forward_registers(const LayerNormForward<bf16, float>&, cudaStream_t);
template bool layernorm_forward_registers(const LayerNormForward<__half, __half>&, cudaStream_t);
template bool layernorm_forward_registers(const LayerNormForward<__half, float>&, cudaStream_t);

}  // namespace llmc
