// The classifier: which kernel takes a call; the one for evaluation; and two for the gradient.
//   general  A block per row reads it once from memory (largest logit and sum of exponentials together) and again, backwards, to
//            find in the caches what was read last.
//   rows     A block, or the blocks of a cluster, keep a whole row of logits in shared memory, in chunks that one warp moves by
//            bulk copies. The other warps find maximum and sum of exponentials chunk by chunk as they come, then put the
//            gradient in each chunk's place; the chunk leaves, and the next row's takes its place. So the memory is read and
//            written once, while the other block of the SM computes.
#include "llmc/ops/classifier/classifier.h"

#include <algorithm>
#include <array>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/host/tokens/dataloader.h"

namespace llmc {

namespace {

// ---- exponentials, and how sums of them relative to different maxima are joined

// exp(x - largest), x at most `largest`. float: within 2 ulp. bf16: of x log2(e) - largest log2(e), where the second product
// is rounded. Whatever it is rounded to, all of a row is relative to that number, so that only the difference's rounding
// counts: within |x - largest| 2^-23 + 2^-22, relative, beside bf16's own 2^-9. In a row's sum of exp(x_v) the first part
// weighs 2^-23 sum_v p_v |x_v|, which is at most 2^-23 ln V (an entropy).
template <typename T>
__device__ float exp_below(float x, float largest) {
    if constexpr (std::is_same_v<T, float>) {
        return expf(x - largest);
    } else {
        return exp2_approx(fmaf(x, kLog2e, -__fmul_rn(largest, kLog2e)));
    }
}

// Logits below this do not count where no logit is above it. Times log2(e) it is finite, so that exp_below() of -infinity
// is 0 and not NaN.
constexpr float kLowest = -2e38f;

struct Softmax {
    float largest = kLowest;  // NaN is passed over here and comes through in the sum
    float sum = 0;            // of exp(x - largest)
};

// the sum relative to a larger maximum
template <typename T>
__device__ float sum_below(const Softmax& s, float larger) {
    if constexpr (std::is_same_v<T, float>) {
        return s.sum * expf(s.largest - larger);
    } else {
        return s.sum * exp2_approx(__fmul_rn(s.largest, kLog2e) - __fmul_rn(larger, kLog2e));
    }
}

// all parts of a warp's `lanes` neighbouring lanes, in each of them; T: of the logits
template <typename T, int lanes>
__device__ Softmax joined(const Softmax& part) {
    Softmax all = part;
#pragma unroll
    for (int d = lanes / 2; d > 0; d /= 2) {
        all.largest = fmaxf(all.largest, __shfl_xor_sync(kAllLanes, all.largest, d));
    }
    all.sum = group_sum<lanes>(sum_below<T>(part, all.largest));
    return all;
}

// -ln softmax(x)[target]
__device__ float loss_of(const Softmax& row, float target_logit) {
    return logf(row.sum) + (row.largest - target_logit);
}

// ---- any rows on any GPU

// The largest block: a small vocabulary takes less. Two to an SM, one reading while the other writes or
// waits. Three would not fit (2048 threads), so that L1 holds two rows at a time: 100 KB each for GPT-2 in
// bf16.
constexpr int kBlock = 768;
constexpr int kAtOnce = 4;  // vectors a thread has on their way from memory
constexpr int kSumBlock = 1024;

// over the columns of a row
struct RowStatistics {
    Softmax softmax;
    int64_t best;  // where in the row this thread's vector begins that first held the thread's own largest
    float own_largest;
};

// x (V), read by the whole block; largest and sum are the same in every thread
template <typename T>
__device__ RowStatistics row_statistics(const T* x, int V) {
    constexpr int n = Vec<T>::size;
    Softmax mine;
    int64_t best = 0;
    auto add = [&](const Vec<T>& piece, int64_t i) {
        float larger = mine.largest;
        for (T value : piece.at) { larger = fmaxf(larger, (float)value); }
        best = larger > mine.largest ? i : best;
        mine = {larger, sum_below<T>(mine, larger)};
        for (T value : piece.at) { mine.sum += exp_below<T>((float)value, larger); }
    };
    int64_t i = (int64_t)threadIdx.x * n, stride = (int64_t)blockDim.x * n;
    int64_t end = reinterpret_cast<uintptr_t>(x) % sizeof(Vec<T>) == 0 ? V : 0;
    for (; i + (kAtOnce - 1) * stride + n <= end; i += kAtOnce * stride) {
        Vec<T> piece[kAtOnce];
        for (int k = 0; k < kAtOnce; k++) { piece[k] = Vec<T>::load(x + i + k * stride); }
        for (int k = 0; k < kAtOnce; k++) { add(piece[k], i + k * stride); }
    }
    for (; i < V; i += stride) { add(load_within<Vec<T>>(x, i, V, (T)-INFINITY), i); }

    float largest = block_reduce(mine.largest, kLowest, [](float a, float b) { return fmaxf(a, b); });
    return {{largest, block_sum(sum_below<T>(mine, largest))}, best, mine.largest};
}

// the first column that holds the row's largest logit; 0 if none does (all NaN or -infinity)
template <typename T>
__device__ int arg_max(const RowStatistics& row, const T* x, int V) {
    int column = INT32_MAX;
    if (row.own_largest == row.softmax.largest) {
        auto piece = load_within<Vec<T>>(x, row.best, V, (T)-INFINITY);
        for (int j = Vec<T>::size - 1; j >= 0; j--) {
            if ((float)piece.at[j] == row.softmax.largest) { column = (int)row.best + j; }
        }
    }
    column = block_reduce(column, INT32_MAX, [](int a, int b) { return min(a, b); });
    return column == INT32_MAX ? 0 : column;
}

template <typename T>
__global__ void __launch_bounds__(kBlock, 2)
    classifier_forward_kernel(float* losses, int32_t* predicted, const T* logits, const int32_t* targets,
                              int V, int Vp) {
    int64_t index = blockIdx.x;
    const T* x = logits + index * Vp;
    auto row = row_statistics(x, V);
    int best = arg_max(row, x, V);
    if (threadIdx.x == 0) {
        int target = targets[index];
        predicted[index] = best;
        losses[index] = target == kIgnoreTarget ? 0 : loss_of(row.softmax, (float)x[target]);
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlock, 2)
    classifier_general_kernel(T* logits, float* losses, const int32_t* targets, const float* weight, int V,
                              int Vp) {
    constexpr int n = Vec<T>::size;
    const float dloss = *weight;
    int64_t index = blockIdx.x;
    int target = targets[index];
    T* x = logits + index * Vp;
    if (target == kIgnoreTarget) {
        for (int64_t v = threadIdx.x; v < Vp; v += blockDim.x) { x[v] = T(0.0f); }
        if (threadIdx.x == 0) { losses[index] = 0; }
        return;
    }
    float target_logit = (float)x[target];  // before any thread replaces it: row_statistics synchronises
    Softmax row = row_statistics(x, V).softmax;
    if (threadIdx.x == 0) { losses[index] = loss_of(row, target_logit); }

    // exp(x - largest) dloss / sum is softmax dloss
    float scale = dloss / row.sum;
    int64_t stride = (int64_t)blockDim.x * n;
    for (int64_t i = (ceil_div(V, stride) - 1) * stride + threadIdx.x * n; i >= 0; i -= stride) {
        auto piece = load_within<Vec<T>>(x, i, V);
        for (T& value : piece.at) { value = (T)(exp_below<T>((float)value, row.largest) * scale); }
        store_within(x, i, V, piece);
    }
    if (threadIdx.x == target / n % blockDim.x) {  // the thread that has just written it
        x[target] = (T)(exp_below<T>(target_logit, row.largest) * scale - dloss);
    }
    for (int64_t v = V + threadIdx.x; v < Vp; v += blockDim.x) { x[v] = T(0.0f); }
}

// one block; a thread's share in order, then the threads
__global__ void sum_losses_kernel(double* sum, const float* losses, int64_t N, bool accumulate) {
    double mine = 0;
    for (int64_t i = threadIdx.x; i < N; i += kSumBlock) { mine += losses[i]; }
    double total = block_sum(mine);
    if (threadIdx.x == 0) { *sum = accumulate ? *sum + total : total; }
}

// threads for a row: one for each vector, in whole warps
template <typename T>
int block_of(int Vp) {
    return std::min(kBlock, ceil_div(ceil_div(Vp, Vec<T>::size), kWarp) * kWarp);
}

void require_columns(int V, int Vp) {
    require(V > 0 && V <= Vp, "classifier: V columns of Vp must be 0 < V <= Vp");
}

// ---- rows in shared memory: a block is 8 warps that compute and one that moves; two blocks to an SM

constexpr int kChunkBytes = 8192, kChunks = 13;       // of a block: 104 KB, of the 113 that half of an SM has
constexpr int kMostBlocks = 8;                        // of a cluster
constexpr int kLeastBytes = 2 * kChunkBytes;          // of a row: shorter ones leave most of a block idle
constexpr int kWarps = 8, kThreads = kWarps * kWarp;  // that compute
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
        unrolled<kVectors, kVector<T>>([&](int v, int j) { largest = fmaxf(largest, (float)x[v].at[j]); });
        return largest;
    }
}

template <typename T>
__device__ __forceinline__ void load_chunk(Piece<T> (&x)[kVectors], const T* chunk) {
    unrolled<kVectors>([&](int v) { x[v] = load<kVector<T>>(chunk + column<T>(v)); });
}

// s, and this thread's columns of a chunk, of which the first `valid` count
template <typename T>
__device__ __forceinline__ Softmax add_chunk(const Softmax& s, const T* chunk, int valid) {
    Piece<T> x[kVectors];
    load_chunk<T>(x, chunk);
    if (valid < kChunk<T>) {
        unrolled<kVectors, kVector<T>>(
            [&](int v, int j) { x[v].at[j] = column<T>(v) + j < valid ? x[v].at[j] : (T)-INFINITY; });
    }
    Softmax more;
    more.largest = largest_of<T>(s.largest, x);
    more.sum = sum_below<T>(s, more.largest);
    unrolled<kVectors>([&](int v) {
        float sum = 0;
        unrolled<kVector<T>>([&](int j) { sum += exp_below<T>(as_float(x[v], j), more.largest); });
        more.sum += sum;
    });
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
    unrolled<kVectors>([&](int v) {
        float d[kVector<T>];
        unrolled<kVector<T>>([&](int j) { d[j] = exp_below<T>(as_float(x[v], j), row.largest) * scale; });
        if (valid < kChunk<T>) {
            unrolled<kVector<T>>([&](int j) { d[j] = column<T>(v) + j < valid ? d[j] : 0.0f; });
        }
        store(chunk + column<T>(v), rounded<T>(d));
    });
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

// the blocks that share a row of row_bytes bytes; 0: it is left to the general kernel
int blocks_of(int64_t row_bytes) {
    int64_t blocks = (row_bytes + kChunks * kChunkBytes - 1) / (kChunks * kChunkBytes);
    bool fits = row_bytes >= kLeastBytes && row_bytes % 16 == 0 && blocks <= kMostBlocks;
    return fits ? (int)blocks : 0;
}

}  // namespace

template <typename T>
bool classifier_forward_backward_rows(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                      int64_t N, int V, int Vp, cudaStream_t stream) {
    int blocks = blocks_of((int64_t)Vp * sizeof(T));
    int clusters = blocks > 0 && aligned(logits) ? clusters_at_once<classifier_rows_kernel<T>>(blocks) : 0;
    if (clusters == 0) { return false; }
    unsigned grid = (unsigned)(std::min<int64_t>(N, clusters) * blocks);
    const LaunchConfig config{grid, kThreads + kWarp, sizeof(Shared), stream, blocks};
    config.launch(classifier_rows_kernel<T>, logits, losses, targets, dloss, N, V, Vp);
    return true;
}

template <typename T>
void classifier_forward(float* losses, int32_t* predicted, const T* logits, const int32_t* targets, int64_t N,
                        int V, int Vp, cudaStream_t stream) {
    require_columns(V, Vp);
    if (N == 0) { return; }
    classifier_forward_kernel<<<grid_x(N), block_of<T>(Vp), 0, stream>>>(losses, predicted, logits, targets,
                                                                         V, Vp);
    check_launch();
}

template <typename T>
void classifier_forward_backward(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                 int64_t N, int V, int Vp, cudaStream_t stream) {
    require_columns(V, Vp);
    if (N == 0) { return; }
    if (classifier_forward_backward_rows(logits, losses, targets, dloss, N, V, Vp, stream)) { return; }
    classifier_general_kernel<<<grid_x(N), block_of<T>(Vp), 0, stream>>>(logits, losses, targets, dloss, V,
                                                                         Vp);
    check_launch();
}

void sum_losses(double* sum, const float* losses, int64_t N, bool accumulate, cudaStream_t stream) {
    sum_losses_kernel<<<1, kSumBlock, 0, stream>>>(sum, losses, N, accumulate);
    check_launch();
}

using bf16 = __nv_bfloat16;
template decltype(classifier_forward<float>) classifier_forward<float>;
template decltype(classifier_forward<bf16>) classifier_forward<bf16>;
template decltype(classifier_forward_backward_rows<float>) classifier_forward_backward_rows<float>;
template decltype(classifier_forward_backward_rows<bf16>) classifier_forward_backward_rows<bf16>;
template decltype(classifier_forward_backward<float>) classifier_forward_backward<float>;
template decltype(classifier_forward_backward<bf16>) classifier_forward_backward<bf16>;

}  // namespace llmc
