// What the kernels of LayerNorm backward share: the terms of a row's columns, the barriers of teams of warps, and how many
// groups of rows run at once.
#pragma once
#include "llmc/layernorm/kernel.cuh"

namespace llmc::layernorm {

// A row's mean; RMSNorm has none, and rstd for mean, so that there is no branch about a load.
template <typename Call>
__device__ auto mean_of(const Call& call, int64_t row) {
    auto m = call.mean[row];
    return call.rms ? 0 : m;
}

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

// The `threads` threads of a team, the block's team-th: what they wrote before is seen after.
__device__ inline void sync_team(int team, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory");
}

// The columns of a row that a block has.
struct Slice {
    int begin, columns;
};

// Blocks, or clusters of more than one block, that run at once, each for a group of rows: at most as many as scratch has
// sums for. 0: the device has no room for such clusters. config: of a launch with the most shared memory that any has.
template <auto* kernel>
int groups_at_once(const LaunchConfig& config) {
    if (config.cluster > 1) { return most_clusters<kernel>(config); }
    allow_shared_bytes<kernel>((int)config.shared_bytes);
    return std::min(device_facts().multiprocessors, layouts::kMostGroups);
}

// Rows that each of a block's teams has on their way at once, in a ring of `stages` stages; bytes: of a row's part in the
// block. A memory that is asked for more than it can deliver delivers less: on an H100 (3.4 TB/s by its clock) rows of 16
// bits take longer with all stages on their way (doc/layernorm.md, "Bytes in flight"). With too few bytes on their way a
// block waits, in a cluster sooner, as its blocks wait for each other. An H200 (4.9 TB/s) is fastest with all stages.
inline int rows_in_flight(int cluster, int teams, int stages, int bytes) {
    constexpr double kFewerBelow = 4e12;  // bytes per second
    if (device_facts().bandwidth >= kFewerBelow) { return stages; }
    const int enough = (cluster > 1 ? 40 : 30) << 10, fewest = cluster > 1 || teams == 1 ? stages - 1 : 2;
    int rows = stages;
    while (rows > fewest && teams * (rows - 1) * bytes >= enough) { rows--; }
    return rows;
}

}  // namespace llmc::layernorm
