// odd: what LayerNorm's two regimes for rows at any address share. Rows lie in a region of shared memory as
// far past a 16-byte boundary as they do in memory. So their middle, the whole aligned vectors, travels by
// bulk copies both ways; their edges, a few elements before and after, are moved by single lanes, and nothing
// outside is touched. Short rows that lie one after the other travel together, as one span. In shared memory
// a warp takes 32 neighbouring elements at a time, wherever they begin: which columns a lane has depends on C
// alone, so the order of a row's sums does not depend on its address.
#pragma once
#include <algorithm>

#include "llmc/async_copy.cuh"
#include "llmc/device.cuh"
#include "llmc/device_facts.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_odd {

constexpr int kMaxStages = 4;

// How the work is laid out: a block has `teams` teams of `warps` warps, each with a ring of `stages`; a stage
// has a region of `region` elements for each stream of rows, and takes a span of `together` rows.
struct Layout {
    int teams, warps, stages, region, together;
    int rows = 0;  // of a block, if it does not walk to the end
};

// what a team agrees on through shared memory
struct alignas(16) TeamShared {
    uint64_t full[kMaxStages];  // a stage has come
    float slots[4][kWarp];      // sums of the warps; 0 where there is none
};

// Keeps x in a register, where the compiler would work it out again for every row.
__device__ inline void keep(int& x) { asm volatile("" : "+r"(x)); }

// elements of this pointer past a 16-byte boundary
template <typename T>
__device__ inline int offset_of(const T* p) {
    return (unsigned)(uintptr_t)p / sizeof(T) % Vec<T>::size;
}

// Of a span of `elements`, those that bulk copies move: begin, and `count` from there. At least one vector,
// if the span is two vectors or more.
template <typename T>
struct Middle {
    int offset, begin, count;

    __device__ Middle(const T* span, int elements) : offset(offset_of(span)) {
        constexpr int n = Vec<T>::size;
        begin = -offset & (n - 1);
        count = (elements - begin) & -n;
    }
    __device__ uint32_t bytes() const { return count * (uint32_t)sizeof(T); }
    __device__ bool has(int i) const { return i >= begin && i < begin + count; }
};

// A lane's columns: each warp of the team has ceil(C / warps) neighbouring ones, the last perhaps fewer; a
// lane every 32nd of its warp's, at most k. The first `full` of them every lane has.
template <int k, int full, bool kTeamIsBlock>
struct Share {
    int team, warp, warps, lane;  // warp: of the team
    int first;                    // column of the lane
    int after;                    // columns of the warp from that one on

    __device__ Share(int C, const Layout& o) : warps(o.warps), lane(threadIdx.x % kWarp) {
        int of_block = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);  // so that it is seen to be the warp's
        team = kTeamIsBlock ? 0 : of_block / warps;
        warp = of_block - team * warps;
        int each = ceil_div(C, warps);
        first = warp * each + lane;
        after = min(each, C - warp * each) - lane;
        keep(after);
    }
    __device__ bool leads() const { return warp == 0 && lane == 0; }
    __device__ bool has(int i) const { return i < full || kWarp * i < after; }

    // the team's threads; what they wrote before is seen after
    __device__ void sync() const {
        if (warps == 1) {
            __syncwarp();
        } else if constexpr (kTeamIsBlock) {
            __syncthreads();
        } else {
            asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(warps * kWarp) : "memory");
        }
    }
    // x[j] = its sum over the team's threads, the same bits in each; n: 1 or 2. Slots may be used again after
    // the team's next barrier.
    template <int n>
    __device__ void sum(float (&x)[n], float (*slots)[kWarp]) const {
        static_assert(n == 1 || n == 2);
        float mine = x[0];  // of two sums, lanes 0 to 15 take the first, the others the second
        bool upper = n == 2 && lane >= kWarp / 2;
        if constexpr (n == 2) {
            mine = (upper ? x[1] : x[0]) + __shfl_xor_sync(kAllLanes, upper ? x[0] : x[1], kWarp / 2);
        }
#pragma unroll
        for (int distance = kWarp / 2 / n; distance > 0; distance /= 2) {
            mine += __shfl_xor_sync(kAllLanes, mine, distance);
        }
        if (warps == 1) {
#pragma unroll
            for (int j = 0; j < n; j++) { x[j] = __shfl_sync(kAllLanes, mine, j * kWarp / 2); }
            return __syncwarp();
        }
        if (lane % (kWarp / n) == 0) { slots[upper][warp] = mine; }
        sync();
#pragma unroll
        for (int j = 0; j < n; j++) { x[j] = 0; }
#pragma unroll 1
        for (int w = 0; w < warps; w += 4) {
#pragma unroll
            for (int j = 0; j < n; j++) {
                float4 four = *reinterpret_cast<const float4*>(&slots[j][w]);
                x[j] += (four.x + four.y) + (four.z + four.w);
            }
        }
    }
};

