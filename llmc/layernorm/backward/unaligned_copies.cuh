// How unaligned_rows.cuh brings rows at any address into shared memory: as whole aligned vectors; so with each row
// travels what its first and its last vector hold of the rows next to it. On Hopper one lane of a team asks
// for bulk copies; in code for Ampere all threads of the team copy by cp.async, where one warp would keep the
// others waiting. A barrier for each stage says that all has come.
#pragma once
#include "llmc/layernorm/kernel.cuh"

namespace llmc::unaligned_rows_backward {

using namespace layernorm;

// of a block whose cluster shares a row; of a team
constexpr int kSharingWarps = kThresholds.cluster_warps;
constexpr int kMostStages = kThresholds.most_stages;

constexpr int kVector = 16;  // bytes
// A row lies as far past a multiple of kPlace in its stage as in memory. Bulk copies are slower where lines do not match.
constexpr int kPlace = kSm90 ? kLineBytes : kVector;

// what a team agrees on through shared memory, where the blocks of a cluster share a row (1: no cluster)
template <int cluster>
struct alignas(kLineBytes) TeamShared {
    static constexpr int kWarps = cluster > 1 ? cluster* kSharingWarps : kWarp;  // of a row, at most
    uint64_t full[kMostStages];                                                  // a stage has come
    uint64_t summed[2];                  // by row parity: all sums have come; in clusters
    alignas(16) float2 sums[2][kWarps];  // of the warps, by row parity; 0 where there is none
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
#pragma unroll
        for (int i = 0; i < kStreams; i++) { address[i] = (unsigned)((uintptr_t)rows[i] / sizeof(T)); }
    }
    // the row at work in the stage that begins `here`, then on to the one `step` elements after; region: as in Teams
    __device__ void next(const T* (&row)[kStreams], const unsigned char* here, int region,
                         const int64_t (&step)[kStreams]) {
#pragma unroll
        for (int i = 0; i < kStreams; i++) {
            row[i] = reinterpret_cast<const T*>(here + i * region) + address[i] % (kPlace / sizeof(T));
            address[i] += (unsigned)step[i];
        }
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
#pragma unroll
        for (int i = 0; i < kStreams; i++) {
            from[i] = streams[i] + row * strides[i];
            step[i] = rows_step * strides[i];
        }
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
#pragma unroll
            for (int i = 0; i < kStreams; i++) {
                copy_part<k>(ring.here + i * region, from[i], parts[i], at);
            }
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
#pragma unroll
        for (int i = 0; i < kStreams; i++) { from[i] += step[i]; }
        left--;
        first = false;
    }
};

}  // namespace llmc::unaligned_rows_backward
