// short_rows: several short rows a warp. A lane has a vector of each of its rows, or, where rows are not whole aligned
//         vectors, a few pieces: halves of one, quarters, down to single elements; and keeps their sums by column.
// Why:    team_ring.cuh gives a row a warp: of 64 columns of 16 bits 24 lanes of 32 have nothing. fallback.cuh reads what is
//         not in vectors twice.
// Moves:  inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 8 bytes a column and block.
// Result: 51.9 us, 91 % of the roof at 524288x64 bf16 (a warp a row: 169.8); 73 % at 262144x100 (189.1, 20 % by
//         fallback.cuh); H200, 2026-11-24
#pragma once
#include "llmc/layernorm/backward/rows.cuh"

namespace llmc::short_rows_backward {

using namespace layernorm;

// A row is shared by `lanes` neighbouring lanes, which have k pieces each, of n elements, `step` apart: one if these are
// vectors, else as many as registers allow. A lane asks for rows ahead, `under_way` at a time.
template <int lanes_, int n_, bool kVectors>
struct Layout {
    static constexpr int lanes = lanes_, n = n_, k = kVectors ? 1 : layouts::pieces_of_lane(n);
    static constexpr int step = lanes * n, columns = step * k;
    static constexpr int threads = kVectors ? 768 : 1024, warps = threads / kWarp,
                         under_way = kVectors ? 2 : 1;
};

template <typename L>
struct Columns {
    int first, C;
    __device__ int at(int i) const { return first + i * L::step; }
    __device__ bool has(int i) const { return at(i) < C; }
};

template <typename L, typename T, bool kAccumulate>
struct Pieces {
    // What += adds to is asked for with the rest; where that would spill, before Hopper, once it is wanted.
    static constexpr bool kAhead = kAccumulate && (kSm90 || L::k == 1), kLate = kAccumulate && !kAhead;
    Elements<T, L::n> x[L::k]{}, dy[L::k]{}, before[L::k]{};  // before: what += adds to
    float m = 0, s = 0;  // all 0 where the lane has nothing of the row, or there is no such row

    template <typename Call>
    __device__ void load(const Call& call, int64_t row, const Columns<L>& columns) {
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            if (!columns.has(i)) { continue; }
            x[i] = llmc::load<L::n>(call.inp + row * call.inp_stride + columns.at(i));
            dy[i] = llmc::load<L::n>(call.dout + row * call.dout_stride + columns.at(i));
            if constexpr (kAhead) {
                before[i] = llmc::load<L::n>(call.dinp + row * call.dinp_stride + columns.at(i));
            }
        }
        m = mean_of(call, row);
        s = call.rstd[row];
    }
};

// what a lane has of the weight, or of a row of dinp
template <typename L, typename X>
struct Held {
    Elements<X, L::n> at[L::k];
};

// the sums by column that a lane keeps, for dweight, for dbias
template <typename L>
using Sums = float[2][L::k][L::n];

// dinp of a lane's pieces, and its part of the sums by column. All lanes of a warp; row_before: that of dinp,
// null if there is none.
template <typename L, bool kAccumulate, typename T, typename W>
__device__ Held<L, T> backward_row(const Pieces<L, T, kAccumulate>& row, const T* row_before,
                                   const Columns<L>& columns, const Held<L, W>& weight, Sums<L>& sums,
                                   float per_column, bool rms) {
    float xhat[L::k][L::n], wdy[L::k][L::n];
    float2 of_row{0, 0};
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        bool none = L::k > 1 && !columns.has(i);
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            float dy = as_float(row.dy[i], j);
            xhat[i][j] = none ? 0 : (as_float(row.x[i], j) - row.m) * row.s;
            wdy[i][j] = dy * as_float(weight.at[i], j);
            sums[0][i][j] = fmaf(dy, xhat[i][j], sums[0][i][j]);
            sums[1][i][j] += dy;
            of_row.x += wdy[i][j];
            of_row.y = fmaf(wdy[i][j], xhat[i][j], of_row.y);
        }
    }
    of_row = group_sums<L::lanes>(of_row);
    float c1 = rms ? 0 : of_row.x * per_column, c2 = of_row.y * per_column;
    Held<L, T> dinp;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        Elements<T, L::n> late{};  // before Hopper: without this copy, too, registers spill
        if constexpr (!kSm90) { late = row.before[i]; }
        if constexpr (row.kLate) {
            if (row_before != nullptr && columns.has(i)) { late = load<L::n>(row_before + columns.at(i)); }
        }
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            wdy[i][j] = fmaf(fmaf(xhat[i][j], -c2, wdy[i][j]), row.s, -c1 * row.s);
            if constexpr (kAccumulate) { wdy[i][j] += as_float(kSm90 ? row.before[i] : late, j); }
        }
        dinp.at[i] = rounded<T>(wdy[i]);
    }
    return dinp;
}

// The sums of lanes with the same columns meet, in each warp and then over the warps, always in the same order, and go
// to this block's part of scratch, (2,blocks,C).
template <typename L>
__device__ void write_sums(float* scratch, const Sums<L>& mine, const Columns<L>& columns) {
    __shared__ float of_warps[L::warps][2][L::columns];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            float both[] = {mine[0][i][j], mine[1][i][j]};
#pragma unroll
            for (int set = 0; set < 2; set++) {
#pragma unroll
                for (int distance = L::lanes; distance < kWarp; distance *= 2) {
                    both[set] += __shfl_xor_sync(kAllLanes, both[set], distance);
                }
                if (lane < L::lanes) { of_warps[warp][set][columns.at(i) + j] = both[set]; }
            }
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < 2 * L::columns; at += L::threads) {
        int set = at / L::columns, c = at % L::columns;
        float sum = 0;
        for (int w = 0; w < L::warps; w++) { sum += of_warps[w][set][c]; }
        if (c < columns.C) { scratch[((int64_t)set * gridDim.x + blockIdx.x) * columns.C + c] = sum; }
    }
}

