// long: an fp32 row is shared by the warps of 16 blocks. Between the halves of a row's work half of what a lane has of it
//       waits in registers, the rest where the copy engine left it; weights stay in shared memory.
// Why:  `ring` has two rows at least in shared memory: 16 blocks have room for 229376 columns. With all of a row in shared
//       memory, but once, copies waited for the row's sums; with weights from L2, warps for those.
// Moves: inp and dout once in, dinp once out: 3 N C elements; and 16 bytes a column and cluster.
// Result: 402 us, 91 % of the roof at 512x262144, where what Why speaks of took 595; H200, 2026-11-24
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/clusters.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/alignment.cuh"
#include "llmc/layernorm/backward/regimes.h"

namespace llmc::layernorm_long_backward {

constexpr int kBlocks = 16, kWarps = 16, kThreads = kWarps * kWarp;  // 128 registers a thread
constexpr int kLaneColumns = 32, kPart = kLaneColumns * kWarp;    // of a row: of a lane, of a warp; at most
constexpr int kShort = 131072, kLong = kBlocks * kWarps * kPart;  // rows longer than, no longer than
constexpr int kMostRows = 1 << 30;                                // a row's number and those ahead are ints
constexpr int kSharedBytes = 227 << 10, kWarpBytes = 14 << 10;    // of a block, on Hopper; of a warp's stages

// A lane's part of a row: k vectors of n columns, kHeld of them for registers, then kChunks chunks of kChunk. The warp's
// bytes have room for kSlots chunks, beside its weights and what registers will hold: a row's, and one on its way.
constexpr int n = 4, k = kLaneColumns / n, kHeld = k / 2, kChunk = 2, kChunks = (k - kHeld) / kChunk;
constexpr int kVectorBytes = kWarp * 16;  // of a vector a lane
constexpr int kSlots =
    (kWarpBytes - k * kVectorBytes - 2 * kHeld * kVectorBytes) / (2 * kChunk * kVectorBytes);
static_assert(kHeld + kChunks * kChunk == k && kSlots > kChunks);

using Call = LayerNormBackwardRows<float, float>;
using Vector = Elements<float, n>;

// kVectors vectors a lane of inp and of dout, as the copy engine brings them
template <int kVectors>
struct Stage {
    static constexpr int kColumns = kVectors * kWarp * n;
    float inp[kColumns], dout[kColumns];
};

struct Shared {                   // of a block
    struct alignas(128) OfWarp {  // what a warp fills and empties by itself
        Stage<kHeld> held;
        Stage<kChunk> chunk[kSlots];
        Vector weight[k][kWarp];
        uint64_t held_full, chunk_full[kSlots];  // a stage has come
    } of_warp[kWarps];
    uint64_t summed[2];  // all blocks' sums of a row have come; by row parity, as they
    float2 of_blocks[2][kBlocks], of_warps[kWarps];
};
static_assert(sizeof(Shared) <= kSharedBytes);

// how the columns of a row are dealt; a function of C alone
struct Deal {
    int slice, part;   // columns of a block, of a warp
    float per_column;  // 1 / C
};

// of a row; zeros where there is none
struct Statistics {
    float mean = 0, rstd = 0;

    Statistics() = default;
    __device__ Statistics(const Call& call, int row) {
        if (row >= (int)call.N) { return; }
        mean = call.mean[row];
        rstd = call.rstd[row];
    }
};

// A warp at work on its columns of the cluster's rows. A row's first half adds up, its second writes dinp; `turn`
// counts the rows. Registers are scarce: hence forget(), and no more at once than a vector or a chunk.
struct Worker {
    const Call& call;
    Shared& shared;
    Shared::OfWarp& own;
    int column;                            // the lane's first in a row
    int left;                              // columns of the warp from there on; <= 0: none
    float dweight[k][n]{}, dbias[k][n]{};  // of all rows
    float xhat[kHeld][n], wdy[kHeld][n];   // of the row at work

    __device__ Worker(const Call& call, Shared& shared, const Deal& deal)
        : call(call), shared(shared), own(shared.of_warp[warp()]) {
        int block = (int)cluster_rank() * deal.slice, slice = min(deal.slice, call.C - block);
        column = block + warp() * deal.part + lane() * n;
        left = min(slice - warp() * deal.part, deal.part) - lane() * n;
    }

