// long: a row is shared by the blocks of a cluster; each warp's part of the rows to come is on its way into a
//       ring while this row is in registers. Two or more teams of warps a block, each with a row of its own.
// Why:  in `registers` a long row's load, exchange and store follow one another, with nothing else on the SM.
//       Weight and bias wait in shared memory: from L2 they would be as much traffic as the rows.
// Moves: a row once in, once out: 2 N C elements; 4 N C with a residual.
// Result: 295 us, 86 % of the roof at 8192x32768 bf16; 83 % at 512x262144 fp32; H200, 2026-11-21
#include "llmc/layernorm_cluster.cuh"
#include "llmc/layernorm_forward/regimes.h"
#include "llmc/layernorm_rows.cuh"

namespace llmc::layernorm_long_forward {

using namespace layernorm_cluster;

constexpr int kBlockWarps = 32;     // 64 registers a thread
constexpr int kMostRing = 4 << 10;  // bytes of a warp's ring: 128 KB on their way to an SM

// The ring of a kernel. A stage is a warp's part of a 16-bit row at once, 2 KB, as instructions are scarce
// there; of floats a quarter of it; of two streams a chunk of a vector a lane each.
template <bool kResidual, typename T>
constexpr int kStageVectors = kResidual        ? 1
                              : sizeof(T) == 2 ? 4
                                               : 2;
template <bool kResidual, typename T>
using Ring = WarpRing<kResidual ? 2 : 1, kStageVectors<kResidual, T>, T>;

// what a lane holds of a row: its vectors i * 32 + lane, i < k, of the warp's part
template <typename T>
struct Row {
    static constexpr int n = Vec<T>::size, k = kLaneColumns / n;
    Elements<T, n> at[k];
};

// A block's slice of weight and bias in shared memory, in units of 16 bytes: for each 32 vectors, which the
// lanes of a warp read at once, the units of weight, then those of bias: (vectors / 32, 2, kUnits, 32).
template <int n, typename W>
struct Parameters {
    static constexpr int kUnit = 16 / sizeof(W), kUnits = n / kUnit;  // columns of one; units of a vector
    W* memory;

    __device__ void fill(const W* given, int is_bias, float otherwise, int begin, int columns) const {
        for (int c = threadIdx.x * kUnit; c < columns; c += blockDim.x * kUnit) {
            int v = c / n, unit = (v / kWarp * 2 + is_bias) * kUnits + c / kUnit % kUnits;
            store(memory + (unit * kWarp + v % kWarp) * kUnit,
                  load_or<kUnit, W>(given, begin + c, (W)otherwise));
        }
    }
    // of the warp whose first is `memory`
    __device__ Elements<W, n> vector(int i, int is_bias) const {
        Elements<W, n> x;
#pragma unroll
        for (int h = 0; h < kUnits; h++) {
            auto unit = load<kUnit>(memory + ((i * 2 + is_bias) * kUnits + h) * kWarp * kUnit);
#pragma unroll
            for (int j = 0; j < kUnit; j++) { x.at[h * kUnit + j] = unit.at[j]; }
        }
        return x;
    }
    // of a lane: vector(i) is its ith
    __device__ Parameters of_lane(int warp, int lane) const {
        return {memory + warp * 2 * kWarpColumns + lane * kUnit};
    }
};

// A block's shared memory begins with what the merging of its warps needs: (columns, 1 / columns) of each
// warp of a row. Then parameters, for whole warps.
struct Counts {
    float2 of_warp[kMostBlocks * kMostSlice / kWarpColumns];
};
template <typename W>
__host__ __device__ int own_bytes(const Layout& o) {
    return (int)sizeof(Counts) + o.warps * kWarpColumns * 2 * (int)sizeof(W);
}

// One lane: asks for the stage that comes `ahead` chunks after the beginning of `row`, over the row's chunks,
// then over the team's rows; if there is one.
template <bool kResidual, typename T, typename W>
__device__ void fetch(const Ring<kResidual, T>& ring, int slot, int row, unsigned ahead,
                      const LayerNormForward<T, W>& call, const Layout& o, const Place& at) {
    constexpr unsigned kColumns = Ring<kResidual, T>::kColumns, kChunks = kWarpColumns / kColumns;
    forget(ahead);  // else the numbers of every unrolled chunk wait in registers
    int from = row + (int)(ahead / kChunks) * o.step;
    if (from >= (int)call.N) { return; }
    unsigned skip = ahead % kChunks * kColumns;
    const T* x = call.inp + (int64_t)from * call.inp_stride + (at.begin + skip);
    if constexpr (kResidual) {
        const T* x2 = call.inp2 + (int64_t)from * call.inp2_stride + (at.begin + skip);
        ring.fetch(slot, {x, x2}, at.left - (int)skip);
    } else {
        ring.fetch(slot, {x}, at.left - (int)skip);
    }
}

// The first elements of a row's inputs, asked for a row ahead. As the shift of the whole row their sum makes differences
// of numbers near one another, and exact zeros of a constant row.
template <bool kResidual, typename T>
struct First {
    T inp, inp2;

