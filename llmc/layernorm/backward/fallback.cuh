// fallback: any C, any alignment, any stride, any GPU. Whole vectors, up to what shared memory and registers
//         of some blocks hold: cp_async_teams.cuh, cp_async_pipelined.cuh. All else in two kernels: one for the columns, and for
//         each row's sums over tiles of columns; then one that waits for nothing but memory. Short rows: it
//         has a warp per row instead.
// Why:    without clusters or TMA; a long row is never read a third time, however long it is.
// Moves:  3 N C elements, 4 N C for +=; in two kernels 5 N C, 6 N C.
// Result: sm_80 code on an H200, 2026-11-24, of the roof: 81 % at 4096x12288 fp16, 79 at 8192x32768 bf16, 85 at
//         1024x262144 bf16 (57, 52 and 50 where rows were read twice)
#pragma once
#include "llmc/cuda/column_sums.cuh"
#include "llmc/layernorm/backward/cp_async_pipelined.cuh"
#include "llmc/layernorm/backward/cp_async_teams.cuh"

namespace llmc::fallback_backward {

using layernorm::mean_of;

constexpr int kSumWarps = 8, kBlock = kSumWarps * kWarp;
constexpr int kRowsAtOnce = 4;      // rows a warp has under way
constexpr int kSumBlocks = 2048;    // of the first kernel: about
constexpr int kWarpColumns = 2048;  // of a row that a warp does alone, at most

// numbers of Acc that scratch holds, for a column
template <typename Acc>
constexpr int kScratch = 2 * kColumnGroups * sizeof(double) / sizeof(Acc);

// accesses of a lane, 32 kV columns apart: in the first kernel of each row; in the second at a time
template <int kV>
constexpr int kEach = kV == 1 ? 4 : 1;
template <int kV>
constexpr int kAtOnce = kV == 1 ? 4 : 2;
// columns of a warp in the first kernel
template <int kV>
constexpr int kTile = kEach<kV>* kV* kWarp;

struct RowRange {
    int64_t begin, end;
};

// Sums of 2 kRowsAtOnce numbers over the warp's lanes, each the same tree; lane 4 i then has the sum of number
// i. Lanes hand over the half of the numbers that others go on with: 9 shuffles, not 40.
template <typename Acc>
__device__ Acc warp_sums(Acc (&x)[2 * kRowsAtOnce]) {
    static_assert(kRowsAtOnce == 4);
    int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int distance = kWarp / 2, half = kRowsAtOnce; half > 0; distance /= 2, half /= 2) {
        bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < half; i++) {
            Acc given = upper ? x[i] : x[i + half];
            x[i] = (upper ? x[i + half] : x[i]) + __shfl_xor_sync(kAllLanes, given, distance);
        }
    }
    x[0] += __shfl_xor_sync(kAllLanes, x[0], 2);
    return x[0] + __shfl_xor_sync(kAllLanes, x[0], 1);
}

