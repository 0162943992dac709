// team_ring: teams of warps share rows that come by bulk copies into a shallow ring; both halves of a row's work share
//         registers, so shared memory is read once (of some long rows twice: there are no registers for more). Sums by
//         column, of dinp too if wanted, stay there to the end.
// Why:    v4 and v5 have a warp per row: too few columns a lane, or too many; v6 a barrier of the whole block per row.
//         The layout is known to the compiler: with it at run time a row took twice the instructions.
// Moves:  inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 16 bytes a column and block.
// Result: 74.5 us, 94 % of the roof at 65536x768 bf16; 90 % at 4096x8192 fp16; H200, 2026-11-23
#pragma once
#include "llmc/layernorm/backward/rows.cuh"

namespace llmc::team_ring_backward {

using namespace layernorm;

// A layout of layouts.h's. A row is shared by the blocks of a cluster (1: no cluster), in each of them by a team of warps,
// whose lanes hold k vectors of n columns; a block has several teams, each with a ring of stages. reread: a row's second
// half reads it again where TMA left it, and its stage is refilled a row later; soon: at once, for one more
// meeting of the team, where there are but two stages.
template <layouts::TeamRing ring_>
struct Layout {
    static constexpr layouts::TeamRing ring = ring_;
    static constexpr int cluster = ring.cluster, warps = ring.warps, teams = ring.teams, stages = ring.stages;
    static constexpr int n = ring.vector, k = ring.vectors;
    static constexpr bool reread = ring.reread, soon = reread && stages == 2, drops = false;
    static constexpr int team_threads = warps * kWarp, threads = teams * team_threads;
    static constexpr int step = team_threads * n, columns = step * k;  // between a lane's vectors; of a block
    static constexpr int pairs = cluster * warps;                      // warps of a row
    static_assert(threads <= 1024 && (warps == 1 || teams < 16));      // named barriers 1 to 15
};

// L for calls with dropout.
template <typename L>
struct Dropping : L {
    static constexpr bool drops = true;
};

// A row's columns of inp, of dout, and for += of dinp, L::columns of each; from somewhere in the first line on. Dout is of
// Out, of which kDout are as long as a block's columns.
template <typename L, typename T, typename Out>
constexpr int kDout = L::columns * sizeof(Out) / sizeof(T);
template <typename L, int kStreams, typename T, typename Out>
using Stage = T[(kStreams - 1) * L::columns + kDout<L, T, Out> + kLine<T>];

// Worked out wherever few lanes need it: who kept it would keep it in every lane. most: columns of a block, but for the last
template <typename L>
__device__ Slice slice_of(int most, int C) {
    if constexpr (L::cluster == 1) { return {0, C}; }
    int begin = (int)cluster_rank() * most;
    return {begin, min(most, C - begin)};
}

// Where a row lies in a stage: as far past a line as its dinp in memory. Mostly its inp and dout are, too. In bytes: by
// elements a row takes two instructions more.
template <typename T>
__device__ T* place(T* stage, const T* dinp) {
    unsigned bytes = (uint32_t)(uintptr_t)dinp % kLineBytes;
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(stage) + bytes);
}

// what a team has of shared memory
template <typename L, int kStreams, typename T, typename Out>
struct alignas(kLineBytes) Team {
    Stage<L, kStreams, T, Out> stage[L::stages];
    uint64_t full[L::stages];               // a stage has come
    uint64_t summed[2];                     // all pairs of a row have come, by parity
    alignas(16) float2 pairs[2][L::pairs];  // each warp's sums, by row parity
    // of a set each for dweight, dbias, and for += dinp
    static_assert(sizeof(stage) >= kStreams * L::columns * sizeof(float), "the sums by column end there");
};

// The statistics of a team's rows, 32 at a time, one a lane; half-way the next 32 are asked for.
template <typename Call>
struct Statistics {
    const Call& call;
    int64_t first, step;  // the team's first row, and to the next
    int lane = threadIdx.x % kWarp;
    float m = 0, s = 0, next_m = 0, next_s = 0;

