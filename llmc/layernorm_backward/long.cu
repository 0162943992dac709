// long: a row is shared by the warps of 16 blocks. Between the halves of a row's work a part of what a lane has of it
//       waits in registers, the rest where the copy engine left it (long_memory.cuh); weights stay in shared memory.
// Why:  `ring` has two rows at least in shared memory: 16 blocks have room for 262144 columns of 16 bits, 229376 of fp32,
//       and of `+=` 131072. With all of a row in shared memory, but once, copies waited for the row's sums; with weights
//       from L2, warps for those.
// Moves: inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 16 bytes a column and cluster.
// Result: 402 us, 91 % of the roof at 512x262144 fp32, where what Why speaks of took 595; `+=` 561 us, 86 %, where one that
//       read dinp from L2 as it added took 626; H200, 2026-11-24
#include <algorithm>

#include "llmc/async_copy.cuh"
#include "llmc/check.cuh"
#include "llmc/clusters.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/launch.cuh"
#include "llmc/layernorm_backward/long_memory.cuh"
#include "llmc/layernorm_backward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/reduce.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_long_backward {

constexpr int kShort = 131072, kLong = kBlocks * kWarps * kPart;  // rows longer than, no longer than
constexpr int kMostRows = 1 << 30;                                // a row's number and those ahead are ints

// how the columns of a row are dealt; a function of C alone
struct Deal {
    int slice, part;   // columns of a block, of a warp
    float per_column;  // 1 / C
};

// of a row; zeros where there is none
struct Statistics {
    float mean = 0, rstd = 0;

    Statistics() = default;
    template <typename Call>
    __device__ Statistics(const Call& call, int row) {
        if (row >= (int)call.N) { return; }
        mean = call.mean[row];
        rstd = call.rstd[row];
    }
};

// A warp at work on its columns of the cluster's rows. A row's first half adds up, its second writes dinp; `turn`
// counts the rows. Registers are scarce: hence forget(), and no more at once than a vector or a chunk.
template <bool kAccumulate, typename T, typename W>
struct Worker {
    using C = Cut<kAccumulate, T, W>;
    static constexpr int n = C::n;
    const LayerNormBackwardRows<T, W>& call;
    Shared<kAccumulate, T, W>& shared;
    typename Shared<kAccumulate, T, W>::OfWarp& own;
    int column;                                  // the lane's first in a row
    int left;                                    // columns of the warp from there on; <= 0: none
    float dweight[C::k][n]{}, dbias[C::k][n]{};  // of all rows
    float xhat[C::kHeld][n], wdy[C::kHeld][n];   // of the row at work

    __device__ Worker(const LayerNormBackwardRows<T, W>& call, Shared<kAccumulate, T, W>& shared,
                      const Deal& deal)
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
    __device__ void fetch(Stage<T, C::kStreams, kVectors>& stage, uint64_t* full, int row, int vector) const {
        if (row >= (int)call.N) { return; }
        int first = column, columns = left;
        forget(first), forget(columns);
        first += vector * kWarp * n;
        columns = max(0, min(columns - vector * kWarp * n, stage.kColumns));
        uint32_t bytes = columns * (uint32_t)sizeof(T);
        mbarrier_arrive_expect(full, C::kStreams * bytes);
        if (bytes == 0) { return; }
        bulk_copy(stage.of[kInp], call.inp + (row * call.inp_stride + first), bytes, full);
        bulk_copy(stage.of[kDout], call.dout + (row * call.dout_stride + first), bytes, full);
        const T* dinp = call.dinp + (row * call.dinp_stride + first);
        if constexpr (C::kDinpComes) {
            bulk_copy(stage.of[kDinp], dinp, bytes, full);
        } else if constexpr (kAccumulate) {
            bulk_prefetch(dinp, bytes);
        }
    }
    __device__ void fetch_held(int row) const { fetch(own.held, &own.held_full, row, 0); }
    __device__ void fetch_chunk(int slot, int row, int chunk) const {
        fetch(own.chunk[slot], &own.chunk_full[slot], row, C::kHeld + chunk * C::kChunk);
    }
    // every lane, when it has read a stage: then one may fetch into it
    __device__ static void leave() {
        fence_proxy_async();
        __syncwarp();
    }