    __device__ static int lane() {
        int lane = (int)threadIdx.x % kWarp;
        forget(lane);
        return lane;
    }
    __device__ static int warp() { return (int)threadIdx.x / kWarp; }

    // does the lane's vector i exist?
    __device__ bool has(int i) const { return left > i * kWarp * n; }

    __device__ void init_barriers() const {
        mbarrier_init(&own.held_full, 1);
        for (auto& full : own.chunk_full) { mbarrier_init(&full, 1); }
        for (int p = 0; p < 2 && warp() == 0; p++) { mbarrier_init(&shared.summed[p], 1); }
        mbarrier_init_fence();
    }

    // One lane: asks for a row's vectors from `vector` on, if there is such a row; of columns that do not exist nothing
    // comes, at once.
    template <int kVectors>
    __device__ void fetch(Stage<kVectors>& stage, uint64_t* full, int row, int vector) const {
        if (row >= (int)call.N) { return; }
        int first = column, columns = left;
        forget(first), forget(columns);
        first += vector * kWarp * n;
        columns = max(0, min(columns - vector * kWarp * n, stage.kColumns));
        uint32_t bytes = columns * (uint32_t)sizeof(float);
        mbarrier_arrive_expect(full, 2 * bytes);
        if (bytes == 0) { return; }
        bulk_copy(stage.inp, call.inp + (row * call.inp_stride + first), bytes, full);
        bulk_copy(stage.dout, call.dout + (row * call.dout_stride + first), bytes, full);
    }
    __device__ void fetch_held(int row) const { fetch(own.held, &own.held_full, row, 0); }
    __device__ void fetch_chunk(int slot, int row, int chunk) const {
        fetch(own.chunk[slot], &own.chunk_full[slot], row, kHeld + chunk * kChunk);
    }
    // every lane, when it has read a stage: then one may fetch into it
    __device__ static void leave() {
        fence_proxy_async();
        __syncwarp();
    }

    // each lane keeps its own
    __device__ void keep_weights() const {
#pragma unroll
        for (int i = 0; i < k; i++) {
            own.weight[i][lane()] =
                load_or<n, float>(has(i) ? call.weight : nullptr, column + i * kWarp * n, 1.0f);
        }
    }

    // A stage's vector v, which is the lane's vector i, gives dy, xhat and wdy; dy and wdy are zeros where there is no
    // such column.
    template <int kVectors>
    __device__ void read(const Stage<kVectors>& stage, int v, int i, const Statistics& row, float (&dy)[n],
                         float (&xhat)[n], float (&wdy)[n]) const {
        Vector x{}, d{};
        if (has(i)) {
            x = load<n>(stage.inp + (v * kWarp + (int)threadIdx.x % kWarp) * n);
            d = load<n>(stage.dout + (v * kWarp + (int)threadIdx.x % kWarp) * n);
        }
        Vector w = own.weight[i][lane()];
#pragma unroll
        for (int j = 0; j < n; j++) {
            dy[j] = d.at[j];
            xhat[j] = (x.at[j] - row.mean) * row.rstd;
            wdy[j] = dy[j] * w.at[j];
        }
    }
    // First half: adds to the sums by column, and to the lane's of wdy and of wdy xhat. Where there is no such column
    // xhat may be infinite.
    __device__ void add(float2& sums, int i, const float (&dy)[n], const float (&xhat)[n],
                        const float (&wdy)[n]) {
        if (!has(i)) { return; }
#pragma unroll
        for (int j = 0; j < n; j++) {
            dweight[i][j] += dy[j] * xhat[j];
            dbias[i][j] += dy[j];
            sums.x += wdy[j];
            sums.y += wdy[j] * xhat[j];
        }
    }
    // second half: what dinp is to be, from the means of wdy and wdy xhat, times -rstd and -1
    __device__ static void finish(float (&result)[n], const float (&xhat)[n], const float (&wdy)[n], float2 c,
                                  float rstd) {
#pragma unroll
        for (int j = 0; j < n; j++) { result[j] = fmaf(fmaf(xhat[j], c.y, wdy[j]), rstd, c.x); }
    }
    __device__ float* dinp(int row) const {  // from the lane's first column on
        int first = column;
        forget(first);
        return call.dinp + (row * call.dinp_stride + first);
    }
    // writes that, from the lane's vector `first` on
    template <int count>
    __device__ void write(float* dinp, int first, const float (&result)[count][n]) const {
#pragma unroll
        for (int v = 0; v < count; v++) {
            if (has(first + v)) { store(dinp + (first + v) * kWarp * n, rounded<float>(result[v])); }
        }
    }