// of a call's only row
template <typename Grad, typename L>
__device__ void write_outputs(const ColumnOutputs& outputs, const Sums<L>& mine, const Columns<L>& columns) {
    void* const to[] = {outputs.dweight, outputs.dbias};
#pragma unroll
    for (int set = 0; set < 2; set++) {
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            if (to[set] == nullptr || !columns.has(i)) { continue; }
            Grad* grad = static_cast<Grad*>(to[set]) + columns.at(i);
            float sum[L::n];
#pragma unroll
            for (int j = 0; j < L::n; j++) {
                sum[j] = mine[set][i][j];
                sum[j] += outputs.accumulate ? (float)grad[j] : 0.0f;
            }
            store(grad, rounded<Grad>(sum));
        }
    }
}

template <typename L, bool kAccumulate, typename T, typename W>
__global__ void __launch_bounds__(L::threads)
    layernorm_backward_kernel(LayerNormBackwardRows<T, W> call, float per_column) {
    constexpr int rows = L::threads / L::lanes;  // of a block at a time
    Columns<L> columns{(int)threadIdx.x % L::lanes * L::n, call.C};
    if constexpr (kSm90) { dependency_wait(); }
    Held<L, W> weight;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        weight.at[i] = load_or<L::n, W>(columns.has(i) ? call.weight : nullptr, columns.at(i), (W)1.0f);
    }
    Sums<L> sums{};
    int64_t row = (int64_t)blockIdx.x * (L::under_way * rows) + threadIdx.x / L::lanes;
    int64_t step = (int64_t)gridDim.x * (L::under_way * rows);
    using Row = Pieces<L, T, kAccumulate>;
    Row asked[L::under_way];
    auto ask = [&](Row& into, int64_t row) {
        into = {};
        if (columns.has(0) && row < call.N) { into.load(call, row, columns); }
    };
#pragma unroll
    for (int r = 0; r < L::under_way; r++) { ask(asked[r], row + r * rows); }
    for (; __any_sync(kAllLanes, row < call.N); row += step) {  // a warp without rows stays out
#pragma unroll
        for (int r = 0; r < L::under_way; r++) {
            int64_t at = row + r * rows;
            const T* row_before = Row::kLate && at < call.N ? call.dinp + at * call.dinp_stride : nullptr;
            Held<L, T> dinp = backward_row(asked[r], row_before, columns, weight, sums, per_column, call.rms);
            ask(asked[r], at + step);
#pragma unroll
            for (int i = 0; i < L::k; i++) {
                if (!columns.has(i) || at >= call.N) { continue; }
                store(call.dinp + at * call.dinp_stride + columns.at(i), dinp.at[i]);
            }
        }
    }
    if constexpr (kSm90) { dependency_launch(); }
    if (const ColumnOutputs& outputs = call.of_one_row; !outputs.given) {
        write_sums<L>((float*)call.scratch, sums, columns);
    } else if (threadIdx.x < L::lanes) {
        outputs.floats ? write_outputs<float, L>(outputs, sums, columns)
                       : write_outputs<T, L>(outputs, sums, columns);
    }
}

template <typename L, bool kAccumulate, typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_backward_kernel<L, kAccumulate, T, W>;
    LaunchConfig config{1, L::threads, 0, stream, 1, runs_hopper_code(kernel)};
    int64_t most = groups_at_once<kernel>(config);
    int groups = (int)std::min(most, ceil_div(call.N, (int64_t)(L::under_way * L::threads / L::lanes)));
    config.grid = groups;
    config.launch(kernel, call, 1.0f / call.C);
    return {groups, config.overlapping, false, false, call.of_one_row.given};
}

// by pieces of n elements, whole vectors or less
template <bool kAccumulate, int n, typename T, typename W>
ColumnGroups launch_layout(const LayerNormBackwardRows<T, W>& call, int layout, cudaStream_t stream) {
    if constexpr (n == Vec<T>::size) {
        return with_constant<0, std::size(layouts::kShortBackward)>(layout, [&]<int i>() {
            return launch<Layout<layouts::kShortBackward[i].lanes, n, true>, kAccumulate>(call, stream);
        });
    } else {
        return with_constant<0, std::size(layouts::kShortBackwardPieces)>(layout, [&]<int i>() {
            constexpr auto& layout = layouts::kShortBackwardPieces[i];
            if constexpr (is_for(layout, n, sizeof(T))) {
                return launch<Layout<layout.lanes, n, false>, kAccumulate>(call, stream);
            }
            return ColumnGroups{};
        });
    }
}

template <typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream) {
    constexpr int whole = Vec<T>::size;
    auto with = [&]<int n>() {
        return call.accumulate_dinp ? launch_layout<true, n>(call, choice.layout, stream)
                                    : launch_layout<false, n>(call, choice.layout, stream);
    };
    if constexpr (std::is_same_v<T, W>) { return with_piece<whole, true>(choice.piece, with); }
    return with.template operator()<whole>();  // rare: no pieces
}

}  // namespace llmc::short_rows_backward
