// long: a row is shared by the blocks of a cluster; each warp's parts of inp and dout come into a ring of its
//       own, and stay there for both halves of a row. While warps exchange a row's sums they begin with the
//       next row.
// Why:  `ring` holds a row in registers between the halves: 16 blocks have room for 131072 columns.
// Moves: inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 16 bytes a column and
//        cluster.
// Result: 595 us, 62 % of the roof at 512x262144 fp32; H200, 2026-11-21
#include "llmc/layernorm_backward/regimes.h"
#include "llmc/layernorm_cluster.cuh"
#include "llmc/layernorm_rows.cuh"

namespace llmc::layernorm_long_backward {

using namespace layernorm_cluster;

constexpr int kBlockWarps = 16;  // 128 registers a thread: half of them hold the sums of its columns
constexpr int kShort = 16384;    // columns: no use for shorter rows, whoever asks

// How a type's rows are cut: n columns a vector, k vectors a lane, kVectors of them a chunk (as many as
// registers allow, as every chunk costs instructions), kChunks a row; kAhead chunks of the next row are read
// while warps exchange. 192 KB of ring hold three 16-bit rows of 16384 columns, or one and a half of floats.
template <bool kAccumulate, typename T>
struct Cut {
    static constexpr int n = Vec<T>::size, k = kLaneColumns / n;
    static constexpr int kVectors = sizeof(T) == 2 && !kAccumulate ? 4 : 2, kChunks = k / kVectors;
    static constexpr int kAhead = sizeof(T) == 2 ? kChunks : 1, kMostSlots = 12 / kVectors;
    using Ring = WarpRing<2, kVectors, T>;
};
template <bool kAccumulate, typename T>
using Ring = typename Cut<kAccumulate, T>::Ring;

// What a lane keeps of all its rows. Weights of 16 bits wait in registers, packed; floats come from L2.
template <typename T, typename W>
struct Kept {
    static constexpr int n = Vec<T>::size, k = kLaneColumns / n;
    static constexpr bool kWeights = sizeof(W) == 2;
    float dweight[k][n]{}, dbias[k][n]{};
    uint4 weight[kWeights ? k : 1];  // n each

    __device__ Elements<W, n> weights(int i) {
        forget(weight[i]);
        return reinterpret_cast<const Elements<W, n>&>(weight[i]);
    }
};

// of the lane's vector i; in words, else the compiler handles elements of 16 bits one by one
template <typename T, typename W>
__device__ Elements<W, Vec<T>::size> load_weight(const LayerNormBackwardRows<T, W>& call, const Place& at,
                                                 int i) {
    constexpr int n = Vec<T>::size;
    Elements<W, n> weight;
#pragma unroll
    for (int j = 0; j < n; j++) { weight.at[j] = (W)1.0f; }
    forget(weight);
    unsigned c = at.begin + (i * kWarp + Place::lane()) * n;
    forget(c);
    if (call.weight != nullptr && at.has(i, n)) { weight = load<n>(call.weight + c); }
    return weight;
}

template <typename T, typename W>
__device__ void load_weights(Kept<T, W>& kept, const LayerNormBackwardRows<T, W>& call, const Place& at) {
#pragma unroll
    for (int i = 0; i < Kept<T, W>::k; i++) {
        auto weight = load_weight<T, W>(call, at, i);
        kept.weight[i] = reinterpret_cast<const uint4&>(weight);
    }
}

// of a row; zeros where there is none
struct Statistics {
    float mean = 0, rstd = 0;

