// Debug states: see debug_state.h.
#include "llmc/model/debug_state.h"

#include <cstring>

#include "llmc/host/error.h"

namespace llmc {

DebugState::DebugState(const std::string& path, const GPT2Config& config) : file_(path), config_(config) {
    HeaderReader header(file_, "debug state", kDebugStateMagic, "scripts/make_fixture.py writes them.");
    header.field(1, "version", kDebugStateVersion, kDebugStateVersion);
    batch_.B = header.field(2, "B", 1, 1 << 20);
    batch_.T = header.field(3, "T", 1, config.max_seq_len);
    uint64_t rows = (uint64_t)batch_.B * batch_.T;
    uint64_t words = rows * (2 + (uint64_t)config.vocab_size) + 1 + (uint64_t)file_elements(config);
    header.require_size(kHeaderBytes + 4 * words,
                        strf("header + 4 x (2 x %d x %d tokens + logits + loss + gradients of "
                             "this model)",
                             batch_.B, batch_.T));
    const auto* word = reinterpret_cast<const int32_t*>(file_.data() + kHeaderBytes);
    batch_.tokens.assign(word, word + rows);
    batch_.targets.assign(word + rows, word + 2 * rows);
    for (uint64_t i = 0; i < 2 * rows; i++) {
        if (word[i] < 0 || word[i] >= config.vocab_size) {
            header.fail(strf("token %llu", (unsigned long long)i), strf("%d", word[i]),
                        strf("0 to %d", config.vocab_size - 1));
        }
    }
    const auto* real = reinterpret_cast<const float*>(word + 2 * rows);
    logits_ = {real, rows * config.vocab_size};
    std::memcpy(&loss_, real + logits_.size(), sizeof(loss_));
    gradients_ = {real + logits_.size() + 1, (size_t)file_elements(config)};
}

std::span<const float> DebugState::gradient(int tensor) const {
    int64_t first = 0;
    for (int t = 0; t < tensor; t++) { first += tensor_total(config_, t); }
    return gradients_.subspan(first, tensor_total(config_, tensor));
}

}  // namespace llmc