// A block sums one group's rows in a tile of columns, its warps taking kRowsAtOnce rows in turn.
// scratch: (2,groups,C) sums of dout xhat, dout by column, if `columns`; pairs (rows,tiles,2): sums of wdy,
// wdy xhat over the tile of each row, unless null.
template <int kV, typename T, typename W, typename Out>
__global__ void __launch_bounds__(kBlock)
    layernorm_backward_sums_kernel(LayerNormBackwardRows<T, W, Out> call, RowRange rows, int groups,
                                   bool columns, acc_t<T>* pairs) {
    using Acc = acc_t<T>;
    constexpr int each = kEach<kV>, width = kTile<kV>;
    __shared__ Acc of_warps[2][kSumWarps][width];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int tiles = ceil_div(call.C, width), tile = blockIdx.x % tiles;  // neighbouring blocks share rows
    int64_t group = blockIdx.x / tiles, per_group = ceil_div(rows.end - rows.begin, (int64_t)groups);
    int64_t begin = rows.begin + group * per_group, end = min(begin + per_group, rows.end);
    int first = tile * width + lane * kV;
    auto column = [&](int i) { return first + i * kWarp * kV; };
    Elements<W, kV> w[each];
#pragma unroll
    for (int i = 0; i < each; i++) {
        w[i] = load_or<kV, W>(column(i) < call.C ? call.weight : nullptr, column(i), (W)1.0f);
    }
    Acc dw[each][kV]{}, db[each][kV]{};
    for (int64_t row = begin + warp * kRowsAtOnce; row < end; row += kSumWarps * kRowsAtOnce) {
        // zeros add nothing, if xhat is finite
        Elements<T, kV> x[kRowsAtOnce][each]{};
        Elements<Out, kV> dout[kRowsAtOnce][each]{};
        Acc m[kRowsAtOnce]{}, s[kRowsAtOnce]{}, sums[2 * kRowsAtOnce]{};
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; r++) {
            if (row + r >= end) { continue; }
            m[r] = mean_of(call, row + r);
            s[r] = call.rstd[row + r];
#pragma unroll
            for (int i = 0; i < each; i++) {
                if (column(i) >= call.C) { continue; }
                x[r][i] = load<kV>(call.inp + (row + r) * call.inp_stride + column(i));
                dout[r][i] = load<kV>(call.dout + (row + r) * call.dout_stride + column(i));
            }
        }
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; r++) {
#pragma unroll
            for (int i = 0; i < each; i++) {
                Acc mean = column(i) < call.C ? m[r] : 0;
#pragma unroll
                for (int j = 0; j < kV; j++) {
                    Acc dy = as_acc<Acc>(dout[r][i], j), xhat = (as_acc<Acc>(x[r][i], j) - mean) * s[r];
                    Acc wdy = dy * as_acc<Acc>(w[i], j);
                    dw[i][j] += dy * xhat;
                    db[i][j] += dy;
                    sums[2 * r] += wdy;
                    sums[2 * r + 1] += wdy * xhat;
                }
            }
        }
        if (pairs == nullptr) { continue; }
        Acc sum = warp_sums(sums);
        int64_t its_row = row + lane / 8;  // lane 8 r + 4 which
        if (lane % 4 == 0 && its_row < end) {
            pairs[((its_row - rows.begin) * tiles + tile) * 2 + lane / 4 % 2] = sum;
        }
    }
    if (!columns) { return; }
#pragma unroll
    for (int i = 0; i < each; i++) {
#pragma unroll
        for (int j = 0; j < kV; j++) {  // column first + i kWarp kV + j, where no two lanes share a bank
            of_warps[0][warp][(i * kV + j) * kWarp + lane] = dw[i][j];
            of_warps[1][warp][(i * kV + j) * kWarp + lane] = db[i][j];
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < 2 * width; at += kBlock) {
        int which = at / width, k = at % width, c = tile * width + k;
        if (c >= call.C) { continue; }
        int place = (k / (kWarp * kV) * kV + k % kV) * kWarp + k / kV % kWarp;
        Acc sum = 0;
#pragma unroll
        for (int v = 0; v < kSumWarps; v++) { sum += of_warps[which][v][place]; }
        Acc* partial = (Acc*)call.scratch + (which * groups + group) * call.C + c;
        *partial = rows.begin > 0 ? *partial + sum : sum;
    }
}

