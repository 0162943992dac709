// odd: rows at any address and of any length come as all the 16-byte vectors they touch, by bulk copies or,
//      in code for Ampere, by cp.async: what these hold of the rows next to them is not used. Teams of warps
//      share a row as in ring.cuh, but a lane takes single elements, 32 apart: which columns it has depends
//      on C alone, so the order of a row's sums does not depend on its address. Sums for dweight and dbias
//      stay in registers to the end.
// Why:    ring.cuh takes rows of whole aligned vectors only; general.cu reads others an element at a time,
//         twice.
// Moves:  inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 16 bytes a column and block.
// Result: 76.8 us, 91 % of the roof at 65536x769 bf16; 81 % at 16384x769; H200, 2026-11-23; Ampere's
//         code there 79 and 67 %
#pragma once
#include <algorithm>

#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/launch.cuh"
#include "llmc/layernorm_backward/odd_ring.cuh"
#include "llmc/layernorm_backward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/reduce.cuh"

namespace llmc::layernorm_odd_backward {

// A lane's columns. Each warp of the team has as many as the others or one more, side by side, a lane every
// 32nd of them: at most k, and the first `full` of those every lane has.
template <int k, int full>
struct Place {
    int team, warp, warps, lane;  // warp: of the team
    int first, after;             // the lane's first column; columns of the warp from there on
    int slot;                     // where the lane leaves a sum of the warp's; -1 if it does not

    __device__ Place(int C, const Layout& o) : warps(o.warps), lane(threadIdx.x % kWarp) {
        int of_block = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);  // so that it is seen to be the warp's
        team = of_block / warps;
        warp = of_block - team * warps;
        first = warp * C / warps + lane;
        after = (warp + 1) * C / warps - first;
        slot = lane % (kWarp / 2) == 0 ? 2 * warp + lane / (kWarp / 2) : -1;
        // kept in a register: the compiler would work it out again for each row
        asm volatile("" : "+r"(slot));
    }
    // the team's threads; what they wrote before is seen after
    __device__ void sync() const {
        if (warps == 1) { return __syncwarp(); }
        asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(warps * kWarp) : "memory");
    }
    __device__ bool has(int i) const { return i < full || kWarp * i < after; }
};

// The statistics of a team's rows, 32 at a time, one a lane.
struct Statistics {
    const float *mean, *rstd;
    int64_t row, step;  // the lane's next row; rows to the one after
    int left;           // of the team's rows from there on

    __device__ float2 next() {
        float2 ms{0, 0};
        if (left > 0) { ms = {mean[row], rstd[row]}; }
        row += step;
        left -= kWarp;
        return ms;
    }
};

// what a lane keeps of its columns: of one row between its halves, and of all rows to the end
template <int k>
struct Held {
    float xhat[k], wdy[k], weight[k], dweight[k] = {}, dbias[k] = {};
};

// wide: a weight of floats, or null
template <int k, typename T, typename At>
__device__ void load_weight(Held<k>& held, const T* weight, const float* wide, const At& at) {
#pragma unroll
    for (int i = 0; i < k; i++) {
        int c = at.first + kWarp * i;
        held.weight[i] = 1;
        if (!at.has(i)) { continue; }
        if (wide != nullptr) {
            held.weight[i] = wide[c];
        } else if (weight != nullptr) {
            held.weight[i] = (float)weight[c];
        }
    }
}

// First half of a row: what the second needs into registers; returns this lane's sums of wdy and of wdy xhat.
// rows: of each stream, from the lane's first column on. A column that the lane does not have adds nothing.
template <int k, typename T, int kStreams, typename At>
__device__ float2 read_row(Held<k>& held, const T* const (&rows)[kStreams], const At& at, float m, float s) {
    float2 sums{0, 0};
#pragma unroll
    for (int i = 0; i < k; i++) {
        float x = at.has(i) ? (float)rows[0][kWarp * i] : m,
              dy = at.has(i) ? (float)rows[1][kWarp * i] : 0.0f;
        float xhat = (x - m) * s, wdy = dy * held.weight[i];
        held.xhat[i] = xhat;
        held.wdy[i] = wdy;
        held.dweight[i] = fmaf(dy, xhat, held.dweight[i]);
        held.dbias[i] += dy;
        sums.x += wdy;
        sums.y = fmaf(wdy, xhat, sums.y);
    }
    return sums;
}

