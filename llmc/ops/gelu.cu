// GELU's kernels: a thread per 16 bytes. The formulas are reference.h's; what is exp(z) there is 2^(z log2 e)
// here.
#include "llmc/ops/gelu.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/edges.cuh"
#include "llmc/cuda/exp2.cuh"

namespace llmc {

namespace {

constexpr int kBlock = 256;

// reference.h's kGeluScale, kGeluCubic and kGeluLargest
constexpr float kScale = 1.5957691216057308f, kCubic = 0.044715f, kLargest = 80;

// exp(-2u), at most exp(80). z is rounded, so that exp(z) has an error of |z| 2^-24 whoever computes it; the
// product and the power add as much again and 2^-22.
__device__ float gelu_exp(float x) {
    float z = -kScale * (x + kCubic * x * x * x);
    z = z > kLargest ? kLargest : z;  // NaN stays NaN
    return exp2_approx(z * kLog2e);
}

__device__ float gelu(float x) {
    return __fdividef(x, 1 + gelu_exp(x));  // 2 ulp for denominators up to 2^126; this one is below 2^116
}

__device__ float gelu_slope(float x) {
    float e = gelu_exp(x);
    float s = __fdividef(1, 1 + e);
    return s + x * s * (e * s) * (kScale * (1 + 3 * kCubic * x * x));
}

template <typename T>
__global__ void gelu_forward_kernel(T* out, const T* inp, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * kBlock + threadIdx.x) * Vec<T>::size;
    auto x = load_within<Vec<T>>(inp, i, n);
    for (T& y : x.at) { y = (T)gelu((float)y); }
    store_within(out, i, n, x);
}

template <typename T>
__global__ void gelu_backward_kernel(T* dinp, const T* dout, const T* inp, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * kBlock + threadIdx.x) * Vec<T>::size;
    Vec<T> x[2];
    auto array = [=](int k) { return k == 0 ? inp : dout; };
    load_together(x, array, 2, i, n);
    for (int j = 0; j < Vec<T>::size; j++) {
        x[1].at[j] = (T)((float)x[1].at[j] * gelu_slope((float)x[0].at[j]));
    }
    store_within(dinp, i, n, x[1]);
}

template <typename T>
unsigned grid_of(int64_t n) {
    return grid_x(ceil_div(n, kBlock * Vec<T>::size));
}

}  // namespace

template <typename T>
void gelu_forward(T* out, const T* inp, int64_t n, cudaStream_t stream) {
    if (n == 0) { return; }
    gelu_forward_kernel<<<grid_of<T>(n), kBlock, 0, stream>>>(out, inp, n);
    check_launch();
}

template <typename T>
void gelu_backward(T* dinp, const T* dout, const T* inp, int64_t n, cudaStream_t stream) {
    if (n == 0) { return; }
    gelu_backward_kernel<<<grid_of<T>(n), kBlock, 0, stream>>>(dinp, dout, inp, n);
    check_launch();
}

template void gelu_forward(float*, const float*, int64_t, cudaStream_t);
template void gelu_forward(__nv_bfloat16*, const __nv_bfloat16*, int64_t, cudaStream_t);
template void gelu_backward(float*, const float*, const float*, int64_t, cudaStream_t);
template void gelu_backward(__nv_bfloat16*, const __nv_bfloat16*, const __nv_bfloat16*, int64_t,
                            cudaStream_t);

}  // namespace llmc
