// The classifier: which kernel takes a call; the one for evaluation; and the gradient for any rows on any GPU, where a
// block per row reads it once from memory (largest logit and sum of exponentials together) and again, backwards, to find
// in the caches what was read last.
#include "llmc/ops/classifier/classifier.h"

#include <algorithm>

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/reduce.cuh"
#include "llmc/cuda/vectors.cuh"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/ops/classifier/classifier.cuh"

namespace llmc {

namespace {

// The largest block: a small vocabulary takes less. Two to an SM, one reading while the other writes or
// waits. Three would not fit (2048 threads), so that L1 holds two rows at a time: 100 KB each for GPT-2 in
// bf16.
constexpr int kBlock = 768;
constexpr int kAtOnce = 4;  // vectors a thread has on their way from memory
constexpr int kSumBlock = 1024;

// over the columns of a row
struct RowStatistics {
    Softmax softmax;
    int64_t best;  // where in the row this thread's vector begins that first held the thread's own largest
    float own_largest;
};

// x (V), read by the whole block; largest and sum are the same in every thread
template <typename T>
__device__ RowStatistics row_statistics(const T* x, int V) {
    constexpr int n = Vec<T>::size;
    Softmax mine;
    int64_t best = 0;
    auto add = [&](const Vec<T>& piece, int64_t i) {
        float larger = mine.largest;
        for (T value : piece.at) { larger = fmaxf(larger, (float)value); }
        best = larger > mine.largest ? i : best;
        mine = {larger, sum_below<T>(mine, larger)};
        for (T value : piece.at) { mine.sum += exp_below<T>((float)value, larger); }
    };
    int64_t i = (int64_t)threadIdx.x * n, stride = (int64_t)blockDim.x * n;
    int64_t end = reinterpret_cast<uintptr_t>(x) % sizeof(Vec<T>) == 0 ? V : 0;
    for (; i + (kAtOnce - 1) * stride + n <= end; i += kAtOnce * stride) {
        Vec<T> piece[kAtOnce];
        for (int k = 0; k < kAtOnce; k++) { piece[k] = Vec<T>::load(x + i + k * stride); }
        for (int k = 0; k < kAtOnce; k++) { add(piece[k], i + k * stride); }
    }
    for (; i < V; i += stride) { add(load_within<Vec<T>>(x, i, V, (T)-INFINITY), i); }

    float largest = block_reduce(mine.largest, kLowest, [](float a, float b) { return fmaxf(a, b); });
    return {{largest, block_sum(sum_below<T>(mine, largest))}, best, mine.largest};
}

// the first column that holds the row's largest logit; 0 if none does (all NaN or -infinity)
template <typename T>
__device__ int arg_max(const RowStatistics& row, const T* x, int V) {
    int column = INT32_MAX;
    if (row.own_largest == row.softmax.largest) {
        auto piece = load_within<Vec<T>>(x, row.best, V, (T)-INFINITY);
        for (int j = Vec<T>::size - 1; j >= 0; j--) {
            if ((float)piece.at[j] == row.softmax.largest) { column = (int)row.best + j; }
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
        losses[index] = target == kIgnoreTarget ? 0 : loss_of(row.softmax, (float)x[target]);
    }
}

template <typename T>
__global__ void __launch_bounds__(kBlock, 2)
    classifier_general_kernel(T* logits, float* losses, const int32_t* targets, const float* weight, int V,
                              int Vp) {
    constexpr int n = Vec<T>::size;
    const float dloss = *weight;
    int64_t index = blockIdx.x;
    int target = targets[index];
    T* x = logits + index * Vp;
    if (target == kIgnoreTarget) {
        for (int64_t v = threadIdx.x; v < Vp; v += blockDim.x) { x[v] = T(0.0f); }
        if (threadIdx.x == 0) { losses[index] = 0; }
        return;
    }
    float target_logit = (float)x[target];  // before any thread replaces it: row_statistics synchronises
    Softmax row = row_statistics(x, V).softmax;
    if (threadIdx.x == 0) { losses[index] = loss_of(row, target_logit); }

    // exp(x - largest) dloss / sum is softmax dloss
    float scale = dloss / row.sum;
    int64_t stride = (int64_t)blockDim.x * n;
    for (int64_t i = (ceil_div(V, stride) - 1) * stride + threadIdx.x * n; i >= 0; i -= stride) {
        auto piece = load_within<Vec<T>>(x, i, V);
        for (T& value : piece.at) { value = (T)(exp_below<T>((float)value, row.largest) * scale); }
        store_within(x, i, V, piece);
    }
    if (threadIdx.x == target / n % blockDim.x) {  // the thread that has just written it
        x[target] = (T)(exp_below<T>(target_logit, row.largest) * scale - dloss);
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
void classifier_forward_backward_general(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                         int64_t N, int V, int Vp, cudaStream_t stream) {
    classifier_general_kernel<<<grid_x(N), block_of<T>(Vp), 0, stream>>>(logits, losses, targets, dloss, V,
                                                                         Vp);
    check_launch();
}

template <typename T>
void classifier_forward_backward(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                 int64_t N, int V, int Vp, cudaStream_t stream) {
    require_columns(V, Vp);
    if (N == 0) { return; }
    if (classifier_forward_backward_rows(logits, losses, targets, dloss, N, V, Vp, stream)) { return; }
    classifier_forward_backward_general(logits, losses, targets, dloss, N, V, Vp, stream);
}

void sum_losses(double* sum, const float* losses, int64_t N, bool accumulate, cudaStream_t stream) {
    sum_losses_kernel<<<1, kSumBlock, 0, stream>>>(sum, losses, N, accumulate);
    check_launch();
}

template void classifier_forward(float*, int32_t*, const float*, const int32_t*, int64_t, int, int,
                                 cudaStream_t);
template void classifier_forward(float*, int32_t*, const __nv_bfloat16*, const int32_t*, int64_t, int, int,
                                 cudaStream_t);
template void classifier_forward_backward_general(float*, float*, const int32_t*, const float*, int64_t, int,
                                                  int, cudaStream_t);
template void classifier_forward_backward_general(__nv_bfloat16*, float*, const int32_t*, const float*,
                                                  int64_t, int, int, cudaStream_t);
template void classifier_forward_backward(float*, float*, const int32_t*, const float*, int64_t, int, int,
                                          cudaStream_t);
template void classifier_forward_backward(__nv_bfloat16*, float*, const int32_t*, const float*, int64_t, int,
                                          int, cudaStream_t);

}  // namespace llmc
