// The last step of sums over rows: a kernel before it left, for each of several groups of rows, a partial sum
// of every column; here the groups are added up, always in the same order. And for rows that no other kernel
// has at hand, both steps.
#pragma once
#include <algorithm>
#include <cstdint>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/launch.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc {

constexpr int kColumnGroups = 128;  // where sizes alone are to fix the order of the additions
constexpr int kColumnBlock = 256, kColumnWarps = kColumnBlock / kWarp;

// ---- groups into results ---------------------------------------------------------------------------

// what is made by one launch: each (C), or null if not wanted
template <typename Grad>
struct ColumnResults {
    Grad *first, *second = nullptr, *third = nullptr;
};

// What they are made of: for each result in turn (groups,stride) numbers, the first C of each group by column. A stride
// of a multiple of 4 is read by fours: what it has behind C has been written, too.
template <typename Acc>
struct ColumnPartials {
    const Acc* sums;
    int groups;
    int64_t stride;
    bool early = false;  // the kernel before calls dependency_launch() where the one that adds up may start
};

// How a block adds up the groups of a tile of columns. A lane has n neighbouring columns, and `lanes` of them make the
// tile; the warp's other lanes have the groups that follow. A thread takes up to kGroups groups, all asked for at once,
// and more only where a block has all its warps: few threads of few registers find room beside the kernel before, and
// are there when it ends.
template <int n_, int lanes_, int most_warps_>
struct ColumnTile {
    static constexpr int n = n_, lanes = lanes_, columns = n * lanes, most_warps = most_warps_;
    static constexpr int most_threads = most_warps * kWarp, blocks = 1536 / most_threads;  // of an SM
};
constexpr int kGroups = 4;

// blockIdx.y chooses the result
template <typename ColumnTile, typename Grad, typename Acc>
__global__ void __launch_bounds__(ColumnTile::most_threads, ColumnTile::blocks)
    finish_columns_kernel(ColumnResults<Grad> results, ColumnPartials<Acc> partials, int64_t C,
                          bool accumulate) {
    constexpr int n = ColumnTile::n, lanes = ColumnTile::lanes;
    __shared__ alignas(16) Acc warp_sums[ColumnTile::most_warps][ColumnTile::columns];
    int at = threadIdx.x % lanes * n, warps = blockDim.x / kWarp, group = threadIdx.x / lanes;
    int step = blockDim.x / lanes;
    int64_t tile = (int64_t)blockIdx.x * ColumnTile::columns, stride = step * partials.stride;
    int64_t offset = ((int64_t)blockIdx.y * partials.groups + group) * partials.stride + tile + at;
    int end = tile + at < C ? partials.groups : 0;
    Grad* out = blockIdx.y == 0 ? results.first : blockIdx.y == 1 ? results.second : results.third;
    if (out == nullptr) { return; }
    if constexpr (kSm90) {
        asm volatile("" : "+l"(offset), "+l"(stride), "+r"(end));  // worked out before the wait
        dependency_launch();
        dependency_wait();  // nothing, unless launched ahead of the end of the kernel before
    }
    const Acc* from = partials.sums + offset;
    Elements<Acc, n> sum{};
#pragma unroll 1
    for (; group < end; group += kGroups * step) {
        Elements<Acc, n> more[kGroups]{};
#pragma unroll
        for (int i = 0; i < kGroups; i++, from += stride) {
            if (group + i * step < end) { more[i] = load<n>(from); }
        }
#pragma unroll
        for (int i = 0; i < kGroups; i++) {
#pragma unroll
            for (int j = 0; j < n; j++) { sum.at[j] += more[i].at[j]; }
        }
    }
#pragma unroll
    for (int distance = lanes; distance < kWarp; distance *= 2) {
#pragma unroll
        for (int j = 0; j < n; j++) { sum.at[j] += __shfl_xor_sync(kAllLanes, sum.at[j], distance); }
    }
    if (threadIdx.x % kWarp < lanes) { store(&warp_sums[threadIdx.x / kWarp][at], sum); }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < ColumnTile::columns && tile + i < C; i += blockDim.x) {
        Acc total = warp_sums[0][i];
#pragma unroll
        for (int w = 1; w < ColumnTile::most_warps; w++) { total += w < warps ? warp_sums[w][i] : Acc(0); }
        Grad& result = out[tile + i];
        result = (Grad)(accumulate ? (Acc)result + total : total);
    }
}

