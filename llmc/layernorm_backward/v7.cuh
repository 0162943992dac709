// v7: a row is shared by a cluster of blocks, each warp sending its two sums to all of them. Hopper.
// Why:    v6's block ends at 8192 columns, and has a partial sum of every column for each of 132 blocks.
// Moves:  inp, dout once in, dinp once out; a sum a column and cluster; 8 bytes a row, warp and block.
// Result: 476.3 us, 15 % of the roof at 65536x768 bf16; 24 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/layernorm_backward/v6.cuh"
#include "llmc/vectors.cuh"

namespace llmc::v7 {

using v6::kMaxBlock, v6::kMaxColumns, v6::kStages;
constexpr int kMaxCluster = 16, kGoodCluster = 8;  // blocks; all Hopper GPUs take 8, H100 and H200 take 16

// Cluster l takes rows l, l + clusters, ...; its block of rank r the columns from r `columns` on. K: vectors
// of a thread. C and columns are multiples of Vec<T>::size. partial (2,clusters,C): dweight's sums over the
// cluster's rows, dbias's
template <typename T, int K>
__global__ void __launch_bounds__(kMaxBlock)
    layernorm_backward_rows_kernel(T* dinp, float* partial, const T* dout, const T* inp, const T* weight,
                                   const float* mean, const float* rstd, int64_t N, int C, int columns) {
    if constexpr (kSm90) {
        extern __shared__ __align__(16) unsigned char shared[];  // kStages times a row of inp, a row of dout
        __shared__ uint64_t full[kStages], arrived[2];
        // of each warp of the cluster, c1 and c2; rows take turns
        __shared__ float2 sums[2][kMaxCluster * kMaxBlock / kWarp];
        T* stages = (T*)shared;
        int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
        int rank = (int)cluster_rank(), blocks = (int)cluster_blocks(), parts = blocks * warps;
        int64_t cluster = blockIdx.x / blocks, clusters = gridDim.x / blocks, begin = (int64_t)rank * columns;
        int count = min(max(C - (int)begin, 0), columns);  // columns of this block; the last may have none

        auto fetch = [=](int64_t row, int stage) {  // thread 0
            if (row >= N || count == 0) { return; }
            uint32_t bytes = count * sizeof(T);
            mbarrier_arrive_expect(&full[stage], 2 * bytes);
            bulk_copy(stages + 2 * stage * columns, inp + row * C + begin, bytes, &full[stage]);
            bulk_copy(stages + (2 * stage + 1) * columns, dout + row * C + begin, bytes, &full[stage]);
        };
        int64_t step = clusters, row = cluster;
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < kStages; stage++) { mbarrier_init(&full[stage], 1); }
            for (int turn = 0; turn < 2; turn++) { mbarrier_init(&arrived[turn], 1); }
            mbarrier_init_fence();
            for (int stage = 0; stage < kStages; stage++) { fetch(row + stage * step, stage); }
        }
        cluster_sync();       // every block of the cluster has started and has its barriers
        dependency_launch();  // v8's second kernel may get ready; without one, nothing

        v6::Columns<T, K> mine{.count = count};
        mine.load_weight(weight + begin);
        int stage = 0, turn = 0;
        unsigned full_parity = 0, arrived_parity = 0;
        float next_m = row < N ? mean[row] : 0, next_s = row < N ? rstd[row] : 0;
        for (; row < N; row += step) {
            float m = next_m, s = next_s;
            if (row + step < N) {
                next_m = mean[row + step];
                next_s = rstd[row + step];
            }
            if (count > 0) { mbarrier_wait(&full[stage], full_parity); }
            const T* x = stages + 2 * stage * columns;
            float2 share = mine.load(x, x + columns, m, s);
            // Sending says both: the sums are there, and the stage has been read. The copy engine needs the
            // fence.
            fence_proxy_async();
            __syncwarp();
            if (threadIdx.x == 0) { mbarrier_arrive_expect(&arrived[turn], parts * sizeof(float2)); }
            if (lane < blocks) {
                store2_async(&sums[turn][rank * warps + warp], share, &arrived[turn], lane);
            }

            mine.add_row(m, s);  // meanwhile

            mbarrier_wait_cluster(&arrived[turn], arrived_parity);
            if (threadIdx.x == 0) { fetch(row + kStages * step, stage); }
            // This turn's sums are sent again two rows on: by then all warps of the cluster have sent for the
            // row between, so have read these. None leaves before all have come: none is sent to a block that
            // has left.
            share = {};
            for (int part = lane; part < parts; part += kWarp) {
                share.x += sums[turn][part].x;
                share.y += sums[turn][part].y;
            }
            float c1 = warp_sum(share.x) / C, c2 = warp_sum(share.y) / C;
            mine.store_dinp(dinp + row * C + begin, m, s, c1, c2);
            stage = stage + 1 < kStages ? stage + 1 : 0;
            full_parity ^= stage == 0;
            turn = 1 - turn;
            arrived_parity ^= turn == 0;
        }
        float* dw_sum = partial + cluster * C + begin;
        mine.store_sums(dw_sum, dw_sum + clusters * C);
    }
}