// Sums over the team's warps, the same in each lane. After it all of them have read inp and dout: a warp's
// sums need every value it loads. One barrier is enough: who writes slots of this parity again has passed the
// next row's, and so have those who read them here.
template <typename At>
__device__ float2 team_sum(float2 (&slots)[kWarp], float2 lane_sums, const At& at) {
    float mine = warp_sum_pair(lane_sums);
    if (at.warps == 1) { return both_sums(mine); }
    if (at.slot >= 0) { reinterpret_cast<float*>(slots)[at.slot] = mine; }
    at.sync();
    float2 sum{0, 0};
#pragma unroll 1
    for (int w = 0; w < at.warps; w += 2) {
        float4 two = reinterpret_cast<const float4&>(slots[w]);
        sum.x += two.x + two.z;
        sum.y += two.y + two.w;
    }
    return sum;
}

// second half: dinp from the row's means of wdy and of wdy xhat; before: what += adds it to
template <bool kAccumulate, int k, typename T, typename At>
__device__ void write_row(T* dinp, const T* before, const Held<k>& held, const At& at, float c1, float c2,
                          float s) {
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (!at.has(i)) { continue; }
        float result = fmaf(fmaf(held.xhat[i], -c2, held.wdy[i]), s, -c1 * s);
        if constexpr (kAccumulate) { result += (float)before[kWarp * i]; }
        dinp[kWarp * i] = (T)result;
    }
}

// The teams' sums over their rows meet in the ring's memory, are added team after team, and go to this
// block's part of scratch. of_teams (teams,2,C), scratch (2,blocks,C)
template <typename HeldT, int k, int full>
__device__ void write_sums(float* of_teams, float* scratch, const HeldT& held, const Place<k, full>& at,
                           int teams, int C) {
    __syncthreads();  // nobody reads the ring any more
    float* mine = of_teams + at.team * 2 * C + at.first;
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (!at.has(i)) { continue; }
        mine[kWarp * i] = held.dweight[i];
        mine[C + kWarp * i] = held.dbias[i];
    }
    __syncthreads();
    scratch += (int64_t)blockIdx.x * C;
    int64_t to_dbias = (int64_t)(gridDim.x - 1) * C;
#pragma unroll 1
    for (int c = threadIdx.x; c < 2 * C; c += blockDim.x) {
        float sum = 0;
#pragma unroll 4
        for (int t = 0; t < teams; t++) { sum += of_teams[t * 2 * C + c]; }
        scratch[c < C ? c : to_dbias + c] = sum;
    }
}

