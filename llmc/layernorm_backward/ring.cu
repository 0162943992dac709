// ring: teams of warps share rows that come by bulk copies into a shallow ring; both halves of a row's work
// share
//         registers, so shared memory is read once. Sums for dweight and dbias stay in registers to the end.
// Why:    v4 and v5 have a warp per row: too few columns a lane, or too many; v6 a barrier of the whole block
// per row. Moves:  inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 16 bytes a column
// and block. Result: 87.4 us, 80 % of the roof at 65536x768 bf16; 74 % at 4096x8192 fp16; H200, 2026-11-21
#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/layernorm_backward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_ring {

constexpr int kMaxTeams = 10, kMaxTeamWarps = 16, kMaxBlocks = 16, kMaxStages = 4;

// How the work is laid out: a cluster of `blocks` (1: none) shares a row, `slice` columns each; a block has
// `teams` teams of `warps` warps, each with a ring of `stages`.
struct Layout {
    int blocks, slice, teams, warps, stages;
};

// what a team agrees on through shared memory
struct TeamBarriers {
    uint64_t full[kMaxStages];  // a stage has come
    uint64_t sums[2];           // pairs of all warps of all blocks have come, by row parity
};
struct Shared {
    TeamBarriers barriers[kMaxTeams];
    float2 pairs[kMaxTeams][2][kMaxBlocks * kMaxTeamWarps];  // (c1, c2) of each warp, by row parity
};

// n elements at a time, k times: one lane's share of a row, as floats
template <int n, int k>
struct Columns {
    float at[k][n];
};

// The sum of x in lanes 0 to 15, of y in the others: two sums for the shuffles of one and a bit.
__device__ inline float warp_sum_pair(float2 v) {
    bool upper = threadIdx.x % kWarp >= kWarp / 2;
    float sum = (upper ? v.y : v.x) + __shfl_xor_sync(kAllLanes, upper ? v.x : v.y, kWarp / 2);
    for (int distance = kWarp / 4; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    return sum;
}

// Sums over the team's warps in all blocks of its cluster, the same in each lane. After it all of the block's
// warps have read the stage.
template <bool kCluster>
__device__ float2 exchange(Shared& shared, const Layout& o, int team, int warp, int turn, float2 lane_sums) {
    int lane = threadIdx.x % kWarp, parity = turn % 2, pairs = o.warps * o.blocks;
    float2* slots = shared.pairs[team][parity];
    float mine = warp_sum_pair(lane_sums);
    fence_proxy_async();  // this lane's reads of the stage come before its refill
    if constexpr (kCluster) {
        uint64_t* barrier = &shared.barriers[team].sums[parity];
        if (warp == 0 && lane == 0) { mbarrier_arrive_expect(barrier, pairs * (int)sizeof(float2)); }
        float2 both{__shfl_sync(kAllLanes, mine, 0), __shfl_sync(kAllLanes, mine, kWarp / 2)};
        if (lane < o.blocks) {
            store2_async(&slots[(int)cluster_rank() * o.warps + warp], both, barrier, lane);
        }
        mbarrier_wait_cluster(barrier, turn / 2 % 2);
    } else if (o.warps == 1) {
        return {__shfl_sync(kAllLanes, mine, 0), __shfl_sync(kAllLanes, mine, kWarp / 2)};
    } else {
        if (lane % (kWarp / 2) == 0) { (lane == 0 ? slots[warp].x : slots[warp].y) = mine; }
        asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(o.warps * kWarp) : "memory");
    }
    float2 sum{0, 0};
    if (pairs <= 8) {  // every lane by itself
#pragma unroll 1
        for (int i = 0; i < pairs; i++) {
            sum.x += slots[i].x;
            sum.y += slots[i].y;
        }
        return sum;
    }
#pragma unroll 1
    for (int i = lane; i < pairs; i += kWarp) {
        sum.x += slots[i].x;
        sum.y += slots[i].y;
    }
    return {warp_sum(sum.x), warp_sum(sum.y)};
}

