// Debug states (20240327, version 2): one batch and what another implementation made of it in fp32: logits,
// loss and gradients. Written by dev/bench/make_fixture.py and by llm.c's tools; read to compare a model with
// them.
#pragma once
#include <string>
#include <vector>

#include "llmc/host/base/error.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/tokens/dataloader.h"
#include "llmc/model/gpt2_config.h"

namespace llmc {

constexpr int32_t kDebugStateMagic = 20240327, kDebugStateVersion = 2;

// Throws Error(kExitBadInput) unless header and size are right for a model of this configuration.
struct DebugState {
    Batch batch;
    std::vector<float> logits;                  // (B,T,V), unpadded
    std::vector<float> loss;                    // one
    std::vector<float> gradients[kNumTensors];  // in file order, wte with its padding rows

    DebugState(const std::string& path, const GPT2Config& config);
};

inline DebugState::DebugState(const std::string& path, const GPT2Config& config) {
    const RegularFile file(path);
    HeaderReader header(file, "debug state", kDebugStateMagic, "dev/bench/make_fixture.py writes them.");
    header.field(1, "version", kDebugStateVersion, kDebugStateVersion);
    batch.B = header.field(2, "B", 1, 1 << 20);
    batch.T = header.field(3, "T", 1, config.max_seq_len);
    uint64_t rows = (uint64_t)batch.B * batch.T;
    uint64_t words = rows * (2 + (uint64_t)config.vocab_size) + 1 + (uint64_t)file_elements(config);
    header.require_size(kHeaderBytes + 4 * words,
                        fmt::format("header + 4 x (2 x {} x {} tokens + logits + loss + gradients of "
                                    "this model)",
                                    batch.B, batch.T));
    uint64_t at = kHeaderBytes;
    auto read = [&](auto* values, uint64_t count) {
        values->resize(count);
        file.read(at, values->data(), count * 4);
        at += count * 4;
    };
    read(&batch.tokens, rows);
    read(&batch.targets, rows);
    for (uint64_t i = 0; i < 2 * rows; i++) {
        const int32_t id = i < rows ? batch.tokens[i] : batch.targets[i - rows];
        if (id < 0 || id >= config.vocab_size) {
            header.fail(fmt::format("token {}", i), fmt::format("{}", id),
                        fmt::format("0 to {}", config.vocab_size - 1));
        }
    }
    read(&logits, rows * config.vocab_size);
    read(&loss, 1);
    for (int t = 0; t < kNumTensors; t++) { read(&gradients[t], (uint64_t)tensor_total(config, t)); }
}

}  // namespace llmc