// A team's way through the rows: a span of each stream after the other. Pointers go along: to work each out
// anew would cost as many instructions as several columns.
template <typename T, int kStreams>
struct Walk {
    const T* now[kStreams];   // the span at work, or the one after it
    int64_t step[kStreams];   // elements from span to span
    int64_t ahead[kStreams];  // elements from there to the span to be asked for, after `now` has advanced
    int64_t left;             // rows from now on, up to the team's last row
    int step_rows, together, C;
    int ahead_rows;

    __device__ Walk(int64_t left, int step_rows, const Layout& o, int C)
        : left(left),
          step_rows(step_rows),
          together(o.together),
          C(C),
          ahead_rows((o.stages - 2) * step_rows) {}
    __device__ void stream(int i, const T* inputs, int64_t stride, int64_t first_row) {
        now[i] = inputs + first_row * stride;
        step[i] = step_rows * stride;
        ahead[i] = ahead_rows * stride;
    }
    __device__ void advance() {
        left -= step_rows;
#pragma unroll
        for (int i = 0; i < kStreams; i++) { now[i] += step[i]; }
    }
    // rows of a span with this many left
    __device__ int rows_of(int64_t rows) const { return (int)min((int64_t)together, rows); }
};

// A team's stages, used in turn. Results leave from the stage that their rows came in; it is filled again
// when the copy engine has read it, one span later: of S stages S - 1 are under way.
template <typename T, int kStreams>
struct Ring {
    T* memory;
    uint64_t* full;
    int region, stages, stage = 0;
    unsigned phase = 0;

    __device__ Ring(T* memory, TeamShared& shared, const Layout& o)
        : memory(memory), full(shared.full), region(o.region), stages(o.stages) {}

    // the whole team, before anything else; then it synchronises
    template <typename At>
    __device__ void init(TeamShared& shared, const At& at) const {
        if (at.warp > 0) { return; }
#pragma unroll
        for (int j = 0; j < 4; j++) { shared.slots[j][at.lane] = 0; }
        if (at.lane > 0) { return; }
#pragma unroll 1
        for (int s = 0; s < stages; s++) { mbarrier_init(&full[s], 1); }
        mbarrier_init_fence();
    }
    // where the stage in use has this stream
    __device__ T* of_stream(int stream) const { return memory + (stage * kStreams + stream) * region; }
    __device__ void wait() const { mbarrier_wait(&full[stage], phase); }
    __device__ void advance() {
        stage = stage + 1 == stages ? 0 : stage + 1;
        phase ^= stage == 0;
    }

    // one lane: asks for the middles of these spans
    __device__ void fetch(int to, const T* const (&spans)[kStreams], int elements) const {
        uint32_t bytes = 0;
#pragma unroll
        for (int i = 0; i < kStreams; i++) { bytes += Middle<T>(spans[i], elements).bytes(); }
        mbarrier_arrive_expect(&full[to], bytes);
#pragma unroll
        for (int i = 0; i < kStreams; i++) {
            Middle<T> part(spans[i], elements);
            bulk_copy(memory + (to * kStreams + i) * region + part.offset + part.begin, spans[i] + part.begin,
                      part.bytes(), &full[to]);
        }
    }
    // the same lane, first: as many spans as may be under way
    __device__ void fetch_first(Walk<T, kStreams> walk) const {
#pragma unroll 1
        for (int s = 0; s < stages - 1 && walk.left > 0; s++, walk.advance()) {
            fetch(s, walk.now, walk.rows_of(walk.left) * walk.C);
        }
    }
    // the same lane, later, `walk` one span ahead: the span after those, when the one before has left
    __device__ void refill(const Walk<T, kStreams>& walk) const {
        int64_t rows = walk.left - walk.ahead_rows;
        bulk_wait_read<0>();
        if (rows <= 0) { return; }
        const T* spans[kStreams];
#pragma unroll
        for (int i = 0; i < kStreams; i++) { spans[i] = walk.now[i] + walk.ahead[i]; }
        fetch((stage == 0 ? stages : stage) - 1, spans, walk.rows_of(rows) * walk.C);
    }
    // the same lane: sends the middle of a span of results
    __device__ void send(T* span, int stream, int elements) const {
        Middle<T> part(span, elements);
        bulk_store(span + part.begin, of_stream(stream) + part.offset + part.begin, part.bytes());
    }
};

// Elements at a span's edges, each moved by one lane of the warp that works on it. They are asked for a span
// ahead and put into the region when the middle has come: a __syncwarp, and the warp may read. An element
// that turns out to be in the middle is written again as it is.
template <typename T>
struct Edge {
    static constexpr int n = Vec<T>::size;
    int from_start,
        end_mask;  // this lane's element: from the start, or (mask -1) from the end; below 0: none