    __device__ Statistics(const Call& call, int64_t first, int64_t step)
        : call(call), first(first), step(step) {
        ask(0, m, s);
    }
    __device__ void ask(int turn, float& m, float& s) const {
        int64_t row = first + (turn + lane) * step;
        bool inside = row < call.N;
        m = inside ? mean_of(call, row) : 0.0f;
        s = inside ? call.rstd[row] : 0.0f;
    }
    __device__ float2 of(int turn) {
        int i = turn % kWarp;
        if (i == 0 && turn > 0) {
            m = next_m;
            s = next_s;
        }
        if (i == kWarp / 2) { ask(turn + kWarp / 2, next_m, next_s); }
        return {__shfl_sync(kAllLanes, m, i), __shfl_sync(kAllLanes, s, i)};
    }
};

// What a sum begins with: 0 + x is an instruction, as 0 + -0 is 0; -0 + x is x.
constexpr float2 kNothing{-0.0f, -0.0f};

// the same in each lane, which adds all of them if they are few
template <int pairs>
__device__ float2 sum_of_pairs(const float2* slots) {
    constexpr bool few = pairs <= 16;
    float2 sum = kNothing;
#pragma unroll
    for (int i = few ? 0 : threadIdx.x % kWarp; i < pairs; i += few ? 1 : kWarp) {
        sum.x += slots[i].x;
        sum.y += slots[i].y;
    }
    if constexpr (few) { return sum; }
    return {warp_sum(sum.x), warp_sum(sum.y)};
}

// Sums over the row's warps in all blocks of its cluster, the same in each lane. After it all of the block's warps
// have read the stage: a warp's sums need every value of the row that it loads, but those of `before`, which the fence
// is for. (reread: the fence is for the stage of the row before this one, which they have then read for the second time.)
template <typename L, int kStreams, typename T, typename Out>
__device__ float2 exchange(Team<L, kStreams, T, Out>& team, int turn, float2 lane_sums) {
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp % L::warps, parity = turn % 2;
    float2* slots = team.pairs[parity];
    if constexpr (kStreams == 3 || (L::reread && !L::soon)) { fence_proxy_async(); }
    float mine = warp_sum_pair(lane_sums);
    if constexpr (L::pairs == 1) {
        return both_sums(mine);
    } else if constexpr (L::cluster == 1) {
        if (lane % (kWarp / 2) == 0) { reinterpret_cast<float*>(&slots[warp])[lane / (kWarp / 2)] = mine; }
        sync_team(threadIdx.x / L::team_threads, L::team_threads);
    } else {
        uint64_t* barrier = &team.summed[parity];
        if (warp == 0 && lane == 0) { mbarrier_arrive_expect(barrier, L::pairs * (int)sizeof(float2)); }
        float2 both = both_sums(mine);
        if (lane < L::cluster) {
            store2_async(&slots[(int)cluster_rank() * L::warps + warp], both, barrier, lane);
        }
        mbarrier_wait_cluster(barrier, turn / 2 % 2);
    }
    return sum_of_pairs<L::pairs>(slots);
}

// One lane of a team asks for the block's columns of a row.
template <typename L, int kStreams, typename T, typename W, typename Out>
__device__ void fetch(const LayerNormBackwardRows<T, W, Out>& call, int most, int64_t row,
                      Stage<L, kStreams, T, Out>& stage, uint64_t* full) {
    Slice slice = slice_of<L>(most, call.C);
    uint32_t bytes = slice.columns * (uint32_t)sizeof(T), of_dout = slice.columns * (uint32_t)sizeof(Out);
    const T* dinp = call.dinp + row * call.dinp_stride + slice.begin;
    T* to = place(&stage[0], dinp);
    mbarrier_arrive_expect(full, (kStreams - 1) * bytes + of_dout);
    bulk_copy(to, call.inp + row * call.inp_stride + slice.begin, bytes, full);
    bulk_copy(to + L::columns, call.dout + row * call.dout_stride + slice.begin, of_dout, full);
    if constexpr (kStreams == 3) { bulk_copy(to + L::columns + kDout<L, T, Out>, dinp, bytes, full); }
}

// what a lane keeps of one row between its halves, and of all rows to the end
template <typename L, bool kAccumulate, bool kSum, typename T, typename W>
struct Held {
    static constexpr int kSets = kSum ? 3 : 2, kRow = L::reread ? 1 : L::k;  // vectors of the row
    static_assert(!L::reread || !kAccumulate);
    float xhat[kRow][L::n], wdy[kRow][L::n];
    float sums[kSets][L::k][L::n] = {};                // by column: for dweight, for dbias, of dinp
    Elements<T, L::n> before[kAccumulate ? L::k : 1];  // dinp as it was
    // reread: as whole words, since halves of words that wait would be kept in a register each
    using Weight = std::conditional_t<L::reread, Elements<uint32_t, L::n * sizeof(W) / 4>, Elements<W, L::n>>;
    Weight weight[L::k];

