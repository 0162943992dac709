// triton: as in Triton's tutorial: a program per row adds its columns to a locked buffer. NOT REPRODUCIBLE.
// Why:    rows are read once; who gets a lock first is added first, and every addition is rounded to T.
// Moves:  inp, dout once in, dinp once out; a row's partial sums into L2 and out again.
// Result: 1135.1 us, 6 % of the roof at 65536x768 bf16; 21 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/layernorm/ladder/forward/triton.cuh"

namespace llmc::triton {

constexpr int kTileRows = 32, kTileColumns = 128;  // of the second stage
constexpr int kTileWarps = 4;

// buffers for partial sums, the tutorial's rule
inline int default_group_size(int C) { return C <= 1024 ? 256 : C <= 4096 ? 128 : C <= 8192 ? 96 : 64; }

// locks, then whether each buffer holds a row yet: 2 ints for each
__global__ static void clear_locks_kernel(int* locks, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { locks[i] = 0; }
}

// p = x, or p += x in T if not the first. Inside a lock: every thread has its part.
template <bool kWhole, typename T>
__device__ inline void add_masked(T* p, int c, int C, Vec<T> x, bool first) {
    Vec<T> before = first ? Vec<T>{} : load_masked<kWhole>(p, c, C);
#pragma unroll
    for (int i = 0; i < Vec<T>::size; i++) {
        if (!first) { x.at[i] = (T)((acc_t<T>)before.at[i] + (acc_t<T>)x.at[i]); }
    }
    store_masked<kWhole>(p, c, C, x);
}

// A thread keeps its vectors of inp and dout in shared memory, where it alone reads them: registers are too
// few at 64 KB. dw_partial, db_partial (group_size,C); kWhole: rows are made of whole, aligned 16 bytes
template <typename T, bool kWhole>
__global__ void layernorm_backward_rows_kernel(T* dinp, T* dw_partial, T* db_partial, int* locks,
                                               const T* dout, const T* inp, const T* weight,
                                               const acc_t<T>* mean, const acc_t<T>* rstd, int C,
                                               int group_size) {
    using Acc = acc_t<T>;
    constexpr int V = Vec<T>::size;
    extern __shared__ __align__(16) unsigned char shared[];
    Vec<T>* held = (Vec<T>*)shared;  // inp and dout in turn
    int64_t row = blockIdx.x;
    Acc m = mean[row], s = rstd[row];

    Acc c1 = 0, c2 = 0;
    for (int v = threadIdx.x; v * V < C; v += blockDim.x) {
        Vec<T> a = load_masked<kWhole>(inp + row * C, v * V, C),
               d = load_masked<kWhole>(dout + row * C, v * V, C);
        Vec<T> w = load_masked<kWhole>(weight, v * V, C);
        held[2 * v] = a;
        held[2 * v + 1] = d;
#pragma unroll
        for (int i = 0; i < V; i++) {
            Acc xhat = v * V + i < C ? ((Acc)a.at[i] - m) * s : Acc(0), wdy = (Acc)w.at[i] * (Acc)d.at[i];
            c1 += wdy;
            c2 += wdy * xhat;
        }
    }
    c1 = block_sum(c1) / C;
    c2 = block_sum(c2) / C;

    for (int v = threadIdx.x; v * V < C; v += blockDim.x) {
        Vec<T> a = held[2 * v], d = held[2 * v + 1], w = load_masked<kWhole>(weight, v * V, C), dx;
#pragma unroll
        for (int i = 0; i < V; i++) {
            Acc dy = (Acc)d.at[i], xhat = ((Acc)a.at[i] - m) * s;
            dx.at[i] = (T)(((Acc)w.at[i] * dy - c1 - xhat * c2) * s);
            a.at[i] = (T)(dy * xhat);
        }
        store_masked<kWhole>(dinp + row * C, v * V, C, dx);
        held[2 * v] = a;  // from here on dweight's share, and dout is dbias's
    }

    int group = (int)(row % group_size);
    bool first = false;
    if (threadIdx.x == 0) {
        while (atomicCAS(&locks[group], 0, 1) != 0) {}
        first = atomicExch(&locks[group_size + group], 1) == 0;
    }
    first = __syncthreads_or(first);
    __threadfence();  // what the lock's last holder wrote is seen
    for (int v = threadIdx.x; v * V < C; v += blockDim.x) {
        add_masked<kWhole>(dw_partial + (int64_t)group * C, v * V, C, held[2 * v], first);
        add_masked<kWhole>(db_partial + (int64_t)group * C, v * V, C, held[2 * v + 1], first);
    }
    __threadfence();
    __syncthreads();  // all have written before the lock opens
    if (threadIdx.x == 0) { atomicExch(&locks[group], 0); }
}

// A block adds kTileColumns columns, kTileRows buffers at a time; groups: buffers that hold a row
template <typename T>
__global__ void layernorm_backward_dweight_kernel(T* dweight, T* dbias, const T* dw_partial,
                                                  const T* db_partial, int groups, int C) {
    using Acc = acc_t<T>;
    constexpr int kRows = kTileRows / kTileWarps, kColumns = kTileColumns / kWarp;  // of a thread
    __shared__ Acc sums[2][kTileWarps][kTileColumns];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    int64_t first = (int64_t)blockIdx.x * kTileColumns;

    Acc dw[kRows][kColumns] = {}, db[kRows][kColumns] = {};
    for (int tile = 0; tile < groups; tile += kTileRows) {
#pragma unroll
        for (int j = 0; j < kRows * kColumns; j++) {
            int group = tile + j / kColumns * kTileWarps + warp;
            int64_t c = first + j % kColumns * kWarp + lane;
            if (group >= groups || c >= C) { continue; }
            dw[j / kColumns][j % kColumns] += (Acc)dw_partial[(int64_t)group * C + c];
            db[j / kColumns][j % kColumns] += (Acc)db_partial[(int64_t)group * C + c];
        }
    }
#pragma unroll
    for (int q = 0; q < kColumns; q++) {
#pragma unroll
        for (int r = 1; r < kRows; r++) {
            dw[0][q] += dw[r][q];
            db[0][q] += db[r][q];
        }
        sums[0][warp][q * kWarp + lane] = dw[0][q];
        sums[1][warp][q * kWarp + lane] = db[0][q];
    }
    __syncthreads();
    int64_t c = first + threadIdx.x;
    if (c >= C) { return; }
    Acc dw_all = 0, db_all = 0;
    for (int w = 0; w < kTileWarps; w++) {
        dw_all += sums[0][w][threadIdx.x];
        db_all += sums[1][w][threadIdx.x];
    }
    dweight[c] = (T)dw_all;
    dbias[c] = (T)db_all;
}

// the locks' part of scratch, in whole 16 bytes
inline size_t lock_bytes(int group_size) { return ceil_div(2 * group_size * sizeof(int), 16) * 16; }

// bytes of scratch that layernorm_backward needs
template <typename T>
size_t layernorm_backward_scratch(int64_t, int C) {
    int group_size = default_group_size(C);
    return lock_bytes(group_size) + 2 * sizeof(T) * group_size * C;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// scratch: layernorm_backward_scratch bytes, 16-byte aligned, need not be initialised. block: 32 x warps; 0 = the
// tutorial's rule. Rows of more than 64 KB are refused, as there.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                        const T* weight, const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C,
                        cudaStream_t stream, int block = 0) {
    int tile = tile_columns<T>(C), group_size = default_group_size(C);
    require(
        C <= tile,
        "layernorm_backward triton: a row of more than 64 KB is refused, as in the tutorial; v8 takes it");
    if (block == 0) { block = default_warps(tile) * kWarp; }
    require(block >= kWarp && block % kWarp == 0 && block <= kMaxWarps * kWarp,
            "layernorm_backward triton: block must be a multiple of 32, at most 1024, or 0 for the "
            "tutorial's rule");
    int* locks = (int*)scratch;
    T* dw_partial = (T*)((char*)scratch + lock_bytes(group_size));
    T* db_partial = dw_partial + (int64_t)group_size * C;
    if (N > 0) {
        clear_locks_kernel<<<ceil_div(2 * group_size, 256), 256, 0, stream>>>(locks, 2 * group_size);
        check_launch();
        bool whole = C % Vec<T>::size == 0 && aligned(dinp, dout, inp, weight);
        auto kernel =
            whole ? layernorm_backward_rows_kernel<T, true> : layernorm_backward_rows_kernel<T, false>;
        int shared = 2 * ceil_div(C, Vec<T>::size) * (int)sizeof(Vec<T>);  // 128 KB at most
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
        kernel<<<grid_x(N), block, shared, stream>>>(dinp, dw_partial, db_partial, locks, dout, inp, weight,
                                                     mean, rstd, C, group_size);
        check_launch();
    }
    int groups = (int)std::min<int64_t>(group_size, N);
    unsigned grid = grid_x(ceil_div(C, kTileColumns));
    layernorm_backward_dweight_kernel<<<grid, kTileWarps * kWarp, 0, stream>>>(
        dweight, dbias, (const T*)dw_partial, (const T*)db_partial, groups, C);
    check_launch();
}

}  // namespace llmc::triton
