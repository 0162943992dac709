// A kernel of LayerNorm backward for Ampere on: teams of warps walk over rows of whole vectors, which each
// thread brings for itself into shared memory, rows ahead, by cp.async. Sums by column stay in registers to
// the end. Rows up to what a block's registers hold between a row's halves: 9216 elements of 16 bits, 8192 of
// 32; longer ones: ahead.cuh.
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/layernorm/backward/regimes.h"
#include "llmc/layernorm/backward/rows.cuh"

namespace llmc::layernorm_teams {

constexpr int kMaxTeams = 15, kMaxTeamWarps = 16, kMaxStages = 4;

// A block has `teams` teams of `warps` warps; each row is one team's. A team's ring has `stages`.
struct Layout {
    int warps, teams, stages;
};

struct Shared {
    float pairs[kMaxTeams][2][2][kMaxTeamWarps];  // (c1 or c2) of each warp, by row parity
};

// Sums over the team's warps, the same bits in each lane. One barrier is enough: who writes slots of this
// parity again has passed the next row's, and so have those who read them here.
__device__ inline float2 exchange(Shared& shared, const Layout& o, int team, int warp, int parity,
                                  float2 sums) {
    int lane = threadIdx.x % kWarp, half = lane / (kWarp / 2), slot = lane % (kWarp / 2);
    float sum = warp_sum_pair(sums);
    if (o.warps > 1) {
        auto& pairs = shared.pairs[team][parity];
        if (slot == 0) { pairs[half][warp] = sum; }
        asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(o.warps * kWarp) : "memory");
        sum = slot < o.warps ? pairs[half][slot] : 0.0f;
        for (int distance = kMaxTeamWarps / 2; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(kAllLanes, sum, distance);
        }
    }
    return {__shfl_sync(kAllLanes, sum, 0), __shfl_sync(kAllLanes, sum, kWarp / 2)};
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
            m = call.mean[row];
            s = call.rstd[row];
        }
    }
};

template <bool kHold, bool kAccumulate, int k, int kThreads, typename T, typename W>
__global__ __launch_bounds__(kThreads,
                             1) void layernorm_backward_teams_kernel(LayerNormBackwardRows<T, W> call,
                                                                     Layout o) {
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
    LaneRow<kHold, kAccumulate, n, k, T, W> mine;
    keep_weight(mine, call.weight, lane);
    Statistics next(call, row);  // a row ahead: else every row would wait for memory
    for (int parity = 0; row < call.N; row += step, parity ^= 1) {
        Statistics now = next;
        next = Statistics(call, row + step);
        copy_wait<kMaxStages - 1>(o.stages - 1);
        SharedRow<T> x = ring.row(call.C);
        float2 sums = read_row(mine, x, call.weight, lane, now.m, now.s);
        sums = exchange(shared, o, team, warp, parity, sums);
        // not before what was read has been used: the sums were made of it
        if constexpr (kHold) { ring.fetch(call, row + o.stages * step, lane); }
        write_row(call.dinp + row * call.dinp_stride, mine, x, call.weight, lane, now.m, now.s, sums,
                  1.0f / call.C);
        if constexpr (!kHold) { ring.fetch(call, row + o.stages * step, lane); }
    }
    copy_wait<0>();
    float* dweight = (float*)call.scratch + (int64_t)blockIdx.x * call.C;
    add_teams(dweight, dweight + groups * call.C, reinterpret_cast<float*>(rings), mine.dweight, mine.dbias,
              lane, team, o.teams);
}

// Of a block: about; two stages at most, unless too few warps would be left. More lets multiprocessors drift
// apart.
constexpr int kRingBytes = 64 << 10, kMostRingBytes = 80 << 10;
constexpr int kEnoughWarps = 12;

// A lane's columns: k vectors. hold: between a row's halves in registers, else read again.
template <int k_, bool hold_>
struct Tile {
    static constexpr int k = k_;
    static constexpr bool hold = hold_;
};

// threads of a block, at most, so that what a lane holds fits its registers
template <typename Tile, typename T>
constexpr int most_threads(bool accumulate) {
    int columns = Tile::k * Vec<T>::size + (accumulate ? (int)sizeof(T) : 0);
    return !Tile::hold ? 512 : columns > 18 ? 384 : columns > 12 ? 512 : 640;
}