template <int k, int full, bool kAccumulate, typename T>
__device__ void backward_rows(const LayerNormBackwardRows<T, T>& call, const float* wide, const Layout& o) {
    constexpr int kStreams = kAccumulate ? 3 : 2;
    extern __shared__ __align__(128) unsigned char memory[];
    Place<k, full> at(call.C, o);
    TeamShared& shared = reinterpret_cast<TeamShared*>(memory)[at.team];
    unsigned char* rings = memory + o.teams * sizeof(TeamShared);
    Ring ring(rings, shared, o, kStreams, at.team);
    int64_t row = blockIdx.x + (int64_t)at.team * gridDim.x, step = (int64_t)gridDim.x * o.teams;
    int rows = row < call.N ? (int)((call.N - 1 - row) / step + 1) : 0;  // of this team
    Fetcher<T, kStreams, k> fetcher(call, o.region, row, step, rows);
    unsigned address[kStreams];  // of the row at work, in elements, to find it in its stage
#pragma unroll
    for (int i = 0; i < kStreams; i++) { address[i] = (unsigned)((uintptr_t)fetcher.from[i] / sizeof(T)); }
    if (at.warp == 0) { init(shared, o, at.lane); }
    __syncthreads();  // barriers are there
    if constexpr (kSm90) { dependency_wait(); }
    if (!kSm90 || at.warp == 0) {
        for (Ring to = ring; to.phase == 0; to.advance()) { fetcher.fetch(to, at); }
    }
    Statistics statistics{call.mean, call.rstd, row + at.lane * step, kWarp * step, rows - at.lane};
    float2 asked = statistics.next();
    Held<k> held;
    load_weight(held, call.weight, wide, at);
    if constexpr (!kSm90) { at.sync(); }  // what fetch_rest has stored is there

    T* dinp = call.dinp + row * call.dinp_stride + at.first;
    int64_t dinp_step = step * call.dinp_stride;
    float per_column = 1.0f / call.C;
    int parity = 0;
    for (int left = rows; left > 0; left -= kWarp) {
        float2 of_lane = asked;
        asked = statistics.next();
#pragma unroll 1
        for (int turn = 0; turn < min(left, kWarp); turn++, parity ^= 1, dinp += dinp_step, ring.advance()) {
            float m = __shfl_sync(kAllLanes, of_lane.x, turn), s = __shfl_sync(kAllLanes, of_lane.y, turn);
            const T* from[kStreams];
#pragma unroll
            for (int i = 0; i < kStreams; i++) {
                from[i] = reinterpret_cast<T*>(ring.here + i * o.region) + address[i] % (kPlace / sizeof(T)) +
                          at.first;
                address[i] += (unsigned)fetcher.step[i];
            }
            ring.wait();
            float2 sums = team_sum(shared.sums[parity], read_row(held, from, at, m, s), at);
            float c1 = sums.x * per_column, c2 = sums.y * per_column;
            if constexpr (kAccumulate) {
                write_row<true>(dinp, from[2], held, at, c1, c2, s);
                if constexpr (kSm90) { fence_proxy_async(); }
                at.sync();  // what of dinp was read comes before the refill
            }
            if (!kSm90 || at.warp == 0) { fetcher.fetch(ring, at); }
            if constexpr (!kAccumulate) { write_row<false>(dinp, from[0], held, at, c1, c2, s); }
        }
    }
    if constexpr (kSm90) { dependency_launch(); }
    write_sums(reinterpret_cast<float*>(rings), (float*)call.scratch, held, at, o.teams, call.C);
}

// warps of a multiprocessor, so that what a lane holds of k columns fits its registers
constexpr int warps_of(int k, bool accumulate) {
    int registers = 5 * k + (accumulate ? 41 : 31);
    return registers > 96 ? 16 : registers > 80 ? 20 : registers > 72 ? 24 : 28;
}

template <int k, int full, bool kAccumulate, typename T>
__global__ __launch_bounds__(warps_of(k, kAccumulate) *
                             kWarp) void layernorm_backward_kernel(LayerNormBackwardRows<T, T> call,
                                                                   const float* wide, Layout o) {
    backward_rows<k, full, kAccumulate>(call, wide, o);
}

// ---- the choice ----------------------------------------------------------------------------------

constexpr int kFewestColumns = 128;   // below, there is too little for a warp
constexpr int kMostTeams = 15;        // of more than one warp: a block has as many barriers to name
constexpr int kRingBytes = 72 << 10;  // of a block: more drives the blocks apart, much less starves them

// k columns a lane, the first `full` of them without asking whether they are there
template <int k_, int full_>
struct Tile {
    static constexpr int k = k_, full = full_;
    static bool fits(int C, int warps) {
        return ceil_div(C, warps) <= k * kWarp && C / warps >= full * kWarp;
    }
};
template <typename... Tile>
struct Tiles {};
using AllTiles = Tiles<Tile<6, 3>, Tile<8, 6>, Tile<9, 8>, Tile<10, 9>, Tile<11, 10>, Tile<12, 11>,
                       Tile<13, 12>, Tile<14, 13>, Tile<15, 14>, Tile<16, 15>>;

