// v6: a block per row behind one ring; columns are added while the row's two sums go round. Hopper.
// Why:    v5's warp holds 1792 columns' sums at most, and waits for its row's two sums with nothing to do.
// Moves:  inp, dout once in, to shared memory and registers; dinp once out; a sum a column and block.
// Result: 153.0 us, 46 % of the roof at 65536x768 bf16; 59 % at 4096x8192 fp16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/vectors.cuh"

namespace llmc::v6 {

constexpr int kMaxColumns = 16;  // of a thread: two sums each, inp, dout and weight must fit the registers
constexpr int kMaxBlock = 512;
constexpr int kStages = 2;  // pairs of rows in shared memory

// A thread's columns of a block's `count`: vectors, blockDim.x apart; K of them at most. What it holds of a
// row, and the columns' sums over the rows.
template <typename T, int K>
struct Columns {
    static constexpr int V = Vec<T>::size;
    int count;
    Vec<T> w[K], x[K], dy[K];
    float dw[K][V] = {}, db[K][V] = {};

    // at(c, vector k, column c) for each vector there is
    template <typename At>
    __device__ void each(At at) const {
#pragma unroll
        for (int k = 0; k < K; k++) {
            int c = (k * (int)blockDim.x + (int)threadIdx.x) * V;
            if (c < count) { at(k, c); }
        }
    }
    __device__ void load_weight(const T* weight) {
        each([&](int k, int c) { w[k] = Vec<T>::load(weight + c); });
    }
    // a row, from its stage; the warp's share of c1 and c2
    __device__ float2 load(const T* x_row, const T* dy_row, float m, float s) {
        float c1 = 0, c2 = 0;
        each([&](int k, int c) {
            x[k] = Vec<T>::load(x_row + c);
            dy[k] = Vec<T>::load(dy_row + c);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float xhat = ((float)x[k].at[i] - m) * s, wdy = (float)w[k].at[i] * (float)dy[k].at[i];
                c1 += wdy;
                c2 += wdy * xhat;
            }
        });
        return {warp_sum(c1), warp_sum(c2)};
    }
    __device__ void add_row(float m, float s) {
        each([&](int k, int) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                dw[k][i] += (float)dy[k].at[i] * (((float)x[k].at[i] - m) * s);
                db[k][i] += (float)dy[k].at[i];
            }
        });
    }
    __device__ void store_dinp(T* dx, float m, float s, float c1, float c2) {
        each([&](int k, int c) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                float xhat = ((float)x[k].at[i] - m) * s, wdy = (float)w[k].at[i] * (float)dy[k].at[i];
                x[k].at[i] = (T)((wdy - c1 - xhat * c2) * s);
            }
            x[k].store(dx + c);
        });
    }
    __device__ void store_sums(float* dw_sum, float* db_sum) const {
        each([&](int k, int c) {
#pragma unroll
            for (int i = 0; i < V; i++) {
                dw_sum[c + i] = dw[k][i];
                db_sum[c + i] = db[k][i];
            }
        });
    }
};

// Block b takes rows b, b + gridDim.x, ... K: vectors of a thread. C is a multiple of Vec<T>::size.
// partial (2,gridDim.x,C): dweight's sums over the block's rows, then dbias's
template <typename T, int K>
__global__ void __launch_bounds__(kMaxBlock)
    layernorm_backward_rows_kernel(T* dinp, float* partial, const T* dout, const T* inp, const T* weight,
                                   const float* mean, const float* rstd, int64_t N, int C) {
    if constexpr (kSm90) {
        extern __shared__ __align__(16) unsigned char shared[];  // kStages times a row of inp, a row of dout
        __shared__ uint64_t full[kStages], summed[2];
        __shared__ float2 sums[2][kMaxBlock / kWarp];  // of each warp, c1 and c2; rows take turns
        T* stages = (T*)shared;
        int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;

        auto fetch = [&](int64_t row, int stage) {  // thread 0
            if (row >= N) { return; }
            uint32_t bytes = C * sizeof(T);
            mbarrier_arrive_expect(&full[stage], 2 * bytes);
            bulk_copy(stages + 2 * stage * C, inp + row * C, bytes, &full[stage]);
            bulk_copy(stages + (2 * stage + 1) * C, dout + row * C, bytes, &full[stage]);
        };
        int64_t step = gridDim.x, row = blockIdx.x;
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < kStages; stage++) { mbarrier_init(&full[stage], 1); }
            for (int turn = 0; turn < 2; turn++) { mbarrier_init(&summed[turn], warps); }
            mbarrier_init_fence();
            for (int stage = 0; stage < kStages; stage++) { fetch(row + stage * step, stage); }
        }
        __syncthreads();

        Columns<T, K> mine{.count = C};
        mine.load_weight(weight);
        int stage = 0, turn = 0;
        unsigned full_parity = 0, summed_parity = 0;
        float next_m = row < N ? mean[row] : 0, next_s = row < N ? rstd[row] : 0;
        for (; row < N; row += step) {
            float m = next_m, s = next_s;
            if (row + step < N) {
                next_m = mean[row + step];
                next_s = rstd[row + step];
            }
            mbarrier_wait(&full[stage], full_parity);
            const T* x = stages + 2 * stage * C;
            float2 share = mine.load(x, x + C, m, s);
            // Arriving says both: the sums are there, and the stage has been read. TMA needs the
            // fence.
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) {
                sums[turn][warp] = share;
                mbarrier_arrive(&summed[turn]);
            }

            mine.add_row(m, s);  // meanwhile

            mbarrier_wait(&summed[turn], summed_parity);
            if (threadIdx.x == 0) { fetch(row + kStages * step, stage); }
            // This turn's sums are written again two rows on: by then all warps have arrived for the row
            // between, so have read these.
            share = lane < warps ? sums[turn][lane] : float2{};
            float c1 = warp_sum(share.x) / C, c2 = warp_sum(share.y) / C;
            mine.store_dinp(dinp + row * C, m, s, c1, c2);
            stage = stage + 1 < kStages ? stage + 1 : 0;
            full_parity ^= stage == 0;
            turn = 1 - turn;
            summed_parity ^= turn == 0;
        }
        float* dw_sum = partial + (int64_t)blockIdx.x * C;
        mine.store_sums(dw_sum, dw_sum + (int64_t)gridDim.x * C);
    }
}

