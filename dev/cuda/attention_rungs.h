// What the two shootouts of attention say of their rungs alike.
#pragma once
#include "dev/cuda/shootout.cuh"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/attention/choose.h"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {

inline int sequences_of(const Problem& p) { return (int)(p.N / p.T); }
inline int heads_of(const Problem& p) { return p.C / kHeadColumns; }

// The rungs are of bf16.
inline bool takes_bf16(const Problem& p) { return p.dtype == Dtype::kBf16; }
inline bool takes_wgmma(const Problem& p) {
    return takes_bf16(p) && p.T >= kWgmmaLeastT && has_attention_wgmma();
}

inline Scratch scratch_for(AttentionScratch* bytes) {
    return [bytes](const Problem& p) { return bytes(sequences_of(p), p.T, heads_of(p)); };
}
// v1's scores: beyond this, with a ring of buffers, there is no room for them
template <AttentionScratch* bytes>
bool takes_scores(const Problem& p) {
    constexpr size_t kMost = (size_t)8 << 30;
    return takes_bf16(p) && bytes(sequences_of(p), p.T, heads_of(p)) <= kMost;
}

// bounds do not ask how a version adds
inline Sums any_sums(int64_t, int, int) { return {}; }

}  // namespace llmc