// Writes dinp, = or +=, in k accesses from column c, step apart, below end. c1, c2: the means over the row of
// wdy, of wdy xhat. All is asked for before any of it is waited for.
template <int kV, int k, typename T, typename W, typename Out>
__device__ void write_dinp(const LayerNormBackwardRows<T, W, Out>& call, int64_t row, int64_t c, int step,
                           int64_t end, acc_t<T> m, acc_t<T> s, acc_t<T> c1, acc_t<T> c2) {
    using Acc = acc_t<T>;
    T* dinp = call.dinp + row * call.dinp_stride;
    Elements<T, kV> x[k]{};
    Elements<Out, kV> dout[k]{};
    Elements<T, kV> before[k]{};
    Elements<W, kV> w[k];
#pragma unroll
    for (int i = 0; i < k; i++) {
        int64_t at = c + i * step;
        if (at >= end) { continue; }
        x[i] = load_streaming<kV>(call.inp + row * call.inp_stride + at);
        dout[i] = load_streaming<kV>(call.dout + row * call.dout_stride + at);
        w[i] = load_or<kV, W>(call.weight, at, (W)1.0f);
        if (call.accumulate_dinp) { before[i] = load<kV>(dinp + at); }
    }
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (c + i * step >= end) { continue; }
        Acc result[kV];
#pragma unroll
        for (int j = 0; j < kV; j++) {
            Acc xhat = (as_acc<Acc>(x[i], j) - m) * s;
            Acc wdy = as_acc<Acc>(w[i], j) * as_acc<Acc>(dout[i], j);
            result[j] = (wdy - c1 - xhat * c2) * s;
            if (call.accumulate_dinp) { result[j] += as_acc<Acc>(before[i], j); }
        }
        store_streaming(dinp + c + i * step, rounded<T>(result));
        if constexpr (!std::is_same_v<T, Out>) {
            if (call.copy != nullptr) {
                store(call.copy + row * call.copy_stride + c + i * step, rounded<Out>(result));
            }
        }
    }
}

// A block writes `chunk` columns of a row whose sums over tiles are in pairs; each warp adds them for itself.
// The last rows come first: some of them are still in L2.
template <int kV, typename T, typename W, typename Out>
__global__ void __launch_bounds__(kBlock)
    layernorm_backward_dinp_kernel(LayerNormBackwardRows<T, W, Out> call, RowRange rows, int chunk, int tiles,
                                   const acc_t<T>* pairs) {
    using Acc = acc_t<T>;
    constexpr int at_once = kAtOnce<kV>, step = kBlock * kV;
    int chunks = ceil_div(call.C, chunk);
    int64_t row = rows.end - 1 - blockIdx.x / chunks, begin = (int64_t)(blockIdx.x % chunks) * chunk;
    int64_t end = min(begin + chunk, (int64_t)call.C);
    Acc m = mean_of(call, row), s = call.rstd[row], c1 = 0, c2 = 0;
#pragma unroll 4
    for (int64_t t = threadIdx.x % kWarp; t < tiles; t += kWarp) {
        auto pair = load<2>(pairs + ((row - rows.begin) * tiles + t) * 2);
        c1 += pair.at[0];
        c2 += pair.at[1];
    }
    c1 = call.rms ? Acc(0) : warp_sum(c1) / call.C;
    c2 = warp_sum(c2) / call.C;
    for (int64_t from = begin + threadIdx.x * kV; from < end; from += at_once * step) {
        write_dinp<kV, at_once>(call, row, from, step, end, m, s, c1, c2);
    }
}

// a warp per row, which it reads twice
template <int kV, typename T, typename W, typename Out>
__global__ void __launch_bounds__(kBlock)
    layernorm_backward_short_kernel(LayerNormBackwardRows<T, W, Out> call) {
    using Acc = acc_t<T>;
    int lane = threadIdx.x % kWarp, C = call.C;
    int64_t row = ((int64_t)blockIdx.x * kBlock + threadIdx.x) / kWarp;
    if (row >= call.N) { return; }
    const T* x = call.inp + row * call.inp_stride;
    const Out* dout = call.dout + row * call.dout_stride;
    Acc m = mean_of(call, row), s = call.rstd[row], c1 = 0, c2 = 0;
#pragma unroll 4
    for (unsigned c = lane * kV; c < (unsigned)C; c += kWarp * kV) {
        auto a = load<kV>(x + c);
        auto d = load<kV>(dout + c);
        auto w = load_or<kV, W>(call.weight, c, (W)1.0f);
#pragma unroll
        for (int j = 0; j < kV; j++) {
            Acc xhat = (as_acc<Acc>(a, j) - m) * s, wdy = as_acc<Acc>(w, j) * as_acc<Acc>(d, j);
            c1 += wdy;
            c2 += wdy * xhat;
        }
    }
    c1 = call.rms ? Acc(0) : warp_sum(c1) / C;
    c2 = warp_sum(c2) / C;
    constexpr int at_once = kAtOnce<kV>;
    for (int64_t at = lane * kV; at < C; at += at_once * kWarp * kV) {
        write_dinp<kV, at_once>(call, row, at, kWarp * kV, C, m, s, c1, c2);
    }
}

