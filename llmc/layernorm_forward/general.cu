// general: a warp per row, any C, any alignment, any stride, any GPU. Rows that other regimes cannot take.
// Why:    v2's idea with what training asks for: a residual, nulls, strides, two types; vectors where rows
// allow. Moves:  a row from memory once, then twice from L1 or L2.
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/layernorm_forward/regimes.h"
#include "llmc/layernorm_rows.cuh"
#include "llmc/vectors.cuh"

namespace llmc::layernorm_general {

constexpr int kBlock = 256;

// The row's sum less C * shift; with a residual, the row is first written: residual = inp + inp2. The lane
// that writes an element is the one that reads it again.
template <int kV, typename T, typename W>
__device__ acc_t<T> sum_row(const LayerNormForward<T, W>& call, int64_t row, acc_t<T> shift) {
    using Acc = acc_t<T>;
    const T* x = call.inp + row * call.inp_stride;
    Acc sum = 0;
    for (int c = threadIdx.x % kWarp * kV; c < call.C; c += kWarp * kV) {
        auto a = load<kV>(x + c);
        if (call.residual != nullptr) {
            auto b = load<kV>(call.inp2 + row * call.inp2_stride + c);
#pragma unroll
            for (int i = 0; i < kV; i++) { a.at[i] = (T)((Acc)a.at[i] + (Acc)b.at[i]); }
            store(call.residual + row * call.residual_stride + c, a);
        }
#pragma unroll
        for (int i = 0; i < kV; i++) { sum += (Acc)a.at[i] - shift; }
    }
    return warp_sum(sum);
}

template <int kV, typename T, typename W>
__global__ void layernorm_forward_kernel(LayerNormForward<T, W> call) {
    using Acc = acc_t<T>;
    int lane = threadIdx.x % kWarp, C = call.C;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= call.N) { return; }
    const T* x = call.inp + row * call.inp_stride;
    Acc shift = (Acc)x[0];  // any element would do; then a constant row's differences are exactly 0
    if (call.residual != nullptr) { shift = (Acc)(T)(shift + (Acc)call.inp2[row * call.inp2_stride]); }
    __syncwarp();  // residual may alias an input: element 0 is read before lane 0 writes it
    Acc m = sum_row<kV>(call, row, shift) / C;  // the mean, less shift
    if (call.residual != nullptr) { x = call.residual + row * call.residual_stride; }

    Acc squares = 0;
    for (int c = lane * kV; c < C; c += kWarp * kV) {
        auto a = load<kV>(x + c);
#pragma unroll
        for (int i = 0; i < kV; i++) {
            Acc d = ((Acc)a.at[i] - shift) - m;
            squares += d * d;
        }
    }
    Acc s = rsqrt(warp_sum(squares) / C + (Acc)call.eps);

    for (int c = lane * kV; c < C; c += kWarp * kV) {
        auto a = load<kV>(x + c);
        auto w = load_or<kV, Acc>(call.weight, c, Acc(1)), b = load_or<kV, Acc>(call.bias, c, Acc(0));
#pragma unroll
        for (int i = 0; i < kV; i++) { a.at[i] = (T)((((Acc)a.at[i] - shift) - m) * s * w.at[i] + b.at[i]); }
        store(call.out + row * call.out_stride + c, a);
    }
    if (lane == 0 && call.mean != nullptr) { call.mean[row] = shift + m; }
    if (lane == 0 && call.rstd != nullptr) { call.rstd[row] = s; }
}

}  // namespace llmc::layernorm_general

namespace llmc {

template <typename T, typename W>
void layernorm_forward_general(const LayerNormForward<T, W>& call, cudaStream_t stream) {
    using namespace layernorm_general;
    auto* kernel = rows_are_vectors(call) ? layernorm_forward_kernel<Vec<T>::size, T, W>
                                          : layernorm_forward_kernel<1, T, W>;
    kernel<<<grid_x(ceil_div(call.N, (int64_t)kBlock / kWarp)), kBlock, 0, stream>>>(call);
    check_launch();
}

using bf16 = __nv_bfloat16;
template void layernorm_forward_general(const LayerNormForward<float, float>&, cudaStream_t);
template void layernorm_forward_general(const LayerNormForward<bf16, bf16>&, cudaStream_t);
template void layernorm_forward_general(const LayerNormForward<bf16, float>&, cudaStream_t);
template void layernorm_forward_general(const LayerNormForward<__half, __half>&, cudaStream_t);
template void layernorm_forward_general(const LayerNormForward<__half, float>&, cudaStream_t);
template void layernorm_forward_general(const LayerNormForward<double, double>&, cudaStream_t);

}  // namespace llmc