template <typename ColumnTile, typename Grad, typename Acc>
void launch_finish(const ColumnResults<Grad>& results, const ColumnPartials<Acc>& partials, int C,
                   bool accumulate, cudaStream_t stream) {
    int sets = results.third != nullptr ? 3 : results.second != nullptr ? 2 : 1;
    dim3 grid(grid_x(ceil_div(C, ColumnTile::columns)), sets);
    int warps =
        std::clamp(ceil_div(partials.groups * ColumnTile::lanes, kGroups * kWarp), 1, ColumnTile::most_warps);
    const LaunchConfig config{grid, warps * kWarp, 0, stream, 1, partials.early};
    config.launch(finish_columns_kernel<ColumnTile, Grad, Acc>, results, partials, (int64_t)C, accumulate);
}

// The first result = or += the sums of the first (groups,stride) numbers, the others of the next ones.
template <typename Grad, typename Acc>
void finish_columns(const ColumnResults<Grad>& results, const ColumnPartials<Acc>& partials, int C,
                    bool accumulate, cudaStream_t stream) {
    if constexpr (sizeof(Acc) == sizeof(float)) {
        if (partials.stride % 4 == 0) {  // few groups of long rows: 512 bytes of each side by side
            auto* launch = partials.groups <= 66 && C >= 4096
                               ? launch_finish<ColumnTile<4, 32, 8>, Grad, Acc>
                               : launch_finish<ColumnTile<4, 8, 12>, Grad, Acc>;
            return launch(results, partials, C, accumulate, stream);
        }
    }
    launch_finish<ColumnTile<1, 16, 20>>(results, partials, C, accumulate, stream);
}

// ---- from rows -------------------------------------------------------------------------------------

// A block sums a tile of 32 kV columns over one group of the rows of x (N,C), which lie `stride` elements
// apart. partial (kColumnGroups,C)
template <typename T, int kV>
__global__ void sum_columns_kernel(acc_t<T>* partial, const T* x, int64_t stride, int64_t N, int C) {
    using Acc = acc_t<T>;
    __shared__ Acc warp_sums[kColumnWarps][kWarp * kV];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int tiles = ceil_div(C, kWarp * kV), group = blockIdx.x / tiles;
    int tile = (int)(blockIdx.x % tiles) * kWarp * kV, c = tile + lane * kV;
    int64_t rows = ceil_div(N, (int64_t)kColumnGroups), end = min(N, (group + 1) * rows);
    Acc sum[kV] = {};
#pragma unroll 4
    for (int64_t row = group * rows + warp; row < end && c < C; row += kColumnWarps) {
        auto more = load<kV>(x + row * stride + c);
#pragma unroll
        for (int i = 0; i < kV; i++) { sum[i] += (Acc)more.at[i]; }
    }
#pragma unroll
    for (int i = 0; i < kV; i++) { warp_sums[warp][i * kWarp + lane] = sum[i]; }
    __syncthreads();
    for (int k = threadIdx.x; k < min(kWarp * kV, C - tile); k += kColumnBlock) {
        Acc total = 0;
        for (int w = 0; w < kColumnWarps; w++) { total += warp_sums[w][k % kV * kWarp + k / kV]; }
        partial[(int64_t)group * C + tile + k] = total;
    }
}

// sums (C) = or += the sums over the rows of x (N,C). scratch: (kColumnGroups,C) of acc_t<T>, no initialisation needed
template <typename Grad, typename T>
void sum_columns(Grad* sums, void* scratch, const T* x, int64_t stride, int64_t N, int C, bool accumulate,
                 cudaStream_t stream) {
    constexpr int kV = Vec<T>::size;
    bool vectors = (C | stride) % kV == 0 && aligned(x);
    int tiles = ceil_div(C, kWarp * (vectors ? kV : 1));
    auto* kernel = vectors ? sum_columns_kernel<T, kV> : sum_columns_kernel<T, 1>;
    auto* partial = (acc_t<T>*)scratch;
    kernel<<<grid_x((int64_t)tiles * kColumnGroups), kColumnBlock, 0, stream>>>(partial, x, stride, N, C);
    check_launch();
    finish_columns<Grad, acc_t<T>>({sums}, {partial, kColumnGroups, C}, C, accumulate, stream);
}

}  // namespace llmc
