// Writing on the GPU with a cache of keys and values. A prompt is computed in one pass; then each token costs
// one launch of a CUDA graph, which reads every weight once: the memory's speed is what limits it.
#pragma once
#include <memory>

#include "llmc/model/decoder.h"
#include "llmc/model/model_source.h"

namespace llmc {

// bf16: weights and cache in bf16, which halves the time; else fp32. Sums are fp32 in both, the same bits
// each time. Throws Error(kExitUsage) for heads and widths that the kernels have no room for, kExitDevice
// without memory.
std::unique_ptr<Decoder> make_gpu_decoder(const ModelSource& source, bool bf16);

}  // namespace llmc