// Where a thread stands: its team's ring and rows, its own columns.
template <int kStreams, int n, typename T>
struct Station {
    int team, warp, begin, columns, first,
        step;                       // begin: of the block's slice; first: of the thread, in the slice
    int64_t row, row_step, groups;  // the team's first row; groups: of rows, one a cluster
    T* stages;
    uint64_t* full;

    template <typename Call>
    __device__ Station(Shared& shared, T* ring, const Call& call, const Layout& o, int rank)
        : team(threadIdx.x / kWarp / o.warps),
          warp(threadIdx.x / kWarp % o.warps),
          begin(rank * o.slice),
          columns(min(o.slice, call.C - begin)),
          first((warp * kWarp + (int)threadIdx.x % kWarp) * n),
          step(o.warps * kWarp * n),
          groups(gridDim.x / o.blocks),
          stages(ring + (int64_t)team * o.stages * kStreams * o.slice),
          full(shared.barriers[team].full) {
        row = blockIdx.x / o.blocks + team * groups;
        row_step = groups * o.teams;
    }
    __device__ bool fetches() const { return warp == 0 && threadIdx.x % kWarp == 0; }

    // one lane: asks for a row of inp and dout, and for += of dinp
    template <typename Call>
    __device__ void fetch(const Call& call, const Layout& o, int stage, int64_t from) const {
        T* to = stages + stage * kStreams * o.slice;
        uint32_t bytes = columns * (uint32_t)sizeof(T);
        mbarrier_arrive_expect(&full[stage], kStreams * bytes);
        bulk_copy(to, call.inp + from * call.inp_stride + begin, bytes, &full[stage]);
        bulk_copy(to + o.slice, call.dout + from * call.dout_stride + begin, bytes, &full[stage]);
        if constexpr (kStreams == 3) {
            bulk_copy(to + 2 * o.slice, call.dinp + from * call.dinp_stride + begin, bytes, &full[stage]);
        }
    }
};

// What a thread keeps of one row between its halves, and of all rows to the end.
template <bool kAccumulate, int n, int k, typename T, typename W>
struct Held {
    Columns<n, k> xhat, wdy, dweight{}, dbias{};
    Elements<T, n> before[kAccumulate ? k : 1];  // dinp as it was
    Elements<W, n> weight[k];                    // packed: registers are what limits the columns of a lane
};

// First half of a row, x in shared memory: what the second needs into registers; returns this lane's sums of
// wdy and of wdy xhat.
template <bool kAccumulate, int n, int k, typename T, typename W, typename At>
__device__ float2 read_row(Held<kAccumulate, n, k, T, W>& held, const T* x, int slice, const At& at, float m,
                           float s) {
    float2 sums{0, 0};
#pragma unroll
    for (int i = 0; i < k; i++) {
        int c = at.first + i * at.step;
        Elements<T, n> a{}, d{};  // zeros add nothing
        if (c < at.columns) {
            a = load<n>(x + c);
            d = load<n>(x + slice + c);
            if constexpr (kAccumulate) { held.before[i] = load<n>(x + 2 * slice + c); }
        }
#pragma unroll
        for (int j = 0; j < n; j++) {
            float dy = as_float(d, j), xhat = (as_float(a, j) - m) * s,
                  wdy = dy * as_float(held.weight[i], j);
            held.xhat.at[i][j] = xhat;
            held.wdy.at[i][j] = wdy;
            held.dweight.at[i][j] += dy * xhat;
            held.dbias.at[i][j] += dy;
            sums.x += wdy;
            sums.y += wdy * xhat;
        }
    }
    return sums;
}

// second half: dinp from the row's sums
template <bool kAccumulate, int n, int k, typename T, typename W, typename At>
__device__ void write_row(T* dinp, const Held<kAccumulate, n, k, T, W>& held, const At& at, float2 sums,
                          float s, float per_column) {
    float c1s = -sums.x * per_column * s, c2 = -sums.y * per_column;
#pragma unroll
    for (int i = 0; i < k; i++) {
        int c = at.first + i * at.step;
        float result[n];
#pragma unroll
        for (int j = 0; j < n; j++) {
            result[j] = fmaf(fmaf(held.xhat.at[i][j], c2, held.wdy.at[i][j]), s, c1s);
            if constexpr (kAccumulate) { result[j] += as_float(held.before[i], j); }
        }
        if (c < at.columns) { store(dinp + at.begin + c, rounded<T>(result)); }
    }
}

