// A kernel of LayerNorm backward for Ampere on: teams of warps walk over rows of whole vectors, which each
// thread brings for itself into shared memory, rows ahead, by cp.async. Sums by column stay in registers to
// the end. Rows up to what a block's registers hold between a row's halves: 9216 elements of 16 bits, 8192 of
// 32; longer ones: cp_async_pipelined.cuh.
#pragma once
#include "llmc/cuda/column_sums.cuh"
#include "llmc/layernorm/backward/rows.cuh"

namespace llmc::cp_async_teams {

using namespace layernorm;

// A lane's columns: n at a time, k times, at first + i step, below `columns`, which n divides.
struct LaneColumns {
    int first, step, columns;
    __device__ int at(int i) const { return first + i * step; }
    __device__ bool has(int i) const { return at(i) < columns; }
};

// What a lane keeps of one row between its halves (unless kReread: the second reads shared memory again), and of all rows
// to the end.
template <bool kReread, bool kAccumulate, int n, int k, typename T, typename W>
struct Held {
    float dweight[k][n]{}, dbias[k][n]{};
    float xhat[kReread ? 1 : k][n], wdy[kReread ? 1 : k][n];
    Elements<T, n> before[!kReread && kAccumulate ? k : 1];  // dinp as it was
    Elements<W, n> weight[kReread ? 1 : k];  // packed: registers are what limits the columns of a lane
};

// one row in shared memory; before is read with kAccumulate only
template <typename T>
struct SharedRow {
    const T *inp, *dout, *before;
};

// weight (null: 1) of a lane's columns i, those it does not have left out
template <int n, typename W>
__device__ inline Elements<W, n> weight_of(const W* weight, const LaneColumns& lane, int i) {
    return load_or<n, W>(lane.has(i) ? weight : nullptr, lane.at(i), (W)1.0f);
}

// First half: adds the row to dweight and dbias; returns the lane's sums of wdy and of wdy xhat.
template <bool kReread, bool kAccumulate, int n, int k, typename T, typename W>
__device__ float2 read_row(Held<kReread, kAccumulate, n, k, T, W>& mine, const SharedRow<T>& row,
                           const W* weight, const LaneColumns& lane, float m, float s) {
    float2 sums{0, 0};
#pragma unroll
    for (int i = 0; i < k; i++) {
        if constexpr (kReread) { __syncwarp(); }  // so that no registers are taken for the next loads yet
        Elements<T, n> x{}, dout{};               // zeros add nothing, if xhat is finite
        if (lane.has(i)) {
            x = load<n>(row.inp + lane.at(i));
            dout = load<n>(row.dout + lane.at(i));
            if constexpr (!kReread && kAccumulate) { mine.before[i] = load<n>(row.before + lane.at(i)); }
        }
        Elements<W, n> w;
        if constexpr (!kReread) { w = mine.weight[i]; }
        if constexpr (kReread) { w = weight_of<n>(weight, lane, i); }
        RowTerms<n> t = row_terms(x, dout, w, lane.has(i) ? m : 0, s);  // xhat: 0, or m s could be infinite
#pragma unroll
        for (int j = 0; j < n; j++) {
            if constexpr (!kReread) {
                mine.xhat[i][j] = t.xhat[j];
                mine.wdy[i][j] = t.wdy[j];
                asm volatile("" : "+f"(mine.wdy[i][j]));  // else it is made again in the second half
            }
            mine.dweight[i][j] += t.dy[j] * t.xhat[j];
            mine.dbias[i][j] += t.dy[j];
            sums.x += t.wdy[j];
            sums.y += t.wdy[j] * t.xhat[j];
        }
    }
    return sums;
}

// Second half: dinp from the sums over the whole row. per_column = 1 / C
template <bool kReread, bool kAccumulate, int n, int k, typename T, typename W>
__device__ void write_row(T* dinp, const Held<kReread, kAccumulate, n, k, T, W>& mine,
                          const SharedRow<T>& row, const W* weight, const LaneColumns& lane, float m, float s,
                          float2 sums, float per_column) {
    constexpr int unrolled = kReread ? 1 : k;  // nothing here is in arrays of registers unless held
    float c1s = -sums.x * per_column * s, c2 = -sums.y * per_column;
#pragma unroll unrolled
    for (int i = 0; i < k; i++) {
        if (!lane.has(i)) { continue; }
        const float *xhat = mine.xhat[kReread ? 0 : i], *wdy = mine.wdy[kReread ? 0 : i];
        RowTerms<n> t;
        Elements<T, n> before;
        if constexpr (kReread) {
            t = row_terms(load<n>(row.inp + lane.at(i)), load<n>(row.dout + lane.at(i)),
                          weight_of<n>(weight, lane, i), m, s);
            xhat = t.xhat;
            wdy = t.wdy;
        }
        if constexpr (kAccumulate && !kReread) { before = mine.before[i]; }
        if constexpr (kAccumulate && kReread) { before = load<n>(row.before + lane.at(i)); }
        float result[n];
#pragma unroll
        for (int j = 0; j < n; j++) {
            result[j] = fmaf(fmaf(xhat[j], c2, wdy[j]), s, c1s);
            if constexpr (kAccumulate) { result[j] += as_float(before, j); }
        }
        store_streaming(dinp + lane.at(i), rounded<T>(result));
    }
}

// The teams of a block have the same columns: their sums, added in the order of the teams, to dweight[c] and
// dbias[c], c < lane.columns. memory: (teams,2,columns) floats, of which nobody needs anything any more once
// all threads have come here.
template <int n, int k>
__device__ void add_teams(float* dweight, float* dbias, float* memory, const float (&dw)[k][n],
                          const float (&db)[k][n], const LaneColumns& lane, int team, int teams) {
    constexpr int wide = 4;
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
                w.at[l] = dw[i][j + l];
                b.at[l] = db[i][j + l];
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

struct Shared {
    float pairs[kThresholds.most_teams][2][2]
               [kThresholds.teams_most_warps];  // (c1 or c2) of each warp, by row parity
};

// Sums over the team's warps, the same bits in each lane. One barrier is enough: who writes slots of this
// parity again has passed the next row's, and so have those who read them here.
__device__ inline float2 exchange(Shared& shared, const Teams& o, int team, int warp, int parity,
                                  float2 sums) {
    int lane = threadIdx.x % kWarp, half = lane / (kWarp / 2), slot = lane % (kWarp / 2);
    float sum = warp_sum_pair(sums);
    if (o.warps > 1) {
        auto& pairs = shared.pairs[team][parity];
        if (slot == 0) { pairs[half][warp] = sum; }
        sync_team(team, o.warps * kWarp);
        sum = group_sum<kThresholds.teams_most_warps>(slot < o.warps ? pairs[half][slot] : 0.0f);
    }
    return both_sums(sum);
}

// A team's ring in shared memory: stages of rows of inp, dout and, for +=, dinp. Each thread copies what it
// will read itself, so nobody waits for others' copies.
template <int k, bool kAccumulate, typename T>
struct ThreadRing {
    static constexpr int kStreams = kAccumulate ? 3 : 2;
    T* memory;
    int stages, stage = 0;

    __device__ SharedRow<T> row(int columns) const {
        const T* x = memory + stage * kStreams * columns;
        return {x, x + columns, x + 2 * columns};
    }
    // this thread's columns of a row to the ring's row `to`
    __device__ void copy(int to, const T* row, const LaneColumns& lane) const {
        T* shared = memory + to * lane.columns + lane.first;
        const T* global = row + lane.first;
#pragma unroll
        for (int i = 0; i < k; i++) {
            if (lane.has(i)) { copy16_async(shared, global); }
            shared += lane.step;
            global += lane.step;
        }
    }
    // Asks for a row into the present stage, unless it is beyond the last; the next is then the present one.
    template <typename W>
    __device__ void fetch(const LayerNormBackwardRows<T, W>& call, int64_t from, const LaneColumns& lane) {
        if (from < call.N) {
            copy(stage * kStreams, call.inp + from * call.inp_stride, lane);
            copy(stage * kStreams + 1, call.dout + from * call.dout_stride, lane);
            if constexpr (kAccumulate) {
                copy(stage * kStreams + 2, call.dinp + from * call.dinp_stride, lane);
            }
        }
        copy_commit();  // an empty group keeps the count
        stage = stage + 1 == stages ? 0 : stage + 1;
    }
};

// mean and rstd of a row, none beyond the last
struct Statistics {
    float m = 0, s = 0;
    template <typename Call>
    __device__ Statistics(const Call& call, int64_t row) {
        if (row < call.N) {
            m = mean_of(call, row);
            s = call.rstd[row];
        }
    }
};

template <bool kReread, bool kAccumulate, int k, int kThreads, typename T, typename W>
__global__ void __launch_bounds__(kThreads, 1)
    layernorm_backward_teams_kernel(LayerNormBackwardRows<T, W> call, Teams o) {
    constexpr int n = Vec<T>::size;
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    T* rings = reinterpret_cast<T*>(memory + sizeof(Shared));
    int team = threadIdx.x / kWarp / o.warps, warp = threadIdx.x / kWarp % o.warps;
    LaneColumns lane{(warp * kWarp + (int)threadIdx.x % kWarp) * n, o.warps * kWarp * n, call.C};
    using Ring = ThreadRing<k, kAccumulate, T>;
    Ring ring{rings + team * o.stages * Ring::kStreams * call.C, o.stages};
    int64_t groups = gridDim.x, step = groups * o.teams, row = blockIdx.x + team * groups;

    for (int s = 0; s < o.stages; s++) { ring.fetch(call, row + s * step, lane); }
    Held<kReread, kAccumulate, n, k, T, W> mine;
#pragma unroll
    for (int i = 0; i < k && !kReread; i++) { mine.weight[i] = weight_of<n>(call.weight, lane, i); }
    Statistics next(call, row);  // a row ahead: else every row would wait for memory
    for (int parity = 0; row < call.N; row += step, parity ^= 1) {
        Statistics now = next;
        next = Statistics(call, row + step);
        copy_wait<kThresholds.most_stages - 1>(o.stages - 1);
        SharedRow<T> x = ring.row(call.C);
        float2 sums = read_row(mine, x, call.weight, lane, now.m, now.s);
        sums = exchange(shared, o, team, warp, parity, sums);
        if (call.rms) { sums.x = 0; }
        // not before what was read has been used: the sums were made of it
        if constexpr (!kReread) { ring.fetch(call, row + o.stages * step, lane); }
        write_row(call.dinp + row * call.dinp_stride, mine, x, call.weight, lane, now.m, now.s, sums,
                  1.0f / call.C);
        if constexpr (kReread) { ring.fetch(call, row + o.stages * step, lane); }
    }
    copy_wait<0>();
    float* dweight = (float*)call.scratch + (int64_t)blockIdx.x * call.C;
    add_teams(dweight, dweight + groups * call.C, reinterpret_cast<float*>(rings), mine.dweight, mine.dbias,
              lane, team, o.teams);
}

template <bool kAccumulate, typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& call, const Choice& choice, cudaStream_t stream) {
    static_assert(sizeof(Shared) == kTeamsSums);
    static constexpr auto table = for_bytes(sizeof(T), layouts::kCpAsyncTeams16, layouts::kCpAsyncTeams32);
    return with_constant<0, table.size()>(choice.layout, [&]<int i>() {
        constexpr layouts::CpAsyncTeams row = table[i];
        if constexpr (row.adds || !kAccumulate) {
            constexpr int threads = most_threads(row, sizeof(T), kAccumulate);
            constexpr auto* kernel =
                layernorm_backward_teams_kernel<row.reread, kAccumulate, row.vectors, threads, T, W>;
            allow_shared_bytes<kernel>(device_facts().shared_bytes);  // for the widest row
            const Teams& teams = choice.teams;
            int64_t blocks = std::min(device_facts().multiprocessors, layouts::kMostGroups);
            int groups = (int)std::min(blocks, call.N);
            kernel<<<groups, teams.teams * teams.warps * kWarp, teams.shared_bytes, stream>>>(call, teams);
            check_launch();
            return ColumnGroups{groups};
        }
        return ColumnGroups{};
    });
}

}  // namespace llmc::cp_async_teams
