// Long rows, as both directions of LayerNorm share them out: a cluster of blocks has a row, a block a slice
// of it, a warp up to 1024 columns of that, which come by bulk copies into a ring of the warp's own. Warps
// meet once a row, to exchange a pair of numbers each.
#pragma once
#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_cluster {

constexpr int kLaneColumns = 32, kWarpColumns = kLaneColumns * kWarp;  // of a row, at most
constexpr int kMostSlice = 16 * kWarpColumns;  // columns of a block: 16 warps meet faster than 32
constexpr int kMostBlocks = 16;                // of a cluster
constexpr int kSharedBytes = 227 << 10;        // of a block, on Hopper
constexpr int kMostRows = 1 << 30;             // a row's number and those ahead are ints

// How the work is laid out, a function of C and the types alone: a cluster of `blocks` shares a row, `slice`
// columns each; a block has `teams` of `warps`, each team with a row of its own, each warp with a ring of
// `slots`. How many clusters there are is up to the launch.
struct Layout {
    int blocks, slice, warps, teams, slots;
    int row_warps;               // blocks * warps
    float per_column;            // 1 / C
    int clusters = 0, step = 0;  // step: from a team's row to its next
};

// Where things lie in a block's shared memory, in bytes: what the kernel keeps for itself; of each warp, its
// ring's stages, then their barriers; of each team, two barriers, and the pairs (2, blocks * warps).
struct Areas {
    int ring, rings, teams, total;  // bytes of a ring; where the rings begin; where the teams' begin
};
__host__ __device__ inline int team_bytes(const Layout& o) {
    return 2 * ((int)sizeof(uint64_t) + o.row_warps * (int)sizeof(float2));
}
__host__ __device__ inline Areas areas_of(const Layout& o, int stage_bytes, int own_bytes) {
    Areas a{o.slots * stage_bytes + ceil_div(o.slots, 2) * 16, own_bytes, 0, 0};
    a.teams = a.rings + o.teams * o.warps * a.ring;
    a.total = a.teams + o.teams * team_bytes(o);
    return a;
}

// Makes the compiler compute again what it made of x where it is used next: else elements stay in registers
// packed and unpacked, and addresses that do not change with the row each in one of its own.
template <typename X>
__device__ inline void forget(X& x) {
    static_assert(sizeof(X) % 4 == 0);
    uint32_t* words = reinterpret_cast<uint32_t*>(&x);
#pragma unroll
    for (int i = 0; i < (int)sizeof(X) / 4; i++) { asm volatile("" : "+r"(words[i])); }
}

// columns of a row of C that a warp of a block has
__device__ inline int columns_of(const Layout& o, int C, int rank, int warp) {
    return max(0, min(min(o.slice, C - rank * o.slice) - warp * kWarpColumns, kWarpColumns));
}

// Where a thread stands, in registers that are scarce. A lane has the vectors lane, lane + 32, ... of its
// warp's part of a row, n columns each. Rows are dealt to the clusters in turn, then to their teams.
struct Place {
    unsigned begin;  // of the warp's part in the row
    int left;        // columns of the warp's part from the lane's first one on; lane 0: all; <= 0: none
    int row;         // the team's first row

    __device__ Place(const Layout& o, int C, int n)
        : begin(cluster_rank() * o.slice + warp(o) * kWarpColumns),
          left(columns_of(o, C, (int)cluster_rank(), warp(o)) - lane() * n),
          row((int)blockIdx.x / o.blocks + team(o) * o.clusters) {}

    __device__ static int lane() { return (int)threadIdx.x % kWarp; }
    __device__ static int team(const Layout& o) { return (int)threadIdx.x / kWarp / o.warps; }
    __device__ static int warp(const Layout& o) { return (int)threadIdx.x / kWarp % o.warps; }
    // does the lane's vector i exist?
    __device__ bool has(int i, int n) const { return left > i * kWarp * n; }
};