    template <typename W>
    __device__ First(const LayerNormForward<T, W>& call, int64_t row) {
        if (row >= call.N) { return; }
        inp = call.inp[row * call.inp_stride];
        if constexpr (kResidual) { inp2 = call.inp2[row * call.inp2_stride]; }
    }
    __device__ float shift() const { return kResidual ? (float)(T)((float)inp + (float)inp2) : (float)inp; }
};

// x = this lane's part of a row, or of the rounded sum of two; every stage is refilled once it is read
template <bool kResidual, typename T, typename W>
__device__ void read_row(Row<T>& x, int row, const Ring<kResidual, T>& ring, Cursor& cursor,
                         const LayerNormForward<T, W>& call, const Layout& o, const Place& at) {
    constexpr int n = Row<T>::n, kVectors = kStageVectors<kResidual, T>;
#pragma unroll
    for (int first = 0; first < Row<T>::k; first += kVectors) {
        const T* stage = ring.wait(cursor);
#pragma unroll
        for (int i = 0; i < kVectors; i++) {
            auto a = ring.vector(stage, 0, i);
            if constexpr (kResidual) {
                auto b = ring.vector(stage, 1, i);
                float sum[n];
#pragma unroll
                for (int j = 0; j < n; j++) { sum[j] = as_float(a, j) + as_float(b, j); }
                a = rounded<T>(sum);
            }
            x.at[first + i] = a;
        }
        ring.leave();
        if (Place::lane() == 0) {
            fetch<kResidual>(ring, cursor.slot(o.slots), row, first / kVectors + o.slots, call, o, at);
        }
        cursor = cursor.on(1, o.slots);
    }
}

// (mean less shift, squares about it) of the warp's part of the row, by two passes; count: (columns, 1 /
// columns). kChoose: vectors that a lane does not have are added up too, but not in: fewer instructions than
// branches, but more registers.
template <bool kChoose, typename T>
__device__ float2 moments_of_warp(Row<T>& x, float shift, const Place& at, const float2& count) {
    constexpr int n = Row<T>::n;
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < Row<T>::k; i++) {
        if (!kChoose && !at.has(i, n)) { continue; }
        float part = 0;
#pragma unroll
        for (int j = 0; j < n; j++) { part += as_float(x.at[i], j) - shift; }
        sum += at.has(i, n) ? part : 0.0f;
    }
    forget(x);
    float m = warp_sum(sum) * count.y, centre = shift + m, off = 0;
    if constexpr (sizeof(T) == 2) {
        off = m - (centre -
                   shift);  // what the centre's rounding lost: far less than elements of 16 bits differ by
    }
#pragma unroll
    for (int i = 0; i < Row<T>::k; i++) {
        if (!kChoose && !at.has(i, n)) { continue; }
        float part = 0;
#pragma unroll
        for (int j = 0; j < n; j++) {
            float d = sizeof(T) == 2 ? as_float(x.at[i], j) - centre : (as_float(x.at[i], j) - shift) - m;
            part += d * d;
        }
        squares += at.has(i, n) ? part : 0.0f;
    }
    forget(x);
    squares = warp_sum(squares) - count.x * off * off;
    return {m, squares < 0 ? 0.0f : squares};  // a NaN stays one
}

// of the whole row, from those of its warps. Chan et al. 1983.
__device__ inline float2 merge(const float2* of_warp, const float2* counts, int warps, float per_column) {
    // the mean first, about warp 0's: for equal means it is exact
    float sum = 0, squares = 0, m0 = of_warp[0].x;
#pragma unroll 1
    for (int w = threadIdx.x % kWarp; w < warps; w += kWarp) { sum += counts[w].x * (of_warp[w].x - m0); }
    float d0 = warp_sum(sum) * per_column;
#pragma unroll 1
    for (int w = threadIdx.x % kWarp; w < warps; w += kWarp) {
        float d = (of_warp[w].x - m0) - d0;
        squares += of_warp[w].y + counts[w].x * d * d;
    }
    return {m0 + d0, warp_sum(squares)};
}

// out from (mean less shift, variance); and the residual: only now, as it may take the place of an input
// whose first element others ask for
template <bool kResidual, typename T, typename W>
__device__ void write_row(const Row<T>& x, const LayerNormForward<T, W>& call, int64_t row, const Place& at,
                          const Parameters<Row<T>::n, W>& parameters, float2 moments, float shift) {
    constexpr int n = Row<T>::n;
    float s = rsqrtf(moments.y + (float)call.eps), ms = -moments.x * s;
    int lane = Place::lane();
    if (at.begin == 0 && lane == 0) {
        if (call.mean != nullptr) { call.mean[row] = shift + moments.x; }
        if (call.rstd != nullptr) { call.rstd[row] = s; }
    }
    T* out = call.out + row * call.out_stride + (at.begin + lane * n);
#pragma unroll
    for (int i = 0; i < Row<T>::k; i++) {
        if (!at.has(i, n)) { continue; }
        if constexpr (kResidual) {
            T* residual = call.residual + row * call.residual_stride + (at.begin + lane * n);
            store_streaming(residual + i * kWarp * n, x.at[i]);
        }
        auto w = parameters.vector(i, 0), b = parameters.vector(i, 1);
        float y[n];
#pragma unroll
        for (int j = 0; j < n; j++) {
            float xhat = fmaf(as_float(x.at[i], j) - shift, s, ms);  // (x - mean) s, of small numbers
            y[j] = fmaf(xhat, as_float(w, j), as_float(b, j));
        }
        store_streaming(out + i * kWarp * n, rounded<T>(y));
    }
}