// How a row of C columns is laid out with this tile; no teams: it does not fit.
template <typename Tile, bool kAccumulate, typename T>
struct Plan {
    Layout layout{};
    size_t bytes = 0;  // of shared memory
    double cost = 0;   // cycles for a row: to issue its warps' instructions; or a team's time, by teams

    explicit Plan(int C) {
        constexpr int columns = Tile::k * Vec<T>::size,
                      warps_at_most = most_threads<Tile, T>(kAccumulate) / kWarp;
        int64_t warps = ceil_div((int64_t)C, (int64_t)columns * kWarp);
        if (warps > std::min(warps_at_most, kMaxTeamWarps)) { return; }
        size_t row = (kAccumulate ? 3 : 2) * sizeof(T) * C;
        int teams = std::min(warps_at_most / (int)warps, kMaxTeams);
        while (teams > 1 && teams * warps > kEnoughWarps && 2 * teams * row > kMostRingBytes) { teams--; }
        int stages = std::clamp<int64_t>(kRingBytes / (teams * row), 2, kMaxStages);
        auto needed = [&] { return sizeof(Shared) + teams * std::max(stages * row, 2 * sizeof(float) * C); };
        while (teams > 1 && needed() > most_bytes()) { teams--; }
        while (stages > 1 && needed() > most_bytes()) { stages--; }
        if (needed() > most_bytes()) { return; }
        layout = {(int)warps, teams, stages};
        bytes = needed();
        int instructions = (Tile::hold ? 16 : 22) * columns + 150, exchange = warps > 1 ? 700 : 300;
        cost = std::max(warps * instructions / 4.0, (3.0 * instructions + exchange) / teams);
    }
    static size_t most_bytes() { return device_facts().shared_bytes; }
    bool fits() const { return layout.teams > 0; }
};

// returns the number of groups whose sums the kernel leaves
template <bool kAccumulate, typename Tile, typename T, typename W>
int launch_teams(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    Plan<Tile, kAccumulate, T> plan(call.C);
    if (!plan.fits()) { return 0; }
    constexpr int threads = most_threads<Tile, T>(kAccumulate);
    auto* kernel = layernorm_backward_teams_kernel<Tile::hold, kAccumulate, Tile::k, threads, T, W>;
    static OncePerDevice prepared;  // for the widest row: another thread's call may have another width
    prepared([kernel](int) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   device_facts().shared_bytes));
    });
    int blocks = std::min(device_facts().multiprocessors, kMostGroups);
    blocks = (int)std::min<int64_t>(blocks, call.N);
    int block = plan.layout.teams * plan.layout.warps * kWarp;
    kernel<<<blocks, block, plan.bytes, stream>>>(call, plan.layout);
    check_launch();
    return blocks;
}

// with the tile that costs least; 0: none takes it, or shared memory is too small
template <bool kAccumulate, typename Best, typename Next, typename... More, typename T, typename W>
int launch_teams(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    Plan<Best, kAccumulate, T> best(call.C);
    Plan<Next, kAccumulate, T> next(call.C);
    if (!best.fits() || (next.fits() && next.cost < best.cost)) {
        return launch_teams<kAccumulate, Next, More...>(call, stream);
    }
    return launch_teams<kAccumulate, Best, More...>(call, stream);
}

template <bool kAccumulate, typename T, typename W>
int launch_teams(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    if constexpr (sizeof(T) == 4) {
        return launch_teams<kAccumulate, Tile<4, true>, Tile<3, true>, Tile<2, true>>(call, stream);
    } else {
        if constexpr (kAccumulate) {  // registers do not allow 3 vectors
            return launch_teams<true, Tile<2, true>, Tile<1, true>>(call, stream);
        } else {
            return launch_teams<false, Tile<2, true>, Tile<1, true>, Tile<3, true>>(call, stream);
        }
    }
}

// Longer rows, read again for their second half: where shared memory is too small for ahead.cuh (99 KB).
template <bool kAccumulate, typename T, typename W>
int launch_again(const LayerNormBackwardRows<T, W>& call, cudaStream_t stream) {
    if constexpr (sizeof(T) == 4) {
        return 0;
    } else {
        return launch_teams<kAccumulate, Tile<4, false>>(call, stream);
    }
}

}  // namespace llmc::layernorm_teams
