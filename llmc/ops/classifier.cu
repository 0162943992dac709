// The classifier's kernels: a block per row reads it once from memory (largest logit and sum of exponentials
// together); the gradient's pass reads it again, backwards, to find in the caches what was read last.
#include "llmc/ops/classifier.h"

#include <algorithm>
#include <cfloat>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/edges.cuh"
#include "llmc/cuda/exp2.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/host/batch.h"

namespace llmc {

namespace {

// The largest block: a small vocabulary takes less. Two to an SM, one reading while the other writes or
// waits. Three would not fit (2048 threads), so that L1 holds two rows at a time: 100 KB each for GPT-2 in
// bf16.
constexpr int kBlock = 768;
constexpr int kAtOnce = 4;  // vectors a thread has on their way from memory
constexpr int kSumBlock = 1024;

// exp(x) for x <= 0. float: within 2 ulp. bf16: x log2(e) rounded before the power, so within |x| 2^-23 +
// 2^-22, relative: 2^-16 at x = -100, beside bf16's own 2^-9. In a row's sum of exp(x_v) the first part
// weighs 2^-23 sum_v p_v |x_v|, which is at most 2^-23 ln V (an entropy): the loss is off by at most 2^-19.
template <typename T>
__device__ float exp_of(float x) {
    if constexpr (std::is_same_v<T, float>) {
        return expf(x);
    } else {
        return exp2_approx(x * kLog2e);
    }
}

// over the columns of a row
struct RowStatistics {
    float largest;  // NaN is passed over here and comes through in the sum
    float sum;      // of exp(x - largest)
    int64_t best;   // where in the row this thread's vector begins that first held the thread's own largest
    float own_largest;
};

// x (V), read by the whole block; largest and sum are the same in every thread
template <typename T>
__device__ RowStatistics row_statistics(const T* x, int V) {
    constexpr int n = Vec<T>::size;
    float largest = -FLT_MAX, sum = 0;  // finite, so that exp(-inf - largest) is 0 and not NaN
    int64_t best = 0;
    auto add = [&](const Vec<T>& piece, int64_t i) {
        float new_largest = largest;
        for (T value : piece.at) { new_largest = fmaxf(new_largest, (float)value); }
        best = new_largest > largest ? i : best;
        sum *= exp_of<T>(largest - new_largest);
        largest = new_largest;
        for (T value : piece.at) { sum += exp_of<T>((float)value - largest); }
    };
    int64_t i = (int64_t)threadIdx.x * n, stride = (int64_t)blockDim.x * n;
    int64_t end = reinterpret_cast<uintptr_t>(x) % sizeof(Vec<T>) == 0 ? V : 0;
    for (; i + (kAtOnce - 1) * stride + n <= end; i += kAtOnce * stride) {
        Vec<T> piece[kAtOnce];
        for (int k = 0; k < kAtOnce; k++) { piece[k] = Vec<T>::load(x + i + k * stride); }
        for (int k = 0; k < kAtOnce; k++) { add(piece[k], i + k * stride); }
    }
    for (; i < V; i += stride) { add(load_within<Vec<T>>(x, i, V, (T)-INFINITY), i); }

    float of_row = block_reduce(largest, -FLT_MAX, [](float a, float b) { return fmaxf(a, b); });
    return {of_row, block_sum(sum * exp_of<T>(largest - of_row)), best, largest};
}

// -ln softmax(x)[target]
__device__ float loss_of(const RowStatistics& row, float target_logit) {
    return logf(row.sum) + (row.largest - target_logit);
}

// the first column that holds the row's largest logit; 0 if none does (all NaN or -infinity)
template <typename T>
__device__ int arg_max(const RowStatistics& row, const T* x, int V) {
    int column = INT32_MAX;
    if (row.own_largest == row.largest) {
        auto piece = load_within<Vec<T>>(x, row.best, V, (T)-INFINITY);
        for (int j = Vec<T>::size - 1; j >= 0; j--) {
            if ((float)piece.at[j] == row.largest) { column = (int)row.best + j; }
        }
    }
    column = block_reduce(column, INT32_MAX, [](int a, int b) { return min(a, b); });
    return column == INT32_MAX ? 0 : column;
}

template <typename T>
__global__ void __launch_bounds__(kBlock, 2)
    classifier_forward_kernel(float* losses, int32_t* predicted, const T* logits, const int32_t* targets,
                              int V, int Vp) {
    int64_t index = blockIdx.x;
    const T* x = logits + index * Vp;
    auto row = row_statistics(x, V);
    int best = arg_max(row, x, V);
    if (threadIdx.x == 0) {
        int target = targets[index];
        predicted[index] = best;
        losses[index] = target == kIgnoreTarget ? 0 : loss_of(row, (float)x[target]);
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlock, 2)
    classifier_forward_backward_kernel(T* logits, float* losses, const int32_t* targets, float dloss, int V,
                                       int Vp) {
    constexpr int n = Vec<T>::size;
    int64_t index = blockIdx.x;
    int target = targets[index];
    T* x = logits + index * Vp;
    if (target == kIgnoreTarget) {
        for (int64_t v = threadIdx.x; v < Vp; v += blockDim.x) { x[v] = T(0.0f); }
        if (threadIdx.x == 0) { losses[index] = 0; }
        return;
    }
    float target_logit = (float)x[target];  // before any thread replaces it: row_statistics synchronises
    auto row = row_statistics(x, V);
    if (threadIdx.x == 0) { losses[index] = loss_of(row, target_logit); }

    // exp(x - largest) dloss / sum is softmax dloss
    float scale = dloss / row.sum;
    int64_t stride = (int64_t)blockDim.x * n;
    for (int64_t i = (ceil_div(V, stride) - 1) * stride + threadIdx.x * n; i >= 0; i -= stride) {
        auto piece = load_within<Vec<T>>(x, i, V);
        for (T& value : piece.at) { value = (T)(exp_of<T>((float)value - row.largest) * scale); }
        store_within(x, i, V, piece);
    }
    if (threadIdx.x == target / n % blockDim.x) {  // the thread that has just written it
        x[target] = (T)(exp_of<T>(target_logit - row.largest) * scale - dloss);
    }
    for (int64_t v = V + threadIdx.x; v < Vp; v += blockDim.x) { x[v] = T(0.0f); }
}

// one block; a thread's share in order, then the threads
__global__ void sum_losses_kernel(double* sum, const float* losses, int64_t N, bool accumulate) {
    double mine = 0;
    for (int64_t i = threadIdx.x; i < N; i += kSumBlock) { mine += losses[i]; }
    double total = block_sum(mine);
    if (threadIdx.x == 0) { *sum = accumulate ? *sum + total : total; }
}

// threads for a row: one for each vector, in whole warps
template <typename T>
int block_of(int Vp) {
    return std::min(kBlock, ceil_div(ceil_div(Vp, Vec<T>::size), kWarp) * kWarp);
}

void require_columns(int V, int Vp) {
    require(V > 0 && V <= Vp, "classifier: V columns of Vp must be 0 < V <= Vp");
}

}  // namespace

template <typename T>
void classifier_forward(float* losses, int32_t* predicted, const T* logits, const int32_t* targets, int64_t N,
                        int V, int Vp, cudaStream_t stream) {
    require_columns(V, Vp);
    if (N == 0) { return; }
    classifier_forward_kernel<<<grid_x(N), block_of<T>(Vp), 0, stream>>>(losses, predicted, logits, targets,
                                                                         V, Vp);
    check_launch();
}

template <typename T>
void classifier_forward_backward(T* logits, float* losses, const int32_t* targets, float dloss, int64_t N,
                                 int V, int Vp, cudaStream_t stream) {
    require_columns(V, Vp);
    if (N == 0) { return; }
    classifier_forward_backward_kernel<<<grid_x(N), block_of<T>(Vp), 0, stream>>>(logits, losses, targets,
                                                                                  dloss, V, Vp);
    check_launch();
}

void sum_losses(double* sum, const float* losses, int64_t N, bool accumulate, cudaStream_t stream) {
    sum_losses_kernel<<<1, kSumBlock, 0, stream>>>(sum, losses, N, accumulate);
    check_launch();
}

template void classifier_forward(float*, int32_t*, const float*, const int32_t*, int64_t, int, int,
                                 cudaStream_t);
template void classifier_forward(float*, int32_t*, const __nv_bfloat16*, const int32_t*, int64_t, int, int,
                                 cudaStream_t);
template void classifier_forward_backward(float*, float*, const int32_t*, float, int64_t, int, int,
                                          cudaStream_t);
template void classifier_forward_backward(__nv_bfloat16*, float*, const int32_t*, float, int64_t, int, int,
                                          cudaStream_t);

}  // namespace llmc
