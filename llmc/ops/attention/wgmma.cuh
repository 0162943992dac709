// What the attention kernels for Hopper share. A block of threads is one producer warpgroup, of which a single thread
// starts copies, and consumer warpgroups that compute. It stays on its SM and takes tiles (attention/choose.h) until there
// are none, and the producer is a tile ahead.
//
// Rings and their barriers. Copies go round a ring of stages. A stage's barrier `full` ends a phase when the bytes that
// the producer announced have come; its barrier `empty` when every consumer warp has arrived, that is, no longer reads
// the stage. Both count phases by their parity, so that whoever waits must know which phase it waits for: Ring does.
#pragma once
#include <algorithm>

#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/tensor_map.cuh"
#include "llmc/cuda/wgmma.cuh"
#include "llmc/ops/attention/attention.h"

namespace llmc::attention_wgmma {

// What the two backward kernels hand on: rows of every head, their number rounded up to a multiple of 64. Those past T have lse
// infinity, so that their probabilities are 0, and dot 0.
struct AttentionRows {
    float *lse_log2, *dot;  // (B NH, padded): lse log2(e), and the sum of dout * out over a row
    int padded;
    float* sums = nullptr;  // of attention_backward_wgmma()
};

constexpr int kHeadSize = kTileColumns;
constexpr float kScale = 0.125f;  // 1 / sqrt(64)
constexpr float kScaleLog2 = kScale * kLog2e;
constexpr int kWarpgroup = 128, kGroupWarps = 4, kWarpRows = 16, kWarpElements = kWarpRows * kTileColumns;

// a place in a ring, and the parity of the phase there: that of `full` for a consumer; phase ^ 1 is that of `empty` for
// the producer, which a new barrier counts as ended
template <int kStages>
struct Ring {
    int stage = 0;
    unsigned phase = 0;

    __device__ __forceinline__ void next() {
        if (++stage == kStages) {
            stage = 0;
            phase ^= 1;
        }
    }
    __device__ __forceinline__ int before() const { return stage > 0 ? stage - 1 : kStages - 1; }
};

// One arrival, which announces the bytes, ends a phase of full; one of each consumer warp that of empty.
template <int kStages>
__device__ __forceinline__ void init_barriers(uint64_t (&full)[kStages], uint64_t (&empty)[kStages],
                                              int groups) {
    for (int i = 0; i < kStages; i++) {
        mbarrier_init(&full[i], 1);
        mbarrier_init(&empty[i], kGroupWarps * groups);
    }
}

// The rows that stay for a whole tile: two stages, so that the next tile's come meanwhile.
struct TileRing {
    uint64_t full[2], empty[2];
    int number[2];  // of the tile
};
using TilePlace = Ring<2>;

// The producer's side. Numbers come from a counter in device memory, one question a tile, asked while the tile before is
// under way. There are as many questions as tiles; who asks the last one sets the counter to 0 for the next launch.
struct TileQueue {
    unsigned* counter;
    int tiles;
    int number = blockIdx.x;
    unsigned answer = 0;

    // waits for a free stage and puts the tile's number there; false after the last tile, which consumers are told
    __device__ __forceinline__ bool begin(TileRing& ring, const TilePlace& at) const {
        mbarrier_wait(&ring.empty[at.stage], at.phase ^ 1);
        ring.number[at.stage] = number;
        if (number < tiles) { return true; }
        mbarrier_arrive(&ring.full[at.stage]);
        return false;
    }
    __device__ __forceinline__ void ask() { answer = atomicAdd(counter, 1u); }
    __device__ __forceinline__ void next() {
        if (answer == (unsigned)tiles - 1) { *counter = 0; }
        number = gridDim.x + answer;
    }
};

// The consumers' side: the next tile's number, once its rows have come; the plan's tiles() or more after the last. From
// lane 0, so that the compiler knows it to be one for the warp.
__device__ __forceinline__ int wait_for_tile(TileRing& ring, const TilePlace& at) {
    mbarrier_wait(&ring.full[at.stage], at.phase);
    return __shfl_sync(kAllLanes, ring.number[at.stage], 0);
}

// A thread's place among the consumers.
struct Consumer {
    int group, warp, lane;  // warpgroup of the block, warp of the warpgroup
    int row, diagonal;      // its upper row of 64 (the lower one is 8 further), see lane_diagonal()

    __device__ __forceinline__ explicit Consumer(int warp_of_block)
        : group(warp_of_block / kGroupWarps),
          warp(warp_of_block % kGroupWarps),
          lane(threadIdx.x % kWarp),
          row(warp * kWarpRows + lane / 4),
          diagonal(lane_diagonal(warp, lane)) {}

