// Debug states (20240327, version 2): one batch and what another implementation made of it in fp32: logits,
// loss and gradients. Written by dev/bench/make_fixture.py and by llm.c's tools; read to compare a model with
// them.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/tokens/dataloader.h"
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

inline DebugState::DebugState(const std::string& path, const GPT2Config& config) : config_(config) {
    const RegularFile file(path);
    HeaderReader header(file, "debug state", kDebugStateMagic, "dev/bench/make_fixture.py writes them.");
    header.field(1, "version", kDebugStateVersion, kDebugStateVersion);
    batch_.B = header.field(2, "B", 1, 1 << 20);
    batch_.T = header.field(3, "T", 1, config.max_seq_len);
    uint64_t rows = (uint64_t)batch_.B * batch_.T;
    uint64_t words = rows * (2 + (uint64_t)config.vocab_size) + 1 + (uint64_t)file_elements(config);
    header.require_size(kHeaderBytes + 4 * words,
                        fmt::format("header + 4 x (2 x {} x {} tokens + logits + loss + gradients of "
                                    "this model)",
                                    batch_.B, batch_.T));
    uint64_t at = kHeaderBytes;
    auto read = [&](auto* values, uint64_t count) {
        values->resize(count);
        file.read(at, values->data(), count * 4);
        at += count * 4;
    };
    read(&batch_.tokens, rows);
    read(&batch_.targets, rows);
    for (uint64_t i = 0; i < 2 * rows; i++) {
        const int32_t id = i < rows ? batch_.tokens[i] : batch_.targets[i - rows];
        if (id < 0 || id >= config.vocab_size) {
            header.fail(fmt::format("token {}", i), fmt::format("{}", id),
                        fmt::format("0 to {}", config.vocab_size - 1));
        }
    }
    read(&logits_, rows * config.vocab_size);
    std::vector<float> loss;
    read(&loss, 1);
    loss_ = loss[0];
    read(&gradients_, (uint64_t)file_elements(config));
}

inline std::span<const float> DebugState::gradient(int tensor) const {
    int64_t first = 0;
    for (int t = 0; t < tensor; t++) { first += tensor_total(config_, t); }
    return std::span(gradients_).subspan((size_t)first, (size_t)tensor_total(config_, tensor));
}

}  // namespace llmc
