// Which rank has which elements: see state_shares.h.
#include "llmc/model/state_shares.h"

#include <array>
#include <limits>

namespace llmc {

namespace {

constexpr std::array kMatrices = {kQkvw, kAttprojw, kFcw, kFcprojw};
constexpr size_t kCount = kMatrices.size();
// Some of them that follow each other, and Muon's work: its multiplications for the four are as 9, 3, 9 and 9.
struct MatrixPart {
    size_t begin, end;
    int64_t work;
};
// so many parts, that with the most work first, which has the least possible
const std::vector<MatrixPart> kMatrixParts[] = {{},
                                                {{0, 4, 30}},
                                                {{2, 4, 18}, {0, 2, 12}},
                                                {{1, 3, 12}, {0, 1, 9}, {3, 4, 9}},
                                                {{0, 1, 9}, {2, 3, 9}, {3, 4, 9}, {1, 2, 3}}};

int64_t first_chunk_from(int64_t element) { return (element + kNormChunk - 1) / kNormChunk; }

// visit(tensor, copy, the whole copy in memory, what of it the rank keeps)
template <typename Visit>
void for_each_kept_copy(const GPT2Config& c, const StateShares& s, size_t rank, Visit visit) {
    const ParameterLayout layout(c);
    for (int t = 0; t < kNumTensors; t++) {
        for (int copy = 0; copy < (int)tensor_copies(c, t); copy++) {
            const int64_t at = layout.offset(t, copy);
            s.for_each_kept(rank, at, tensor_size(c, t),
                            [&](const SharePart& part) { visit(t, copy, at, part); });
        }
    }
}

}  // namespace

void Shares::give(size_t range, size_t rank, int64_t begin, int64_t end) {
    if (begin >= end) { return; }
    SharePart& part = parts[range][rank];
    if (part.size() == 0) { part = {begin, begin, sizes[rank]}; }
    part.end = end;
    sizes[rank] += end - begin;
}

StateShares::StateShares(const GPT2Config& c, const ModelSettings& s)
    : ranks(s.ranks), groups(s.groups), muon(s.muon) {
    require(ranks > 0 && groups > 0 && groups % ranks == 0, "the ranks must divide the groups");
    shard = s.shard && ranks > 1;
    const ParameterLayout layout(c);
    const int64_t blocks = layout.offset(kLn1w), block = layout.block_size();
    ranges.push_back({0, blocks});
    for (int64_t l = 0; l < c.num_layers; l++) {
        ranges.push_back({blocks + l * block, blocks + (l + 1) * block});
    }
    ranges.push_back({blocks + c.num_layers * block, layout.size()});
    sizes.resize((size_t)ranks);
    parts.resize(ranges.size(), std::vector<SharePart>((size_t)ranks));
    if (muon) {
        share_matrices(c);
    } else {
        for (size_t k = 0; k < ranges.size(); k++) { share_by_chunks(k); }
    }
    share_seconds(c);
}

int64_t StateShares::chunks_before(int64_t element) const {
    return first_chunk_from(element) + (std::ranges::lower_bound(borders, element) - borders.begin());
}

// The ranges before it are shared. Chunks begin at multiples of kNormChunk, and maybe with the range.
void StateShares::share_by_chunks(size_t range) {
    const auto [begin, end] = ranges[range];
    const int64_t n = chunks_before(end) - chunks_before(begin), multiple = first_chunk_from(begin);
    const bool border_at_begin = std::ranges::binary_search(borders, begin);
    auto border = [&, first = begin, last = end](int64_t k) {
        return border_at_begin && k == 0 ? first
                                         : std::min(last, (multiple + k - border_at_begin) * kNormChunk);
    };
    int64_t last = -1;  // the rank that has the chunk before the range
    for (int64_t r = 0; r < ranks && range > 0; r++) {
        if (parts[range - 1][(size_t)r].end == begin) { last = r; }
    }
    if (last >= 0) { give(range, (size_t)last, begin, border(0)); }
    const int64_t count = std::min<int64_t>(ranks, n);
    // The rank that has the end of the chunk before goes on, or stands back: its elements are one piece.
    const int64_t first = count == ranks && last >= 0 ? last : last + 1;
    for (int64_t k = 0; k < count; k++) {
        give(range, (size_t)((first + k) % ranks), border(n * k / count), border(n * (k + 1) / count));
    }
}

void StateShares::share_matrices(const GPT2Config& c) {
    const ParameterLayout layout(c);
    auto border = [&](size_t k, int l) {  // before the k-th tensor of matrices
        const auto [begin, end] = ranges[(size_t)l + 1];
        return k == 0 ? begin : k == kCount ? end : layout.offset(kMatrices[k], l);
    };
    for (int l = 0; l < c.num_layers; l++) {
        for (size_t k = 0; k < kCount; k++) { borders.push_back(border(k, l)); }
    }
    borders.push_back(ranges.back().first);
    std::erase_if(borders, [](int64_t border) { return border % kNormChunk == 0; });
    std::vector<int64_t> work_of((size_t)ranks);
    share_by_chunks(0);
    for (int l = 0; l < c.num_layers; l++) {
        std::vector<int64_t> free = work_of;  // of ranks that have no part of the layer yet
        for (const MatrixPart& part : kMatrixParts[std::min((size_t)ranks, kCount)]) {
            const auto rank = (size_t)(std::ranges::min_element(free) - free.begin());
            give((size_t)l + 1, rank, border(part.begin, l), border(part.end, l));
            work_of[rank] += part.work;
            free[rank] = std::numeric_limits<int64_t>::max();
        }
    }
    share_by_chunks(ranges.size() - 1);
}

void StateShares::share_seconds(const GPT2Config& c) {
    const ParameterLayout layout(c), second_layout(c, !muon);
    // a border of ranges or parts is where a tensor begins, or lies within one that has a second moment
    auto place = [&](size_t range, int64_t at) {
        const int last = range == 0 ? kWte : range + 1 == ranges.size() ? kLnfw : kFcprojb;
        const int layer = last == kFcprojb ? (int)range - 1 : 0;
        int t = last;
        while (last == kFcprojb && t > kLn1w && layout.offset(t, layer) > at) { t--; }
        return second_layout.offset(t, layer) + at - layout.offset(t, layer);
    };
    seconds.shard = shard;
    seconds.sizes.resize(sizes.size());
    seconds.parts.resize(ranges.size(), std::vector<SharePart>(sizes.size()));
    for (size_t k = 0; k < ranges.size(); k++) {
        seconds.ranges.push_back({place(k, ranges[k].first), place(k, ranges[k].second)});
        for (size_t r = 0; r < sizes.size(); r++) {
            const SharePart& part = parts[k][r];
            if (part.size() > 0) { seconds.give(k, r, place(k, part.begin), place(k, part.end)); }
        }
    }
}

std::vector<NormChunk> StateShares::chunks_by_rank() const {
    std::vector<NormChunk> all;
    for (size_t r = 0; r < sizes.size(); r++) {
        for (const auto& range : parts) {
            int64_t begin = range[r].begin, kept = range[r].kept;
            while (begin < range[r].end) {
                const auto border = std::ranges::upper_bound(borders, begin);
                const int64_t next = std::min({range[r].end, (begin / kNormChunk + 1) * kNormChunk,
                                               border == borders.end() ? elements() : *border});
                const auto size = (int32_t)(next - begin);
                if (begin % kNormChunk == 0 || std::ranges::binary_search(borders, begin)) {
                    all.push_back({begin, kept, size, (int32_t)chunks_before(begin)});
                } else {
                    all.back().size += size;  // it began in the range before
                }
                begin += size, kept += size;
            }
        }
    }
    return all;
}

std::vector<int64_t> StateShares::chunk_begins() const {
    std::vector<int64_t> begins = {0};
    for (size_t r = 0; r < sizes.size(); r++) {
        int64_t count = 0;
        for (const auto& range : parts) { count += chunks_in(range[r]); }
        begins.push_back(begins.back() + count);
    }
    return begins;
}

std::vector<AdamWPiece> update_pieces(const GPT2Config& c, const StateShares& s, size_t rank) {
    const ParameterLayout second_layout(c, !s.muon);
    std::vector<AdamWPiece> pieces;
    for_each_kept_copy(c, s, rank, [&](int tensor, int copy, int64_t at, const SharePart& part) {
        if (s.muon && is_block_matrix(tensor)) { return; }
        const int64_t number = copy * tensor_size(c, tensor) + part.begin - at;
        int64_t second = 0;
        s.seconds.for_each_kept(rank, second_layout.offset(tensor, copy) + part.begin - at, part.size(),
                                [&](const SharePart& there) { second = there.kept; });
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
    size_t most = 0;
    for (size_t r = 0; r < s.sizes.size(); r++) { most = std::max(most, update_pieces(c, s, r).size()); }
    return (int64_t)most;
}

std::vector<MuonCopy> muon_copies(const GPT2Config& c, const StateShares& s, size_t rank, int tensor) {
    std::vector<MuonCopy> copies;
    for_each_kept_copy(c, s, rank, [&](int t, int copy, int64_t at, const SharePart& part) {
        if (s.muon && t == tensor && is_block_matrix(t)) { copies.push_back({at, part.kept, copy}); }
    });
    return copies;
}

}  // namespace llmc