// one thread per column adds the blocks in order
template <typename T>
__global__ void layernorm_backward_dweight_kernel(T* dweight, T* dbias, const float* partial, int blocks,
                                                  int C) {
    int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= C) { return; }
    float dw = 0, db = 0;
    for (int b = 0; b < blocks; b++) {
        dw += partial[(int64_t)b * C + c];
        db += partial[(int64_t)(blocks + b) * C + c];
    }
    dweight[c] = (T)dw;
    dbias[c] = (T)db;
}

// the kernel with the fewest vectors a thread with which a block holds a row of C
template <typename T, int K = 1>
auto kernel_for(int C, int block) -> decltype(&layernorm_backward_rows_kernel<T, 1>) {
    if constexpr ((K + 1) * Vec<T>::size <= kMaxColumns) {
        if (C > K * block * Vec<T>::size) { return kernel_for<T, K + 1>(C, block); }
    }
    return layernorm_backward_rows_kernel<T, K>;
}

// Partial sums of a column, blocks that run side by side: a function of N, the block and the GPU, which fixes
// the order of the additions.
inline int partial_blocks(int64_t N, int block) {
    return (int)std::min<int64_t>(N, (int64_t)(kMaxBlock / block) * device_facts().multiprocessors);
}

// bytes of scratch that layernorm_backward needs, with any block that can take C
template <typename T>
size_t layernorm_backward_scratch(int64_t N, int C) {
    int smallest = std::clamp(ceil_div(C, kMaxColumns), kWarp, kMaxBlock);
    return 2 * sizeof(float) * partial_blocks(N, smallest) * C;
}

// dinp, dout, inp (N,C); dweight, dbias, weight (C); mean, rstd (N); results written (=). Nothing may alias.
// scratch: layernorm_backward_scratch bytes, aligned for float, need not be initialised. T's pointers 16-byte
// aligned.
template <typename T>
void layernorm_backward(T* dinp, T* dweight, T* dbias, void* scratch, const T* dout, const T* inp,
                        const T* weight, const float* mean, const float* rstd, int64_t N, int C,
                        cudaStream_t stream, int block = 512) {
    require(block >= kWarp && block <= kMaxBlock && block % kWarp == 0,
            "layernorm_backward v6: block must be a multiple of 32, at most 512");
    require(C % Vec<T>::size == 0 && aligned(dinp, dout, inp, weight),
            "layernorm_backward v6: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(C <= kMaxColumns * block,
            "layernorm_backward v6: more than 16 columns a thread do not fit the registers; 512 threads take "
            "8192, v8 more");
    const DeviceFacts& facts = device_facts();
    auto kernel = kernel_for<T>(C, block);
    require(facts.capability >= 90 && has_hopper_code(kernel),
            "layernorm_backward v6: needs a GPU of compute capability 9.0 or later and code built for it; v4 "
            "does not");
    float* partial = (float*)scratch;
    int blocks = partial_blocks(N, block);
    if (N > 0) {
        size_t shared = (size_t)kStages * 2 * C * sizeof(T);  // 128 KB at most
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        kernel<<<blocks, block, shared, stream>>>(dinp, partial, dout, inp, weight, mean, rstd, N, C);
        check_launch();
    }
    constexpr int kColumnsBlock = 256;
    unsigned grid = grid_x(ceil_div(C, kColumnsBlock));
    layernorm_backward_dweight_kernel<<<grid, kColumnsBlock, 0, stream>>>(dweight, dbias,
                                                                          (const float*)partial, blocks, C);
    check_launch();
}

}  // namespace llmc::v6
