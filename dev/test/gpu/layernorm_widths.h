// Widths at which LayerNorm's layouts end, from llmc/layernorm/layouts.h, and those that tests try. Host
// only.
#pragma once
#include <initializer_list>
#include <set>

#include "llmc/layernorm/layouts.h"

namespace llmc::gpu_test {

enum class Pass { kForward, kBackward, kBoth };

// the edges of one pass, or of both
struct Edges {
    Pass pass;
    std::set<int> all = {};
    void add(Pass of, int edge) {
        if (pass == of || pass == Pass::kBoth) { all.insert(edge); }
    }
};

// The longest rows of the layouts for whole vectors of `vector` columns: 8 of 16 bits, 4 of fp32.
inline std::set<int> whole_edges(int vector, Pass pass = Pass::kBoth) {
    Edges edges{pass};
    auto add = [&](const auto& forward, const auto& backward) {
        for (const auto& row : forward) { edges.add(Pass::kForward, row.columns(vector)); }
        for (const auto& row : backward) { edges.add(Pass::kBackward, row.columns); }
    };
    for (const auto& row : layouts::kShortForward) { edges.add(Pass::kForward, row.columns(vector)); }
    for (const auto& row : layouts::kShortBackward) { edges.add(Pass::kBackward, row.lanes * vector); }
    vector == 8 ? add(layouts::kRowInRegisters16, layouts::kTeamRing16)
                : add(layouts::kRowInRegisters32, layouts::kTeamRing32);
    return edges.all;
}

// of the layouts for rows that are no whole vectors: of one warp, and of a cluster
inline std::set<int> unaligned_edges(int vector, Pass pass = Pass::kBoth) {
    Edges edges{pass};
    edges.add(Pass::kForward, layouts::kFewestUnalignedForward - 1);
    edges.add(Pass::kBackward, layouts::kFewestUnalignedBackward - 1);
    for (const auto& row : layouts::kUnalignedForward) { edges.add(Pass::kForward, row.columns(vector)); }
    constexpr int most_warps = 16;
    for (const auto& row : layouts::kUnalignedBackward) {
        for (int warps : {1, most_warps}) {
            edges.add(Pass::kBackward, row.cluster * warps * row.columns * kWarp);
        }
    }
    return edges.all;
}

// of the layouts for short rows in pieces of a vector
inline std::set<int> piece_edges(int vector, Pass pass = Pass::kBoth) {
    Edges edges{pass};
    for (int piece = vector / 2; piece > 0; piece /= 2) {
        for (const auto& row : layouts::kShortForwardPieces) {
            edges.add(Pass::kForward, row.columns(piece));
        }
        for (const auto& row : layouts::kShortBackwardPieces) {
            edges.add(Pass::kBackward, row.lanes * layouts::pieces_of_lane(piece) * piece);
        }
    }
    return edges.all;
}

// Where kernels without a table change: those by cp.async, which choose by shared memory, and backward's
// short rows in pieces (fp32: 192).
inline constexpr int kOtherEdges[] = {127, 192, 2048, 8192, 9216, 12288, 16384, 20000, 24576, 32768};

// of rows in pieces, whose layouts end every few columns: all to the first, every fourth to the second
inline constexpr int kEachUpTo = 130, kFourthUpTo = 232;

// Each edge and a vector beside it; where rows need not be whole vectors, a column. thorough: these, too,
// where rows are.
inline std::set<int> widths(bool thorough) {
    std::set<int> all;
    for (int C = 1; C <= kFourthUpTo; C += C < kEachUpTo ? 1 : 4 - C % 4) { all.insert(C); }
    auto add = [&](int edge, std::initializer_list<int> off) {
        for (int d : off) { all.insert(edge + d); }
    };
    for (int C : layouts::kModelWidths) { all.insert(C); }
    for (int vector : {4, 8}) {
        for (int edge : whole_edges(vector)) { add(edge, {-vector, 0, vector}); }
        for (int edge : unaligned_edges(vector)) { add(edge, {-1, 1}); }
        for (int edge : piece_edges(vector)) { add(edge, {-1, 0, 1}); }
    }
    for (int edge : kOtherEdges) { add(edge, {-8, -4, -1, 0, 1, 4, 8}); }
    if (thorough) {
        for (int vector : {4, 8}) {
            for (int edge : whole_edges(vector)) { add(edge, {-1, 1}); }
            for (int edge : unaligned_edges(vector)) { add(edge, {0, 2}); }
        }
    }
    all.erase(all.begin(), all.lower_bound(1));
    return all;
}

}  // namespace llmc::gpu_test
