// v1: a block per row, a pass for each: maximum, sum, gradient
// Why:    v0's loops as they stand, shared out to threads
// Moves:  a row is read three times, from the caches where they hold it, and written once
// Result: doc/measured/classifier.json
#pragma once
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/reduce.cuh"

namespace llmc::v1 {

template <typename T>
__global__ void classifier_forward_backward_kernel(T* logits, float* losses, const int32_t* targets,
                                                   const float* weight, int V, int Vp) {
    const float dloss = *weight;
    T* x = logits + (int64_t)blockIdx.x * Vp;
    int target = targets[blockIdx.x];
    float logit = (float)x[target], largest = -INFINITY, sum = 0;
    for (int v = threadIdx.x; v < V; v += blockDim.x) { largest = fmaxf(largest, (float)x[v]); }
    largest = block_reduce(largest, -INFINITY, [](float a, float b) { return fmaxf(a, b); });
    for (int v = threadIdx.x; v < V; v += blockDim.x) { sum += expf((float)x[v] - largest); }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { losses[blockIdx.x] = logf(sum) + (largest - logit); }
    for (int v = threadIdx.x; v < Vp; v += blockDim.x) {
        float d = v < V ? expf((float)x[v] - largest) * (dloss / sum) : 0;
        x[v] = (T)(v == target ? d - dloss : d);
    }
}

template <typename T>
void classifier_forward_backward(T* logits, float* losses, const int32_t* targets, const float* dloss,
                                 int64_t N, int V, int Vp, cudaStream_t stream, int block) {
    classifier_forward_backward_kernel<<<grid_x(N), block, 0, stream>>>(logits, losses, targets, dloss, V,
                                                                        Vp);
    check_launch();
}

}  // namespace llmc::v1
