// v1: a kernel that normalises and casts, and one that transposes what it wrote, a thread a byte.
// Why:    forward's v2 in vectors, with a cast behind it, and the plainest transpose.
// Moves:  2 bytes of an element in, 1 out; then 1 in and 1 out: 5. But bytes of a column go out one by one, each to another
//         sector of 32.
// Result: doc/layernorm.md, FP8
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/fp8.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/layernorm/layernorm_fp8.h"

namespace llmc::v1 {

// a warp per row, which is read three times: from memory, then from caches
template <typename T>
__global__ void layernorm_forward_fp8_kernel(LayerNormForwardFp8<T> call) {
    constexpr int kVector = 8;
    const int lane = threadIdx.x % kWarp;
    const int64_t row = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (row >= call.N) { return; }
    const T* x = call.inp + row * call.C;
    auto columns = [&](auto&& each) {
        for (int c = lane * kVector; c < call.C; c += kWarp * kVector) { each(c, load<kVector>(x + c)); }
    };
    float sum = 0, squares = 0, largest = 0;
    columns([&](int, auto v) { unrolled<kVector>([&](int j) { sum += as_float(v, j); }); });
    const float mean = warp_sum(sum) / call.C;
    columns([&](int, auto v) {
        unrolled<kVector>([&](int j) { squares += (as_float(v, j) - mean) * (as_float(v, j) - mean); });
    });
    const float rstd = rsqrtf(warp_sum(squares) / call.C + call.eps);
    columns([&](int c, auto v) {
        auto weight = load<kVector>(call.weight + c), bias = load<kVector>(call.bias + c);
        float y[kVector];
        unrolled<kVector>([&](int j) {
            y[j] = (as_float(v, j) - mean) * rstd * as_float(weight, j) + as_float(bias, j);
            largest = fmaxf(largest, fabsf(y[j]));
        });
        *reinterpret_cast<uint2*>(call.out + row * call.C + c) = fp8_bytes<Fp8::kE4m3>(y, *call.scale);
    });
    raise_amax(call.amax, largest);
    if (lane == 0) {
        call.mean[row] = mean;
        call.rstd[row] = rstd;
    }
}

static __global__ void transpose_kernel(uint8_t* transposed, const uint8_t* out, int64_t N, int C) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N * C) { transposed[i % C * N + i / C] = out[i]; }
}

// without a residual; all results are wanted
template <typename T>
void normalise(const LayerNormForwardFp8<T>& call, cudaStream_t stream) {
    constexpr int block = 256;
    layernorm_forward_fp8_kernel<<<grid_x(ceil_div(call.N, block / kWarp)), block, 0, stream>>>(call);
    check_launch();
}

template <typename T>
void layernorm_forward_fp8(const LayerNormForwardFp8<T>& call, cudaStream_t stream) {
    normalise(call, stream);
    transpose_kernel<<<grid_x(ceil_div(call.N * call.C, 256)), 256, 0, stream>>>(call.transposed, call.out,
                                                                                 call.N, call.C);
    check_launch();
}

}  // namespace llmc::v1
