// The classifier's gradient on Hopper. A block, or the blocks of a cluster, keep a whole row of logits in shared memory, in
// chunks that one warp moves by bulk copies. The other warps find maximum and sum of exponentials chunk by chunk as they
// come, then put the gradient in each chunk's place; the chunk leaves, and the next row's takes its place. So the memory
// is read and written once, while the other block of the SM computes.
#include <array>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/ops/classifier/classifier.cuh"
#include "llmc/ops/classifier/classifier.h"

namespace llmc {

namespace classifier_rows {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;     // that compute
constexpr int kVectors = kChunkBytes / (16 * kThreads);  // of a thread, in a chunk
static_assert(kVectors * 16 * kThreads == kChunkBytes);

template <typename T>
constexpr int kVector = Vec<T>::size;  // elements
template <typename T>
constexpr int kChunk = kChunkBytes / sizeof(T);

struct alignas(kLineBytes) Shared {
    unsigned char chunks[kChunks][kChunkBytes];
    Softmax of_warp[kWarps];
    alignas(16) float2 of_block[2][kMostBlocks];  // of this row and the next, from every block of the cluster
    uint64_t come[2];                             // when all of these have come
    uint64_t full[kChunks];                       // a chunk's logits have come
    uint64_t done[kChunks];                       // its gradient is in their place
};
static_assert(sizeof(Shared) <= 113 << 10, "two blocks to an SM");

// The columns of a row that a block has: `first` and `columns` are whole vectors; the first `valid` are logits, the others
// padding.
struct Share {
    int first, columns, valid, chunks;

    template <typename T>
    __device__ static Share of(int V, int Vp, int rank, int blocks) {
        int each = ceil_div(ceil_div(Vp, blocks), kLine<T>) * kLine<T>, first = rank * each;
        int columns = max(0, min(each, Vp - first));
        return {first, columns, max(0, min(columns, V - first)), ceil_div(columns, kChunk<T>)};
    }
};

// ---- the warp that moves ---------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ void move_rows(Shared& s, T* logits, const Share& share, int64_t row, int64_t step,
                                          int64_t N, int Vp) {
    auto place = [&](int64_t of_row, int c) { return logits + of_row * Vp + share.first + c * kChunk<T>; };
    auto bytes = [&](int c) {
        return (uint32_t)min(kChunk<T>, share.columns - c * kChunk<T>) * (uint32_t)sizeof(T);
    };
    auto fetch = [&](int64_t of_row, int c) {
        mbarrier_arrive_expect(&s.full[c], bytes(c));
        bulk_copy(s.chunks[c], place(of_row, c), bytes(c), &s.full[c]);
    };
    for (int c = 0; c < share.chunks; c++) { fetch(row, c); }
    for (unsigned phase = 0; row < N; row += step, phase ^= 1) {
        bool more = row + step < N;
        for (int c = 0; c < share.chunks; c++) {
            mbarrier_wait(&s.done[c], phase);
            bulk_store(place(row, c), s.chunks[c], bytes(c));
            bulk_commit();
            if (more && c > 0) {  // the store before has left its chunk meanwhile
                bulk_wait_read<1>();
                fetch(row + step, c - 1);
            }
        }
        bulk_wait_read<0>();
        if (more && share.chunks > 0) { fetch(row + step, share.chunks - 1); }
    }
}

// ---- the warps that compute ------------------------------------------------------------------------

template <typename T>
using Piece = Elements<T, kVector<T>>;

// of a chunk, where this thread's vector v begins
template <typename T>
__device__ __forceinline__ int column(int v) {
    return (v * kThreads + (int)threadIdx.x) * kVector<T>;
}

// as the maximum of pairs, where T has an instruction for that
template <typename T>
__device__ __forceinline__ float largest_of(float largest, const Piece<T> (&x)[kVectors]) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
        auto pair = [&](int i) { return reinterpret_cast<const __nv_bfloat162*>(x)[i]; };
        __nv_bfloat162 most = pair(0);
#pragma unroll
        for (int i = 1; i < kVectors * kVector<T> / 2; i++) { most = __hmax2(most, pair(i)); }
        return fmaxf(largest, fmaxf(__low2float(most), __high2float(most)));
    } else {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
#pragma unroll
            for (int j = 0; j < kVector<T>; j++) { largest = fmaxf(largest, (float)x[v].at[j]); }
        }
        return largest;
    }
}

