// fallback: any C, any alignment, any stride, any GPU: a warp has a short row, a block a long one.
// Why:    what no register holds is read twice, not three times: a block takes its row in pieces, finds each
//         piece's mean and squares while the piece is in registers, and merges them (Chan et al. 1983).
// Moves:  a row from memory, and again from L1 or L2, last piece first: what was read last is still near.
// Result: sm_80 code on an H200: 68 % of the roof at 4096x65536 bf16, 58 at 1024x262144; 2026-11-22
#pragma once
#include "llmc/layernorm/forward/rows.cuh"

namespace llmc::fallback_forward {

using namespace layernorm;

constexpr int kBlock = 256;                      // of the kernel with a warp per row
constexpr int kWarpAccesses = 512;               // of a row that a warp does alone, at most
constexpr int kMostThreads = 1024, kPieces = 4;  // of a block per row; of its row, until threads run out

// accesses a thread has under way: when a block reads a piece of its row; when a row is written
template <int kV>
constexpr int kEach = kV == 1   ? 8
                      : kV == 2 ? 2
                                : 4;
template <int kV>
constexpr int kAtOnce = kV == 1 ? 4 : 2;

// ---- what a thread knows of its part of a row ----------------------------------------------------------

// of elements whose means are about the same number
template <typename Acc>
__device__ MomentsIn<Acc> merge(const MomentsIn<Acc>& a, const MomentsIn<Acc>& b) {
    Acc n = a.n + b.n, share = b.n / max(n, Acc(1)), d = b.m - a.m;
    return {a.about, a.m + d * share, a.squares + b.squares + d * d * (a.n * share), n};
}

// from what each thread of a block has of the row, C elements in all; whole warps
template <typename Acc>
__device__ MomentsIn<Acc> moments_of_block(const MomentsIn<Acc>& mine, int C) {
    Acc m = block_sum(mine.n * mine.m) / C, d = mine.m - m;
    return {mine.about, m, block_sum(mine.squares + mine.n * d * d), (Acc)C};
}

// ---- a row --------------------------------------------------------------------------------------------

// The row's first element. Any would do as the shift; then a constant row's differences are exactly 0. RMSNorm takes none off.
template <typename T, typename W, typename Out>
__device__ acc_t<T> shift_of_row(const LayerNormForward<T, W, Out>& call, int64_t row) {
    return call.rms ? acc_t<T>(0) : as_acc<acc_t<T>>(load<1>(call.inp + row * call.inp_stride), 0);
}

// Writes k accesses of a row, from column c, step apart, as they are normalised; x: the row. All is asked for
// before any of it is waited for.
template <int n, int k, typename T, typename W, typename Out>
__device__ void normalise(const LayerNormForward<T, W, Out>& call, int64_t row, const T* x, int64_t c,
                          int step, const NormalIn<acc_t<T>>& normal) {
    Elements<T, n> a[k]{};
    Elements<W, n> w[k], b[k];
    unrolled<k>([&](int i) {
        if (c + i * step >= call.C) { return; }
        a[i] = load_streaming<n>(x + c + i * step);
        w[i] = load_or<n>(call.weight, c + i * step, (W)1.0f);
        b[i] = load_or<n>(call.bias, c + i * step, (W)0.0f);
    });
#pragma unroll
    for (int i = 0; i < k; i++) {
        if (c + i * step >= call.C) { continue; }
        store_streaming(call.out + row * call.out_stride + c + i * step,
                        normalised<Out>(a[i], w[i], b[i], normal));
    }
}

// ---- a warp per row: the mean, then the squares about it, then the row is written ---------------------

template <int kV, typename T, typename W, typename Out>
__global__ void __launch_bounds__(kBlock) layernorm_forward_warp_kernel(LayerNormForward<T, W, Out> call) {
    using Acc = acc_t<T>;
    int lane = threadIdx.x % kWarp, C = call.C;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= call.N) { return; }
    Acc shift = shift_of_row(call, row), sum = 0, squares = 0;
    const T* x = call.inp + row * call.inp_stride;
    auto each = [&](auto act) {  // of this lane's elements, less shift
#pragma unroll 4
        for (int c = lane * kV; c < C; c += kWarp * kV) {
            auto a = load<kV>(x + c);
            unrolled<kV>([&](int j) { act(as_acc<Acc>(a, j) - shift); });
        }
    };
    each([&](Acc d) { sum += d; });
    Acc m = call.rms ? Acc(0) : warp_sum(sum) / C;
    each([&](Acc d) { squares += (d - m) * (d - m); });
    MomentsIn<Acc> of_row{shift, m, warp_sum(squares), (Acc)C};
    NormalIn<Acc> normal = normal_of(of_row, Acc(1) / C, (Acc)call.eps);
    constexpr int at_once = kAtOnce<kV>;
    for (int64_t c = lane * kV; c < C; c += at_once * kWarp * kV) {
        normalise<kV, at_once>(call, row, x, c, kWarp * kV, normal);
    }
    if (lane == 0) { write_statistics(call, row, normal); }
}