// the kernel with the fewest vectors a thread with which a block holds its columns
template <typename T, int K = 1>
auto kernel_for(int columns, int block) -> decltype(&layernorm_backward_rows_kernel<T, 1>) {
    if constexpr ((K + 1) * Vec<T>::size <= kMaxColumns) {
        if (columns > K * block * Vec<T>::size) { return kernel_for<T, K + 1>(columns, block); }
    }
    return layernorm_backward_rows_kernel<T, K>;
}

// Blocks that share a row: from 8192 columns fewer partial sums are worth the multiprocessors that no cluster
// fills. In any case as many as hold the row.
inline int default_cluster(int C, int block) {
    int cluster = C < 8192 ? 1 : C < 12288 ? 4 : 8;
    while (cluster < kMaxCluster && C > (int64_t)cluster * block * kMaxColumns) { cluster *= 2; }
    return cluster;
}

// bytes of scratch that layernorm_backward needs, with any block and cluster that can take C
template <typename T>
size_t layernorm_backward_scratch(int64_t N, int C) {
    int64_t processors = device_facts().multiprocessors;
    int64_t most = std::min(processors * kMaxColumns * kMaxBlock / C, processors * kMaxBlock / kWarp);
    return 2 * sizeof(float) * std::min(N, most) * C;
}

// How the rows are launched: so many blocks a cluster, columns a block. The clusters, a partial sum of each
// column, are those that run side by side, at most N: a function of sizes, knobs and GPU, which fixes the
// order of the additions.
template <typename T>
struct RowsLaunch {
    int block, cluster, columns, clusters;
    decltype(&layernorm_backward_rows_kernel<T, 1>) kernel;
    cudaLaunchAttribute attribute{};

    RowsLaunch(int64_t N, int C, int block, int cluster)
        : block(block),
          cluster(cluster),
          columns(ceil_div(C / Vec<T>::size, cluster) * Vec<T>::size),
          kernel(kernel_for<T>(columns, block)) {
        const DeviceFacts& facts = device_facts();
        require(facts.capability >= 90 && has_hopper_code(kernel),
                "layernorm_backward v7: needs a GPU of compute capability 9.0 or later and code built for "
                "it; v4 does "
                "not");
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {(unsigned)cluster, 1, 1};
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes()));
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                   cluster > kGoodCluster));
        clusters = kMaxBlock / block * facts.multiprocessors / cluster;
        cudaLaunchConfig_t trial = config(nullptr);
        int fit = 0;  // a cluster that had to wait for another to end would double the time
        check(cudaOccupancyMaxActiveClusters(&fit, kernel, &trial));
        require(fit > 0, "layernorm_backward v7: no cluster of this many blocks fits this GPU; use fewer");
        clusters = (int)std::min<int64_t>(N, std::min(clusters, fit));
    }
    size_t shared_bytes() const { return (size_t)kStages * 2 * columns * sizeof(T); }  // 128 KB at most
    cudaLaunchConfig_t config(cudaStream_t stream) {
        cudaLaunchConfig_t c{};
        c.gridDim = (unsigned)(clusters * cluster);
        c.blockDim = block;
        c.dynamicSmemBytes = shared_bytes();
        c.stream = stream;
        c.attrs = &attribute;
        c.numAttrs = 1;
        return c;
    }
};

// the rows; returns how many partial sums a column has
template <typename T>
int layernorm_backward_rows(T* dinp, float* partial, const T* dout, const T* inp, const T* weight,
                            const float* mean, const float* rstd, int64_t N, int C, cudaStream_t stream,
                            int block, int cluster) {
    require(block >= kWarp && block <= kMaxBlock && block % kWarp == 0,
            "layernorm_backward v7: block must be a multiple of 32, at most 512");
    require(C % Vec<T>::size == 0 && aligned(dinp, dout, inp, weight),
            "layernorm_backward v7: rows must be made of whole, aligned 16 bytes; v2 takes any");
    if (cluster == 0) { cluster = default_cluster(C, block); }
    require(cluster >= 1 && cluster <= kMaxCluster, "layernorm_backward v7: a cluster has 1 to 16 blocks");
    require(C <= (int64_t)cluster * block * kMaxColumns,
            "layernorm_backward v7: more than 16 columns a thread do not fit the registers; 16 blocks of 512 "
            "threads "
            "take 131072, v2 any C");
    if (N == 0) { return 0; }
    RowsLaunch<T> launch(N, C, block, cluster);
    cudaLaunchConfig_t config = launch.config(stream);
    check(cudaLaunchKernelEx(&config, launch.kernel, dinp, partial, dout, inp, weight, mean, rstd, N, C,
                             launch.columns));
    return launch.clusters;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// scratch: layernorm_backward_scratch bytes, aligned for float, need not be initialised. T's pointers 16-byte
// aligned. cluster: blocks that share a row, 1 to 16; 0 = chosen by C.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                        const T* weight, const float* mean, const float* rstd, int64_t N, int C,
                        cudaStream_t stream, int block = 512, int cluster = 0) {
    float* partial = (float*)scratch;
    int clusters =
        layernorm_backward_rows(dinp, partial, dout, inp, weight, mean, rstd, N, C, stream, block, cluster);
    constexpr int kColumnsBlock = 256;
    unsigned grid = grid_x(ceil_div(C, kColumnsBlock));
    v6::layernorm_backward_dweight_kernel<<<grid, kColumnsBlock, 0, stream>>>(
        dweight, dbias, (const float*)partial, clusters, C);
    check_launch();
}

}  // namespace llmc::v7