// this thread's columns of a chunk
template <typename T>
__device__ __forceinline__ void load_chunk(Piece<T> (&x)[kVectors], const T* chunk) {
#pragma unroll
    for (int v = 0; v < kVectors; v++) { x[v] = load<kVector<T>>(chunk + column<T>(v)); }
}

// s, and this thread's columns of a chunk, of which the first `valid` count
template <typename T>
__device__ __forceinline__ Softmax add_chunk(const Softmax& s, const T* chunk, int valid) {
    Piece<T> x[kVectors];
    load_chunk<T>(x, chunk);
    if (valid < kChunk<T>) {
#pragma unroll
        for (int v = 0; v < kVectors; v++) {
#pragma unroll
            for (int j = 0; j < kVector<T>; j++) {
                x[v].at[j] = column<T>(v) + j < valid ? x[v].at[j] : (T)-INFINITY;
            }
        }
    }
    Softmax more;
    more.largest = largest_of<T>(s.largest, x);
    more.sum = sum_below<T>(s, more.largest);
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kVector<T>; j++) { sum += exp_below<T>(as_float(x[v], j), more.largest); }
        more.sum += sum;
    }
    return more;
}

// of all threads of all blocks, the same in each. turn: which row of this block
template <typename T>
__device__ __forceinline__ Softmax whole_row(Shared& s, Softmax mine, int turn, int rank, int blocks) {
    int lane = threadIdx.x % kWarp;
    mine = joined<T, kWarp>(mine);
    if (lane == 0) { s.of_warp[threadIdx.x / kWarp] = mine; }
    // of_warp is not written again before every warp has read it: that is behind the first chunk's gradient
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
    Softmax row = joined<T, kWarps>(s.of_warp[lane % kWarps]);
    if (blocks > 1) {
        // Two places: a block that is ahead sends the next row's, never the one after, before this one has read.
        uint64_t* come = &s.come[turn % 2];
        float2* parts = s.of_block[turn % 2];
        if (threadIdx.x == 0) { mbarrier_arrive_expect(come, blocks * sizeof(float2)); }
        if ((int)threadIdx.x < blocks) {
            store2_async(&parts[rank], {row.largest, row.sum}, come, threadIdx.x);
        }
        mbarrier_wait_cluster(come, turn / 2 % 2);
        float2 part = parts[lane % kMostBlocks];
        row = joined<T, kMostBlocks>(lane % kMostBlocks < blocks ? Softmax{part.x, part.y} : Softmax{});
    }
    return row;
}

// This thread's columns of a chunk become softmax dloss, 0 from `valid` on. scale: exp(x - largest) scale is softmax dloss.
// What lies behind the row's end in its last chunk is changed, too: it is never stored.
template <typename T>
__device__ __forceinline__ void chunk_gradient(T* chunk, const Softmax& row, float scale, int valid) {
    Piece<T> x[kVectors];
    load_chunk<T>(x, chunk);
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        float d[kVector<T>];
#pragma unroll
        for (int j = 0; j < kVector<T>; j++) { d[j] = exp_below<T>(as_float(x[v], j), row.largest) * scale; }
        if (valid < kChunk<T>) {
#pragma unroll
            for (int j = 0; j < kVector<T>; j++) { d[j] = column<T>(v) + j < valid ? d[j] : 0.0f; }
        }
        store(chunk + column<T>(v), rounded<T>(d));
    }
}