    // this warp no longer reads the stage
    __device__ __forceinline__ void release(uint64_t* empty) const {
        if (lane == 0) { mbarrier_arrive(empty); }
    }
};

// Every warp's index through a shuffle: else the compiler takes it to differ within a warp, and wgmma, which all of a
// warpgroup must issue together, is serialised.
__device__ __forceinline__ int uniform_warp() { return __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0); }

// Results leave by way of the shared memory where the tile's own rows were. TMA reads them while the next
// tile is begun; only then is the stage released.
struct DeferredRelease {
    int stage = -1;

    __device__ __forceinline__ void begin(const Consumer& me, int at) {
        if (me.lane == 0) { bulk_commit(); }
        stage = at;
    }
    __device__ __forceinline__ void finish(const Consumer& me, TileRing& ring) {
        if (stage >= 0 && me.lane == 0) {
            bulk_wait_read<0>();
            mbarrier_arrive(&ring.empty[stage]);
        }
        stage = -1;
    }
};

// A warp's 16 rows of results, times upper and lower, to rows t to t + 15 of a head, by way of shared memory `rows`.
// Where the whole warpgroup's products read `rows`, it has met before.
__device__ __forceinline__ void store_rows(const CUtensorMap& map, bf16* rows, const Result& d, float upper,
                                           float lower, const Tile& tile, int head, int t, int T, int lane) {
    store_result(rows, d, upper, lower, lane);
    fence_proxy_async();
    __syncwarp();
    if (lane == 0 && t < T) { store_box(map, rows, head, t, tile.b); }
}

// The sums of the columns of a warpgroup's rows, which begin at row `first` and lie in shared memory `rows` as
// store_rows() left them; those past the end of the sequence are 0. The warpgroup has met since.
__device__ __forceinline__ void sum_columns(const AttentionRows& to, const bf16* rows, const Tile& tile,
                                            int head, int first, int NH, const Consumer& me) {
    int lane = me.lane;
    asm volatile("" : "+r"(lane));  // addresses are worked out here: the walk has no registers to keep them
    int column = sum_column(me.warp, lane);
    const bf16* from[2];  // of steps 0 and 1; the others are whole atoms further
    unrolled<2>([&](int i) { from[i] = rows + swizzled(sum_row(lane, i), column / 8) / 2 + column % 8; });
    float2 sum{};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t pair = *reinterpret_cast<const uint32_t*>(from[i % 2] + i / 2 * kAtomBytes / 2);
        sum.x += __uint_as_float(pair << 16);
        sum.y += __uint_as_float(pair & 0xffff0000u);
    }
#pragma unroll
    for (int distance = 8; distance < kWarp; distance *= 2) {
        sum.x += __shfl_xor_sync(kAllLanes, sum.x, distance);
        sum.y += __shfl_xor_sync(kAllLanes, sum.y, distance);
    }
    fence_proxy_async();  // TMA will refill the rows
    int64_t group = (int64_t)tile.b * (to.padded / kTileRows) + first / kTileRows;
    float* at = to.sums + (group * 3 * NH + head) * kHeadSize + column;
    if (lane < 8) { *reinterpret_cast<float2*>(at) = sum; }
}

// over the four lanes that share a row
__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(kAllLanes, x, 1);
    return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
    return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// the block's shared memory, as tiles must lie: at a multiple of 1024 bytes
template <typename Shared>
__device__ __forceinline__ Shared& shared_memory() {
    extern __shared__ __align__(1024) unsigned char raw[];
    uint32_t past = shared_address(raw) % kAtomBytes;
    return *reinterpret_cast<Shared*>(raw + (past > 0 ? kAtomBytes - past : 0));
}

// the tiles of every head, or an error where their number passes an int
inline TilePlan checked_plan(int B, int T, int NH, int rows) {
    grid_x((int64_t)ceil_div(T, rows) * B * NH);
    return plan_tiles(B, T, NH, rows);
}

// a block for each SM, or fewer where there are fewer tiles
template <auto* kernel, typename Shared, typename... Args>
void launch(int groups, const TilePlan& plan, cudaStream_t stream, const Args&... args) {
    constexpr int kBytes = sizeof(Shared) + kAtomBytes;  // with room to align it
    static_assert(kBytes <= 227 << 10, "more than a block may have");
    allow_shared_bytes<kernel>(kBytes);
    unsigned grid = std::min(plan.tiles(), device_facts().multiprocessors);
    kernel<<<grid, kWarpgroup*(groups + 1), kBytes, stream>>>(args...);
    check_launch();
}

}  // namespace llmc::attention_wgmma
