// What both directions share: how rows are dealt to blocks, and the ring in shared memory through which a block's rows come. A
// block has a run of neighbouring rows, so that it keeps what a sample has in registers, and reads it anew where the sample
// changes. Several blocks share an SM: while one waits for its warps to meet, others work.
#pragma once
#include <span>

#include "llmc/layernorm/forward/rows.cuh"
#include "llmc/layernorm/layernorm_modulate.h"

namespace llmc::modulate {

using namespace layernorm;

constexpr int kMostWarps = 16,
              kMostThreads = kMostWarps * kWarp;  // of a block; and of an SM, as registers allow no more
constexpr int kMostStages = 4, kSharedOfSm = 228 << 10,
              kReserved = 1 << 10;  // bytes; of each block for the system

// Block i of `blocks` has the rows from first_row(i) to first_row(i + 1): `each` of them, the first blocks one more.
struct Runs {
    int64_t rows, tokens, each;  // tokens: rows of a sample
    int blocks, more;

    Runs(int64_t samples, int64_t tokens, int64_t most)
        : rows(samples * tokens), tokens(tokens), blocks((int)std::min(rows, most)) {
        each = blocks > 0 ? rows / blocks : 0;
        more = blocks > 0 ? (int)(rows % blocks) : 0;
    }
    __device__ int64_t first_row(int i) const { return i * each + min(i, more); }
    __device__ int block_of(int64_t row) const {
        const int64_t longer = more * (each + 1);
        return (int)((row < longer ? row : row - more) / (row < longer ? each + 1 : each));
    }
};

// A launch. vectors: of a lane; streams: rows in a stage, `pitch` bytes apart. blocks = 0: no layout has room.
struct Deal {
    Runs runs;
    int streams, vectors, warps, stages, pitch;
    size_t shared_bytes;
};

// The layout that leaves the fewest lanes idle, of rows of `wide` vectors; then as many blocks on each SM as have room for
// three stages each and warps_of_sm warps together, but somewhat fewer if the rows are then dealt out more evenly.
inline Deal deal_rows(std::span<const int> vectors_of_lane, int wide, int row_bytes, int streams,
                      int warps_of_sm, int64_t samples, int64_t tokens) {
    Deal deal{Runs(samples, tokens, 0), streams, 0, 0, 0, 0, 0};
    for (int k : vectors_of_lane) {
        const int warps = ceil_div(wide, k * kWarp);
        if (warps <= kMostWarps && (deal.warps == 0 || warps * k < deal.warps * deal.vectors)) {
            deal.vectors = k;
            deal.warps = warps;
        }
    }
    if (deal.warps == 0) { return deal; }
    deal.pitch = ceil_div(row_bytes, kLineBytes) * kLineBytes + kLineBytes;
    const int stage = streams * deal.pitch;
    auto room = [&](int per_sm) {  // of a block, without what is static
        return std::min(device_facts().shared_bytes, kSharedOfSm / per_sm - kReserved) - kReserved;
    };
    int per_sm = std::max(1, warps_of_sm / deal.warps);
    while (per_sm > 1 && room(per_sm) < 3 * stage) { per_sm--; }
    deal.stages = std::min(kMostStages, room(per_sm) / stage);
    if (deal.stages < 2) { return deal; }
    auto longest = [&](int p) {
        return p * ceil_div(deal.runs.rows, (int64_t)p * device_facts().multiprocessors);
    };
    for (int p = per_sm, fewest = ceil_div(per_sm * 3, 4); p >= fewest; p--) {
        if (100 * longest(p) < 97 * longest(per_sm)) { per_sm = p; }
    }
    deal.runs = Runs(samples, tokens, (int64_t)per_sm * device_facts().multiprocessors);
    // no block more on an SM: those of the next launch, which come where one has ended, would leave other SMs idle
    deal.shared_bytes = std::max(deal.stages * stage, kSharedOfSm / (per_sm + 1) - kReserved);
    return deal;
}

// A thread's columns of a row: k vectors of n.
template <int n, int k>
struct Columns {
    int C, first = threadIdx.x * n, step = blockDim.x * n;

