// Which elements of a model each rank adds up and updates, in plain numbers: a piece of every layer, so that
// while a layer's gradients or parameters travel all ranks send and receive as much, or with Muon nearly so.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "llmc/model/gpt2_config.h"
#include "llmc/model/model.h"
#include "llmc/ops/adamw.h"
#include "llmc/ops/muon/muon.h"

namespace llmc {

// Elements from begin to end in memory (ParameterLayout); kept: the place of the first one in what a rank keeps.
struct SharePart {
    int64_t begin = 0, end = 0, kept = 0;
    int64_t size() const { return end - begin; }
};

// The elements of one layout in ranges, and which part of each range a rank has.
struct Shares {
    bool shard = false;  // each rank keeps the optimizer's state of its share only
    std::vector<std::pair<int64_t, int64_t>> ranges;  // from an element up to another, which is not in it
    std::vector<std::vector<SharePart>> parts;        // by range and rank; kept: among the rank's share
    std::vector<int64_t> sizes;                       // of the shares

    int64_t elements() const { return ranges.back().second; }
    int64_t largest() const { return *std::max_element(sizes.begin(), sizes.end()); }
    int64_t kept() const { return shard ? largest() : elements(); }  // what each rank has room for
    // What of a range a rank keeps the optimizer's state of: its part, or the whole range where all is kept.
    SharePart kept_part(size_t range, size_t rank) const {
        const auto [begin, end] = ranges[range];
        return shard ? parts[range][rank] : SharePart{begin, end, begin};
    }
    // visit(elements, kept) for what of n elements from `first` on a rank keeps the state of
    template <typename Visit>
    void for_each_kept(size_t rank, int64_t first, int64_t n, Visit visit) const {
        for (size_t k = 0; k < ranges.size(); k++) {
            const SharePart part = kept_part(k, rank);
            const int64_t lo = std::max(first, part.begin), hi = std::min(first + n, part.end);
            if (lo < hi) { visit(SharePart{lo, hi, part.kept + lo - part.begin}); }
        }
    }
    void give(size_t range, size_t rank, int64_t begin, int64_t end);  // what lies behind the rank's part
};

// A model has the ranges -1: what lies before the layers, 0 to num_layers - 1: a layer each, num_layers: what
// lies behind them; of no range has a rank two pieces. A chunk of the norm belongs to one rank.
// AdamW: the chunks that begin in a range are cut into one part for each rank; no part is less than a chunk,
// which takes NVLink as long as a message takes by itself, so that a smaller range has fewer parts, which the
// ranks take in turn.
// Muon: a layer's parts, at most one for each of its tensors of matrices, begin with such a tensor, which is
// in one rank's share as a whole: its direction is made of all of it. The part with the most work goes to the
// rank with the least so far. Chunks end where a part may begin, whatever the number of ranks.
struct StateShares : Shares {
    int ranks, groups;
    bool muon;       // the blocks' matrices, which AdamW then leaves alone, have no second moment
    Shares seconds;  // of the elements that have a second moment, in their own layout
    // Chunks begin at multiples of kNormChunk and here, in ascending order.
    std::vector<int64_t> borders;

    StateShares(const GPT2Config& c, const ModelSettings& s);

    int64_t chunks() const { return chunks_before(elements()); }
    const Shares& of(State s) const { return s == State::kSecondMoment ? seconds : *this; }
    // The chunks of rank 0's share, then rank 1's ...; rank r's are from chunk_begins()[r] to chunk_begins()[r + 1].
    std::vector<NormChunk> chunks_by_rank() const;
    std::vector<int64_t> chunk_begins() const;
    int64_t chunks_in(const SharePart& part) const {  // that begin there
        return chunks_before(part.end) - chunks_before(part.begin);
    }

private:
    int64_t chunks_before(int64_t element) const;  // that begin before it
    void share_by_chunks(size_t range);
    void share_matrices(const GPT2Config& c);
    void share_seconds(const GPT2Config& c);
};

// What AdamW updates in a rank (beside Muon: all but the blocks' matrices), in pieces that cross neither tensors nor chunks.
std::vector<AdamWPiece> update_pieces(const GPT2Config& c, const StateShares& s, size_t rank);
// the most pieces that a rank has
int64_t most_update_pieces(const GPT2Config& c, const StateShares& s);
// the copies of a tensor that Muon updates in a rank, by their layers
std::vector<MuonCopy> muon_copies(const GPT2Config& c, const StateShares& s, size_t rank, int tensor);

}  // namespace llmc
