// LayerNorm forward, alone or on the sum of the residual stream and a block's output: a warp a row, any C.
// The statistics are those of v2 (layernorm_forward/v2.cuh): shifted by the row's first element, in two
// passes; here rows come in 16-byte vectors where C and the pointers allow it, and are read again from the
// cache.
#include "llmc/check.cuh"
#include "llmc/device.cuh"
#include "llmc/layernorm.h"
#include "llmc/vectors.cuh"

namespace llmc {
namespace {

constexpr int kBlock = 256;

template <typename T, int kV>
__global__ void layernorm_forward_kernel(LayerNormForward<T> call) {
    int lane = threadIdx.x % kWarp, C = call.C;
    int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= call.N) { return; }
    const T* x = call.inp + row * C;
    float shift = (float)x[0];
    float sum = 0;
    if (call.residual != nullptr) {
        const T* x2 = call.inp2 + row * C;
        T* r = call.residual + row * C;
        shift = (float)(T)(shift + (float)x2[0]);
        __syncwarp();  // residual may alias an input: element 0 is read before lane 0 writes it
        for (int c = lane * kV; c < C; c += kWarp * kV) {
            auto a = load<kV>(x + c), b = load<kV>(x2 + c);
#pragma unroll
            for (int i = 0; i < kV; i++) {
                a.at[i] = (T)((float)a.at[i] + (float)b.at[i]);
                sum += (float)a.at[i] - shift;
            }
            store(r + c, a);
        }
        x = r;  // each lane reads again what it wrote itself
    } else {
        for (int c = lane * kV; c < C; c += kWarp * kV) {
            auto a = load<kV>(x + c);
#pragma unroll
            for (int i = 0; i < kV; i++) { sum += (float)a.at[i] - shift; }
        }
    }
    float m = warp_sum(sum) / C;  // the mean, less shift

    float squares = 0;
    for (int c = lane * kV; c < C; c += kWarp * kV) {
        auto a = load<kV>(x + c);
#pragma unroll
        for (int i = 0; i < kV; i++) {
            float d = ((float)a.at[i] - shift) - m;
            squares += d * d;
        }
    }
    float s = rsqrtf(warp_sum(squares) / C + call.eps);

    for (int c = lane * kV; c < C; c += kWarp * kV) {
        auto a = load<kV>(x + c);
        auto w = load<kV>(call.weight + c), b = load<kV>(call.bias + c);
#pragma unroll
        for (int i = 0; i < kV; i++) {
            float xhat = (((float)a.at[i] - shift) - m) * s;
            a.at[i] = (T)(xhat * (float)w.at[i] + (float)b.at[i]);
        }
        store(call.out + row * C + c, a);
    }
    if (lane == 0 && call.mean != nullptr) { call.mean[row] = shift + m; }
    if (lane == 0 && call.rstd != nullptr) { call.rstd[row] = s; }
}

}  // namespace

template <typename T>
void layernorm_forward(const LayerNormForward<T>& call, cudaStream_t stream) {
    require(call.C > 0, "layernorm_forward: C must be positive");
    if (call.N == 0) { return; }
    constexpr int kV = Vec<T>::size;
    unsigned grid = grid_x(ceil_div(call.N, kBlock / kWarp));
    bool vectors =
        call.C % kV == 0 && aligned(call.out, call.inp, call.weight, call.bias, call.residual, call.inp2);
    auto* kernel = vectors ? layernorm_forward_kernel<T, kV> : layernorm_forward_kernel<T, 1>;
    kernel<<<grid, kBlock, 0, stream>>>(call);
    check_launch();
}

template void layernorm_forward(const LayerNormForward<float>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<__nv_bfloat16>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<__half>&, cudaStream_t);

}  // namespace llmc