// The teams' sums over their rows, one team after the other, through the ring's memory, then to the partial
// sums of this group of rows.
template <int n, int k, typename HeldT, typename At>
__device__ void write_partial(float* partial, float* of_teams, const HeldT& held, const At& at,
                              const Layout& o, int C) {
    float* dw_partial = partial + (blockIdx.x / o.blocks) * (int64_t)C + at.begin;
    float* db_partial = dw_partial + at.groups * C;
#pragma unroll 1
    for (int t = 0; t < o.teams; t++) {
        __syncthreads();
        if (at.team != t) { continue; }
        bool last = t + 1 == o.teams;
#pragma unroll
        for (int i = 0; i < k; i++) {
            int c = at.first + i * at.step;
#pragma unroll
            for (int j = 0; j < n; j++) {
                if (c >= at.columns) { continue; }
                float dw = held.dweight.at[i][j] + (t > 0 ? of_teams[c + j] : 0.0f);
                float db = held.dbias.at[i][j] + (t > 0 ? of_teams[o.slice + c + j] : 0.0f);
                (last ? dw_partial : of_teams)[c + j] = dw;
                (last ? db_partial : of_teams + o.slice)[c + j] = db;
            }
        }
    }
}

__device__ inline void init_barriers(Shared& shared, const Layout& o) {
    if (threadIdx.x < o.teams) {
        for (int s = 0; s < o.stages; s++) { mbarrier_init(&shared.barriers[threadIdx.x].full[s], 1); }
        for (int p = 0; p < 2; p++) { mbarrier_init(&shared.barriers[threadIdx.x].sums[p], 1); }
        mbarrier_init_fence();
    }
}

template <bool kCluster, bool kAccumulate, int n, int k, typename T, typename W>
__device__ void backward_rows(const LayerNormBackwardRows<T, W>& call, const Layout& o) {
    constexpr int kStreams = kAccumulate ? 3 : 2;
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    T* ring = reinterpret_cast<T*>(memory + (sizeof(Shared) + 127) / 128 * 128);
    Station<kStreams, n, T> at(shared, ring, call, o, kCluster ? (int)cluster_rank() : 0);
    init_barriers(shared, o);
    if constexpr (kCluster) {
        cluster_sync();
    } else {
        __syncthreads();
    }
    for (int s = 0; s < o.stages && at.fetches(); s++) {
        if (at.row + s * at.row_step < call.N) { at.fetch(call, o, s, at.row + s * at.row_step); }
    }
    Held<kAccumulate, n, k, T, W> held;
#pragma unroll
    for (int i = 0; i < k; i++) {
        const W* from = at.first + i * at.step < at.columns ? call.weight : nullptr;
        held.weight[i] = load_or<n, W>(from, at.begin + at.first + i * at.step, (W)1.0f);
    }
    // a row's statistics are asked for a row ahead: else every row would wait for memory
    float next_m = at.row < call.N ? call.mean[at.row] : 0.0f,
          next_s = at.row < call.N ? call.rstd[at.row] : 0.0f;
    int turn = 0, stage = 0, phase = 0;
    for (int64_t row = at.row; row < call.N; row += at.row_step, turn++) {
        float m = next_m, s = next_s;
        if (row + at.row_step < call.N) {
            next_m = call.mean[row + at.row_step];
            next_s = call.rstd[row + at.row_step];
        }
        mbarrier_wait(&at.full[stage], phase);
        float2 sums = read_row(held, at.stages + stage * kStreams * o.slice, o.slice, at, m, s);
        sums = exchange<kCluster>(shared, o, at.team, at.warp, turn, sums);
        int64_t refill = row + o.stages * at.row_step;
        if (at.fetches() && refill < call.N) { at.fetch(call, o, stage, refill); }
        write_row(call.dinp + row * call.dinp_stride, held, at, sums, s, 1.0f / call.C);
        stage = stage + 1 == o.stages ? 0 : stage + 1;
        phase ^= stage == 0;
    }
    dependency_launch();  // the kernel that adds the partial sums may come and wait
    write_partial<n, k>((float*)call.scratch, reinterpret_cast<float*>(ring), held, at, o, call.C);
    if constexpr (kCluster) { cluster_sync(); }  // nobody leaves while pairs may still be sent to it
}

