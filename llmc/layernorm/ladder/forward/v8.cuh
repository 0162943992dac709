// v8: a cluster of blocks shares a long row; each warp sends its pair of numbers to all of them. Hopper.
// Why:    v4's block ends at 64 KB of a row, and one such block fills a multiprocessor: nothing hides waits.
// Moves:  a row once in, once out; 8 bytes per warp and block through distributed shared memory.
// Result: 562.9 us, 9 % of the roof at 65536x768 bf16; 58 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc::v8 {

constexpr int kMaxVectors = 8, kGoodVectors = 4;  // of a lane; rather more blocks than more than kGoodVectors
constexpr int kMaxBlock = 512;
constexpr int kMaxCluster = 16, kGoodCluster = 8;  // blocks; all Hopper GPUs take 8, H100 and H200 take 16

// Block b of a row's cluster has columns b `columns` ... (b + 1) `columns` - 1, and its warp w of these the
// vectors w K 32 ... (w + 1) K 32 - 1. K: vectors of a lane. C and columns are multiples of Vec<T>::size.
template <typename T, int K>
__global__ void __launch_bounds__(kMaxBlock)
    layernorm_forward_kernel(T* out, float* mean, float* rstd, const T* inp, const T* weight, const T* bias,
                             int C, int columns, float eps) {
    if constexpr (kSm90) {
        using Acc = float;
        constexpr int V = Vec<T>::size, kPart = K * kWarp * V;  // columns of a warp
        // of each warp of the cluster: sum of x - shift, and the squares about its part's own mean
        __shared__ float2 parts[kMaxCluster * kMaxBlock / kWarp];
        __shared__ uint64_t arrived;
        int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
        int rank = (int)cluster_rank(), blocks = (int)cluster_blocks();
        int64_t row = blockIdx.x / blocks;
        const T* x = inp + row * C;
        T* y = out + row * C;
        int end = min(C, (rank + 1) * columns);
        auto column = [=](int k) { return rank * columns + warp * kPart + (k * kWarp + lane) * V; };
        auto columns_of = [=](int part) {
            int b = part / warps, w = part % warps;
            return min(max(min(C - b * columns, columns) - w * kPart, 0), kPart);
        };

        Vec<T> held[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (column(k) < end) { held[k] = Vec<T>::load(x + column(k)); }
        }
        Acc shift = (Acc)x[0];
        if (threadIdx.x == 0) {
            mbarrier_init(&arrived, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&arrived, blocks * warps * sizeof(float2));
        }
        cluster_sync();  // every block of the cluster has started and has its barrier

        float2 mine{};
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (column(k) >= end) { continue; }
#pragma unroll
            for (int i = 0; i < V; i++) { mine.x += (Acc)held[k].at[i] - shift; }
        }
        mine.x = warp_sum(mine.x);
        Acc m = mine.x / max(columns_of(rank * warps + warp), 1);  // this part's mean, less shift

#pragma unroll
        for (int k = 0; k < K; k++) {
            if (column(k) >= end) { continue; }
#pragma unroll
            for (int i = 0; i < V; i++) {
                Acc d = ((Acc)held[k].at[i] - shift) - m;
                mine.y += d * d;
            }
        }
        mine.y = warp_sum(mine.y);
        if (lane < blocks) { store2_async(&parts[rank * warps + warp], mine, &arrived, lane); }
        // No block leaves before it has every pair, so that none is sent to a block that has left.
        mbarrier_wait_cluster(&arrived, 0);

        // Chan et al. 1983: squares about the row's mean are each part's about its own, plus n (its mean -
        // the row's)^2
        Acc sum = 0, squares = 0;
        for (int part = lane; part < blocks * warps; part += kWarp) { sum += parts[part].x; }
        m = warp_sum(sum) / C;  // now the row's mean, less shift
        for (int part = lane; part < blocks * warps; part += kWarp) {
            Acc n = columns_of(part), d = parts[part].x / max(n, Acc(1)) - m;
            squares += parts[part].y + n * d * d;
        }
        Acc s = rsqrt(warp_sum(squares) / C + eps);

#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = column(k);
            if (c >= end) { continue; }
            Vec<T> w = Vec<T>::load(weight + c), b = Vec<T>::load(bias + c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                Acc xhat = (((Acc)held[k].at[i] - shift) - m) * s;
                held[k].at[i] = (T)(xhat * (Acc)w.at[i] + (Acc)b.at[i]);
            }
            held[k].store(y + c);
        }
        if (rank == 0 && threadIdx.x == 0) {
            mean[row] = shift + m;
            rstd[row] = s;
        }
    }
}

// the kernel with the fewest vectors a lane with which a block holds its columns
template <typename T, int K = 1>
auto kernel_for(int columns, int block) -> decltype(&layernorm_forward_kernel<T, 1>) {
    if constexpr (K < kMaxVectors) {
        if (columns > K * block * Vec<T>::size) { return kernel_for<T, K + 1>(columns, block); }
    }
    return layernorm_forward_kernel<T, K>;
}

// the fewest blocks, from 2, with kGoodVectors a lane; beyond kGoodCluster blocks the fewest that hold the
// row
template <typename T>
int default_cluster(int C, int block) {
    int64_t vectors = (int64_t)block * Vec<T>::size;
    int cluster = 2;
    while (cluster < kGoodCluster && C > cluster * vectors * kGoodVectors) { cluster *= 2; }
    while (cluster < kMaxCluster && C > cluster * vectors * kMaxVectors) { cluster *= 2; }
    return cluster;
}

// out, inp (N,C); mean, rstd (N); weight, bias (C); all written (=). Nothing may alias. T's pointers 16-byte
// aligned. cluster: blocks that share a row, 1 to 16; 0 = chosen by C.
template <typename T>
void layernorm_forward(T* out, float* mean, float* rstd, const T* inp, const T* weight, const T* bias,
                       int64_t N, int C, float eps, cudaStream_t stream, int block = 512, int cluster = 0) {
    if (N == 0) { return; }
    constexpr int V = Vec<T>::size;
    require(block >= kWarp && block <= kMaxBlock && block % kWarp == 0,
            "layernorm_forward v8: block must be a multiple of 32, at most 512");
    if (cluster == 0) { cluster = default_cluster<T>(C, block); }
    require(cluster >= 1 && cluster <= kMaxCluster, "layernorm_forward v8: a cluster has 1 to 16 blocks");
    require(C % V == 0 && aligned(out, inp, weight, bias),
            "layernorm_forward v8: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(C <= (int64_t)cluster * block * V * kMaxVectors,
            "layernorm_forward v8: a row of more than 128 bytes a thread does not fit the cluster; use "
            "larger blocks or more of them, or v2");
    int columns = ceil_div(C / V, cluster) * V;
    auto kernel = kernel_for<T>(columns, block);
    require(device_facts().capability >= 90 && has_hopper_code(kernel),
            "layernorm_forward v8: needs a GPU of compute capability 9.0 or later and code built for it; v4 "
            "does not");

    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {(unsigned)cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = grid_x(N * cluster);
    config.blockDim = block;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, cluster > kGoodCluster));
    check(cudaLaunchKernelEx(&config, kernel, out, mean, rstd, inp, weight, bias, C, columns, eps));
}

}  // namespace llmc::v8