    template <typename Call>
    __device__ Statistics(const Call& call, int row) {
        if (row >= (int)call.N) { return; }
        mean = call.mean[row];
        rstd = call.rstd[row];
    }
};

// fetched to L2 for a load that comes later; as bulk_copy
__device__ inline void bulk_prefetch(const void* global, uint32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// One lane: asks for the stage that comes `ahead` chunks after the beginning of `row`, over the row's chunks,
// then over the team's rows; if there is one. For += of dinp it will be wanted too.
template <bool kAccumulate, typename T, typename W>
__device__ void fetch(const Ring<kAccumulate, T>& ring, int slot, int row, unsigned ahead,
                      const LayerNormBackwardRows<T, W>& call, const Layout& o, const Place& at) {
    constexpr unsigned kColumns = Ring<kAccumulate, T>::kColumns, kChunks = Cut<kAccumulate, T>::kChunks;
    forget(ahead);
    int64_t from = row + (int)(ahead / kChunks) * o.step;
    if (from >= (int)call.N) { return; }
    unsigned skip = ahead % kChunks * kColumns, begin = at.begin + skip;
    int columns = min(at.left - (int)skip, (int)kColumns);
    ring.fetch(slot, {call.inp + from * call.inp_stride + begin, call.dout + from * call.dout_stride + begin},
               columns);
    if (kAccumulate && columns > 0) {
        bulk_prefetch(call.dinp + from * call.dinp_stride + begin, columns * (uint32_t)sizeof(T));
    }
}

// First half of a row, for one chunk: adds to the lane's sums of wdy and wdy xhat, and to those by
// column. Floats leave wdy in dout's place.
template <bool kAccumulate, typename T, typename W>
__device__ void first_half(float2& sums, Kept<T, W>& kept, const Ring<kAccumulate, T>& ring, Cursor stage_at,
                           const LayerNormBackwardRows<T, W>& call, const Place& at, int chunk,
                           const Statistics& row) {
    using C = Cut<kAccumulate, T>;
    constexpr int n = C::n;
    Elements<W, n> weight[C::kVectors];
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        int i = chunk * C::kVectors + v;
        if constexpr (Kept<T, W>::kWeights) {
            weight[v] = kept.weights(i);
        } else if constexpr (sizeof(T) == 4) {
            weight[v] = load_weight<T, W>(call, at, i);  // on its way while the stage may be, too
        }
    }
    T* stage = ring.wait(stage_at);
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        int i = chunk * C::kVectors + v;
        if (!at.has(i, n)) { continue; }
        if constexpr (!Kept<T, W>::kWeights && sizeof(T) == 2) { weight[v] = load_weight<T, W>(call, at, i); }
        auto a = ring.vector(stage, 0, v), d = ring.vector(stage, 1, v);
#pragma unroll
        for (int j = 0; j < n; j++) {
            float dy = as_float(d, j), product = dy * ((as_float(a, j) - row.mean) * row.rstd);
            float w = as_float(weight[v], j);
            kept.dweight[i][j] += product;
            kept.dbias[i][j] += dy;
            sums.x += w * dy;
            sums.y += w * product;
            if constexpr (sizeof(T) == 4) { d.at[j] = w * dy; }
        }
        if constexpr (sizeof(T) == 4) { store(ring.place(stage, 1, v), d); }
    }
}

// Second half, for one chunk: dinp from the row's sums; dinp: the lane's first column.
template <bool kAccumulate, typename T, typename W>
__device__ void second_half(T* dinp, const T* stage, Kept<T, W>& kept, const Ring<kAccumulate, T>& ring,
                            const LayerNormBackwardRows<T, W>& call, const Place& at, int chunk,
                            const Statistics& row, float c1s, float c2s) {
    using C = Cut<kAccumulate, T>;
    constexpr int n = C::n;
#pragma unroll
    for (int v = 0; v < C::kVectors; v++) {
        int i = chunk * C::kVectors + v;
        if (!at.has(i, n)) { continue; }
        Elements<T, n> before;  // dinp as it was
        if constexpr (kAccumulate) { before = load<n>(dinp + i * kWarp * n); }
        auto a = ring.vector(stage, 0, v), d = ring.vector(stage, 1, v);
        Elements<W, n> weight;
        if constexpr (sizeof(T) == 2 && Kept<T, W>::kWeights) {
            weight = kept.weights(i);
        } else if constexpr (sizeof(T) == 2) {
            weight = load_weight<T, W>(call, at, i);
        }
        float result[n];
#pragma unroll
        for (int j = 0; j < n; j++) {
            float from_mean = as_float(a, j) - row.mean, wdy = as_float(d, j);
            if constexpr (sizeof(T) == 2) { wdy *= as_float(weight, j); }
            result[j] = fmaf(fmaf(from_mean, c2s, wdy), row.rstd, c1s);
            if constexpr (kAccumulate) { result[j] += as_float(before, j); }
        }
        store(dinp + i * kWarp * n, rounded<T>(result));
    }
}