    __device__ float weight_of(int i, int j) const {
        if constexpr (!L::reread) { return as_float(weight[i], j); }
        return as_float(reinterpret_cast<const Elements<W, L::n>&>(weight[i]), j);
    }
};

// from column c on, where the lane has `left` columns; 1 where weight is null
template <typename L, bool kAccumulate, bool kSum, typename T, typename W>
__device__ void load_weights(Held<L, kAccumulate, kSum, T, W>& held, const W* weight, int c, int left) {
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        const W* from = left > i * L::step ? weight : nullptr;
        if constexpr (L::reread) {
            constexpr int each = 4 / sizeof(W);  // weights in a word
            auto* words = reinterpret_cast<const uint32_t*>(from);
            held.weight[i] = load_or<L::n / each>(words, (c + i * L::step) / each, kOneWord<W>);
        } else {
            held.weight[i] = load_or<L::n, W>(from, c + i * L::step, (W)1.0f);
        }
    }
}

// Where registers lack, the vectors of a row one after the other: no loads before this, and weights unpacked for each.
template <typename X>
__device__ void one_at_a_time(X& weight) {
    __syncwarp();
    hide_from_optimizer(weight);
}

// A lane's dout in the stage, given its inp there, from its first column of the block's on.
template <typename L, typename Out, typename T>
__device__ const Out* dout_of(const T* row, int first) {
    return reinterpret_cast<const Out*>(row - first + L::columns) + first;
}

// First half of a row: what the second needs into registers; returns this lane's sums of wdy and of wdy xhat. row, dout: in
// the stage, from the lane's first column on; left: columns from there on. Vectors beyond those add nothing.
template <typename L, bool kAccumulate, bool kSum, typename T, typename W, typename Out>
__device__ float2 read_row(Held<L, kAccumulate, kSum, T, W>& held, const T* row, const Out* dout, int left,
                           float m, float s) {
    float2 sums = kNothing;
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        if constexpr (L::reread) { one_at_a_time(held.weight[i]); }
        auto x = load<L::n>(row + i * L::step);
        auto d = load<L::n>(dout + i * L::step);
        if constexpr (kAccumulate) {
            held.before[i] = load<L::n>(row + L::columns + kDout<L, T, Out> + i * L::step);
        }
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            float dy = as_float(d, j), xhat = (as_float(x, j) - m) * s, wdy = dy * held.weight_of(i, j);
            if constexpr (!L::reread) {
                held.xhat[i][j] = xhat;
                held.wdy[i][j] = wdy;
            }
            held.sums[0][i][j] += dy * xhat;
            held.sums[1][i][j] += dy;
            if (left > i * L::step) {
                sums.x += wdy;
                sums.y += wdy * xhat;
            }
        }
    }
    return sums;
}

// Second half: dinp from the row's means of wdy and of wdy xhat. Both destinations begin with the lane's first column, which is
// `column` of the row; second: for what is dropped, or for the copy if not null; mask: without dropout not used.
template <typename L, bool kAccumulate, bool kSum, typename T, typename W, typename Out>
__device__ void write_row(T* dinp, Out* second, int column, const DropoutRow& mask,
                          Held<L, kAccumulate, kSum, T, W>& held, const T* row, const Out* dout, int left,
                          float c1, float c2, float m, float s) {
#pragma unroll
    for (int i = 0; i < L::k; i++) {
        auto &xhat = held.xhat[i % held.kRow], &wdy = held.wdy[i % held.kRow];
        if constexpr (L::reread) {
            one_at_a_time(held.weight[i]);
            auto x = load<L::n>(row + i * L::step);
            auto d = load<L::n>(dout + i * L::step);
#pragma unroll
            for (int j = 0; j < L::n; j++) {
                xhat[j] = (as_float(x, j) - m) * s;
                wdy[j] = as_float(d, j) * held.weight_of(i, j);
            }
        }
        float result[L::n];
#pragma unroll
        for (int j = 0; j < L::n; j++) {
            result[j] = fmaf(fmaf(xhat[j], -c2, wdy[j]), s, -c1 * s);
            if constexpr (kAccumulate) { result[j] += as_float(held.before[i], j); }
        }
        auto stored = rounded<T>(result);
        if (left > i * L::step) { store(dinp + i * L::step, stored); }
        if constexpr (L::drops) {
            const auto factors = mask.factors<L::n>(column + i * L::step);
#pragma unroll
            for (int j = 0; j < L::n; j++) { result[j] = as_float(stored, j) * factors[j]; }
            stored = rounded<T>(result);
            if (left > i * L::step) { store(second + i * L::step, stored); }
        }
        if constexpr (!std::is_same_v<T, Out>) {
            if (second != nullptr && left > i * L::step) {
                store(second + i * L::step, rounded<Out>(result));
            }
        }
        if constexpr (kSum) {
#pragma unroll
            for (int j = 0; j < L::n; j++) { held.sums[2][i][j] += as_float(stored, j); }
        }
    }
}

