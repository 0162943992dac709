// GELU's kernels: a thread per 16 bytes.
#include "llmc/ops/gelu.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/ops/gelu.cuh"

namespace llmc {

namespace {

constexpr int kBlock = 256;

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
        x[1].at[j] = (T)((float)x[1].at[j] * gelu_and_slope((float)x[0].at[j]).slope);
    }
    store_within(dinp, i, n, x[1]);
}

}  // namespace

template <typename T>
void gelu_forward(T* out, const T* inp, int64_t n, cudaStream_t stream) {
    if (n == 0) { return; }
    unsigned grid = grid_x(ceil_div(n, kBlock * Vec<T>::size));
    gelu_forward_kernel<<<grid, kBlock, 0, stream>>>(out, inp, n);
    check_launch();
}

template <typename T>
void gelu_backward(T* dinp, const T* dout, const T* inp, int64_t n, cudaStream_t stream) {
    if (n == 0) { return; }
    unsigned grid = grid_x(ceil_div(n, kBlock * Vec<T>::size));
    gelu_backward_kernel<<<grid, kBlock, 0, stream>>>(dinp, dout, inp, n);
    check_launch();
}

using bf16 = __nv_bfloat16;
template decltype(gelu_forward<float>) gelu_forward<float>;
template decltype(gelu_forward<bf16>) gelu_forward<bf16>;
template decltype(gelu_backward<float>) gelu_backward<float>;
template decltype(gelu_backward<bf16>) gelu_backward<bf16>;

}  // namespace llmc
