// Which rank has which elements: see state_shares.h.
#include "llmc/model/state_shares.h"

namespace llmc {

namespace {

int64_t first_chunk_from(int64_t element) { return (element + kNormChunk - 1) / kNormChunk; }

// visit(tensor, its first element's number in file order, what of it the rank keeps, its place among second moments),
// for each copy that AdamW updates
template <typename Visit>
void for_each_kept_tensor(const GPT2Config& c, const StateShares& s, size_t rank, Visit visit) {
    const ParameterLayout layout(c), second_layout(c, false);
    for (int t = 0; t < kNumTensors; t++) {
        if (s.muon && is_block_matrix(t)) { continue; }
        for (int copy = 0; copy < (int)tensor_copies(c, t); copy++) {
            const int range = kTensors[t].per_layer ? 1 + copy : t < kLn1w ? 0 : 1 + c.num_layers;
            const SharePart part = s.kept_part((size_t)range, rank);
            const int64_t at = layout.offset(t, copy), size = tensor_size(c, t);
            const int64_t lo = std::max(at, part.begin), hi = std::min(at + size, part.end);
            if (lo >= hi) { continue; }
            const int64_t kept = part.kept + lo - part.begin;
            visit(t, copy * size + lo - at, SharePart{lo, hi, kept},
                  s.muon ? second_layout.offset(t, copy) + lo - at : kept);
        }
    }
}

}  // namespace

StateShares::StateShares(const GPT2Config& c, const ModelSettings& s)
    : ranks(s.ranks),
      groups(s.groups),
      shard(s.shard && s.ranks > 1),
      muon(s.muon),
      sizes((size_t)std::max(1, s.ranks)),
      seconds(ParameterLayout(c, !s.muon).size()) {
    require(!muon || ranks == 1, "Muon is for one rank");
    require(ranks > 0 && groups > 0 && groups % ranks == 0, "the ranks must divide the groups");
    const ParameterLayout layout(c);
    const int64_t blocks = layout.offset(kLn1w), block = layout.block_size();
    ranges.push_back({0, blocks});
    for (int64_t l = 0; l < c.num_layers; l++) {
        ranges.push_back({blocks + l * block, blocks + (l + 1) * block});
    }
    ranges.push_back({blocks + c.num_layers * block, layout.size()});
    int64_t last = -1;  // the rank that has the chunk before the range
    for (const auto& range : ranges) {
        const int64_t begin = range.first, end = range.second;
        auto& all = parts.emplace_back((size_t)ranks);
        auto give = [&](int64_t rank, int64_t lo, int64_t hi) {
            if (lo >= hi) { return; }
            SharePart& part = all[(size_t)rank];
            if (part.size() == 0) { part = {lo, lo, sizes[(size_t)rank]}; }
            part.end = hi;
            sizes[(size_t)rank] += hi - lo;
        };
        const int64_t chunk = first_chunk_from(begin), n = first_chunk_from(end) - chunk;
        auto border = [&](int64_t k) { return std::min(end, (chunk + k) * kNormChunk); };
        give(last, begin, border(0));
        const int64_t count = std::min<int64_t>(ranks, n);
        // The rank that has the end of the chunk before goes on, or stands back: its elements are one piece.
        const int64_t first = count == ranks && last >= 0 ? last : last + 1;
        for (int64_t k = 0; k < count; k++) {
            last = (first + k) % ranks;
            give(last, border(n * k / count), border(n * (k + 1) / count));
        }
    }
}

std::vector<int64_t> StateShares::chunk_begins() const {
    std::vector<int64_t> begins = {0};
    for (size_t r = 0; r < sizes.size(); r++) {
        begins.push_back(begins.back() + (sizes[r] + kNormChunk - 1) / kNormChunk);
    }
    return begins;
}

std::vector<int32_t> StateShares::chunks_by_rank() const {
    std::vector<int32_t> all;
    for (size_t r = 0; r < sizes.size(); r++) {
        for (const auto& range : parts) {
            const int64_t end = first_chunk_from(range[r].end);
            for (int64_t k = first_chunk_from(range[r].begin); k < end; k++) { all.push_back((int32_t)k); }
        }
    }
    return all;
}

std::vector<AdamWPiece> update_pieces(const GPT2Config& c, const StateShares& s, size_t rank) {
    std::vector<AdamWPiece> pieces;
    for_each_kept_tensor(c, s, rank, [&](int tensor, int64_t number, const SharePart& part,
                                        int64_t second) {
        for (int64_t lo = part.begin; lo < part.end;) {
            const int64_t hi = std::min(part.end, (lo / kNormChunk + 1) * kNormChunk), in = lo - part.begin;
            const auto size = (int32_t)(hi - lo);
            pieces.push_back({lo, part.kept + in, second + in, number + in, size, (int16_t)tensor,
                              kTensors[tensor].matrix});
            lo = hi;
        }
    });
    return pieces;
}

int64_t most_update_pieces(const GPT2Config& c, const StateShares& s) {
    int64_t most = 0;
    for (size_t r = 0; r < s.sizes.size(); r++) {
        int64_t pieces = 0;
        for_each_kept_tensor(c, s, r, [&](int, int64_t, const SharePart& part, int64_t) {
            pieces += first_chunk_from(part.end) - part.begin / kNormChunk;
        });
        most = std::max(most, pieces);
    }
    return most;
}

}  // namespace llmc