// The teams' sums over their rows meet in their rings' memory, `apart` floats apart, are added team after team, and go to
// this group's part of scratch.
template <typename L, int apart, typename HeldT>
__device__ void write_sums(float* of_teams, float* scratch, const HeldT& held, int team, int first, int begin,
                           int columns, int C) {
    __syncthreads();  // nobody reads the ring any more
#pragma unroll
    for (int set = 0; set < HeldT::kSets; set++) {
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            store(of_teams + team * apart + set * L::columns + first + i * L::step,
                  *reinterpret_cast<const Elements<float, L::n>*>(held.sums[set][i]));
        }
    }
    __syncthreads();
    int64_t groups = gridDim.x / L::cluster, group = blockIdx.x / L::cluster;
#pragma unroll 1
    for (int at = threadIdx.x * 4; at < HeldT::kSets * L::columns; at += L::threads * 4) {
        int set = at / L::columns, c = at % L::columns;
        auto sum = load<4>(of_teams + at);
#pragma unroll 4
        for (int t = 1; t < L::teams; t++) {
            auto more = load<4>(of_teams + t * apart + at);
#pragma unroll
            for (int j = 0; j < 4; j++) { sum.at[j] += more.at[j]; }
        }
        if (c < columns) { store(scratch + (set * groups + group) * C + begin + c, sum); }
    }
}

// Of a call's only row, which is the first team's: to where the call wants them. column: a lane's first of the row,
// `first` of the block's.
template <typename Grad, typename L, typename HeldT>
__device__ void write_outputs(const ColumnOutputs& outputs, const HeldT& held, int column, int first,
                              int columns) {
    void* const to[] = {outputs.dweight, outputs.dbias, outputs.dinp_sums};
#pragma unroll
    for (int set = 0; set < HeldT::kSets; set++) {
        if (to[set] == nullptr) { continue; }
#pragma unroll
        for (int i = 0; i < L::k; i++) {
            if (first + i * L::step >= columns) { continue; }
            Grad* grad = static_cast<Grad*>(to[set]) + column + i * L::step;
            float sum[L::n];
#pragma unroll
            for (int j = 0; j < L::n; j++) {
                sum[j] = held.sums[set][i][j] + (outputs.accumulate ? (float)grad[j] : 0.0f);
            }
            store(grad, rounded<Grad>(sum));
        }
    }
}

// a team's sums over its rows: of a call's only row to where the call wants them, else see write_sums
template <typename L, int apart, typename T, typename W, typename Out, typename HeldT>
__device__ void write_columns(const LayerNormBackwardRows<T, W, Out>& call, float* of_teams,
                              const HeldT& held, int team, int first, int most) {
    Slice slice = slice_of<L>(most, call.C);
    if (const ColumnOutputs& outputs = call.of_one_row; !outputs.given) {
        write_sums<L, apart>(of_teams, (float*)call.scratch, held, team, first, slice.begin, slice.columns,
                             call.C);
    } else if (team == 0) {
        int column = slice.begin + first;
        outputs.floats ? write_outputs<float, L>(outputs, held, column, first, slice.columns)
                       : write_outputs<T, L>(outputs, held, column, first, slice.columns);
    }
}