// the sum of the pairs of all warps of a row, the same in each lane
__device__ inline float2 add_up(const float2* pairs, int count) {
    float2 sum{0, 0};
#pragma unroll 4
    for (int i = Place::lane(); i < count; i += kWarp) {
        sum.x += pairs[i].x;
        sum.y += pairs[i].y;
    }
    return {warp_sum(sum.x), warp_sum(sum.y)};
}

// The teams' sums over their rows, one team after the other, through `of_teams` (2, slice) in shared memory,
// then to the partial sums of this cluster's rows: (2, clusters, C).
template <typename T, typename W>
__device__ void write_partial(float* partial, float* of_teams, const Kept<T, W>& kept, const Place& at,
                              const Layout& o, int C) {
    constexpr int n = Vec<T>::size;
    int first = Place::warp(o) * kWarpColumns + Place::lane() * n;  // in the slice
    partial += (int64_t)(blockIdx.x / o.blocks) * C + at.begin + Place::lane() * n;
#pragma unroll 1
    for (int t = 0; t < o.teams; t++) {
        __syncthreads();
        if (Place::team(o) != t) { continue; }
        bool last = t + 1 == o.teams;
#pragma unroll
        for (int i = 0; i < Kept<T, W>::k; i++) {
            if (!at.has(i, n)) { continue; }
#pragma unroll
            for (int j = 0; j < n; j += 4) {
                int c = i * kWarp * n + j;
#pragma unroll
                for (int which = 0; which < 2; which++) {
                    float* through = of_teams + which * o.slice + first + c;
                    Elements<float, 4> sum{};
                    if (t > 0) { sum = load<4>(through); }
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        sum.at[e] += which == 0 ? kept.dweight[i][j + e] : kept.dbias[i][j + e];
                    }
                    if (last) {
                        store(partial + (which == 0 ? 0 : (int64_t)o.clusters * C) + c, sum);
                    } else {
                        store(through, sum);
                    }
                }
            }
        }
    }
}