template <bool kCluster, bool kAccumulate, int n, int k, int kThreads, typename T, typename W>
__global__ __launch_bounds__(kThreads) void layernorm_backward_kernel(LayerNormBackwardRows<T, W> call,
                                                                      Layout o) {
    if constexpr (kSm90) { backward_rows<kCluster, kAccumulate, n, k>(call, o); }
}

// ---- the choice ----------------------------------------------------------------------------------

constexpr int kRingBytes = 64 << 10, kMostRingBytes = 128 << 10;  // of a block: about; at most
constexpr int kLongRow =
    4096;  // columns: above, a row is shared by a cluster, for fewer partial sums and registers

// a lane's columns: n at a time, k times; exact tiling counts more than the width of an access
template <int n_, int k_>
struct Tile {
    static constexpr int n = n_, k = k_, columns = n_ * k_ * kWarp;
};

// threads of a block, at most, so that what a lane holds fits its registers
template <typename Tile, typename T>
constexpr int most_threads(bool accumulate) {
    int columns = Tile::n * Tile::k + (accumulate ? (int)sizeof(T) : 0);
    return columns > 17 ? 384 : columns > 10 ? 512 : 640;
}

// the warps a slice takes with this tile, and how well it fits: less is better, negative: not at all
template <typename Tile>
int warps_of(int slice) {
    return ceil_div(slice, Tile::columns);
}
template <typename Tile, typename T>
int64_t misfit(int slice, bool accumulate) {
    int warps = warps_of<Tile>(slice);
    if (slice % Tile::n != 0 || warps > std::min(most_threads<Tile, T>(accumulate) / kWarp, kMaxTeamWarps)) {
        return -1;
    }
    return (int64_t)(warps * Tile::columns - slice) * 256 / slice + warps * 2;
}

template <typename Tile, typename T>
Layout layout_of(int C, int blocks, bool accumulate) {
    Layout o{blocks, ceil_div(ceil_div(C, blocks), Tile::columns / kWarp * 4) * (Tile::columns / kWarp * 4),
             1, 1, 2};
    o.slice = blocks == 1 ? C : o.slice;
    o.warps = warps_of<Tile>(o.slice);
    int stage = (accumulate ? 3 : 2) * o.slice * (int)sizeof(T);  // bytes, of a team
    o.teams = std::clamp(most_threads<Tile, T>(accumulate) / kWarp / o.warps, 1, kMaxTeams);
    while (o.teams > 1 && 2 * o.teams * stage > kMostRingBytes) { o.teams--; }
    o.stages = std::clamp(kRingBytes / (o.teams * stage), 2, kMaxStages);
    return o;
}

// clusters of this layout that the device holds at once; asked once
template <typename Kernel>
int most_clusters(Kernel* kernel, const cudaLaunchConfig_t& config, const Layout& o) {
    static std::mutex mutex;
    static std::map<std::tuple<int, size_t, unsigned, int>, int> known;
    int device = 0, clusters = 0;
    check(cudaGetDevice(&device));
    std::lock_guard lock(mutex);
    auto [at, is_new] = known.try_emplace({device, config.dynamicSmemBytes, config.blockDim.x, o.blocks}, 0);
    if (is_new) {
        check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
        at->second = clusters;
    }
    return at->second;
}