// The columns first: dinp may take dout's place.
template <int kV, typename T, typename W, typename Out>
int launch_two(const LayerNormBackwardRows<T, W, Out>& call, cudaStream_t stream) {
    using Acc = acc_t<T>;
    // does the first kernel leave sums of rows, too? (Who wants no columns may give no scratch.)
    bool in_tiles = call.dinp != nullptr && call.C > kWarpColumns && call.scratch != nullptr;
    int tiles = (int)ceil_div((int64_t)call.C, (int64_t)kTile<kV>);
    int groups = std::clamp(ceil_div(kSumBlocks, tiles), 1, kScratch<Acc> / (in_tiles ? 4 : 2));
    Acc* pairs = in_tiles ? (Acc*)call.scratch + (int64_t)2 * groups * call.C : nullptr;
    // rows at a time: scratch holds no more sums of rows beside the groups
    int64_t at_most = in_tiles ? (int64_t)(kScratch<Acc> - 2 * groups) * call.C / (2 * tiles) : call.N;
    int64_t piece =
        kAtOnce<kV> * kV * kBlock;  // columns of a block of the second kernel: this, or 4 times this
    for (RowRange rows{0, 0}; rows.end < call.N; rows.begin = rows.end) {
        rows.end = std::min(rows.begin + at_most, call.N);
        if (call.columns || in_tiles) {
            unsigned grid = grid_x((int64_t)tiles * groups);
            layernorm_backward_sums_kernel<kV>
                <<<grid, kBlock, 0, stream>>>(call, rows, groups, call.columns, pairs);
            check_launch();
        }
        if (in_tiles) {
            int64_t pieces = (rows.end - rows.begin) * ceil_div((int64_t)call.C, piece);
            int chunk = (int)std::min<int64_t>(call.C, pieces > 4 * 4096 ? 4 * piece : piece);
            unsigned grid = grid_x((rows.end - rows.begin) * ceil_div(call.C, chunk));
            layernorm_backward_dinp_kernel<kV><<<grid, kBlock, 0, stream>>>(call, rows, chunk, tiles, pairs);
            check_launch();
        }
    }
    if (call.dinp != nullptr && !in_tiles) {
        unsigned grid = grid_x(ceil_div(call.N, (int64_t)kSumWarps));
        layernorm_backward_short_kernel<kV><<<grid, kBlock, 0, stream>>>(call);
        check_launch();
    }
    return groups;
}

template <bool kAccumulate, typename T, typename W>
ColumnGroups launch_one(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream) {
    if constexpr (std::is_same_v<T, W>) {  // weights of another type are rare
        if (choice.kernel == Kernel::kCpAsyncPipelined) {
            return cp_async_pipelined::launch<kAccumulate>(call, choice, stream);
        }
    }
    return cp_async_teams::launch<kAccumulate>(call, choice, stream);
}

template <typename T, typename W, typename Out>
ColumnGroups launch(const LayerNormBackwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream) {
    if (choice.kernel == Kernel::kFallback) {
        return {choice.piece > 1 ? launch_two<Vec<T>::size>(call, stream) : launch_two<1>(call, stream)};
    }
    if constexpr (!std::is_same_v<T, double> && std::is_same_v<T, Out>) {
        return call.accumulate_dinp ? launch_one<true>(call, choice, stream)
                                    : launch_one<false>(call, choice, stream);
    }
    return {};
}

}  // namespace llmc::fallback_backward
