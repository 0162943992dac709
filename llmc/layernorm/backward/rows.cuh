// The two halves of a row's work in LayerNorm backward when a lane has a few columns of many rows: what it
// keeps in fp32 registers, and how a block's sums by column leave it. Shared memory holds the rows; who
// brings them is not asked here.
#pragma once
#include "llmc/layernorm/kernel.cuh"

namespace llmc {

// A lane's columns: n at a time, k times, at first + i step, below `columns`, which n divides.
struct LaneColumns {
    int first, step, columns;
    __device__ int at(int i) const { return first + i * step; }
    __device__ bool has(int i) const { return at(i) < columns; }
};

// a lane's share of a row, as floats
template <int n, int k>
struct LaneFloats {
    float at[k][n];
};

// What a lane keeps of one row between its halves (if kHold; else the second reads shared memory again),
// and of all rows to the end.
template <bool kHold, bool kAccumulate, int n, int k, typename T, typename W>
struct LaneRow {
    LaneFloats<n, k> dweight{}, dbias{};
    LaneFloats<n, kHold ? k : 1> xhat, wdy;
    Elements<T, n> before[kHold && kAccumulate ? k : 1];  // dinp as it was
    Elements<W, n> weight[kHold ? k : 1];  // packed: registers are what limits the columns of a lane
};

// one row in shared memory; before is read with kAccumulate only
template <typename T>
struct SharedRow {
    const T *inp, *dout, *before;
};

// of n columns of one row
template <int n>
struct RowTerms {
    float dy[n], xhat[n], wdy[n];
};

template <int n, typename T, typename W>
__device__ inline RowTerms<n> row_terms(const Elements<T, n>& x, const Elements<T, n>& dout,
                                        const Elements<W, n>& weight, float m, float s) {
    RowTerms<n> t;
#pragma unroll
    for (int j = 0; j < n; j++) {
        t.dy[j] = as_float(dout, j);
        t.xhat[j] = (as_float(x, j) - m) * s;
        t.wdy[j] = t.dy[j] * as_float(weight, j);
    }
    return t;
}

// weight (null: 1) of a lane's columns i, those it does not have left out
template <int n, typename W>
__device__ inline Elements<W, n> weight_of(const W* weight, const LaneColumns& lane, int i) {
    return load_or<n, W>(lane.has(i) ? weight : nullptr, lane.at(i), (W)1.0f);
}

// Before the first row. weight: of the row's or slice's first column, or null.
template <bool kAccumulate, int n, int k, typename T, typename W>
__device__ void keep_weight(LaneRow<true, kAccumulate, n, k, T, W>& mine, const W* weight,
                            const LaneColumns& lane) {
#pragma unroll
    for (int i = 0; i < k; i++) { mine.weight[i] = weight_of<n>(weight, lane, i); }
}
template <bool kAccumulate, int n, int k, typename T, typename W>
__device__ void keep_weight(LaneRow<false, kAccumulate, n, k, T, W>&, const W*, const LaneColumns&) {}

// First half: adds the row to dweight and dbias; returns the lane's sums of wdy and of wdy xhat.
template <bool kHold, bool kAccumulate, int n, int k, typename T, typename W>
__device__ float2 read_row(LaneRow<kHold, kAccumulate, n, k, T, W>& mine, const SharedRow<T>& row,
                           const W* weight, const LaneColumns& lane, float m, float s) {
    float2 sums{0, 0};
#pragma unroll
    for (int i = 0; i < k; i++) {
        if constexpr (!kHold) { __syncwarp(); }  // so that no registers are taken for the next loads yet
        Elements<T, n> x{}, dout{};              // zeros add nothing, if xhat is finite
        if (lane.has(i)) {
            x = load<n>(row.inp + lane.at(i));
            dout = load<n>(row.dout + lane.at(i));
            if constexpr (kHold && kAccumulate) { mine.before[i] = load<n>(row.before + lane.at(i)); }
        }
        Elements<W, n> w;
        if constexpr (kHold) { w = mine.weight[i]; }
        if constexpr (!kHold) { w = weight_of<n>(weight, lane, i); }
        RowTerms<n> t = row_terms(x, dout, w, lane.has(i) ? m : 0, s);  // xhat: 0, or m s could be infinite
#pragma unroll
        for (int j = 0; j < n; j++) {
            if constexpr (kHold) {
                mine.xhat.at[i][j] = t.xhat[j];
                mine.wdy.at[i][j] = t.wdy[j];
                asm volatile("" : "+f"(mine.wdy.at[i][j]));  // else it is made again in the second half
            }
            mine.dweight.at[i][j] += t.dy[j] * t.xhat[j];
            mine.dbias.at[i][j] += t.dy[j];
            sums.x += t.wdy[j];
            sums.y += t.wdy[j] * t.xhat[j];
        }
    }
    return sums;
}

// Second half: dinp from the sums over the whole row. per_column = 1 / C
template <bool kHold, bool kAccumulate, int n, int k, typename T, typename W>
__device__ void write_row(T* dinp, const LaneRow<kHold, kAccumulate, n, k, T, W>& mine,
                          const SharedRow<T>& row, const W* weight, const LaneColumns& lane, float m, float s,
                          float2 sums, float per_column) {
    constexpr int together = kHold ? k : 1;  // nothing here is in arrays of registers unless held
    float c1s = -sums.x * per_column * s, c2 = -sums.y * per_column;
#pragma unroll together
    for (int i = 0; i < k; i++) {
        if (!lane.has(i)) { continue; }
        const float *xhat = mine.xhat.at[kHold ? i : 0], *wdy = mine.wdy.at[kHold ? i : 0];
        RowTerms<n> again;
        Elements<T, n> before;
        if constexpr (!kHold) {
            again = row_terms(load<n>(row.inp + lane.at(i)), load<n>(row.dout + lane.at(i)),
                              weight_of<n>(weight, lane, i), m, s);
            xhat = again.xhat;
            wdy = again.wdy;
        }
        if constexpr (kAccumulate && kHold) { before = mine.before[i]; }
        if constexpr (kAccumulate && !kHold) { before = load<n>(row.before + lane.at(i)); }
        float result[n];
#pragma unroll
        for (int j = 0; j < n; j++) {
            result[j] = fmaf(fmaf(xhat[j], c2, wdy[j]), s, c1s);
            if constexpr (kAccumulate) { result[j] += as_float(before, j); }
        }
        if constexpr (n * sizeof(T) == 16) {
            store_streaming(dinp + lane.at(i), rounded<T>(result));
        } else {
            store(dinp + lane.at(i), rounded<T>(result));
        }
    }
}

// The teams of a block have the same columns: their sums, added in the order of the teams, to dweight[c] and
// dbias[c], c < lane.columns. memory: (teams,2,columns) floats, of which nobody needs anything any more once
// all threads have come here. lane.columns and the pointers allow vectors of 4 floats (2: of 2).
template <int n, int k>
__device__ void add_teams(float* dweight, float* dbias, float* memory, const LaneFloats<n, k>& dw,
                          const LaneFloats<n, k>& db, const LaneColumns& lane, int team, int teams) {
    constexpr int wide = n < 4 ? n : 4;
    __syncthreads();
    float* of_team = memory + team * 2 * lane.columns;
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (!lane.has(i)) { continue; }
#pragma unroll
        for (int j = 0; j < n; j += wide) {
            Elements<float, wide> w, b;
#pragma unroll
            for (int l = 0; l < wide; l++) {
                w.at[l] = dw.at[i][j + l];
                b.at[l] = db.at[i][j + l];
            }
            store(of_team + lane.at(i) + j, w);
            store(of_team + lane.columns + lane.at(i) + j, b);
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < 2 * lane.columns; c += blockDim.x) {
        float sum = memory[c];
#pragma unroll 4
        for (int t = 1; t < teams; t++) { sum += memory[t * 2 * lane.columns + c]; }
        (c < lane.columns ? dweight[c] : dbias[c - lane.columns]) = sum;
    }
}

}  // namespace llmc
