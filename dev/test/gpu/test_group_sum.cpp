// Sums over groups: of gradients, of the norm's chunks, of losses; and that they are made in the ranks'
// order.
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/reference.h"
#include "llmc/ops/global_norm.h"
#include "llmc/ops/group_sum.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// of four chunks, the last shorter, those of the share
const std::vector<int32_t> kShare = {1, 3};
constexpr int64_t kAll = 3 * kNormChunk + 4096 + 8;

// The same additions on the host: in fp32 they are exact to the bit. n: of the share's elements
template <typename Grad>
void check_parts(int rank, int ranks, int64_t n, bool start, bool whole) {
    const int64_t stride = n + 64;
    DeviceArray<float> sums(floats(whole ? kAll : n, 1));
    DeviceArray<Grad> own(floats(kAll, 2)), arrived(floats((ranks - 1) * stride + 8, 3));
    DeviceArray<int32_t> numbers(kShare);
    Floats expected = sums.uploaded();
    for (int r = 0; r < ranks; r++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t place = (r < rank ? r : r - 1) * stride;
            const int64_t at = kShare[i / kNormChunk] * kNormChunk + i % kNormChunk;
            const auto x = (float)(r == rank ? own.uploaded()[at] : arrived.uploaded()[place + i]);
            float& sum = expected[whole ? at : i];
            sum = start && r == 0 ? x : sum + x;
        }
    }
    const GroupParts<Grad> parts = {own.data(), arrived.data(), stride, rank, ranks, numbers.data()};
    add_parts<Grad>(sums.data(), whole, parts, n, start, kStream);
    const std::string name = strf("add_parts %s rank %d of %d n=%lld start=%d whole=%d", type_name<Grad>(),
                                  rank, ranks, (long long)n, (int)start, (int)whole);
    CHECK_MESSAGE(sums.download() == expected, name);
    check_guards(name, sums);
    expect_unchanged(name, own, arrived, numbers);
}

// What a thread adds in fp32 before it goes on in double: the squares of a vector of 4.
void check_chunks(int64_t n) {
    DeviceArray<float> x(floats(n, 4, 0.1));
    const int64_t chunks = (n + kNormChunk - 1) / kNormChunk;
    DeviceArray<double> sums(chunks);
    Vector expected((size_t)chunks);
    squares_of_chunks_cpu(expected.data(), x.values().data(), n);
    squares_of_chunks(sums.data(), x.data(), n, nullptr, chunks, kStream);
    const std::string name = strf("squares_of_chunks n=%lld", (long long)n);
    expect_near(name, sums, expected, [&](size_t k) { return 5 * u * expected[k]; });
    check_guards(name, sums);
    expect_unchanged(name, x);
    const std::vector<int32_t> numbers = {(int32_t)chunks - 1, 0};
    DeviceArray<int32_t> some(numbers);
    DeviceArray<double> two(2);
    squares_of_chunks(two.data(), x.data(), n, some.data(), 2, kStream);
    const Vector all = sums.download();
    CHECK_MESSAGE(two.download() == Vector({all[(size_t)numbers[0]], all[0]}), name);
    check_guards(name, two);
}

}  // namespace

TEST_SUITE_BEGIN("groups");

TEST_CASE_TEMPLATE("add_parts: bit for bit in the ranks' order", Grad, float, bf16) {
    for (int ranks : {1, 2, 5}) {
        for (int rank = 0; rank < ranks; rank++) {
            for (int64_t n : {(int64_t)0, (int64_t)8, (int64_t)64, kNormChunk + 4096 + 8}) {
                for (bool start : {false, true}) {
                    for (bool whole : {false, true}) { check_parts<Grad>(rank, ranks, n, start, whole); }
                }
            }
        }
    }
    DeviceArray<float> sums(8);
    DeviceArray<Grad> own(8);
    CHECK_THROWS_AS(
        add_parts<Grad>(sums.data(), false, {own.data(), nullptr, 0, 0, 1, nullptr}, 7, true, kStream),
        Error);
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
        squares_of_chunks(sums.data(), x.data(), x.size(), nullptr, 3, kStream);
        const Vector found = sums.download();
        CHECK(std::isfinite(found[0]));
        CHECK(!std::isfinite(found[1]));
        CHECK(std::isnan(found[1]) == std::isnan(bad));
        CHECK(std::isfinite(found[2]));
    }
}

// Of losses the order decides here: the large ones cancel only if they are neighbours. Of chunks there is
// only one order, wherever the ranks have put them.
TEST_CASE("sum_groups: losses in the groups' order, for any number of ranks") {
    constexpr int kGroups = 6;
    const Vector in_order = {1, 1e300, -1e300, 3, 1e17, -1e17};  // 1 is lost, the sum is 3 less a rounding
    double expected = 0;
    for (double loss : in_order) { expected += loss; }
    constexpr int kChunks = 2003;  // a prime: each stride visits all
    const Floats squares = floats(kChunks, 9);
    double first = 0, exact = 0;
    for (float x : squares) { exact += std::exp(4.0 * x); }
    for (int ranks : {1, 2, 3, 6}) {
        Vector losses(kGroups);
        for (int g = 0; g < kGroups; g++) { losses[g % ranks * (kGroups / ranks) + g / ranks] = in_order[g]; }
        Vector by_place(kChunks);
        std::vector<int32_t> places(kChunks);
        for (int k = 0; k < kChunks; k++) {
            places[k] = (int32_t)((int64_t)k * (1 + 100 * (ranks - 1)) % kChunks);
            by_place[places[k]] = std::exp(4.0 * squares[k]);
        }
        DeviceArray<double> chunks(by_place), by_rank(losses), sum(1), loss(1);
        DeviceArray<int32_t> at(places);
        sum_groups(sum.data(), loss.data(), chunks.data(), at.data(), kChunks, by_rank.data(), kGroups, ranks,
                   kStream);
        CHECK(loss.download()[0] == expected);
        CHECK(std::fabs(sum.download()[0] - exact) <= exact * 0x1p-40);
        first = ranks == 1 ? sum.download()[0] : first;
        CHECK(sum.download()[0] == first);
        check_guards("sum_groups", sum);
        check_guards("sum_groups", loss);
    }
}

TEST_SUITE_END();