// Where what is dropped of a row, or the copy of it, goes from this column on; null: there is none.
template <typename L, typename T, typename W, typename Out>
__device__ Out* second_of(const LayerNormBackwardRows<T, W, Out>& call, int64_t row, int column) {
    if constexpr (L::drops) { return call.dropped + row * call.dropped_stride + column; }
    if constexpr (!std::is_same_v<T, Out>) {
        if (call.copy != nullptr) { return call.copy + row * call.copy_stride + column; }
    }
    return nullptr;
}

// A block's whole work in one function, of more than 60 lines: fetches, sums and rows share the ring's state in registers.
template <typename L, bool kAccumulate, bool kSum, typename T, typename W, typename Out>
__device__ void backward_rows(const LayerNormBackwardRows<T, W, Out>& call, int most, int in_flight) {
    constexpr int kStreams = kAccumulate ? 3 : 2;  // all of a kernel: its parts share registers
    extern __shared__ __align__(128) unsigned char memory[];
    int number = threadIdx.x / L::team_threads, first = (int)threadIdx.x % L::team_threads * L::n;
    uint32_t memory_of_team = shared_address(memory) + number * (uint32_t)sizeof(Team<L, kStreams, T, Out>);
    // else it is worked out for each row, which short ones feel
    if constexpr (L::k <= 2) { hide_from_optimizer(memory_of_team); }
    auto& team = *static_cast<Team<L, kStreams, T, Out>*>(__cvta_shared_to_generic(memory_of_team));
    auto [begin, columns] = slice_of<L>(most, call.C);
    int left = columns - first;
    int64_t groups = gridDim.x / L::cluster, row = blockIdx.x / L::cluster + number * groups,
            step = groups * L::teams;
    bool fetches = threadIdx.x % L::team_threads == 0;
    int rows = row < call.N ? (int)((call.N - 1 - row) / step + 1) : 0;  // of this team

    // up to the wait: what needs nothing of the kernels before this one, while they end
    if (fetches) {
        for (uint64_t& full : team.full) { mbarrier_init(&full, 1); }
        for (uint64_t& summed : team.summed) { mbarrier_init(&summed, 1); }
        mbarrier_init_fence();
    }
    if (call.weight != nullptr) { prefetch_lines(call.C, call.weight); }
    L::cluster > 1 ? cluster_sync() : __syncthreads();
    dependency_wait();
    auto fetch_first_rows = [&] {
        for (int s = 0; fetches && s < min(in_flight, rows); s++) {
            fetch<L, kStreams>(call, most, row + s * step, team.stage[s], &team.full[s]);
        }
    };
    if constexpr (L::cluster == 1) { fetch_first_rows(); }
    Statistics statistics(call, row, step);
    Held<L, kAccumulate, kSum, T, W> held;
    load_weights(held, call.weight, begin + first, left);
    if constexpr (L::cluster > 1) { fetch_first_rows(); }  // 1 % sooner than before those loads
    auto stage_of = [](int turn) { return (unsigned)turn % L::stages; };
    // behind a row that all warps are done with, whose stage or an earlier row's is free
    auto refill = [&](int turn) {
        if (fetches && turn >= 0 && turn + in_flight < rows) {
            int stage = stage_of(turn + in_flight);
            fetch<L, kStreams>(call, most, row + (turn + in_flight) * step, team.stage[stage],
                               &team.full[stage]);
        }
    };
    T* dinp = call.dinp + row * call.dinp_stride + begin;
    float per_column = 1.0f / call.C;
    for (int turn = 0; turn < rows; turn++, dinp += step * call.dinp_stride) {
        float2 ms = statistics.of(turn);
        const T* here = place(&team.stage[stage_of(turn)][0], dinp) + first;
        mbarrier_wait(&team.full[stage_of(turn)], (unsigned)turn / L::stages % 2);
        const Out* dout = dout_of<L, Out>(here, first);
        float2 sums = read_row<L>(held, here, dout, left, ms.x, ms.y);
        sums = exchange(team, turn, sums);
        if (call.rms) { sums.x = 0; }
        if constexpr (!L::soon) { refill(L::reread ? turn - 1 : turn); }
        const DropoutRow mask(call.dropout, row + turn * step, call.C);
        Out* second = second_of<L>(call, row + turn * step, begin + first);
        write_row<L>(dinp + first, second, begin + first, mask, held, here, dout, left, sums.x * per_column,
                     sums.y * per_column, ms.x, ms.y);
        if constexpr (L::soon) {
            fence_proxy_async();
            sync_team(number, L::team_threads);
            refill(turn);
        }
    }
    dependency_launch();
    write_columns<L, sizeof(team) / sizeof(float)>(call, reinterpret_cast<float*>(memory), held, number,
                                                   first, most);
    if constexpr (L::cluster > 1) { cluster_sync(); }  // nobody leaves while pairs may still be sent to it
}