template <bool kResidual, typename T, typename W>
__device__ void forward_rows(const LayerNormForward<T, W>& call, const Layout& o) {
    constexpr int n = Row<T>::n;
    constexpr bool kChoose = sizeof(T) == 2 && !kResidual;
    extern __shared__ __align__(128) unsigned char shared[];
    Areas areas = areas_of(o, Ring<kResidual, T>::kStageBytes, own_bytes<W>(o));
    Place at(o, call.C, n);
    Ring<kResidual, T> ring(shared, areas, o);
    Exchange exchange(shared, areas, o);
    for (int s = 0; s < o.slots && Place::lane() == 0; s++) {
        fetch<kResidual>(ring, s, at.row, s, call, o, at);
    }
    Parameters<n, W> parameters{reinterpret_cast<W*>(shared + sizeof(Counts))};
    int begin = (int)cluster_rank() * o.slice, columns = min(o.slice, call.C - begin);
    parameters.fill(call.weight, 0, 1.0f, begin, columns);
    parameters.fill(call.bias, 1, 0.0f, begin, columns);
    float2* counts = reinterpret_cast<Counts*>(shared)->of_warp;
    for (int i = threadIdx.x; i < exchange.count; i += blockDim.x) {
        float columns = (float)columns_of(o, call.C, i / o.warps, i % o.warps);
        counts[i] = {columns, 1 / fmaxf(columns, 1)};
    }
    __syncwarp();
    cluster_sync();  // barriers are there, in every block; parameters too

    parameters = parameters.of_lane(Place::warp(o), Place::lane());
    Cursor cursor;
    unsigned turn = 0;
    First<kResidual, T> first(call, at.row);
    for (int row = at.row; row < (int)call.N; row += o.step, turn++) {
        First<kResidual, T> next(call, row + o.step);
        Row<T> x;
        read_row<kResidual>(x, row, ring, cursor, call, o, at);
        float shift = first.shift();
        exchange.send(turn, moments_of_warp<kChoose>(x, shift, at, counts[exchange.mine]));
        float2 moments = merge(exchange.wait(turn), counts, exchange.count, o.per_column);
        moments.y *= o.per_column;
        write_row<kResidual>(x, call, row, at, parameters, moments, shift);
        first = next;
    }
    __syncwarp();
    cluster_sync();  // nobody leaves while pairs may still be sent to it
}

template <bool kResidual, typename T, typename W>
__global__ __launch_bounds__(kBlockWarps* kWarp, 1) void layernorm_forward_kernel(LayerNormForward<T, W> call,
                                                                                  Layout o) {
    if constexpr (kSm90) { forward_rows<kResidual>(call, o); }
}

// the fewest blocks whose slices fit: the more, the longer the exchange, and the fewer SMs clusters fill
inline int blocks_of(int C) {
    int blocks = 1;
    while (blocks < kMostBlocks && C > blocks * kMostSlice) { blocks *= 2; }
    return C <= blocks * kMostSlice ? blocks : 0;
}

template <bool kResidual, typename T, typename W>
bool launch(const LayerNormForward<T, W>& call, int blocks, cudaStream_t stream) {
    constexpr int kStage = Ring<kResidual, T>::kStageBytes;
    Layout o = layout_of(call.C, blocks, kBlockWarps);
    o.slots = slots_of(o, kStage, own_bytes<W>(o), kMostRing / kStage);
    return launch_clusters(layernorm_forward_kernel<kResidual, T, W>, call, o,
                           areas_of(o, kStage, own_bytes<W>(o)).total, stream) > 0;
}

}  // namespace llmc::layernorm_long_forward

namespace llmc {

template <typename T, typename W>
bool layernorm_forward_long(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_long_forward;
    constexpr int kShort = (32 << 10) / sizeof(T);  // 32 KB: up to here the registers of a block hold a row
    int blocks = blocks_of(call.C);
    if (blocks == 0 || call.C <= kShort || call.N > kMostRows || !rows_are_vectors(call)) { return false; }
    return call.residual != nullptr ? launch<true>(call, blocks, stream)
                                    : launch<false>(call, blocks, stream);
}

using bf16 = __nv_bfloat16;
template bool layernorm_forward_long(const LayerNormForward<float, float>&, cudaStream_t);
template bool layernorm_forward_long(const LayerNormForward<bf16, bf16>&, cudaStream_t);
template bool layernorm_forward_long(const LayerNormForward<bf16, float>&, cudaStream_t);
template bool layernorm_forward_long(const LayerNormForward<__half, __half>&, cudaStream_t);
template bool layernorm_forward_long(const LayerNormForward<__half, float>&, cudaStream_t);

}  // namespace llmc