template <bool kAccumulate, typename T, typename W>
__device__ void backward_rows(const LayerNormBackwardRows<T, W>& call, const Layout& o) {
    using C = Cut<kAccumulate, T>;
    constexpr int n = C::n;
    extern __shared__ __align__(128) unsigned char shared[];
    Areas areas = areas_of(o, C::Ring::kStageBytes, 0);
    Place at(o, call.C, n);
    typename C::Ring ring(shared, areas, o);
    Exchange exchange(shared, areas, o);
    for (int s = 0; s < o.slots && Place::lane() == 0; s++) {
        fetch<kAccumulate>(ring, s, at.row, s, call, o, at);
    }
    Kept<T, W> kept;
    if constexpr (Kept<T, W>::kWeights) { load_weights(kept, call, at); }
    __syncwarp();
    cluster_sync();  // barriers are there, in every block

    Cursor cursor;  // of the row's first chunk
    Statistics now(call, at.row), next(call, at.row + o.step);
    float2 ahead{0, 0};  // sums of the chunks of the next row that were read ahead
#pragma unroll
    for (int c = 0; c < C::kAhead; c++) {
        if (at.row >= (int)call.N) { continue; }
        first_half<kAccumulate>(ahead, kept, ring, cursor.on(c, o.slots), call, at, c, now);
    }
    unsigned turn = 0;
    for (int row = at.row; row < (int)call.N; row += o.step, turn++) {
        float2 sums = ahead;
#pragma unroll
        for (int c = C::kAhead; c < C::kChunks; c++) {
            first_half<kAccumulate>(sums, kept, ring, cursor.on(c, o.slots), call, at, c, now);
        }
        exchange.send(turn, {warp_sum(sums.x), warp_sum(sums.y)});
        ahead = {0, 0};
#pragma unroll
        for (int c = 0; c < C::kAhead; c++) {
            if (row + o.step >= (int)call.N) { continue; }
            first_half<kAccumulate>(ahead, kept, ring, cursor.on(C::kChunks + c, o.slots), call, at, c, next);
        }
        sums = add_up(exchange.wait(turn), exchange.count);
        T* dinp = call.dinp + row * call.dinp_stride + (at.begin + Place::lane() * n);
        float c1s = -sums.x * o.per_column * now.rstd, c2s = -sums.y * o.per_column * now.rstd;
#pragma unroll
        for (int c = 0; c < C::kChunks; c++) {
            int slot = cursor.on(c, o.slots).slot(o.slots);
            second_half<kAccumulate>(dinp, ring.stage(slot), kept, ring, call, at, c, now, c1s, c2s);
            ring.leave();
            if (Place::lane() == 0) { fetch<kAccumulate>(ring, slot, row, c + o.slots, call, o, at); }
        }
        cursor = cursor.on(C::kChunks, o.slots);
        now = next;
        next = Statistics(call, row + 2 * o.step);  // wanted when the sums of the next row are on their way
    }
    dependency_launch();  // the kernel that adds the partial sums may come and wait
    write_partial(reinterpret_cast<float*>(call.scratch), reinterpret_cast<float*>(shared), kept, at, o,
                  call.C);
    __syncwarp();
    cluster_sync();  // nobody leaves while pairs may still be sent to it
}

template <bool kAccumulate, typename T, typename W>
__global__ __launch_bounds__(kBlockWarps* kWarp,
                             1) void layernorm_backward_kernel(LayerNormBackwardRows<T, W> call, Layout o) {
    if constexpr (kSm90) { backward_rows<kAccumulate>(call, o); }
}

// the more blocks, the fewer clusters and partial sums; clusters of 16 leave more SMs idle
inline int blocks_of(int C) {
    return C <= 8 * (kMostSlice / 2) ? 8 : C <= kMostBlocks * kMostSlice ? kMostBlocks : 0;
}

template <bool kAccumulate, typename T, typename W>
int launch(const LayerNormBackwardRows<T, W>& call, int blocks, cudaStream_t stream) {
    constexpr int kStage = Ring<kAccumulate, T>::kStageBytes;
    Layout o = layout_of(call.C, blocks, kBlockWarps);
    o.slots = slots_of(o, kStage, 0, Cut<kAccumulate, T>::kMostSlots);
    return launch_clusters(layernorm_backward_kernel<kAccumulate, T, W>, call, o,
                           areas_of(o, kStage, 0).total, stream);
}

}  // namespace llmc::layernorm_long_backward

namespace llmc {

template <typename T, typename W>
ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_long_backward;
    int blocks = blocks_of(call.C);
    if (blocks == 0 || call.C <= kShort || call.N > kMostRows || call.dinp == nullptr ||
        !rows_are_vectors(call)) {
        return {};
    }
    return {call.accumulate_dinp ? launch<true>(call, blocks, stream) : launch<false>(call, blocks, stream),
            true};
}

using bf16 = __nv_bfloat16;
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<float, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<bf16, bf16>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<bf16, float>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<__half, __half>&, cudaStream_t);
template ColumnGroups layernorm_backward_long(const LayerNormBackwardRows<__half, float>&, cudaStream_t);

}  // namespace llmc
