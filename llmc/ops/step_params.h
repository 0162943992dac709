// What the optimizer is told about a step, on the CPU and on the GPU, and what of it a GPU's kernels read.
#pragma once
#include <cstdint>
#include <limits>

#include "llmc/host/base/dropout.h"

namespace llmc {

struct StepParams {
    int64_t step = 0;
    double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
    double clip = 0;      // largest gradient norm; 0 = no clipping
    int64_t targets = 0;  // of the step's micro-batches in all ranks; 0 = those that this one is given
    // a step with more is an outlier, and skipped
    float largest_loss = std::numeric_limits<float>::infinity();
    float largest_norm = std::numeric_limits<float>::infinity();  // before clipping
};

// what the optimizer asks on the CPU and on the GPU
constexpr bool is_outlier(const StepParams& params, float loss, float norm) {
    return loss > params.largest_loss || norm > params.largest_norm;
}

// A gradient that is longer than this, and not clipped, is skipped like one that is not finite: its square in
// fp32 would leave infinity in the second moment for good.
constexpr double kLongestGradient = 1e18;

// The norm of a gradient that many ranks share is made of the sums of squares of chunks of at most this many
// elements, so that it depends neither on threads nor on ranks; a rank's share ends on a chunk's border.
constexpr int64_t kNormChunk = 1 << 16;

// One of them: where it begins among all elements, and among those of the share that it is in; a multiple of
// 64 each. number: among all chunks
struct NormChunk {
    int64_t begin, kept;
    int32_t size, number;
};

// What changes from step to step for a GPU's kernels, in device memory: so that their launches are the same
// in all steps, and can be recorded once (graph.cuh).
struct StepInputs {
    StepParams params;     // with its targets
    float loss_scale = 0;  // 1 / targets
    float keep[2] = {};    // what AdamW leaves of a weight: of tensors that do not decay, of those that do
    DropoutRows dropout = {};  // of the micro-batch
};

// of targets > 0
inline StepInputs step_inputs(const StepParams& params, int64_t targets) {
    StepInputs inputs{
        params, (float)(1.0 / (double)targets), {1, (float)(1 - params.lr * params.weight_decay)}};
    inputs.params.targets = targets;
    inputs.dropout.step = (uint32_t)params.step;
    return inputs;
}

}  // namespace llmc