// A place in a ring's sequence: a slot, and whether it is there for an even or an odd time.
struct Cursor {
    int at = 0;  // below 2 slots

    __device__ int slot(int slots) const { return at < slots ? at : at - slots; }
    __device__ unsigned phase(int slots) const { return at >= slots; }
    // by <= 2 slots on
    __device__ Cursor on(int by, int slots) const {
        return {at + by < 2 * slots ? at + by : at + by - 2 * slots};
    }
};

// A ring that a warp fills and empties by itself. A stage holds kVectors vectors a lane of each stream:
// (kStreams, kColumns).
template <int kStreams, int kVectors, typename T>
struct WarpRing {
    static constexpr int n = Vec<T>::size, kColumns = kVectors * kWarp * n;
    static constexpr int kStageBytes = kStreams * kColumns * (int)sizeof(T);
    unsigned char* memory;
    int slots;

    __device__ WarpRing(unsigned char* shared, const Areas& areas, const Layout& o)
        : memory(shared + areas.rings + (int)threadIdx.x / kWarp * areas.ring), slots(o.slots) {
        for (int s = 0; s < slots && threadIdx.x % kWarp == 0; s++) { mbarrier_init(full(s), 1); }
        mbarrier_init_fence();
        __syncwarp();
    }
    __device__ T* stage(int slot) const { return reinterpret_cast<T*>(memory + slot * kStageBytes); }
    // a stage has come
    __device__ uint64_t* full(int slot) const {
        return reinterpret_cast<uint64_t*>(memory + slots * kStageBytes) + slot;
    }

    // one lane: asks for a stage, `columns` of it (<= 0: for nothing, which comes at once)
    __device__ void fetch(int slot, const T* const (&from)[kStreams], int columns) const {
        uint32_t bytes = max(0, min(columns, kColumns)) * (uint32_t)sizeof(T);
        mbarrier_arrive_expect(full(slot), kStreams * bytes);
#pragma unroll
        for (int i = 0; i < kStreams && bytes > 0; i++) {
            bulk_copy(stage(slot) + i * kColumns, from[i], bytes, full(slot));
        }
    }
    // the stage, once it has come
    __device__ T* wait(Cursor at) const {
        mbarrier_wait(full(at.slot(slots)), at.phase(slots));
        return stage(at.slot(slots));
    }
    // every lane, when it has read a stage: then one may fetch into it
    __device__ static void leave() {
        fence_proxy_async();
        __syncwarp();
    }
    // where the lane's vector i of a stream is in a stage
    template <typename P>
    __device__ static P* place(P* stage, int stream, int i) {
        return stage + stream * kColumns + (i * kWarp + (int)threadIdx.x % kWarp) * n;
    }
    __device__ static Elements<T, n> vector(const T* stage, int stream, int i) {
        return load<n>(place(stage, stream, i));
    }
};

// A team's meeting of all warps of a row, in all blocks. Every warp sends, waits, sends ... in this order, so
// two sets of places do, by turns: who sends for the turn after next has met everybody since, and who met has
// read. No barrier says "empty".
struct Exchange {
    unsigned char* memory;    // two barriers: all of them have come; then the pairs
    int mine, blocks, count;  // this warp's place among the pairs; of a row: its blocks, its warps