// with this many warps to a row, of a block that may have `most`
inline Layout layout_of(int warps, int most, int streams, int row_bytes) {
    int region = ceil_div(row_bytes, kLineBytes) * kLineBytes + kLineBytes, bytes = streams * row_bytes;
    int fit = most / warps >= 4 ? 16 / warps : most / warps;  // of small teams, 16 warps in all are enough
    int teams = std::min(warps > 1 ? std::min(fit, kMostTeams) : most, std::max(1, kRingBytes / (2 * bytes)));
    int stages = teams > 1 ? kRingBytes / (teams * bytes) : 3;
    return {warps, teams, std::clamp(stages, 2, kMostStages), region};
}

inline int shared_bytes(const Layout& o, int streams, int C) {
    int ring = o.stages * streams * o.region, sums = 2 * C * (int)sizeof(float);
    return o.teams * ((int)sizeof(TeamShared) + std::max(ring, sums));
}

template <typename Tile, bool kAccumulate, typename T>
ColumnGroups launch(const LayerNormBackwardRows<T, T>& call, const float* wide, Layout o,
                    cudaStream_t stream) {
    constexpr int kStreams = kAccumulate ? 3 : 2;
    auto* kernel = layernorm_backward_kernel<Tile::k, Tile::full, kAccumulate, T>;
    int most = device_facts().shared_bytes;
    static OncePerDevice prepared;
    prepared(
        [&](int) { check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most)); });
    while (o.stages > 2 && shared_bytes(o, kStreams, call.C) > most) { o.stages--; }
    int bytes = shared_bytes(o, kStreams, call.C);
    if (bytes > most) { return {}; }
    int groups = std::min(device_facts().multiprocessors, kMostGroups);
    groups = (int)std::min<int64_t>(groups, ceil_div(call.N, (int64_t)o.teams));
    bool hopper = runs_hopper_code(kernel);
    LaunchAttributes attributes;
    attributes.overlapping(hopper);
    cudaLaunchConfig_t config = attributes.config(groups, o.teams * o.warps * kWarp, bytes, stream);
    check(cudaLaunchKernelEx(&config, kernel, call, wide, o));
    return {groups, hopper};
}

// By the tile and number of warps that suit best: many teams, and wide lanes, since a warp's work once a row
// costs as much as seven columns a lane.
template <bool kAccumulate, typename T, typename... Tile>
ColumnGroups launch_best(Tiles<Tile...>, const LayerNormBackwardRows<T, T>& call, const float* wide,
                         cudaStream_t stream) {
    Layout best{};
    int best_k = 0;
    auto consider = [&]<typename One>(One) {
        constexpr int most = warps_of(One::k, kAccumulate);
        for (int warps = 1; warps <= most; warps++) {
            Layout o = layout_of(warps, most, kAccumulate ? 3 : 2, call.C * (int)sizeof(T));
            if (!One::fits(call.C, warps) || o.teams * One::k <= best.teams * best_k) { continue; }
            best = o;
            best_k = One::k;
        }
    };
    (consider(Tile{}), ...);
    ColumnGroups groups;
    auto launched = [&]<typename One>(One) {
        if (One::k == best_k) { groups = launch<One, kAccumulate>(call, wide, best, stream); }
    };
    (launched(Tile{}), ...);
    return groups;
}

}  // namespace llmc::layernorm_odd_backward

namespace llmc {

template <typename T, typename W>
ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<T, W>& given, cudaStream_t stream) {
    using namespace layernorm_odd_backward;
    if (given.C < kFewestColumns || given.dinp == nullptr || rows_are_vectors(given)) { return {}; }
    LayerNormBackwardRows<T, T> call{given.dinp, nullptr,           nullptr,           given.scratch,
                                     given.dout, given.inp,         nullptr,           given.mean,
                                     given.rstd, given.N,           given.C,           given.accumulate_dinp,
                                     false,      given.dinp_stride, given.dout_stride, given.inp_stride};
    const float* wide = nullptr;
    if constexpr (std::is_same_v<W, T>) {
        call.weight = given.weight;
    } else {
        wide = given.weight;
    }
    return call.accumulate_dinp ? launch_best<true>(AllTiles{}, call, wide, stream)
                                : launch_best<false>(AllTiles{}, call, wide, stream);
}

}  // namespace llmc