    template <typename At>
    __device__ Edge(const At& at) : from_start(INT32_MIN), end_mask(0) {
        if (at.warp == 0 && at.lane < n - 1) { from_start = at.lane; }
        if (at.warp == at.warps - 1 && at.lane >= n && at.lane < 2 * n - 1) {
            from_start = n - 1 - at.lane;
            end_mask = -1;
        }
        keep(from_start);
        keep(end_mask);
    }
    __device__ int place(int elements) const { return from_start + (elements & end_mask); }

    template <int kStreams>
    __device__ void load(T (&x)[kStreams], const T* const (&spans)[kStreams], int elements) const {
        int i = place(elements);
#pragma unroll
        for (int j = 0; j < kStreams; j++) { x[j] = i >= 0 ? spans[j][i] : T(0.0f); }
    }
    // spans: where the regions have them
    template <int kStreams>
    __device__ void put(T* const (&spans)[kStreams], int elements, const T (&x)[kStreams]) const {
        int i = place(elements);
#pragma unroll
        for (int j = 0; j < kStreams; j++) {
            if (i >= 0) { spans[j][i] = x[j]; }
        }
    }
    // from its region to its place in memory; the warp's results are there, and a __syncwarp was called
    __device__ void store(T* span, const T* region, int elements) const {
        Middle<T> part(span, elements);
        int i = place(elements);
        if (i >= 0 && !part.has(i)) { span[i] = region[part.offset + i]; }
    }
};

// The span at work has come: rows[i] = where shared memory has stream i's. Sets the walk on the span after it
// and asks for that one's edges.
template <typename T, int kStreams>
__device__ void receive(T* (&rows)[kStreams], T (&edges)[kStreams], Walk<T, kStreams>& walk, int size,
                        const Ring<T, kStreams>& ring, const Edge<T>& edge) {
    ring.wait();
#pragma unroll
    for (int i = 0; i < kStreams; i++) { rows[i] = ring.of_stream(i) + offset_of(walk.now[i]); }
    walk.advance();
    edge.put(rows, size, edges);
    if (walk.left > 0) { edge.load(edges, walk.now, walk.rows_of(walk.left) * walk.C); }
    __syncwarp();
}

// Results of the span at work leave: results[i] from where stream i came in. The team has written them.
template <int n, typename T, int kStreams, typename At>
__device__ void send_results(T* const (&results)[n], int size, const Ring<T, kStreams>& ring,
                             const Edge<T>& edge, const At& at) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < n; i++) { edge.store(results[i], ring.of_stream(i), size); }
    fence_proxy_async();  // what this lane read and wrote comes before the copy engine
    at.sync();
    if (!at.leads()) { return; }
#pragma unroll
    for (int i = 0; i < n; i++) { ring.send(results[i], i, size); }
    bulk_commit();
}

// ---- the choice ----------------------------------------------------------------------------------

constexpr int kFewestColumns = 128;       // below, there is too little for a warp
constexpr int kSpanBytes = 8 << 10;       // at most, of rows that travel together
constexpr int kMostTogether = kWarp / 2;  // such rows
constexpr int kBytesUnderWay = 72 << 10;  // that copies should bring to a multiprocessor at a time, about

// k columns a lane, the first `full` of them without asking whether they are there
template <int k_, int full_>
struct Tile {
    static constexpr int k = k_, full = full_;

    static bool fits(int C, int warps) {
        int each = ceil_div(C, warps);  // the last warp has warps - 1 fewer at most
        return each <= k * kWarp && each - (warps - 1) >= full * kWarp;
    }
};

// For `teams` teams on a multiprocessor. dense: each stream's rows lie one after the other, results as far
// past a 16-byte boundary as the rows whose place they take.
template <typename T>
Layout layout_of(int C, int warps, int teams, int streams, bool dense) {
    int row = C * (int)sizeof(T),
        under_way = kBytesUnderWay / (teams * streams);  // bytes; of a team and stream
    int together = dense ? std::clamp(std::min(kSpanBytes, under_way) / row, 1, kMostTogether) : 1;
    int region = ceil_div(together * C + Vec<T>::size - 1, Vec<T>::size) * Vec<T>::size;
    int stages = std::clamp(1 + under_way / (together * row), 2, kMaxStages);
    return {teams, warps, stages, region, together};
}
template <typename T>
size_t shared_bytes(const Layout& o, int streams) {
    return o.teams * (sizeof(TeamShared) + (size_t)o.stages * streams * o.region * sizeof(T));
}

// are rows of results as far past 16-byte boundaries as the rows they take the place of?
inline bool same_offset(const void* result, const void* row) {
    return ((uintptr_t)result - (uintptr_t)row) % 16 == 0;
}

}  // namespace llmc::layernorm_odd
