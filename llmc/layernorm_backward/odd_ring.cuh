// How odd.cuh brings rows at any address into shared memory: by bulk copies, which move whole aligned vectors;
// so with each row travels what its first and its last vector hold of the rows next to it.
#pragma once
#include "llmc/async_copy.cuh"
#include "llmc/device.cuh"

namespace llmc::layernorm_odd_backward {

constexpr int kMostStages = 4;
constexpr int kVector = 16;  // bytes

// How the work is laid out: a block has `teams` teams of `warps` warps, each with a ring of `stages`; a stage
// has `region` bytes for each stream of rows.
struct Layout {
    int warps, teams, stages, region;
};

// what a team agrees on through shared memory
struct alignas(kVector) TeamShared {
    uint64_t full[kMostStages];  // a stage has come
    float2 sums[2][kWarp];       // of the warps, by row parity; 0 where there is none
};

// by the team's first warp: its barriers, and sums of warps that there are not
__device__ inline void init(TeamShared& shared, int stages, int lane) {
    for (int parity = 0; parity < 2; parity++) { shared.sums[parity][lane] = {0, 0}; }
    if (lane > 0) { return; }
    for (int s = 0; s < stages; s++) { mbarrier_init(&shared.full[s], 1); }
    mbarrier_init_fence();
}

// What of a row travels: whole vectors, all that the row touches; at the begin of the first row of all and at
// the end of the last those inside of it, so that nothing outside of the rows is read.
struct Part {
    int begins, offset, size;  // bytes from a vector's begin on: to the row, to what travels of it; of that

    __device__ Part() {}
    __device__ Part(const void* row, int bytes, bool first, bool last)
        : begins((int)((uintptr_t)row % kVector)),
          offset(first && begins > 0 ? kVector : 0),
          size(((begins + bytes + (last ? 0 : kVector - 1)) & -kVector) - offset) {}
};

// The elements of a row that do not travel, a lane each; few of the lanes have one. stage: where the row's
// vectors go
template <typename T>
__device__ void fetch_rest(unsigned char* stage, const T* row, int C, const Part& part, int lane) {
    int i = lane < kWarp / 2 ? lane : C - 1 - (lane - kWarp / 2), at = part.begins + i * (int)sizeof(T);
    if (at < part.offset || at >= part.offset + part.size) { *reinterpret_cast<T*>(stage + at) = row[i]; }
}

// true in one lane of the warp; the compiler then knows that one lane goes on
__device__ inline bool elected() {
    int one;
    asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.b32 %0, 1, 0, p;\n}" : "=r"(one));
    return one != 0;
}

// A team's stages, used in turn.
struct Ring {
    unsigned char *begin, *here;  // the first stage, the one in use
    uint64_t* full;
    int stages, bytes;  // of a stage
    int stage = 0, phase = 0;

    __device__ Ring(unsigned char* rings, TeamShared& shared, const Layout& o, int streams, int team)
        : full(shared.full), stages(o.stages), bytes(streams * o.region) {
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

// What a team's first warp needs to ask for the team's rows, one after the other.
template <typename T, int kStreams>
struct Fetcher {
    const T* from[kStreams];  // the next row
    int64_t step[kStreams];   // elements to the one after
    int C, region, left;      // rows left
    bool first, ends;         // is the next row the first of all; is the team's last row the last of all

    template <typename Call>
    __device__ Fetcher(const Call& call, int region, int64_t row, int64_t rows_step, int rows)
        : C(call.C),
          region(region),
          left(rows),
          first(row == 0),
          ends(row + (rows - 1) * rows_step == call.N - 1) {
        const T* streams[] = {call.inp, call.dout, call.dinp};
        int64_t strides[] = {call.inp_stride, call.dout_stride, call.dinp_stride};
#pragma unroll
        for (int i = 0; i < kStreams; i++) {
            from[i] = streams[i] + row * strides[i];
            step[i] = rows_step * strides[i];
        }
    }
    // into the stage in use, which nobody reads any more
    __device__ void fetch(const Ring& ring, int lane) {
        if (left <= 0) { return; }
        bool last = ends && left == 1;
        int all = 0;
        Part parts[kStreams];
#pragma unroll
        for (int i = 0; i < kStreams; i++) {
            parts[i] = Part(from[i], C * (int)sizeof(T), first, last);
            all += parts[i].size;
            if (first || last) {
                fetch_rest(ring.here + i * region, from[i], C, parts[i], lane);
                fence_proxy_async();
            }
        }
        __syncwarp();  // one lane arrives for all
        if (elected()) {
            mbarrier_arrive_expect(&ring.full[ring.stage], all);
#pragma unroll
            for (int i = 0; i < kStreams; i++) {
                const char* vectors = reinterpret_cast<const char*>(from[i]) - parts[i].begins;
                bulk_copy(ring.here + i * region + parts[i].offset, vectors + parts[i].offset, parts[i].size,
                          &ring.full[ring.stage]);
            }
        }
#pragma unroll
        for (int i = 0; i < kStreams; i++) { from[i] += step[i]; }
        left--;
        first = false;
    }
};

}  // namespace llmc::layernorm_odd_backward