    // each lane keeps its own
    __device__ void keep_weights() const {
#pragma unroll
        for (int i = 0; i < C::k; i++) {
            auto weight = load_or<n, W>(has(i) ? call.weight : nullptr, column + i * kWarp * n, (W)1.0f);
#pragma unroll
            for (int p = 0; p < C::kPieces; p++) {
                own.weight[i][p][lane()] = reinterpret_cast<const uint4*>(&weight)[p];
            }
        }
    }
    __device__ Elements<W, n> weight(int i) const {
        Elements<W, n> weight;
#pragma unroll
        for (int p = 0; p < C::kPieces; p++) {
            reinterpret_cast<uint4*>(&weight)[p] = own.weight[i][p][lane()];
        }
        return weight;
    }

    // A stage's vector v, which is the lane's vector i, gives dy, xhat and wdy; dy and wdy are zeros where there is no
    // such column.
    template <int kVectors>
    __device__ void read(const Stage<T, C::kStreams, kVectors>& stage, int v, int i, const Statistics& row,
                         float (&dy)[n], float (&xhat)[n], float (&wdy)[n]) const {
        Elements<T, n> x{}, d{};
        if (has(i)) {
            x = stage.at(kInp, v);
            d = stage.at(kDout, v);
        }
        auto w = weight(i);
#pragma unroll
        for (int j = 0; j < n; j++) {
            dy[j] = as_float(d, j);
            xhat[j] = (as_float(x, j) - row.mean) * row.rstd;
            wdy[j] = dy[j] * as_float(w, j);
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
    // second half: what dinp is to be, or to have added, from the means of wdy and wdy xhat, times -rstd and -1
    __device__ static void finish(float (&result)[n], const float (&xhat)[n], const float (&wdy)[n], float2 c,
                                  float rstd) {
#pragma unroll
        for (int j = 0; j < n; j++) { result[j] = fmaf(fmaf(xhat[j], c.y, wdy[j]), rstd, c.x); }
    }
    __device__ T* dinp(int row) const {  // from the lane's first column on
        int first = column;
        forget(first);
        return call.dinp + (row * call.dinp_stride + first);
    }
    // For +=: dinp as it was, from the lane's vector `first` on, where `stage` begins.
    template <int count>
    __device__ void read_before(Elements<T, n> (&before)[count], const Stage<T, C::kStreams, count>& stage,
                                int row, int first) const {
        if constexpr (kAccumulate) {
#pragma unroll
            for (int v = 0; v < count; v++) {
                if (!has(first + v)) { continue; }
                if constexpr (C::kDinpComes) {
                    before[v] = stage.at(kDinp, v);
                } else {
                    before[v] = load<n>(dinp(row) + (first + v) * kWarp * n);
                }
            }
        }
    }
    // writes (=, +=) that, from the lane's vector `first` on
    template <int count>
    __device__ void write(T* dinp, int first, const float (&result)[count][n],
                          const Elements<T, n> (&before)[count]) const {
#pragma unroll
        for (int v = 0; v < count; v++) {
            if (!has(first + v)) { continue; }
            float sum[n];
#pragma unroll
            for (int j = 0; j < n; j++) {
                sum[j] = result[v][j];
                if constexpr (kAccumulate) { sum[j] += as_float(before[v], j); }
            }
            store(dinp + (first + v) * kWarp * n, rounded<T>(sum));
        }
    }

    // first half of the columns for registers
    __device__ void begin_held(float2& sums, unsigned turn, const Statistics& row) {
        mbarrier_wait(&own.held_full, turn % 2);
#pragma unroll
        for (int i = 0; i < C::kHeld; i++) {
            float dy[n];
            read(own.held, i, i, row, dy, xhat[i], wdy[i]);
            add(sums, i, dy, xhat[i], wdy[i]);
        }
    }
    // where a chunk of the turn's row is
    __device__ static int slot(unsigned turn, int chunk) { return (turn * C::kChunks + chunk) % C::kSlots; }
    // first half of a chunk
    __device__ void begin_chunk(float2& sums, unsigned turn, int chunk, const Statistics& row) {
        int at = slot(turn, chunk);
        mbarrier_wait(&own.chunk_full[at], (turn * C::kChunks + chunk) / C::kSlots % 2);
        auto& stage = own.chunk[at];
#pragma unroll
        for (int v = 0; v < C::kChunk; v++) {
            int i = C::kHeld + chunk * C::kChunk + v;
            float dy[n], xhat[n], wdy[n];
            read(stage, v, i, row, dy, xhat, wdy);
            add(sums, i, dy, xhat, wdy);
        }
    }
    // of a chunk of the turn's row, if there is one
    __device__ void read_before_chunk(Elements<T, n> (&before)[C::kChunk], unsigned turn, int chunk,
                                      int row) const {
        if (chunk >= C::kChunks) { return; }
        read_before(before, own.chunk[slot(turn, chunk)], row, C::kHeld + chunk * C::kChunk);
    }
    // second half of what registers hold
    __device__ void end_held(T* dinp, const Elements<T, n> (&before)[C::kHeld], const Statistics& row,
                             float2 c) const {
        float result[C::kHeld][n];
#pragma unroll
        for (int i = 0; i < C::kHeld; i++) { finish(result[i], xhat[i], wdy[i], c, row.rstd); }
        write(dinp, 0, result, before);
    }
    // of a chunk, which is where it was
    __device__ void end_chunk(float (&result)[C::kChunk][n], int slot, int chunk, const Statistics& row,
                              float2 c) const {
#pragma unroll
        for (int v = 0; v < C::kChunk; v++) {
            int i = C::kHeld + chunk * C::kChunk + v;
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
        for (int i = 0; i < C::k; i++) {
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

template <bool kAccumulate, typename T, typename W>
__device__ void backward_rows(const LayerNormBackwardRows<T, W>& call, const Deal& deal) {
    using C = Cut<kAccumulate, T, W>;
    constexpr int kSlots = C::kSlots, kChunks = C::kChunks, kAhead = C::kAhead;
    extern __shared__ __align__(128) unsigned char memory[];
    Worker<kAccumulate, T, W> worker(call, *reinterpret_cast<Shared<kAccumulate, T, W>*>(memory), deal);
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
        Elements<T, C::n> before_held[C::kHeld], before[kAhead][C::kChunk];
        worker.read_before(before_held, worker.own.held, row, 0);
        worker.leave();
        if (worker.lane() == 0) { worker.fetch_held(row + clusters); }

        worker.send(turn, sums);
#pragma unroll
        for (int i = 0; i < kAhead; i++) { worker.read_before_chunk(before[i], turn, i, row); }
        sums = worker.receive(turn);
        float2 c{-sums.x * deal.per_column * now.rstd, -sums.y * deal.per_column};
        T* dinp = worker.dinp(row);
        worker.end_held(dinp, before_held, now, c);
        Statistics next(call, row + clusters);
#pragma unroll
        for (int i = 0; i < kChunks; i++) {
            forget(turn);
            float result[C::kChunk][C::n];
            int slot = worker.slot(turn, i);
            worker.end_chunk(result, slot, i, now, c);
            worker.leave();
            if (worker.lane() == 0) {
                worker.fetch_chunk(slot, row + (i + kSlots) / kChunks * clusters, (i + kSlots) % kChunks);
            }
            worker.write(dinp, C::kHeld + i * C::kChunk, result, before[i % kAhead]);
            worker.read_before_chunk(before[i % kAhead], turn, i + kAhead, row);
        }
        now = next;
    }
    dependency_launch();  // the kernel that adds the partial sums may come and wait
    worker.write_sums(cluster, clusters);
    __syncwarp();
    cluster_sync();  // nobody leaves while sums may still be sent to it
}

template <bool kAccumulate, typename T, typename W>
__global__ __launch_bounds__(kThreads, 1) void layernorm_backward_kernel(LayerNormBackwardRows<T, W> call,
                                                                         Deal deal) {
    if constexpr (kSm90) { backward_rows<kAccumulate>(call, deal); }
}

template <bool kAccumulate, typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_backward_kernel<kAccumulate, T, W>;
    if (!runs_hopper_code(kernel)) { return {}; }
    LaunchAttributes attributes;
    attributes.overlapping().clusters(kBlocks);
    constexpr int shared_bytes = sizeof(Shared<kAccumulate, T, W>);
    static_assert(shared_bytes <= kSharedBytes);
    cudaLaunchConfig_t config = attributes.config(0, kThreads, shared_bytes, stream);
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
    if (call.C <= kShort || call.C > kLong || call.N > kMostRows || call.dinp == nullptr ||
        !rows_are_vectors(call)) {
        return {};
    }
    if (call.accumulate_dinp) { return launch<true>(call, stream); }
    if constexpr (sizeof(T) == 4) { return launch<false>(call, stream); }
    return {};
}

using bf16 = __nv_bfloat16;
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<float, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<bf16, bf16>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<bf16, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<__half, __half>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<__half, float>&, cudaStream_t);

}  // namespace llmc
