// v8: long rows are shared by a cluster of blocks, each warp sending its sums to all of them. Hopper.
// Why:    v7's block ends at 8192 columns, has one team there, and leaves 132 sums of each column.
// Moves:  inp, dout once in, dinp once out; a sum a column and cluster; 8 bytes a row, warp and block.
// Result: 96.4 us, 73 % of the roof at 65536x768 bf16; 66 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/ladder/backward/v6.cuh"
#include "llmc/layernorm/ladder/backward/v7.cuh"

namespace llmc::v8 {

using v7::Columns, v7::Statistics;

// How rows are shared out: to the blocks of a cluster, in each of them to a team as in v7.
template <typename T, int blocks, int warps, int columns, int teams, int stages>
struct Layout : v7::Layout<T, warps, columns, teams, stages> {
    static constexpr int kBlocks = blocks, kPairs = blocks * warps;  // sums of a row
};

// c1 and c2 of a row, the same in each lane: few pairs by every lane, many by the lanes in turn
template <int pairs>
__device__ inline float2 add_pairs(const float2* sums) {
    constexpr bool kMany = pairs > 16;
    float2 all{};
#pragma unroll
    for (int pair = kMany ? threadIdx.x % kWarp : 0; pair < pairs; pair += kMany ? kWarp : 1) {
        all.x += sums[pair].x;
        all.y += sums[pair].y;
    }
    return kMany ? float2{warp_sum(all.x), warp_sum(all.y)} : all;
}

// Team t of cluster l takes the rows l + t clusters, and so on, kTeams clusters apart; of them the block of
// rank r the columns from r `columns` on. C and columns are multiples of Vec<T>::size. partial (2,clusters,C):
// dweight's sums over the cluster's rows, then dbias's
template <typename T, typename L>
__global__ void __launch_bounds__(L::kThreads)
    layernorm_backward_rows_kernel(T* dinp, float* partial, const T* dout, const T* inp, const T* weight,
                                   const float* mean, const float* rstd, int64_t N, int C, int columns) {
    if constexpr (kSm90) {
        extern __shared__ __align__(16) unsigned char shared[];  // a team: kStages times rows of inp, dout
        __shared__ uint64_t filled[L::kTeams][L::kStages], arrived[L::kTeams][2];
        __shared__ float2 of_warps[L::kTeams][2][L::kPairs];  // of each warp, c1 and c2; rows take turns
        int team = threadIdx.x / L::kTeamThreads, thread = threadIdx.x % L::kTeamThreads;
        int lane = thread % kWarp, warp = thread / kWarp;
        T* stages = (T*)shared + team * L::kStages * 2 * L::kColumns;
        uint64_t *full = filled[team], *summed = arrived[team];
        int rank = (int)cluster_rank(), begin = rank * columns, count = min(C - begin, columns);
        int64_t cluster = blockIdx.x / L::kBlocks, clusters = gridDim.x / L::kBlocks;

        auto fetch = [=](int64_t row, int stage) {  // thread 0
            if (row >= N) { return; }
            uint32_t bytes = count * sizeof(T);
            mbarrier_arrive_expect(&full[stage], 2 * bytes);
            bulk_copy(stages + 2 * stage * L::kColumns, inp + row * C + begin, bytes, &full[stage]);
            bulk_copy(stages + (2 * stage + 1) * L::kColumns, dout + row * C + begin, bytes, &full[stage]);
        };
        int64_t step = clusters * L::kTeams, row = cluster + team * clusters;
        if (thread == 0) {
            for (int stage = 0; stage < L::kStages; stage++) { mbarrier_init(&full[stage], 1); }
            for (int turn = 0; turn < 2; turn++) { mbarrier_init(&summed[turn], 1); }
            mbarrier_init_fence();
            for (int stage = 0; stage < L::kStages; stage++) { fetch(row + stage * step, stage); }
        }
        cluster_sync();  // every block of the cluster has started and has its barriers

        Columns<T, L> mine{.first = thread * L::kVector, .count = count};
        mine.load_weight(weight + begin);
        Statistics statistics{mean, rstd, row + lane * step, step, N};
        float per_column = 1.0f / C;
        int stage = 0;
        unsigned full_parity = 0;
        for (int turn = 0; row < N; row += step, turn++) {
            auto [m, s] = statistics.of(turn);
            mbarrier_wait(&full[stage], full_parity);
            const T* x = stages + 2 * stage * L::kColumns;
            float2 share = mine.load(x, x + L::kColumns, m, s);
            share = both_sums(warp_sum_pair(share));
            // Sending says both: the sums are there, and the stage has been read. TMA needs the
            // fence.
            fence_proxy_async();
            __syncwarp();
            float2* sums = of_warps[team][turn % 2];
            if (thread == 0) { mbarrier_arrive_expect(&summed[turn % 2], L::kPairs * sizeof(float2)); }
            if (lane < L::kBlocks) {
                store2_async(&sums[rank * L::kWarps + warp], share, &summed[turn % 2], lane);
            }

            mine.add_row();  // meanwhile

            mbarrier_wait_cluster(&summed[turn % 2], turn / 2 % 2);
            if (thread == 0) { fetch(row + L::kStages * step, stage); }
            // This turn's sums are sent again two rows on: by then all warps of the cluster have sent for the
            // row between, so have read these. None leaves before all have come: none is sent to a block that
            // has left.
            float2 c = add_pairs<L::kPairs>(sums);
            mine.store_dinp(dinp + row * C + begin, s, c.x * per_column, c.y * per_column);
            stage = stage + 1 < L::kStages ? stage + 1 : 0;
            full_parity ^= stage == 0;
        }
        dependency_launch();  // v9's second kernel may get ready; without one, nothing
        float* dw_sum = partial + cluster * C + begin;
        mine.store_sums(dw_sum, dw_sum + clusters * C, (float*)shared, team);
    }
}

// call(layout): the first that has room for the row. Several teams a block, so that pieces of several rows
// are on their way to it.
template <typename T, typename Call>
auto with_layout(int C, Call call) {
    if (C <= 8192) { return call(Layout<T, 4, 4, 16, 4, 2>{}); }
    if (C <= 16384) { return call(Layout<T, 8, 4, 16, 3, 3>{}); }
    if (C <= 32768) { return call(Layout<T, 8, 8, 16, 2, 2>{}); }
    if (C <= 65536) { return call(Layout<T, 8, 16, 16, 1, 3>{}); }
    return call(Layout<T, 16, 16, 16, 1, 3>{});
}
constexpr int kMostColumns = 131072, kFewColumns = 4096;  // to which a row is not shared by blocks: v7

// A launch of the rows. The clusters are those that run side by side, at most N: a function of N, C and the
// GPU, which fixes the order of the additions.
template <typename T, typename L>
struct Launch {
    int clusters = 0;
    cudaLaunchAttribute attribute{};
    cudaLaunchConfig_t config{};

