// How the LayerNorm rungs add, as far as several do it alike: what their bounds (bounds.h) are made of.
#pragma once
#include "dev/cuda/problem.h"
#include "dev/cuda/shootout.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc {

constexpr int kShuffles = 5;  // log2 of a warp: additions that bring its lanes together

// additions of a thread that takes every `threads`-th 16-byte vector of a row of C
template <typename T>
double vector_additions(int C, int threads) {
    constexpr int V = Vec<T>::size;
    return (double)ceil_div(C, threads * V) * V;
}

// a warp has a row: element by element, or in vectors
inline Sums sums_of_warp(int64_t, int C, int) { return {.row = (double)ceil_div(C, kWarp) + kShuffles}; }
template <typename T>
Sums sums_of_warp_vectors(int64_t, int C, int) {
    return {.row = vector_additions<T>(C, kWarp) + kShuffles};
}

// additions of a block that has a row: its threads, the lanes of each warp, its warps in one warp's lanes
template <typename T>
double block_additions(int C, int block) {
    return vector_additions<T>(C, block) + 2 * kShuffles;
}

// Additions of a cluster that has a row, each block an equal part of its vectors: as a block, then a lane
// takes every 32nd of all the warps.
template <typename T>
double cluster_additions(int C, int block, int cluster) {
    constexpr int V = Vec<T>::size;
    int columns = ceil_div(C / V, cluster) * V, warps = cluster * (block / kWarp);
    return block_additions<T>(columns, block) + ceil_div(warps, kWarp);
}

}  // namespace llmc