template <typename L, bool kAccumulate, bool kSum, typename T, typename W, typename Out>
__global__ void __launch_bounds__(L::threads, 1)
    layernorm_backward_kernel(LayerNormBackwardRows<T, W, Out> call, int most, int in_flight) {
    // where fewer have been seen to be faster: rows_in_flight(); for the others the compiler knows how many
    constexpr bool fewer = sizeof(T) == 2 && !kAccumulate && !L::reread && L::stages > 2;
    if constexpr (!fewer) { in_flight = L::stages; }
    if constexpr (kSm90) { backward_rows<L, kAccumulate, kSum>(call, most, in_flight); }
}

template <typename L, bool kAccumulate, bool kSum, typename T, typename W, typename Out>
ColumnGroups launch(const LayerNormBackwardRows<T, W, Out>& call, cudaStream_t stream) {
    constexpr auto* kernel = layernorm_backward_kernel<L, kAccumulate, kSum, T, W, Out>;
    constexpr int streams = kAccumulate ? 3 : 2, team = sizeof(Team<L, streams, T, Out>);
    static_assert(team == team_bytes(L::ring, streams, sizeof(T), sizeof(Out)));
    int bytes = std::max(L::teams * team, alone_bytes());
    LaunchConfig config{1, L::threads, (size_t)bytes, stream, L::cluster, true};
    int groups = (int)std::min<int64_t>(groups_at_once<kernel>(config), call.N);
    if (groups == 0) { return {}; }
    config.grid = groups * L::cluster;
    // of whole 32 bytes, which is what memory moves at least: a sector shared by two blocks costs 5 %
    constexpr int unit = (L::cluster > 1 ? 2 : 1) * Vec<T>::size;
    int slice = ceil_div(ceil_div(call.C, L::cluster), unit) * unit;
    int in_flight = rows_in_flight(L::cluster, L::teams, L::stages,
                                   slice * (int)((streams - 1) * sizeof(T) + sizeof(Out)));
    config.launch(kernel, call, slice, in_flight);
    return {groups, true, kSum, L::drops, call.of_one_row.given};
}

// With dropout or without. Rows that a cluster shares have none, nor has = in pairs of columns: there registers lack.
template <typename L, bool kAccumulate, bool kSum, typename T, typename W, typename Out>
ColumnGroups launch_form(const LayerNormBackwardRows<T, W, Out>& call, cudaStream_t stream) {
    if constexpr (kDrops<T, W> && std::is_same_v<T, Out> && L::cluster == 1 && (L::n > 2 || kAccumulate)) {
        if (call.dropped != nullptr) { return launch<Dropping<L>, kAccumulate, kSum>(call, stream); }
    }
    return launch<L, kAccumulate, kSum>(call, stream);
}

template <typename T, typename W, typename Out>
ColumnGroups launch(const LayerNormBackwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream) {
    constexpr bool same = std::is_same_v<T, W>, mixed = !std::is_same_v<T, Out>;
    static constexpr auto table = team_rings(sizeof(T), mixed);
    return with_constant<0, table.size()>(choice.layout, [&]<int i>() {
        if constexpr (table[i].is_for(!same)) {
            if (!call.accumulate_dinp) {
                return launch_form<Layout<table[i].write>, false, false>(call, stream);
            }
            if constexpr (table[i].adds()) {
                using Add = Layout<table[i].add>;
                constexpr bool sums =
                    same && !mixed && table[i].columns <= kSummedColumns;  // in kernels of their own
                return sums && call.sum_dinp ? launch_form<Add, true, sums>(call, stream)
                                             : launch_form<Add, true, false>(call, stream);
            }
        }
        return ColumnGroups{};
    });
}

}  // namespace llmc::team_ring_backward
