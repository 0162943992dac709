// How attention on Hopper shares out its work, and which kernels take a call: plain functions.
#include <cstdint>
#include <set>
#include <utility>

#include <doctest/doctest.h>

#include "llmc/host/base/error.h"
#include "llmc/ops/attention/choose.h"

using namespace llmc;

namespace {

struct Shape {
    int B, T, NH;
};
// around the tiles' borders; one group of heads and many
constexpr Shape kShapes[] = {{1, 64, 1},     {1, 65, 1},    {2, 127, 3},   {2, 128, 3},
                             {3, 129, 5},    {2, 191, 2},   {2, 192, 2},   {2, 193, 2},
                             {1, 255, 7},    {1, 256, 7},   {1, 257, 7},   {16, 1000, 25},
                             {64, 1024, 12}, {4, 8192, 12}, {7, 4096, 25}, {1, 65536, 3}};

std::string text(const Shape& s, int rows) {
    return fmt::format("B={} T={} NH={} rows={}", s.B, s.T, s.NH, rows);
}

// every 64 rows of every head have one warpgroup of one tile
template <typename TileOf>
void check_cover(const Shape& s, int rows, TileOf tile_of) {
    TilePlan plan = plan_tiles(s.B, s.T, s.NH, rows);
    std::set<std::pair<int, int>> found;
    int groups = 0, wrong = 0;
    for (int number = 0; number < plan.tiles(); number++) {
        Tile t = tile_of(number, plan);
        wrong += t.head != t.b * s.NH + t.h || t.h < 0 || t.h >= s.NH || t.b >= s.B || t.first % 64 != 0;
        for (int row = t.first; row < t.first + rows; row += 64) {
            if (row < 0 || row >= s.T) { continue; }
            found.emplace(t.head, row);
            groups++;
        }
    }
    int expected = s.B * s.NH * ((s.T + 63) / 64);
    CHECK_MESSAGE(wrong == 0, text(s, rows));
    CHECK_MESSAGE(groups == expected, text(s, rows));
    CHECK_MESSAGE((int)found.size() == expected, text(s, rows));
}

// Of a group of heads the tiles come by falling cost, which is the number of rows on the other side that a tile sees.
template <typename CostOf>
void check_order(const Shape& s, int rows, CostOf cost_of) {
    TilePlan plan = plan_tiles(s.B, s.T, s.NH, rows);
    int wrong = 0;
    for (int number = 0; number + 1 < plan.tiles(); number++) {
        int per_group = plan.group * plan.per_head;
        bool same_group = number / per_group == (number + 1) / per_group;
        wrong += same_group && cost_of(number, plan) < cost_of(number + 1, plan);
    }
    CHECK_MESSAGE(wrong == 0, text(s, rows));
}

}  // namespace

TEST_CASE("attention tiles: every row of every head has one owner") {
    for (const Shape& s : kShapes) {
        for (int rows : {64, 128, 192, 256}) {
            check_cover(s, rows, query_tile);
            check_cover(s, rows, key_tile);
        }
    }
}

TEST_CASE("attention tiles: within a group of heads the longest come first") {
    for (const Shape& s : kShapes) {
        for (int rows : {128, 192, 256}) {
            check_order(s, rows, [&](int n, const TilePlan& p) { return query_tile(n, p).first + rows; });
            check_order(s, rows, [&](int n, const TilePlan& p) { return s.T - key_tile(n, p).first; });
        }
    }
}

TEST_CASE("attention tiles: a group's keys and values fit into 24 MB, or the group is one head") {
    for (const Shape& s : kShapes) {
        TilePlan plan = plan_tiles(s.B, s.T, s.NH, 256);
        int64_t bytes = (int64_t)plan.group * ((s.T + 63) / 64 * 64) * 256;
        CHECK_MESSAGE((plan.group == 1 || bytes <= 24 << 20), text(s, 256));
        // no larger number of equal groups would be needed
        int groups = (plan.heads + plan.group - 1) / plan.group;
        CHECK_MESSAGE(groups * plan.group - plan.heads < groups, text(s, 256));
    }
    CHECK(plan_tiles(64, 1024, 12, 256).group == 96);
    CHECK(plan_tiles(16, 1024, 25, 256).group == 80);
    CHECK(plan_tiles(1, 1 << 20, 2, 256).group == 1);
}

TEST_CASE("attention_choose: Hopper's kernels for heads of 64, from 64 tokens on") {
    CHECK(fits_wgmma(1024, 64));
    CHECK(fits_wgmma(64, 64));
    CHECK_FALSE(fits_wgmma(63, 64));
    CHECK_FALSE(fits_wgmma(1024, 63));
    CHECK_FALSE(fits_wgmma(1024, 128));
}
