// Debug states (20240327, version 2): one batch and what another implementation made of it in fp32: logits,
// loss and gradients. Written by scripts/make_fixture.py and by llm.c's tools; read to compare a model with
// them.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "llmc/host/files/binary_file.h"
#include "llmc/host/tokens/batch.h"
#include "llmc/model/gpt2_config.h"

namespace llmc {

constexpr int32_t kDebugStateMagic = 20240327, kDebugStateVersion = 2;

// Throws Error(kExitBadInput) unless header and size are right for a model of this configuration.
class DebugState {
public:
    DebugState(const std::string& path, const GPT2Config& config);
    const Batch& batch() const { return batch_; }
    std::span<const float> logits() const { return logits_; }  // (B,T,V), unpadded
    float loss() const { return loss_; }
    std::span<const float> gradient(int tensor) const;  // in file order, wte with its padding rows

private:
    GPT2Config config_;
    Batch batch_;
    std::vector<float> logits_, gradients_;
    float loss_ = 0;
};

}  // namespace llmc
