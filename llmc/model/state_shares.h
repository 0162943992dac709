// Which elements of a model each rank adds up and updates, in plain numbers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "llmc/host/comm.h"
#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/ops/adamw.h"

namespace llmc {

// Elements are counted as they lie in memory (ParameterLayout).
struct StateShares {
    int ranks, groups;
    bool shard;                   // each rank keeps the optimizer's state of its share only
    std::vector<int64_t> begins;  // rank r adds up the elements from begins[r] to begins[r + 1]

    StateShares(const GPT2Config& c, const ModelSettings& s)
        : ranks(s.ranks),
          groups(s.groups),
          shard(s.shard && s.ranks > 1),
          begins(shares(ParameterLayout(c).size(), kNormChunk, s.ranks)) {
        require(ranks > 0 && groups > 0 && groups % ranks == 0, "the ranks must divide the groups");
    }
    int64_t elements() const { return begins.back(); }
    int64_t size(int rank) const { return begins[(size_t)rank + 1] - begins[(size_t)rank]; }
    int64_t largest() const {
        int64_t most = 0;
        for (int r = 0; r < ranks; r++) { most = std::max(most, size(r)); }
        return most;
    }
    // of the groups' sums and of the optimizer's state, what each rank has room for
    int64_t kept() const { return shard ? largest() : elements(); }
    std::vector<int64_t> chunks() const {  // as begins, in chunks of the norm
        std::vector<int64_t> at;
        for (int64_t begin : begins) { at.push_back((begin + kNormChunk - 1) / kNormChunk); }
        return at;
    }
};

// a part of a tensor as the optimizer's kernels take it, and where it begins in memory
struct SharePiece {
    int64_t at;
    AdamWTensor shape;
};

// What of a tensor lies from begin to end in memory, in file order: a part of a layer's copy at either end,
// and all whole copies between at once.
inline std::vector<SharePiece> share_pieces(const GPT2Config& c, const ParameterLayout& layout, int tensor,
                                            int64_t begin, int64_t end) {
    const int64_t size = tensor_size(c, tensor), stride = layout.block_size();
    std::vector<SharePiece> pieces;
    bool whole_before = false;
    for (int copy = 0; copy < (int)tensor_copies(c, tensor); copy++) {
        const int64_t at = layout.offset(tensor, copy), lo = std::max(at, begin),
                      hi = std::min(at + size, end);
        const bool whole = lo == at && hi == at + size;
        if (whole && whole_before) {
            pieces.back().shape.copies++;
        } else if (lo < hi) {
            pieces.push_back({lo, {tensor, hi - lo, 1, stride, copy * size + lo - at}});
        }
        whole_before = whole;
    }
    return pieces;
}

}  // namespace llmc
