// Sums over groups: of gradients, of the norm's chunks, of losses; and that they are made in the ranks'
// order.
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/reference.h"
#include "llmc/ops/global_norm.h"
#include "llmc/ops/group_sum.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// The same additions on the host: in fp32 they are exact to the bit.
template <typename Grad>
void check_parts(int rank, int ranks, int64_t n, bool start) {
    const int64_t stride = n + 64;
    DeviceArray<float> sums(floats(n, 1));
    DeviceArray<Grad> own(floats(n, 2)), arrived(floats((ranks - 1) * stride + 8, 3));
    Floats expected = sums.uploaded();
    for (int r = 0; r < ranks; r++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t place = (r < rank ? r : r - 1) * stride;
            const auto x = (float)(r == rank ? own.uploaded()[i] : arrived.uploaded()[place + i]);
            expected[i] = start && r == 0 ? x : expected[i] + x;
        }
    }
    add_parts<Grad>(sums.data(), {own.data(), arrived.data(), stride, rank, ranks}, n, start, kStream);
    const std::string name = strf("add_parts %s rank %d of %d n=%lld start=%d", type_name<Grad>(), rank,
                                  ranks, (long long)n, (int)start);
    CHECK_MESSAGE(sums.download() == expected, name);
    check_guards(name, sums);
    expect_unchanged(name, own, arrived);
}

// What a thread adds in fp32 before it goes on in double: the squares of a vector of 4.
void check_chunks(int64_t n) {
    DeviceArray<float> x(floats(n, 4, 0.1));
    const int64_t chunks = (n + kNormChunk - 1) / kNormChunk;
    DeviceArray<double> sums(chunks);
    Vector expected((size_t)chunks);
    squares_of_chunks_cpu(expected.data(), x.values().data(), n);
    squares_of_chunks(sums.data(), x.data(), n, kStream);
    const std::string name = strf("squares_of_chunks n=%lld", (long long)n);
    expect_near(name, sums, expected, [&](size_t k) { return 5 * u * expected[k]; });
    check_guards(name, sums);
    expect_unchanged(name, x);
}

}  // namespace

TEST_SUITE_BEGIN("groups");

TEST_CASE_TEMPLATE("add_parts: bit for bit in the ranks' order", Grad, float, bf16) {
    for (int ranks : {1, 2, 5}) {
        for (int rank = 0; rank < ranks; rank++) {
            for (int64_t n : {0, 8, 64, 4096 + 8}) {
                for (bool start : {false, true}) { check_parts<Grad>(rank, ranks, n, start); }
            }
        }
    }
    DeviceArray<float> sums(8);
    DeviceArray<Grad> own(8);
    CHECK_THROWS_AS(add_parts<Grad>(sums.data(), {own.data(), nullptr, 0, 0, 1}, 7, true, kStream), Error);
}

TEST_CASE("squares_of_chunks") {
    for (int64_t n : {(int64_t)1, (int64_t)64, kNormChunk, 2 * kNormChunk + 64}) { check_chunks(n); }
}

TEST_CASE("squares_of_chunks: NaN and infinity come through, in their chunk alone") {
    for (float bad : {NAN, INFINITY}) {
        Floats values = floats(3 * kNormChunk, 5);
        values[kNormChunk + 77] = bad;
        DeviceArray<float> x(values);
        DeviceArray<double> sums(3);
        squares_of_chunks(sums.data(), x.data(), x.size(), kStream);
        const Vector found = sums.download();
        CHECK(std::isfinite(found[0]));
        CHECK(!std::isfinite(found[1]));
        CHECK(std::isnan(found[1]) == std::isnan(bad));
        CHECK(std::isfinite(found[2]));
    }
}

// Of losses the order decides here: the large ones cancel only if they are neighbours. Of chunks there is
// only one order, whatever the number of ranks.
TEST_CASE("sum_groups: losses in the groups' order, for any number of ranks") {
    constexpr int kGroups = 6;
    const Vector in_order = {1, 1e300, -1e300, 3, 1e17, -1e17};  // 1 is lost, the sum is 3 less a rounding
    double expected = 0;
    for (double loss : in_order) { expected += loss; }
    const Vector squares = {0.5, 1e20, 3, 7, 0.25};
    double first = 0;
    for (int ranks : {1, 2, 3, 6}) {
        Vector losses(kGroups);
        for (int g = 0; g < kGroups; g++) { losses[g % ranks * (kGroups / ranks) + g / ranks] = in_order[g]; }
        DeviceArray<double> chunks(squares), by_rank(losses), sum(1), loss(1);
        sum_groups(sum.data(), loss.data(), chunks.data(), 5, by_rank.data(), kGroups, ranks, kStream);
        CHECK(loss.download()[0] == expected);
        CHECK(std::fabs(sum.download()[0] - 1e20) <= 1e20 * 0x1p-50);
        first = ranks == 1 ? sum.download()[0] : first;
        CHECK(sum.download()[0] == first);
        check_guards("sum_groups", sum);
        check_guards("sum_groups", loss);
    }
}

TEST_SUITE_END();
