// v4: inp and dout once into registers, for dinp and for columns; a warp's column sums stay in registers.
// Why:    v3 read every row twice and met at a barrier every few columns; its last block worked alone.
// Moves:  inp, dout once in, dinp once out: 3 N C elements; partial sums of a block out and in again.
// Result: 107.7 us, 65 % of the roof at 65536x768 bf16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc::v4 {

constexpr int kMaxColumns = 56;  // of a lane: two sums for each must fit the registers
constexpr int kMaxBlock = 256;

// The block's warps add their sums in turn, in shared memory, (2,C): one order, no atomics. Then they are
// stored.
template <int K, int V, typename Acc>
__device__ void store_block_sums(Acc* partial, const Acc (&dw)[K][V], const Acc (&db)[K][V], Acc* sums,
                                 int C) {
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    for (int turn = 0; turn < warps; turn++) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * kWarp + lane) * V;
            if (turn != warp || c >= C) { continue; }
#pragma unroll
            for (int i = 0; i < V; i++) {
                sums[c + i] = turn == 0 ? dw[k][i] : sums[c + i] + dw[k][i];
                sums[C + c + i] = turn == 0 ? db[k][i] : sums[C + c + i] + db[k][i];
            }
        }
        __syncthreads();
    }
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        partial[(int64_t)blockIdx.x * C + c] = sums[c];
        partial[((int64_t)gridDim.x + blockIdx.x) * C + c] = sums[C + c];
    }
}

// A warp takes every (warps of the grid)-th row. K: vectors of a lane. C is a multiple of Vec<T>::size.
// partial (2,gridDim.x,C): dweight's sums over the block's rows, then dbias's
template <typename T, int K>
__global__ void __launch_bounds__(kMaxBlock)
    layernorm_backward_rows_kernel(T* dinp, acc_t<T>* partial, const T* dout, const T* inp, const T* weight,
                                   const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C) {
    using Acc = acc_t<T>;
    constexpr int V = Vec<T>::size;
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;

    Acc dw[K][V] = {}, db[K][V] = {};
    // neighbouring blocks take neighbouring rows, so that none has more than one row more than another
    for (int64_t row = (int64_t)warp * gridDim.x + blockIdx.x; row < N; row += (int64_t)warps * gridDim.x) {
        const T* x = inp + row * C;
        const T* dy = dout + row * C;
        Vec<T> a[K], d[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * kWarp + lane) * V;
            if (c >= C) { continue; }
            a[k] = Vec<T>::load(x + c);
            d[k] = Vec<T>::load(dy + c);
        }
        Acc m = mean[row], s = rstd[row];

        Acc c1 = 0, c2 = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * kWarp + lane) * V;
            if (c >= C) { continue; }
            Vec<T> w = Vec<T>::load(weight + c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                Acc xhat = ((Acc)a[k].at[i] - m) * s, wdy = (Acc)w.at[i] * (Acc)d[k].at[i];
                c1 += wdy;
                c2 += wdy * xhat;
            }
        }
        c1 = warp_sum(c1) / C;
        c2 = warp_sum(c2) / C;

#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * kWarp + lane) * V;
            if (c >= C) { continue; }
            Vec<T> w = Vec<T>::load(weight + c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                Acc dy_i = (Acc)d[k].at[i], xhat = ((Acc)a[k].at[i] - m) * s;
                dw[k][i] += dy_i * xhat;
                db[k][i] += dy_i;
                a[k].at[i] = (T)(((Acc)w.at[i] * dy_i - c1 - xhat * c2) * s);
            }
            a[k].store(dinp + row * C + c);
        }
    }

    extern __shared__ __align__(16) unsigned char shared[];
    store_block_sums(partial, dw, db, (Acc*)shared, C);
}

// one thread per column adds the blocks in order
template <typename T>
__global__ void layernorm_backward_dweight_kernel(T* dweight, T* dbias, const acc_t<T>* partial, int blocks,
                                                  int C) {
    using Acc = acc_t<T>;
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) { return; }
    Acc dw = 0, db = 0;
    for (int b = 0; b < blocks; b++) {
        dw += partial[(int64_t)b * C + c];
        db += partial[(int64_t)(blocks + b) * C + c];
    }
    dweight[c] = (T)dw;
    dbias[c] = (T)db;
}

// the kernel with the fewest vectors a lane that hold a row of C
template <typename T, int K = 1>
auto kernel_for(int C) -> decltype(&layernorm_backward_rows_kernel<T, 1>) {
    if constexpr ((K + 1) * Vec<T>::size <= kMaxColumns) {
        if (C > K * kWarp * Vec<T>::size) { return kernel_for<T, K + 1>(C); }
    }
    return layernorm_backward_rows_kernel<T, K>;
}

// partial sums of a column; a function of N and the GPU alone: it fixes the order of the additions
inline int partial_blocks(int64_t N) { return (int)std::min<int64_t>(N, 2 * device_facts().multiprocessors); }

// bytes of scratch that layernorm_backward needs
template <typename T>
size_t layernorm_backward_scratch(int64_t N, int C) {
    return 2 * sizeof(acc_t<T>) * partial_blocks(N) * C;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// scratch: layernorm_backward_scratch bytes, aligned for acc_t<T>, need not be initialised. T's pointers
// 16-byte aligned.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                        const T* weight, const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C,
                        cudaStream_t stream, int block = 256) {
    using Acc = acc_t<T>;
    require(block >= kWarp && block <= kMaxBlock && block % kWarp == 0,
            "layernorm_backward v4: block must be a multiple of 32, at most 256");
    require(C % Vec<T>::size == 0 && aligned(dinp, dout, inp, weight),
            "layernorm_backward v4: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(C <= kMaxColumns / Vec<T>::size * Vec<T>::size * kWarp,
            "layernorm_backward v4: more than 1792 columns do not fit a warp's registers; v6 takes them");
    Acc* partial = (Acc*)scratch;
    int blocks = partial_blocks(N);
    if (N > 0) {
        size_t shared = 2 * sizeof(Acc) * C;
        kernel_for<T>(C)<<<blocks, block, shared, stream>>>(dinp, partial, dout, inp, weight, mean, rstd, N,
                                                            C);
        check_launch();
    }
    unsigned grid = grid_x(ceil_div(C, block));
    layernorm_backward_dweight_kernel<<<grid, block, 0, stream>>>(dweight, dbias, (const Acc*)partial, blocks,
                                                                  C);
    check_launch();
}

}  // namespace llmc::v4