    explicit Launch(int64_t N, cudaStream_t stream = nullptr) {
        auto kernel = layernorm_backward_rows_kernel<T, L>;
        require(
            runs_hopper_code(kernel),
            "layernorm_backward v8: needs a GPU of compute capability 9.0 or later and code built for it; "
            "v4 does not");
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, L::kShared));
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, L::kBlocks > 8));
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim = {L::kBlocks, 1, 1};
        config = {L::kBlocks, L::kThreads, L::kShared, stream, &attribute, 1};
        check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
        require(clusters > 0,
                "layernorm_backward v8: no cluster of this many blocks fits this GPU; v2 needs none");
        clusters = (int)std::min<int64_t>({N, clusters, most_clusters()});
        config.gridDim = (unsigned)(clusters * L::kBlocks);
    }
    Launch(const Launch&) = delete;  // config points into it
    static int most_clusters() { return std::max(1, device_facts().multiprocessors / L::kBlocks); }
};

// partial sums of a column
template <typename T>
int partial_groups(int64_t N, int C) {
    if (C <= kFewColumns) { return v7::partial_blocks(N); }
    if (N == 0) { return 0; }
    return with_layout<T>(C, [&](auto layout) { return Launch<T, decltype(layout)>(N).clusters; });
}

// bytes of scratch that layernorm_backward needs
template <typename T>
size_t layernorm_backward_scratch(int64_t N, int C) {
    if (C <= kFewColumns) { return v7::layernorm_backward_scratch<T>(N, C); }
    int most = with_layout<T>(C, [](auto layout) { return Launch<T, decltype(layout)>::most_clusters(); });
    return 2 * sizeof(float) * std::min<int64_t>(N, most) * C;
}

// the rows; returns how many partial sums a column has
template <typename T>
int layernorm_backward_rows(T* dinp, float* partial, const T* dout, const T* inp, const T* weight,
                            const float* mean, const float* rstd, int64_t N, int C, cudaStream_t stream) {
    if (C <= kFewColumns) {
        return v7::layernorm_backward_rows(dinp, partial, dout, inp, weight, mean, rstd, N, C, stream);
    }
    require(C % Vec<T>::size == 0 && aligned(dinp, dout, inp, weight),
            "layernorm_backward v8: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(C <= kMostColumns,
            "layernorm_backward v8: more than 131072 columns do not fit the registers of 16 blocks; v2 takes "
            "any");
    if (N == 0) { return 0; }
    return with_layout<T>(C, [&](auto layout) {
        using L = decltype(layout);
        Launch<T, L> launch(N, stream);
        int columns = ceil_div(C / L::kVector, L::kBlocks) * L::kVector;
        check(cudaLaunchKernelEx(&launch.config, layernorm_backward_rows_kernel<T, L>, dinp, partial, dout,
                                 inp, weight, mean, rstd, N, C, columns));
        return launch.clusters;
    });
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// scratch: layernorm_backward_scratch bytes, aligned for float, need not be initialised. T's pointers 16-byte
// aligned. The layout follows from C: block is only there for the same signature.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                        const T* weight, const float* mean, const float* rstd, int64_t N, int C,
                        cudaStream_t stream, int = 0) {
    float* partial = (float*)scratch;
    int groups = layernorm_backward_rows(dinp, partial, dout, inp, weight, mean, rstd, N, C, stream);
    constexpr int kColumnsBlock = 256;
    unsigned grid = grid_x(ceil_div(C, kColumnsBlock));
    v6::layernorm_backward_dweight_kernel<<<grid, kColumnsBlock, 0, stream>>>(
        dweight, dbias, (const float*)partial, groups, C);
    check_launch();
}

}  // namespace llmc::v8
