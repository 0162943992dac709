// The tables of LayerNorm's layouts, without a GPU: in order, without gaps, with room for models, and what tests try of them.
#include <doctest/doctest.h>

#include "dev/test/gpu/layernorm_widths.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// Each layout takes longer rows than the one before.
template <typename Table, typename Columns>
void check_order(const Table& table, const Columns& columns) {
    for (size_t i = 1; i < std::size(table); i++) {
        INFO("layout ", i, ", for ", table[i].use);
        CHECK(columns(table[i - 1]) < columns(table[i]));
    }
}

}  // namespace

TEST_CASE("layernorm layouts: each takes longer rows than the one before") {
    for (int vector : {4, 8}) {
        auto columns = [=](const auto& row) { return row.columns(vector); };
        check_order(layouts::kShortForward, columns);
        check_order(layouts::kShortForwardPieces, columns);
        check_order(layouts::kUnalignedForward, columns);
    }
    check_order(layouts::kRowInRegisters16, [](const auto& row) { return row.columns(8); });
    check_order(layouts::kRowInRegisters32, [](const auto& row) { return row.columns(4); });
    check_order(layouts::kTeamRing16, [](const auto& row) { return row.columns; });
    check_order(layouts::kTeamRing32, [](const auto& row) { return row.columns; });
}

TEST_CASE("layernorm layouts: rings have room for the rows they are for, and names for their barriers") {
    auto check = [](const auto& table, int vector_bytes) {
        for (const auto& row : table) {
            for (const layouts::TeamRing& ring : {row.write, row.add}) {
                if (ring.warps == 0) { continue; }
                INFO("rows of up to ", row.columns);
                CHECK(row.columns <= ring.columns());
                CHECK(ring.vector * vector_bytes <= 16);
                CHECK(ring.warps * ring.teams * kWarp <= 1024);
                CHECK((ring.warps == 1 || ring.teams < 16));
            }
        }
    };
    check(layouts::kTeamRing16, 2);
    check(layouts::kTeamRing32, 4);
}

TEST_CASE("layernorm layouts: tests try each edge and a vector, or a column, beside it") {
    std::set<int> tried = widths(false);
    for (int vector : {4, 8}) {
        for (int edge : whole_edges(vector)) {
            for (int C : {edge - vector, edge, edge + vector}) {
                INFO(C, " columns");
                CHECK((C == 0 || tried.count(C) == 1));
            }
        }
        for (int edge : unaligned_edges(vector)) {
            CHECK(tried.count(edge - 1) + tried.count(edge + 1) == 2);
        }
        for (int edge : piece_edges(vector)) { CHECK(tried.count(edge) + tried.count(edge + 1) == 2); }
    }
    for (int C : layouts::kModelWidths) { CHECK(tried.count(C) == 1); }
}
