// v3: one kernel: blocks that stay sum columns in shared memory; the last block to end adds them up.
// Why:    v2 fetched inp and dout from memory twice, for rows and for columns.
// Moves:  inp, dout from memory, again from L1 or L2; dinp once out; sums of blocks out, in by one block.
// Result: 230.0 us, 30 % of the roof at 65536x768 bf16; 8 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"

namespace llmc::v3 {

constexpr int kBlocksPerProcessor = 2;

__global__ static void clear_counter_kernel(int* counter) { *counter = 0; }

// The sums over the blocks, in their order, whichever block does it. partial (2,blocks,C)
template <typename T>
__device__ void add_blocks(T* dweight, T* dbias, const acc_t<T>* partial, int blocks, int C) {
    using Acc = acc_t<T>;
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        Acc dw = 0, db = 0;
        for (int b = 0; b < blocks; b++) {
            dw += partial[(int64_t)b * C + c];
            db += partial[(int64_t)(blocks + b) * C + c];
        }
        dweight[c] = (T)dw;
        dbias[c] = (T)db;
    }
}

// One row's c1 and c2, its warp's lanes over the columns.
template <typename T>
__device__ void row_sums(acc_t<T>* c1, acc_t<T>* c2, const T* dy, const T* x, const T* weight, acc_t<T> m,
                         acc_t<T> s, int C) {
    using Acc = acc_t<T>;
    *c1 = *c2 = 0;
    for (int c = threadIdx.x % kWarp; c < C; c += kWarp) {
        Acc xhat = ((Acc)x[c] - m) * s, wdy = (Acc)weight[c] * (Acc)dy[c];
        *c1 += wdy;
        *c2 += wdy * xhat;
    }
    *c1 = warp_sum(*c1) / C;
    *c2 = warp_sum(*c2) / C;
}

// A block takes a row for each warp at a time, then as many columns of these rows as it has threads: first
// the warps leave each element's share, then a thread adds up its column's. partial: add_blocks; counter:
// blocks that are done
template <typename T>
__global__ void layernorm_backward_kernel(T* dinp, T* dweight, T* dbias, acc_t<T>* partial, int* counter,
                                          const T* dout, const T* inp, const T* weight, const acc_t<T>* mean,
                                          const acc_t<T>* rstd, int64_t N, int C) {
    using Acc = acc_t<T>;
    extern __shared__ __align__(16) unsigned char shared[];
    int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp, span = blockDim.x;
    Acc* dw_sum = (Acc*)shared;  // (C): column c is thread c % span's
    Acc* db_sum = dw_sum + C;    // (C)
    Acc* dw_share = db_sum + C;  // (warps,span)
    Acc* db_share = dw_share + warps * span;
    for (int c = threadIdx.x; c < C; c += span) { dw_sum[c] = db_sum[c] = 0; }

    for (int64_t first = (int64_t)blockIdx.x * warps; first < N; first += (int64_t)gridDim.x * warps) {
        int64_t row = first + warp;
        bool mine = row < N;  // a warp without a row goes along: the block's barriers are everybody's
        Acc m = mine ? mean[row] : Acc(0), s = mine ? rstd[row] : Acc(0), c1 = 0, c2 = 0;
        if (mine) { row_sums(&c1, &c2, dout + row * C, inp + row * C, weight, m, s, C); }
        // The exercise begins here.
        for (int from = 0; from < C; from += span) {
            for (int i = lane; i < span; i += kWarp) {
                int c = from + i;
                Acc dy = 0, xhat = 0;
                if (mine && c < C) {
                    dy = (Acc)dout[row * C + c];
                    xhat = ((Acc)inp[row * C + c] - m) * s;
                    dinp[row * C + c] = (T)(((Acc)weight[c] * dy - c1 - xhat * c2) * s);
                }
                dw_share[warp * span + i] = dy * xhat;
                db_share[warp * span + i] = dy;
            }
            __syncthreads();
            Acc dw = 0, db = 0;
            for (int w = 0; w < warps; w++) {
                dw += dw_share[w * span + threadIdx.x];
                db += db_share[w * span + threadIdx.x];
            }
            if (from + (int)threadIdx.x < C) {
                dw_sum[from + threadIdx.x] += dw;
                db_sum[from + threadIdx.x] += db;
            }
            __syncthreads();
        }
        // The exercise ends here.
    }
    for (int c = threadIdx.x; c < C; c += span) {
        partial[(int64_t)blockIdx.x * C + c] = dw_sum[c];
        partial[((int64_t)gridDim.x + blockIdx.x) * C + c] = db_sum[c];
    }
    __threadfence();  // this block's sums are seen before it is counted
    __syncthreads();
    bool last = __syncthreads_or(threadIdx.x == 0 && atomicAdd(counter, 1) == (int)gridDim.x - 1);
    __threadfence();  // and the others' are, by whoever counted them
    if (last) { add_blocks(dweight, dbias, partial, gridDim.x, C); }
}

// a function of the GPU alone; a block more than there are rows for adds zeros
inline int partial_blocks() { return kBlocksPerProcessor * device_facts().multiprocessors; }

constexpr size_t kCounterBytes = 16;  // before the partial sums

// bytes of scratch that layernorm_backward needs
template <typename T>
size_t layernorm_backward_scratch(int64_t, int C) {
    return kCounterBytes + 2 * sizeof(acc_t<T>) * partial_blocks() * C;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// scratch: layernorm_backward_scratch bytes, 16-byte aligned, need not be initialised.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                        const T* weight, const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C,
                        cudaStream_t stream, int block = 256) {
    using Acc = acc_t<T>;
    size_t shared = 2 * sizeof(Acc) * ((size_t)C + (size_t)block / kWarp * block);
    require(block >= kWarp && block % kWarp == 0, "layernorm_backward: block must be a multiple of 32");
    require(shared <= (size_t)device_facts().shared_bytes,
            "layernorm_backward v3: two sums a column do not fit shared memory; use a smaller block, or v2");
    int* counter = (int*)scratch;
    Acc* partial = (Acc*)((char*)scratch + kCounterBytes);
    clear_counter_kernel<<<1, 1, 0, stream>>>(counter);
    check_launch();
    auto* kernel = layernorm_backward_kernel<T>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<partial_blocks(), block, shared, stream>>>(dinp, dweight, dbias, partial, counter, dout, inp,
                                                        weight, mean, rstd, N, C);
    check_launch();
}

}  // namespace llmc::v3