    // first half of the columns for registers
    __device__ void begin_held(float2& sums, unsigned turn, const Statistics& row) {
        mbarrier_wait(&own.held_full, turn % 2);
#pragma unroll
        for (int i = 0; i < kHeld; i++) {
            float dy[n];
            read(own.held, i, i, row, dy, xhat[i], wdy[i]);
            add(sums, i, dy, xhat[i], wdy[i]);
        }
    }
    // where a chunk of the turn's row is
    __device__ static int slot(unsigned turn, int chunk) { return (turn * kChunks + chunk) % kSlots; }
    // first half of a chunk
    __device__ void begin_chunk(float2& sums, unsigned turn, int chunk, const Statistics& row) {
        int at = slot(turn, chunk);
        mbarrier_wait(&own.chunk_full[at], (turn * kChunks + chunk) / kSlots % 2);
        auto& stage = own.chunk[at];
#pragma unroll
        for (int v = 0; v < kChunk; v++) {
            int i = kHeld + chunk * kChunk + v;
            float dy[n], xhat[n], wdy[n];
            read(stage, v, i, row, dy, xhat, wdy);
            add(sums, i, dy, xhat, wdy);
        }
    }
    // second half of what registers hold
    __device__ void end_held(float* dinp, const Statistics& row, float2 c) const {
        float result[kHeld][n];
#pragma unroll
        for (int i = 0; i < kHeld; i++) { finish(result[i], xhat[i], wdy[i], c, row.rstd); }
        write(dinp, 0, result);
    }
    // of a chunk, which is where it was
    __device__ void end_chunk(float (&result)[kChunk][n], int slot, int chunk, const Statistics& row,
                              float2 c) const {
#pragma unroll
        for (int v = 0; v < kChunk; v++) {
            int i = kHeld + chunk * kChunk + v;
            float dy[n], xhat[n], wdy[n];
            read(own.chunk[slot], v, i, row, dy, xhat, wdy);
            finish(result[v], xhat, wdy, c, row.rstd);
        }
    }

    // the same in each lane
    template <int count>
    __device__ static float2 add_up(const float2 (&pairs)[count]) {
        static_assert(count <= kWarp);
        return both_sums(warp_sum_pair(lane() < count ? pairs[lane()] : float2{0, 0}));
    }
    // A block's sums of a row, added up by its first warp, go to all blocks. Nothing is overwritten too early: who
    // sends has the sums of the row before, which say that every warp of the row has read those of the one before.
    __device__ void send(unsigned turn, float2 sums) const {
        float mine = warp_sum_pair(sums);
        if (lane() % (kWarp / 2) == 0) {
            reinterpret_cast<float*>(&shared.of_warps[warp()])[lane() / (kWarp / 2)] = mine;
        }
        if (warp() > 0) {
            asm volatile("bar.arrive 1, %0;" ::"n"(kThreads) : "memory");
            return;
        }
        asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
        sums = add_up(shared.of_warps);
        uint64_t* barrier = &shared.summed[turn % 2];
        if (lane() == 0) { mbarrier_arrive_expect(barrier, kBlocks * (uint32_t)sizeof(float2)); }
        if (lane() < kBlocks) {
            store2_async(&shared.of_blocks[turn % 2][cluster_rank()], sums, barrier, lane());
        }
    }
    __device__ float2 receive(unsigned turn) const {
        mbarrier_wait_cluster(&shared.summed[turn % 2], turn / 2 % 2);
        return add_up(shared.of_blocks[turn % 2]);
    }

