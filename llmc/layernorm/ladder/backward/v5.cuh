// v5: inp and dout come through each warp's own ring, filled by TMA; sums in registers. Hopper.
// Why:    v4's registers, full of sums, leave few warps, and each waits for its own loads.
// Moves:  inp, dout once in, into shared memory, read there twice; dinp once out; partial sums as v4.
// Result: 107.9 us, 65 % of the roof at 65536x768 bf16; H200, 2026-11-21
#pragma once
#include <algorithm>

#include "llmc/cuda/async_copy.cuh"
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/ladder/backward/v4.cuh"

namespace llmc::v5 {

constexpr int kMaxColumns = 56;  // of a lane: two sums for each must fit the registers
constexpr int kMaxBlock = 256;
constexpr int kStages = 2;  // pairs of rows of a warp in shared memory; deeper rings are slower

// A warp takes every (warps of the grid)-th row. K: vectors of a lane. C is a multiple of Vec<T>::size.
// partial (2,gridDim.x,C): dweight's sums over the block's rows, then dbias's
template <typename T, int K>
__global__ void __launch_bounds__(kMaxBlock)
    layernorm_backward_rows_kernel(T* dinp, acc_t<T>* partial, const T* dout, const T* inp, const T* weight,
                                   const acc_t<T>* mean, const acc_t<T>* rstd, int64_t N, int C) {
    if constexpr (kSm90) {
        using Acc = acc_t<T>;
        constexpr int V = Vec<T>::size;
        extern __shared__ __align__(16) unsigned char shared[];
        __shared__ uint64_t filled[kMaxBlock / kWarp][kStages];
        int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
        T* stages = (T*)shared + warp * kStages * 2 * C;
        uint64_t* full = filled[warp];

        auto fetch = [=](int64_t row, int stage) {  // lane 0
            if (row >= N) { return; }
            uint32_t bytes = C * sizeof(T);
            mbarrier_arrive_expect(&full[stage], 2 * bytes);
            bulk_copy(stages + 2 * stage * C, inp + row * C, bytes, &full[stage]);
            bulk_copy(stages + (2 * stage + 1) * C, dout + row * C, bytes, &full[stage]);
        };
        // neighbouring blocks take neighbouring rows, so that none has more than one row more than another
        int64_t step = (int64_t)warps * gridDim.x, row = (int64_t)warp * gridDim.x + blockIdx.x;
        if (lane == 0) {
            for (int stage = 0; stage < kStages; stage++) { mbarrier_init(&full[stage], 1); }
            mbarrier_init_fence();
            for (int stage = 0; stage < kStages; stage++) { fetch(row + stage * step, stage); }
        }
        __syncwarp();  // nobody waits on a barrier that is not there yet

        Acc dw[K][V] = {}, db[K][V] = {};
        int stage = 0;
        unsigned parity = 0;  // of the copy awaited: it changes each time the ring has gone round
        Acc next_m = row < N ? mean[row] : Acc(0), next_s = row < N ? rstd[row] : Acc(0);
        for (; row < N; row += step) {
            Acc m = next_m, s = next_s;
            if (row + step < N) {
                next_m = mean[row + step];
                next_s = rstd[row + step];
            }
            mbarrier_wait(&full[stage], parity);
            const T* x = stages + 2 * stage * C;
            const T* dy = x + C;

            Acc c1 = 0, c2 = 0;
#pragma unroll
            for (int k = 0; k < K; k++) {
                int c = (k * kWarp + lane) * V;
                if (c >= C) { continue; }
                Vec<T> a = Vec<T>::load(x + c), d = Vec<T>::load(dy + c), w = Vec<T>::load(weight + c);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    Acc xhat = ((Acc)a.at[i] - m) * s, wdy = (Acc)w.at[i] * (Acc)d.at[i];
                    c1 += wdy;
                    c2 += wdy * xhat;
                }
            }
            c1 = warp_sum(c1) / C;
            c2 = warp_sum(c2) / C;
            __syncwarp();  // makes the compiler read the row again: to keep it would spill

#pragma unroll
            for (int k = 0; k < K; k++) {
                int c = (k * kWarp + lane) * V;
                if (c >= C) { continue; }
                Vec<T> a = Vec<T>::load(x + c), d = Vec<T>::load(dy + c), w = Vec<T>::load(weight + c);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    Acc dy_i = (Acc)d.at[i], xhat = ((Acc)a.at[i] - m) * s;
                    dw[k][i] += dy_i * xhat;
                    db[k][i] += dy_i;
                    a.at[i] = (T)(((Acc)w.at[i] * dy_i - c1 - xhat * c2) * s);
                }
                a.store(dinp + row * C + c);
            }

            // TMA must not overtake this warp's reads: without the fence, in every lane, rows are
            // wrong now and then.
            fence_proxy_async();
            __syncwarp();
            if (lane == 0) { fetch(row + kStages * step, stage); }
            stage = stage + 1 < kStages ? stage + 1 : 0;
            parity ^= stage == 0;
        }

        __syncthreads();  // every warp's ring is done with
        v4::store_block_sums(partial, dw, db, (Acc*)shared, C);
    }
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
inline int partial_blocks(int64_t N) { return (int)std::min<int64_t>(N, device_facts().multiprocessors); }

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
            "layernorm_backward v5: block must be a multiple of 32, at most 256");
    require(C % Vec<T>::size == 0 && aligned(dinp, dout, inp, weight),
            "layernorm_backward v5: rows must be made of whole, aligned 16 bytes; v2 takes any");
    require(C <= kMaxColumns / Vec<T>::size * Vec<T>::size * kWarp,
            "layernorm_backward v5: more than 1792 columns do not fit a warp's registers; v6 takes them");
    const DeviceFacts& facts = device_facts();
    auto kernel = kernel_for<T>(C);
    require(facts.capability >= 90 && has_hopper_code(kernel),
            "layernorm_backward v5: needs a GPU of compute capability 9.0 or later and code built for it; v4 "
            "does not");
    size_t shared = (size_t)(block / kWarp) * kStages * 2 * C * sizeof(T);  // the (2,C) sums are never larger
    require(shared + kMaxBlock / kWarp * kStages * sizeof(uint64_t) <= (size_t)facts.shared_bytes,
            "layernorm_backward v5: the warps' rings do not fit shared memory; use a smaller block");
    Acc* partial = (Acc*)scratch;
    int blocks = partial_blocks(N);
    if (N > 0) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
        kernel<<<blocks, block, shared, stream>>>(dinp, partial, dout, inp, weight, mean, rstd, N, C);
        check_launch();
    }
    unsigned grid = grid_x(ceil_div(C, block));
    v4::layernorm_backward_dweight_kernel<<<grid, block, 0, stream>>>(dweight, dbias, (const Acc*)partial,
                                                                      blocks, C);
    check_launch();
}

}  // namespace llmc::v5
