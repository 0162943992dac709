// unaligned_rows: rows at any address come as all the 16-byte vectors they touch, by bulk copies or, in code for Ampere, by
//      cp.async: what these hold of the rows next to them is not used. Teams of warps share a row as in team_ring.cuh,
//      but a lane takes single elements, 32 apart: which columns it has depends on C alone, so the order of a row's
//      sums does not depend on its address. Sums for dweight and dbias stay in registers to the end. Rows that one
//      block has no room for are shared by a cluster (Hopper), whose blocks have a slice of the columns each.
// Why:    team_ring.cuh takes rows of whole aligned vectors only; fallback.cuh reads others an element at a time,
//         twice.
// Moves:  inp and dout once in, dinp once out: 3 N C elements, 4 N C for +=; and 16 bytes a column and block.
// Result: 77.1 us, 91 % of the roof at 65536x769 bf16; 81 % at 16384x769; 76 % of 16 bits, 95 of fp32 at 5000x20001;
//         H200, 2026-11-24
#pragma once
#include <bit>

#include "llmc/layernorm/backward/rows.cuh"

namespace llmc::unaligned_rows_backward {

// ---- copies: rows at any address come into shared memory as whole aligned vectors; so with each row
// travels what its first and its last vector hold of the rows next to it. On Hopper one lane of a team asks
// for bulk copies; in code for Ampere all threads of the team copy by cp.async, where one warp would keep the
// others waiting. A barrier for each stage says that all has come.

using namespace layernorm;

constexpr int kVector = 16;  // bytes
// A row lies as far past a multiple of kPlace in its stage as in memory. Bulk copies are slower where lines do not match.
constexpr int kPlace = kSm90 ? kLineBytes : kVector;

// what a team agrees on through shared memory, where the blocks of a cluster share a row (1: no cluster)
template <int cluster>
struct alignas(kLineBytes) TeamShared {
    // of a row, at most
    static constexpr int kWarps = cluster > 1 ? cluster* kThresholds.cluster_warps : kWarp;
    uint64_t full[kThresholds.most_stages];  // a stage has come
    uint64_t summed[2];                      // by row parity: all sums have come; in clusters
    alignas(16) float2 sums[2][kWarps];      // of the warps, by row parity; 0 where there is none
};

// By the team's first warp: its barriers, and sums of warps that there are not. On a barrier arrives the lane
// that asks; in Ampere's code each thread of the team, for its copies.
template <int cluster>
__device__ void init(TeamShared<cluster>& shared, const Teams& o, int lane) {
    for (int parity = 0; parity < 2; parity++) { shared.sums[parity][lane] = {0, 0}; }
    if (lane > 0) { return; }
    int arrivals = kSm90 ? 1 : o.warps * kWarp;
    for (int s = 0; s < o.stages; s++) { mbarrier_init(&shared.full[s], arrivals); }
    if constexpr (cluster > 1) {
        for (uint64_t& summed : shared.summed) { mbarrier_init(&summed, 1); }
    }
    if constexpr (kSm90) { mbarrier_init_fence(); }
}

// What of a row travels: whole vectors, all that the row touches; at the begin of the first row of all and at
// the end of the last those inside of it, so that nothing outside of the rows is read. In bytes from where the stage
// begins, too: the begin of the line, in Ampere's code of the vector, that the row begins in.
struct Part {
    int begins, offset, size;  // the row; what travels of it, and how much that is

    __device__ Part() {}
    __device__ Part(const void* row, int bytes, bool first, bool last)
        : begins((int)((uintptr_t)row % kPlace)),
          offset((begins + (first ? kVector - 1 : 0)) & -kVector),
          size(((begins + bytes + (last ? 0 : kVector - 1)) & -kVector) - offset) {}
};

// The elements of a row that do not travel, a lane each; few of the lanes have one. stage: where the row's
// line goes
template <typename T>
__device__ void fetch_rest(unsigned char* stage, const T* row, int C, const Part& part, int lane) {
    int i = lane < kWarp / 2 ? lane : C - 1 - (lane - kWarp / 2), at = part.begins + i * (int)sizeof(T);
    if (at < part.offset || at >= part.offset + part.size) { *reinterpret_cast<T*>(stage + at) = row[i]; }
}

// true in one lane of the warp (Hopper); the compiler then knows that one lane goes on
__device__ inline bool elected() {
    int one;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.b32 %0, 1, 0, p;\n}" : "=r"(one));
    return one != 0;
}