// ---- a block per row ---------------------------------------------------------------------------------

// of what this thread has of a piece, which may be nothing: kEach accesses from column `from`, blockDim.x apart
template <int kV, typename T, typename W, typename Out>
__device__ MomentsIn<acc_t<T>> moments_of_piece(const LayerNormForward<T, W, Out>& call, int64_t row,
                                                int64_t from, acc_t<T> shift) {
    using Acc = acc_t<T>;
    constexpr int k = kEach<kV>;
    Elements<T, kV> x[k]{};
    int step = blockDim.x * kV, count = 0;
    unrolled<k>([&](int i) {
        int64_t c = from + i * step;
        if (c >= call.C) { return; }
        count += kV;
        x[i] = load<kV>(call.inp + row * call.inp_stride + c);
    });
    auto each = [&](auto act) {  // and which of two chains of additions, half as long
        unrolled<k>([&](int i) {
            if (i * kV >= count) { return; }
            unrolled<kV>([&](int j) { act(as_acc<Acc>(x[i], j) - shift, (i * kV + j) % 2); });
        });
    };
    Acc sums[2] = {}, squares[2] = {};
    each([&](Acc d, int chain) { sums[chain] += d; });
    Acc m = call.rms ? Acc(0) : (sums[0] + sums[1]) / max((Acc)count, Acc(1));
    each([&](Acc d, int chain) { squares[chain] += (d - m) * (d - m); });
    return {shift, m, squares[0] + squares[1], (Acc)count};
}

template <int kV, typename T, typename W, typename Out>
__global__ void __launch_bounds__(kMostThreads, 1)
    layernorm_forward_block_kernel(LayerNormForward<T, W, Out> call) {
    using Acc = acc_t<T>;
    int step = blockDim.x * kV;
    int64_t row = blockIdx.x, piece = kEach<kV> * step, first = threadIdx.x * kV;
    Acc shift = shift_of_row(call, row);
    MomentsIn<Acc> mine{shift};
    for (int64_t from = first; from < call.C; from += piece) {
        mine = merge(mine, moments_of_piece<kV>(call, row, from, shift));
    }
    NormalIn<Acc> normal = normal_of(moments_of_block(mine, call.C), Acc(1) / call.C, (Acc)call.eps);
    if (threadIdx.x == 0) { write_statistics(call, row, normal); }

    const T* x = call.inp + row * call.inp_stride;
    piece = kAtOnce<kV> * step;  // of the same thread's accesses
    for (int64_t from = (call.C - 1) / piece * piece + first; from >= 0; from -= piece) {
        normalise<kV, kAtOnce<kV>>(call, row, x, from, step, normal);
    }
}

template <int kV, typename T, typename W, typename Out>
void launch(const LayerNormForward<T, W, Out>& call, cudaStream_t stream) {
    int accesses = ceil_div(call.C, kV);
    if (accesses <= kWarpAccesses) {
        layernorm_forward_warp_kernel<kV>
            <<<grid_x(ceil_div(call.N, (int64_t)kBlock / kWarp)), kBlock, 0, stream>>>(call);
    } else {
        int warps = ceil_div(accesses / (kPieces * kEach<kV>), kWarp);
        int threads = std::clamp(warps * kWarp, 2 * kWarp, kMostThreads);
        layernorm_forward_block_kernel<kV><<<grid_x(call.N), threads, 0, stream>>>(call);
    }
    check_launch();
}

template <typename T, typename W, typename Out>
bool launch(const LayerNormForward<T, W, Out>& call, const Choice& choice, cudaStream_t stream) {
    choice.piece > 1 ? launch<Vec<T>::size>(call, stream) : launch<1>(call, stream);
    return true;
}

}  // namespace llmc::fallback_forward