// returns the number of groups whose partial sums the kernel leaves
template <bool kCluster, bool kAccumulate, typename Tile, typename T, typename W>
int launch(const LayerNormBackwardRows<T, W>& call, Layout o, cudaStream_t stream) {
    auto* kernel = layernorm_backward_kernel<kCluster, kAccumulate, Tile::n, Tile::k,
                                             most_threads<Tile, T>(kAccumulate), T, W>;
    size_t ring = (size_t)o.teams * o.stages * (kAccumulate ? 3 : 2) * o.slice * sizeof(T);
    size_t bytes = (sizeof(Shared) + 127) / 128 * 128 + std::max(ring, 2 * sizeof(float) * o.slice);
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = o.blocks;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    unsigned blocks = device_facts().multiprocessors;
    cudaLaunchConfig_t config{
        blocks, (unsigned)(o.teams * o.warps * kWarp), bytes, stream, &cluster, kCluster ? 1u : 0u};
    if constexpr (kCluster) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
        config.gridDim.x = o.blocks;
        int clusters = most_clusters(kernel, config, o);
        require(clusters > 0, "layernorm_backward: the device forms no cluster of this size");
        config.gridDim.x = blocks = clusters * o.blocks;
    }
    check(cudaLaunchKernelEx(&config, kernel, call, o));
    return blocks / o.blocks;
}

// with the tile that fits best; 0: none does
template <typename Best, typename T, typename W>
int launch_tile(const LayerNormBackwardRows<T, W>& call, int blocks, cudaStream_t stream) {
    if (misfit<Best, T>(ceil_div(call.C, blocks), call.accumulate_dinp) < 0) { return 0; }
    Layout o = layout_of<Best, T>(call.C, blocks, call.accumulate_dinp);
    if (blocks > 1) {
        return call.accumulate_dinp ? launch<true, true, Best>(call, o, stream)
                                    : launch<true, false, Best>(call, o, stream);
    }
    return call.accumulate_dinp ? launch<false, true, Best>(call, o, stream)
                                : launch<false, false, Best>(call, o, stream);
}
template <typename Best, typename Next, typename... More, typename T, typename W>
int launch_tile(const LayerNormBackwardRows<T, W>& call, int blocks, cudaStream_t stream) {
    int slice = ceil_div(call.C, blocks);
    int64_t best = misfit<Best, T>(slice, call.accumulate_dinp),
            next = misfit<Next, T>(slice, call.accumulate_dinp);
    if (best < 0 || (next >= 0 && next < best)) { return launch_tile<Next, More...>(call, blocks, stream); }
    return launch_tile<Best, More...>(call, blocks, stream);
}

// blocks that share a row of C columns; 0: too long
inline int blocks_of(int C) {
    for (int blocks : {1, 4, 8, 16}) {
        if (C <= (blocks == 1 ? kLongRow : blocks == 16 ? 8192 * 16 : 2560 * blocks)) { return blocks; }
    }
    return 0;
}

// were these kernels compiled for Hopper, and is the device one?
template <typename T, typename W>
bool hopper() {
    constexpr int n = Vec<T>::size;
    static const bool compiled = has_hopper_code(
        layernorm_backward_kernel<false, false, n, 2, most_threads<Tile<n, 2>, T>(false), T, W>);
    return compiled && device_facts().capability >= 90;
}

}  // namespace llmc::layernorm_ring

namespace llmc {

template <typename T, typename W>
ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_ring;
    int blocks = blocks_of(call.C);
    if (blocks == 0 || call.dinp == nullptr || !rows_are_vectors(call) || !hopper<T, W>()) { return {}; }
    if constexpr (sizeof(T) == 2) {
        return {launch_tile<Tile<8, 2>, Tile<8, 1>, Tile<4, 3>, Tile<2, 5>>(call, blocks, stream), true};
    } else {
        return {launch_tile<Tile<4, 4>, Tile<4, 2>, Tile<4, 3>, Tile<2, 5>>(call, blocks, stream), true};
    }
}

using bf16 = __nv_bfloat16;
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<float, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<bf16, bf16>&, cudaStream_t);
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<bf16, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<__half, __half>&, cudaStream_t);
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<__half, float>&, cudaStream_t);

}  // namespace llmc