// What of a row travels, by cp.async: a vector each thread of the team, in turn. k: columns a lane, at most;
// so a warp has 2 k vectors for each byte of an element, and there is one more if the row begins inside of
// one. stage: where the row's line goes
template <int k, typename T, typename At>
__device__ void copy_part(unsigned char* stage, const T* row, const Part& part, const At& at) {
    constexpr int most = ceil_div(2 * k * (int)sizeof(T) + 1, kWarp);  // of a thread
    const char* line = reinterpret_cast<const char*>(row) - part.begins;
    int end = part.offset + part.size, step = at.warps * kWarp * kVector;
    int i = part.offset + (at.warp * kWarp + at.lane) * kVector;
#pragma unroll
    for (int j = 0; j < most; j++, i += step) {
        if (i < end) { copy16_async(stage + i, line + i); }
    }
}

// A team's stages, used in turn.
struct Ring {
    unsigned char *begin, *here;  // the first stage, the one in use
    uint64_t* full;
    int stages, bytes;  // of a stage
    int stage = 0, phase = 0;

    __device__ Ring(unsigned char* rings, uint64_t* full, const Teams& o, int streams, int team)
        : full(full), stages(o.stages), bytes(streams * o.region) {
        begin = here = rings + team * stages * bytes;
    }
    __device__ void wait() const { mbarrier_wait(&full[stage], phase); }
    __device__ void advance() {
        here += bytes;
        if (++stage == stages) {
            here = begin;
            stage = 0;
            phase ^= 1;
        }
    }
};

// Where a team's rows lie in their stages, one after the other.
template <typename T, int kStreams>
struct Finder {
    unsigned address[kStreams];  // of the row at work, in elements

    __device__ explicit Finder(const T* const (&rows)[kStreams]) {
        unrolled<kStreams>([&](int i) { address[i] = (unsigned)((uintptr_t)rows[i] / sizeof(T)); });
    }
    // the row at work in the stage that begins `here`, then on to the one `step` elements after; region: as in Teams
    __device__ void next(const T* (&row)[kStreams], const unsigned char* here, int region,
                         const int64_t (&step)[kStreams]) {
        unrolled<kStreams>([&](int i) {
            row[i] = reinterpret_cast<const T*>(here + i * region) + address[i] % (kPlace / sizeof(T));
            address[i] += (unsigned)step[i];
        });
    }
};

// What a team's first warp, in Ampere's code all of the team, needs to ask for the team's rows, one after the
// other.
template <typename T, int kStreams, int k>
struct Fetcher {
    const T* from[kStreams];  // the next row
    int64_t step[kStreams];   // elements to the one after
    int C, region, left;      // rows left
    bool first, ends;         // is the next row the first of all; is the team's last row the last of all

    // begins, ends: are the call's columns those its rows begin with, end with?
    template <typename Call>
    __device__ Fetcher(const Call& call, int region, int64_t row, int64_t rows_step, int rows, bool begins,
                       bool ends)
        : C(call.C),
          region(region),
          left(rows),
          first(begins && row == 0),
          ends(ends && row + (rows - 1) * rows_step == call.N - 1) {
        const T* streams[] = {call.inp, call.dout, call.dinp};
        int64_t strides[] = {call.inp_stride, call.dout_stride, call.dinp_stride};
        unrolled<kStreams>([&](int i) {
            from[i] = streams[i] + row * strides[i];
            step[i] = rows_step * strides[i];
        });
    }
    // Into the stage in use, which nobody reads any more. In Ampere's code what fetch_rest stores is seen
    // after the team's next barrier; as there are two stages or more, that comes before the row's turn.
    template <typename At>
    __device__ void fetch(const Ring& ring, const At& at) {
        if (left <= 0) { return; }
        bool last = ends && left == 1;
        int all = 0;
        Part parts[kStreams];
#pragma unroll
        for (int i = 0; i < kStreams; i++) {
            parts[i] = Part(from[i], C * (int)sizeof(T), first, last);
            all += parts[i].size;
            if ((first || last) && at.warp == 0) {
                fetch_rest(ring.here + i * region, from[i], C, parts[i], at.lane);
                if constexpr (kSm90) { fence_proxy_async(); }
            }
        }
        uint64_t* full = &ring.full[ring.stage];
        __syncwarp();  // one lane arrives for what all of them stored
        if constexpr (!kSm90) {
            unrolled<kStreams>([&](int i) { copy_part<k>(ring.here + i * region, from[i], parts[i], at); });
            copy_arrive(full);
        } else if (elected()) {
            mbarrier_arrive_expect(full, all);
#pragma unroll
            for (int i = 0; i < kStreams; i++) {
                const char* line = reinterpret_cast<const char*>(from[i]) - parts[i].begins;
                bulk_copy(ring.here + i * region + parts[i].offset, line + parts[i].offset, parts[i].size,
                          full);
            }
        }
        unrolled<kStreams>([&](int i) { from[i] += step[i]; });
        left--;
        first = false;
    }
};

