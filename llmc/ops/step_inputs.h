// What changes from step to step for a GPU's kernels, in device memory: so that their launches are the same
// in all steps, and can be recorded once (graph.cuh).
#pragma once
#include "llmc/ops/step_params.h"

namespace llmc {

struct StepInputs {
    StepParams params;     // with its targets
    float loss_scale = 0;  // 1 / targets
    float keep[2] = {};    // what AdamW leaves of a weight: of tensors that do not decay, of those that do
};

// of targets > 0
inline StepInputs step_inputs(const StepParams& params, int64_t targets) {
    StepInputs inputs{
        params, (float)(1.0 / (double)targets), {1, (float)(1 - params.lr * params.weight_decay)}};
    inputs.params.targets = targets;
    return inputs;
}

}  // namespace llmc