    __device__ int at(int i) const { return first + i * step; }
    __device__ bool has(int i) const { return at(i) < C; }
    // those behind the row are 0
    template <typename T>
    __device__ void load(Elements<T, n> (&x)[k], const T* row) const {
        unrolled<k>([&](int i) {
            x[i] = {};
            if (has(i)) { x[i] = llmc::load<n>(row + at(i)); }
        });
    }
    // of the thread's warp
    __device__ int of_warp() const {
        int count = 0, begin = first - threadIdx.x % kWarp * n;
        unrolled<k>([&](int i) { count += min(max(C - begin - i * step, 0), kWarp * n); });
        return count;
    }
};

// The rows of a block, a copy for each of up to `streams` tensors, and the stage that has the row at hand. `late`: a row's
// stage is read until the next row's barrier, and not only until its own.
template <typename T, int streams, bool late>
struct Ring {
    const T* tensors[streams];  // the last may be null
    const Deal& deal;
    int C;
    int64_t begin, end;  // rows
    unsigned char* memory;
    uint64_t* full;  // by stage: its rows have come
    int stage = 0;
    unsigned parity = 0;

    // as far past a line as in memory
    __device__ T* place(int of_stage, int stream, int64_t row) const {
        return reinterpret_cast<T*>(memory + (of_stage * deal.streams + stream) * deal.pitch +
                                    (uintptr_t)(tensors[stream] + row * C) % kLineBytes);
    }
    __device__ const T* row_of(int stream, int64_t row) const { return place(stage, stream, row); }
    __device__ void ask(int64_t row, int of_stage) const {
        if (row >= end) { return; }
        const uint32_t bytes = C * (uint32_t)sizeof(T);
        mbarrier_arrive_expect(&full[of_stage], deal.streams * bytes);
        unrolled<streams>([&](int s) {
            if (s >= deal.streams) { return; }
            bulk_copy(place(of_stage, s, row), tensors[s] + row * C, bytes, &full[of_stage]);
        });
    }
    // every thread, first of all
    __device__ void open() {
        if (threadIdx.x == 0) {
            for (int s = 0; s < deal.stages; s++) { mbarrier_init(&full[s], 1); }
            mbarrier_init_fence();
        }
        __syncthreads();
        dependency_wait();
        if (threadIdx.x == 0) {
            for (int s = 0; s < deal.stages; s++) { ask(begin + s, s); }
        }
    }
    __device__ void wait() const { mbarrier_wait(&full[stage], parity); }
    // every thread, behind its last access to the stage before this row's barrier
    __device__ void meet() const {
        if constexpr (late) { fence_proxy_async(); }
        __syncthreads();
    }
    // every thread, behind the row's barrier: a stage is free
    __device__ void refill(int64_t row) const {
        if (threadIdx.x != 0) { return; }
        if constexpr (!late) { return ask(row + deal.stages, stage); }
        if (row > begin) { ask(row - 1 + deal.stages, stage > 0 ? stage - 1 : deal.stages - 1); }
    }
    __device__ void advance() {
        if (++stage == deal.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// of what one sample has
template <typename T>
__device__ T* of_sample(const PerSample<T>& all, int64_t sample) {
    return all.at + sample * all.stride;
}

// ---- host only

template <typename T>
void fill_stride(PerSample<T>& p, int C) {
    if (p.stride == 0) { p.stride = C; }
}

// Can rows be copied in bulk, and what a sample has be read by vectors?
template <typename Kernel, typename... Arrays>
bool takes_vectors(Kernel* kernel, size_t row_bytes, Arrays... pointers) {
    return runs_hopper_code(kernel) && row_bytes % 16 == 0 && aligned(pointers...);
}
template <typename... P>
bool aligned_samples(const P&... p) {
    return (... && ((uintptr_t)p.at % 16 == 0 && p.stride * sizeof(*p.at) % 16 == 0));
}

}  // namespace llmc::modulate