// of the cluster's blocks that share a row; a function of C alone
template <int cluster>
__device__ Slice slice_of(int C) {
    if constexpr (cluster == 1) { return {0, C}; }
    int rank = (int)cluster_rank(), begin = rank * C / cluster;
    return {begin, (rank + 1) * C / cluster - begin};
}

// A lane's columns, of its block's. Each warp of the team has as many as the others or one more, side by side, a lane every
// 32nd of them: at most k, and the first `unguarded` of those every lane has.
template <int k, int unguarded>
struct Place {
    int team, warp, warps, lane;  // warp: of the team
    int first, after;             // the lane's first column; columns of the warp from there on
    int slot;                     // where the lane leaves a sum of the warp's; -1 if it does not

    __device__ Place(int C, const Teams& o) : warps(o.warps), lane(threadIdx.x % kWarp) {
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
        sync_team(team, warps * kWarp);
    }
    __device__ bool has(int i) const { return i < unguarded || kWarp * i < after; }
};

// The statistics of a team's rows, 32 at a time, one a lane.
template <typename Call>
struct Statistics {
    const Call& call;
    int64_t row, step;  // the lane's next row; rows to the one after
    int left;           // of the team's rows from there on

    __device__ float2 next() {
        float2 ms{0, 0};
        if (left > 0) { ms = {mean_of(call, row), call.rstd[row]}; }
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
    unrolled<k>([&](int i) {
        int c = at.first + kWarp * i;
        held.weight[i] = 1;
        if (!at.has(i)) { return; }
        if (wide != nullptr) {
            held.weight[i] = wide[c];
        } else if (weight != nullptr) {
            held.weight[i] = (float)weight[c];
        }
    });
}

// First half of a row: what the second needs into registers; returns this lane's sums of wdy and of wdy xhat.
// rows: of each stream, from the lane's first column on. A column that the lane does not have adds nothing.
template <int k, typename T, int kStreams, typename At>
__device__ float2 read_row(Held<k>& held, const T* const (&rows)[kStreams], const At& at, float m, float s) {
    float2 sums{0, 0};
    unrolled<k>([&](int i) {
        float x = at.has(i) ? (float)rows[0][kWarp * i] : m,
              dy = at.has(i) ? (float)rows[1][kWarp * i] : 0.0f;
        float xhat = (x - m) * s, wdy = dy * held.weight[i];
        held.xhat[i] = xhat;
        held.wdy[i] = wdy;
        held.dweight[i] = fmaf(dy, xhat, held.dweight[i]);
        held.dbias[i] += dy;
        sums.x += wdy;
        sums.y = fmaf(wdy, xhat, sums.y);
    });
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

// The same over the warps of all blocks of the cluster: each warp tells all blocks. number: of the team's row, which
// its sums' place and barrier alternate by. After it all warps have read, too, and nobody is two rows ahead.
template <int cluster, typename At>
__device__ float2 cluster_sum(TeamShared<cluster>& shared, unsigned number, float2 lane_sums, const At& at) {
    unsigned parity = number % 2, pairs = cluster * at.warps;
    uint64_t* barrier = &shared.summed[parity];
    if (at.warp == 0 && at.lane == 0) { mbarrier_arrive_expect(barrier, pairs * sizeof(float2)); }
    float2 mine = both_sums(warp_sum_pair(lane_sums)), sum{0, 0};
    if (at.lane < cluster) {
        float2* slot = &shared.sums[parity][cluster_rank() * at.warps + at.warp];
        store2_async(slot, mine, barrier, at.lane);
    }
    mbarrier_wait_cluster(barrier, number / 2 % 2);
    for (unsigned i = at.lane; i < pairs; i += kWarp) {
        sum.x += shared.sums[parity][i].x;
        sum.y += shared.sums[parity][i].y;
    }
    return both_sums(warp_sum_pair(sum));
}

// second half: dinp from the row's means of wdy and of wdy xhat; before: what += adds it to
template <bool kAccumulate, int k, typename T, typename At>
__device__ void write_row(T* dinp, const T* before, const Held<k>& held, const At& at, float c1, float c2,
                          float s) {
    unrolled<k>([&](int i) {
        if (!at.has(i)) { return; }
        float result = fmaf(fmaf(held.xhat[i], -c2, held.wdy[i]), s, -c1 * s);
        if constexpr (kAccumulate) { result += (float)before[kWarp * i]; }
        dinp[kWarp * i] = (T)result;
    });
}

// Numbers of a group of C sums in scratch: of long rows each begins on 16 bytes, with zeros behind the last column. Short
// ones, added up by single columns, are done 0.1 to 0.5 us sooner.
__host__ __device__ inline int padded(int C) { return C < 4096 ? C : ceil_div(C, 4) * 4; }

// The teams' sums over their rows meet in the ring's memory, are added team after team, and go to this
// group's part of scratch. of_teams (teams,2,columns of the slice), scratch (2,groups,padded C)
template <int cluster, typename HeldT, int k, int unguarded>
__device__ void write_sums(float* of_teams, float* scratch, const HeldT& held, const Place<k, unguarded>& at,
                           int teams, int C) {
    __syncthreads();                               // nobody reads the ring any more
    auto [begin, columns] = slice_of<cluster>(C);  // not kept since the kernel began: registers are free here
    float* mine = of_teams + at.team * 2 * columns + at.first;
    unrolled<k>([&](int i) {
        if (!at.has(i)) { return; }
        mine[kWarp * i] = held.dweight[i];
        mine[columns + kWarp * i] = held.dbias[i];
    });
    __syncthreads();
    int64_t groups = gridDim.x / cluster, stride = padded(C);
    scratch += blockIdx.x / cluster * stride + begin;
    float* second = scratch + groups * stride;
#pragma unroll 1
    for (int c = threadIdx.x; c < 2 * columns; c += blockDim.x) {
        float sum = 0;
#pragma unroll 4
        for (int t = 0; t < teams; t++) { sum += of_teams[t * 2 * columns + c]; }
        c < columns ? scratch[c] = sum : second[c - columns] = sum;
    }
    int behind = begin + columns == C ? (int)stride - begin : 0;  // to there zeros
    for (int c = columns + (int)threadIdx.x; c < behind; c += blockDim.x) { scratch[c] = second[c] = 0; }
}

// of a call that a block does alone, or its part: as many columns of each row, from the slice's on
template <typename T>
__device__ LayerNormBackwardRows<T, T> part_of(LayerNormBackwardRows<T, T> call, const float*& wide,
                                               const Slice& slice) {
    call.C = slice.columns;
    call.inp += slice.begin;
    call.dout += slice.begin;
    call.dinp += slice.begin;
    if (call.weight != nullptr) { call.weight += slice.begin; }
    if (wide != nullptr) { wide += slice.begin; }
    return call;
}

// call: what of it the block does; C: of a row, which the cluster's blocks share
template <int k, int unguarded, int cluster, bool kAccumulate, typename T>
__device__ void backward_rows(const LayerNormBackwardRows<T, T>& call, const float* wide, const Teams& o,
                              int C) {
    constexpr int kStreams = kAccumulate ? 3 : 2;
    using Shared = TeamShared<cluster>;
    extern __shared__ __align__(128) unsigned char memory[];
    Place<k, unguarded> at(call.C, o);
    Shared& shared = reinterpret_cast<Shared*>(memory)[at.team];
    unsigned char* rings = memory + o.teams * sizeof(Shared);
    Ring ring(rings, shared.full, o, kStreams, at.team);
    int64_t groups = gridDim.x / cluster, row = blockIdx.x / cluster + at.team * groups,
            step = groups * o.teams;
    int rows = row < call.N ? (int)((call.N - 1 - row) / step + 1) : 0;  // of this team
    bool begins = cluster == 1 || cluster_rank() == 0, ends = cluster == 1 || cluster_rank() == cluster - 1;
    Fetcher<T, kStreams, k> fetcher(call, o.region, row, step, rows, begins, ends);
    Finder<T, kStreams> finder(fetcher.from);
    if (at.warp == 0) { init(shared, o, at.lane); }
    cluster > 1 ? cluster_sync() : __syncthreads();  // barriers are there
    if constexpr (kSm90) { dependency_wait(); }
    for (Ring to = ring; (!kSm90 || at.warp == 0) && to.phase == 0; to.advance()) { fetcher.fetch(to, at); }
    Statistics<LayerNormBackwardRows<T, T>> statistics{call, row + at.lane * step, kWarp * step,
                                                       rows - at.lane};
    float2 asked = statistics.next();
    Held<k> held;
    load_weight(held, call.weight, wide, at);
    if constexpr (!kSm90) { at.sync(); }  // what fetch_rest has stored is there

    T* dinp = call.dinp + row * call.dinp_stride + at.first;
    int64_t dinp_step = step * call.dinp_stride;
    float per_column = 1.0f / C;
    unsigned number = 0;  // of the team's row
    for (int left = rows; left > 0; left -= kWarp) {
        float2 of_lane = asked;
        asked = statistics.next();
#pragma unroll 1
        for (int turn = 0; turn < min(left, kWarp); turn++, number++, dinp += dinp_step, ring.advance()) {
            float m = __shfl_sync(kAllLanes, of_lane.x, turn), s = __shfl_sync(kAllLanes, of_lane.y, turn);
            const T* from[kStreams];
            finder.next(from, ring.here + at.first * sizeof(T), o.region, fetcher.step);
            ring.wait();
            float2 sums = read_row(held, from, at, m, s);
            if constexpr (cluster > 1) {
                sums = cluster_sum<cluster>(shared, number, sums, at);
            } else {
                sums = team_sum(shared.sums[number % 2], sums, at);
            }
            float c1 = call.rms ? 0 : sums.x * per_column, c2 = sums.y * per_column;
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
    write_sums<cluster>(reinterpret_cast<float*>(rings), (float*)call.scratch, held, at, o.teams, C);
    if constexpr (cluster > 1) { cluster_sync(); }  // nobody leaves while sums may still be sent to it
}

template <int k, int unguarded, int cluster, bool kAccumulate, typename T>
__global__ void __launch_bounds__(unaligned_warps(k, kAccumulate) * kWarp)
    layernorm_backward_kernel(LayerNormBackwardRows<T, T> call, const float* wide, Teams o) {
    if constexpr (cluster == 1) {
        backward_rows<k, unguarded, 1, kAccumulate>(call, wide, o, call.C);
    } else if constexpr (kSm90) {
        auto part = part_of(call, wide, slice_of<cluster>(call.C));
        backward_rows<k, unguarded, cluster, kAccumulate>(part, wide, o, call.C);
    }
}

// wide: a weight of floats, or null
template <int row, bool kAccumulate, typename T>
ColumnGroups launch(const LayerNormBackwardRows<T, T>& call, const float* wide, const Teams& teams,
                    cudaStream_t stream) {
    constexpr const layouts::UnalignedBackward& layout = layouts::kUnalignedBackward[row];
    constexpr int cluster = layout.cluster;
    static_assert(sizeof(TeamShared<cluster>) == unaligned_team_bytes(cluster));
    constexpr auto* kernel =
        layernorm_backward_kernel<layout.columns, layout.unguarded, cluster, kAccumulate, T>;
    bool hopper = runs_hopper_code(kernel);
    int threads = teams.teams * teams.warps * kWarp;
    size_t most = device_facts().shared_bytes;
    LaunchConfig config{1, threads, most, stream, cluster, hopper};
    int64_t groups = groups_at_once<kernel>(config);
    if (groups == 0) { return {}; }
    groups = std::min(groups, ceil_div(call.N, (int64_t)teams.teams));
    config.grid = groups * cluster;
    if (cluster == 1) { config.shared_bytes = std::max(teams.shared_bytes, hopper ? alone_bytes() : 0); }
    config.launch(kernel, call, wide, teams);
    return {.count = (int)groups, .early = hopper, .stride = padded(call.C)};
}

template <typename T, typename W>
ColumnGroups launch(const LayerNormBackwardRows<T, W>& given, const Choice& choice, cudaStream_t stream) {
    auto call = std::bit_cast<LayerNormBackwardRows<T, T>>(given);
    const float* wide = nullptr;  // one kernel takes weights of both types
    if constexpr (!std::is_same_v<W, T>) {
        call.weight = nullptr;
        wide = given.weight;
    }
    return with_constant<0, std::size(layouts::kUnalignedBackward)>(choice.layout, [&]<int i>() {
        if constexpr (sizeof(T) == 2 || layouts::kUnalignedBackward[i].fp32) {
            return call.accumulate_dinp ? launch<i, true>(call, wide, choice.teams, stream)
                                        : launch<i, false>(call, wide, choice.teams, stream);
        }
        return ColumnGroups{};
    });
}

}  // namespace llmc::unaligned_rows_backward