    // the sums by column to those of this cluster's rows: (2, clusters, C)
    __device__ void write_sums(int cluster, int clusters) const {
        float* to = reinterpret_cast<float*>(call.scratch) + (int64_t)cluster * call.C + column;
#pragma unroll
        for (int i = 0; i < k; i++) {
            if (!has(i)) { continue; }
#pragma unroll
            for (int j = 0; j < n; j += 4) {
                float* at = to + i * kWarp * n + j;
                store(at, *reinterpret_cast<const Elements<float, 4>*>(&dweight[i][j]));
                store(at + (int64_t)clusters * call.C,
                      *reinterpret_cast<const Elements<float, 4>*>(&dbias[i][j]));
            }
        }
    }
};

__device__ void backward_rows(const Call& call, const Deal& deal) {
    extern __shared__ __align__(128) unsigned char memory[];
    Worker worker(call, *reinterpret_cast<Shared*>(memory), deal);
    int cluster = blockIdx.x / kBlocks, clusters = gridDim.x / kBlocks;
    // up to the wait: what needs nothing of the kernels before this one, while they end
    if (worker.lane() == 0) { worker.init_barriers(); }
    __syncwarp();
    cluster_sync();  // barriers are there, in every block
    dependency_wait();
    if (worker.lane() == 0) {
        worker.fetch_held(cluster);
        for (int s = 0; s < kSlots; s++) {
            worker.fetch_chunk(s, cluster + s / kChunks * clusters, s % kChunks);
        }
    }
    worker.keep_weights();

    Statistics now(call, cluster);
    for (unsigned turn = 0;; turn++) {
        int row = cluster + turn * clusters;
        if (row >= (int)call.N) { break; }
        float2 sums{0, 0};
#pragma unroll
        for (int c = 0; c < kChunks; c++) { worker.begin_chunk(sums, turn, c, now); }
        worker.begin_held(sums, turn, now);
        worker.leave();
        if (worker.lane() == 0) { worker.fetch_held(row + clusters); }

        worker.send(turn, sums);
        sums = worker.receive(turn);
        float2 c{-sums.x * deal.per_column * now.rstd, -sums.y * deal.per_column};
        float* dinp = worker.dinp(row);
        worker.end_held(dinp, now, c);
        Statistics next(call, row + clusters);
#pragma unroll
        for (int i = 0; i < kChunks; i++) {
            forget(turn);
            float result[kChunk][n];
            int slot = worker.slot(turn, i);
            worker.end_chunk(result, slot, i, now, c);
            worker.leave();
            if (worker.lane() == 0) {
                worker.fetch_chunk(slot, row + (i + kSlots) / kChunks * clusters, (i + kSlots) % kChunks);
            }
            worker.write(dinp, kHeld + i * kChunk, result);
        }
        now = next;
    }
    dependency_launch();  // the kernel that adds the partial sums may come and wait
    worker.write_sums(cluster, clusters);
    __syncwarp();
    cluster_sync();  // nobody leaves while sums may still be sent to it
}

__global__ __launch_bounds__(kThreads, 1) void layernorm_backward_kernel(Call call, Deal deal) {
    if constexpr (kSm90) { backward_rows(call, deal); }
}

ColumnGroups launch(const Call& call, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_backward_kernel;
    if (!runs_hopper_code(kernel)) { return {}; }
    LaunchAttributes attributes;
    attributes.overlapping().clusters(kBlocks);
    cudaLaunchConfig_t config = attributes.config(0, kThreads, sizeof(Shared), stream);
    int clusters = (int)std::min<int64_t>(most_clusters<kernel>(config, kBlocks), call.N);
    if (clusters == 0) { return {}; }
    config.gridDim.x = clusters * kBlocks;
    int slice = ceil_div(ceil_div(call.C, kBlocks), 64) * 64,
        part = ceil_div(ceil_div(slice, kWarps), 64) * 64;
    check(cudaLaunchKernelEx(&config, kernel, call, Deal{slice, part, 1.0f / (float)call.C}));
    return {clusters, true};
}

}  // namespace llmc::layernorm_long_backward

namespace llmc {

template <typename T, typename W>
ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_long_backward;
    bool takes = kShort < call.C && call.C <= kLong && call.N <= kMostRows && call.dinp != nullptr &&
                 !call.accumulate_dinp && rows_are_vectors(call);
    if constexpr (std::is_same_v<T, float>) {
        if (takes) { return launch(call, stream); }
    }
    return {};
}

using bf16 = __nv_bfloat16;
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<float, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<bf16, bf16>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<bf16, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<__half, __half>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<__half, float>&, cudaStream_t);

}  // namespace llmc