template <typename T>
__device__ __forceinline__ void compute_rows(Shared& s, float* losses, const int32_t* targets, float dloss,
                                             const Share& share, int64_t row, int64_t step, int64_t N,
                                             int rank, int blocks) {
    T* logits = reinterpret_cast<T*>(s.chunks);
    for (int turn = 0; row < N; row += step, turn++) {
        int target = targets[row], at = target - share.first;
        bool ignored = target == kIgnoreTarget;
        Softmax mine;
        for (int c = 0; c < share.chunks; c++) {
            mbarrier_wait(&s.full[c], turn % 2);
            mine = add_chunk<T>(mine, logits + c * kChunk<T>, share.valid - c * kChunk<T>);
        }
        Softmax whole = whole_row<T>(s, mine, turn, rank, blocks);
        float scale = dloss / whole.sum;
        bool has_target =
            !ignored && at >= 0 && at < share.valid && at / kVector<T> % kThreads == (int)threadIdx.x;
        float target_logit = has_target ? (float)logits[at] : 0.0f;  // until its gradient takes its place
        for (int c = 0; c < share.chunks; c++) {
            int first = c * kChunk<T>;
            chunk_gradient<T>(logits + first, whole, scale, ignored ? 0 : share.valid - first);
            if (has_target && at / kChunk<T> == c) {
                logits[at] = (T)(exp_below<T>(target_logit, whole.largest) * scale - dloss);
            }
            fence_proxy_async();
            __syncwarp();
            if (threadIdx.x % kWarp == 0) { mbarrier_arrive(&s.done[c]); }
        }
        if (has_target) { losses[row] = loss_of(whole, target_logit); }
        if (ignored && rank == 0 && threadIdx.x == 0) { losses[row] = 0; }
    }
}

template <typename T>
__global__ void __launch_bounds__(kThreads + kWarp, 2)
    classifier_rows_kernel(T* logits, float* losses, const int32_t* targets, const float* dloss, int64_t N,
                           int V, int Vp) {
    if constexpr (kSm90) {
        extern __shared__ __align__(128) unsigned char raw[];
        auto& s = *reinterpret_cast<Shared*>(raw);
        int rank = (int)cluster_rank(), blocks = (int)cluster_blocks();
        if (threadIdx.x == 0) {
            for (uint64_t& barrier : s.full) { mbarrier_init(&barrier, 1); }
            for (uint64_t& barrier : s.done) { mbarrier_init(&barrier, kWarps); }
            for (uint64_t& barrier : s.come) { mbarrier_init(&barrier, 1); }
            mbarrier_init_fence();
        }
        cluster_sync();
        Share share = Share::of<T>(V, Vp, rank, blocks);
        int64_t row = blockIdx.x / blocks, step = gridDim.x / blocks;
        if (threadIdx.x < kThreads) {
            compute_rows<T>(s, losses, targets, *dloss, share, row, step, N, rank, blocks);
        } else if (threadIdx.x == kThreads) {
            move_rows<T>(s, logits, share, row, step, N, Vp);
        }
        __syncwarp();
        cluster_sync();  // no block ends while another may still write to it
    }
}

// how many clusters of `blocks` blocks the device holds at once; 0: it has no code for them
template <auto* kernel>
int clusters_at_once(int blocks) {
    static PerDevice<std::array<int, kMostBlocks + 1>> clusters;
    return clusters([] {
        constexpr int kBytes = sizeof(Shared);
        std::array<int, kMostBlocks + 1> found{};
        if (!runs_hopper_code(kernel) || kBytes > device_facts().shared_bytes) { return found; }
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared));
        found[1] = 2 * device_facts().multiprocessors;  // CUDA counts real clusters alone
        for (int k = 2; k <= kMostBlocks; k++) {
            const LaunchConfig config{k, kThreads + kWarp, kBytes, nullptr, k};
            check(
                config.with([&](auto* of) { return cudaOccupancyMaxActiveClusters(&found[k], kernel, of); }));
        }
        return found;
    })[blocks];
}

}  // namespace
}  // namespace classifier_rows

template <typename T>
bool classifier_forward_backward_rows(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                      int64_t N, int V, int Vp, cudaStream_t stream) {
    using namespace classifier_rows;
    int blocks = classifier_blocks((int64_t)Vp * sizeof(T));
    int clusters = blocks > 0 && aligned(logits) ? clusters_at_once<classifier_rows_kernel<T>>(blocks) : 0;
    if (clusters == 0) { return false; }
    unsigned grid = (unsigned)(std::min<int64_t>(N, clusters) * blocks);
    const LaunchConfig config{grid, kThreads + kWarp, sizeof(Shared), stream, blocks};
    config.launch(classifier_rows_kernel<T>, logits, losses, targets, dloss, N, V, Vp);
    return true;
}

template bool classifier_forward_backward_rows(float*, float*, const int32_t*, const float*, int64_t, int,
                                               int, cudaStream_t);
template bool classifier_forward_backward_rows(__nv_bfloat16*, float*, const int32_t*, const float*, int64_t,
                                               int, int, cudaStream_t);

}  // namespace llmc