    __device__ Exchange(unsigned char* shared, const Areas& areas, const Layout& o)
        : memory(shared + areas.teams + Place::team(o) * team_bytes(o)),
          mine((int)cluster_rank() * o.warps + Place::warp(o)),
          blocks(o.blocks),
          count(o.row_warps) {
        bool first = Place::warp(o) == 0 && Place::lane() == 0;
        for (int p = 0; p < 2 && first; p++) { mbarrier_init(barrier(p), o.warps); }
        mbarrier_init_fence();
        __syncwarp();
    }
    __device__ uint64_t* barrier(unsigned parity) const {
        return reinterpret_cast<uint64_t*>(memory) + parity;
    }
    __device__ float2* pairs(unsigned parity) const {
        return reinterpret_cast<float2*>(memory) + 2 + parity * count;
    }
    // pair: the same in each lane
    __device__ void send(unsigned turn, float2 pair) const {
        int lane = Place::lane(), place = mine;
        forget(place);
        uint64_t* all = barrier(turn % 2);
        if (lane == 0) {  // every warp of a block answers for as many pairs as it sends
            mbarrier_arrive_expect(all, blocks * (uint32_t)sizeof(float2));
        }
        if (lane < blocks) { store2_async(&pairs(turn % 2)[place], pair, all, lane); }
    }
    // (count), once all have come
    __device__ const float2* wait(unsigned turn) const {
        mbarrier_wait_cluster(barrier(turn % 2), turn / 2 % 2);
        return pairs(turn % 2);
    }
};

// ---- the launch ----------------------------------------------------------------------------------

// Slices are whole lines of 128 bytes. As many teams as a block's warps allow.
inline Layout layout_of(int C, int blocks, int block_warps) {
    int slice = ceil_div(ceil_div(C, blocks), 64) * 64, warps = ceil_div(slice, kWarpColumns);
    return {blocks, slice, warps, block_warps / warps, 1, blocks * warps, 1.0f / (float)C};
}

// slots of each ring: as many as memory allows, at most `most`
inline int slots_of(Layout o, int stage_bytes, int own_bytes, int most) {
    o.slots = most;
    while (o.slots > 1 && areas_of(o, stage_bytes, own_bytes).total > kSharedBytes) { o.slots--; }
    return o.slots;
}

// Clusters of `blocks` blocks of this kernel that the device holds at once, 0: it forms none. Asked once; the
// kernel is told what it may use.
template <typename Kernel>
int most_clusters(Kernel* kernel, int blocks, int threads, int shared_bytes) {
    static std::mutex mutex;
    static std::map<std::tuple<int, const void*, int, int, int>, int> known;
    int device = 0;
    check(cudaGetDevice(&device));
    std::lock_guard lock(mutex);
    auto [at, is_new] = known.try_emplace({device, (const void*)kernel, blocks, threads, shared_bytes}, 0);
    const DeviceFacts& facts = device_facts();
    if (!is_new || facts.capability < 90 || facts.shared_bytes < shared_bytes || !has_hopper_code(kernel)) {
        return at->second;
    }
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, facts.shared_bytes));
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    cudaLaunchAttribute cluster{
        cudaLaunchAttributeClusterDimension, {}, {.clusterDim = {(unsigned)blocks, 1, 1}}};
    cudaLaunchConfig_t config{(unsigned)blocks, (unsigned)threads, (size_t)shared_bytes,
                              nullptr,          &cluster,          1};
    if (cudaOccupancyMaxActiveClusters(&at->second, kernel, &config) != cudaSuccess) {
        (void)cudaGetLastError();  // no cluster of this size here
        at->second = 0;
    }
    return at->second;
}

// Launches kernel(call, o) for N rows on as many clusters as there are rows or the device holds; returns how
// many, 0: nothing was done.
template <typename Call>
int launch_clusters(void (*kernel)(Call, Layout), const Call& call, Layout o, int shared_bytes,
                    cudaStream_t stream) {
    int threads = o.teams * o.warps * kWarp;
    o.clusters = (int)std::min<int64_t>(most_clusters(kernel, o.blocks, threads, shared_bytes), call.N);
    if (o.clusters == 0) { return 0; }
    o.step = o.teams * o.clusters;
    cudaLaunchAttribute cluster{
        cudaLaunchAttributeClusterDimension, {}, {.clusterDim = {(unsigned)o.blocks, 1, 1}}};
    cudaLaunchConfig_t config{
        (unsigned)(o.clusters * o.blocks), (unsigned)threads, (size_t)shared_bytes, stream, &cluster, 1};
    check(cudaLaunchKernelEx(&config, kernel, call, o));
    return o.clusters;
}

}  // namespace llmc::layernorm_cluster
