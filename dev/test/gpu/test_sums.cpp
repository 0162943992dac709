// Sums on the GPU against the reference: of columns, which are a bias's gradient; of squares; over groups, whose gradients,
// chunks of the norm and losses are added in the ranks' order.
#include "dev/test/gpu/layer_test.h"
#include "llmc/model/cpu/reference.h"
#include "llmc/ops/column_sums/bias.h"
#include "llmc/ops/global_norm.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

// a column's sum over N rows in fp32, the addition to what was there, the rounding to Grad. The arrays may
// begin some elements off their alignment.
template <typename T, typename Grad>
void check_bias_backward(int64_t N, int OC, bool accumulate, int dout_offset = 0, int dbias_offset = 0) {
    DeviceArray<T> dout(floats(N * OC, 1), dout_offset);
    DeviceArray<Grad> dbias(accumulate ? floats(OC, 2) : Floats(OC, NAN), dbias_offset);
    Scratch scratch(bias_backward_scratch(OC));
    bias_backward(dbias.data(), scratch.data(), dout.data(), N, OC, accumulate, kStream);
    Vector expected = accumulate ? dbias.values() : Vector(OC, 0.0), terms = absolute(expected);
    bias_backward_cpu(expected.data(), dout.values().data(), N, OC, OC);
    bias_backward_cpu(terms.data(), absolute(dout.values()).data(), N, OC, OC);
    std::string name = "bias_backward dbias " + type_names<T, Grad>() +
                       fmt::format("{} N={} OC={}", accumulate ? " +=" : "", (int)N, OC);
    expect_near(name, dbias, expected,
                [&](size_t i) { return stored<Grad>(u * (additions(N) + 2) * terms[i], expected[i]); });
    check_guards(name + " scratch", scratch);
    expect_unchanged(name, dout);
}

// A thread adds at most 8 squares, a vector's, in fp32: 8 roundings and the product's; the rest is double.
template <typename Grad>
void check_sum_of_squares(int64_t n) {
    DeviceArray<Grad> x(floats(n, 1, 0.1));
    DeviceArray<double> sum(1);
    Scratch scratch(sum_of_squares_scratch());
    sum_of_squares(sum.data(), scratch.data(), x.data(), n, kStream);
    double norm = global_norm_cpu(x.values().data(), n);
    std::string name = fmt::format("sum_of_squares sum {} n={}", type_name<Grad>(), n);
    expect_near(name, sum, {norm * norm}, [&](size_t) { return 9 * u * norm * norm; });
    check_guards(name + " scratch", scratch);
    expect_unchanged(name, x);
}

// of four chunks those of the share: one of them does not begin at a multiple of kNormChunk
constexpr int64_t kAll = 3 * kNormChunk + 4096 + 8, kShort = 4096 + 8;
const std::vector<NormChunk> kShare = {{kNormChunk, 0, kNormChunk, 1},
                                       {2 * kNormChunk + 64, kNormChunk, kShort, 3}};

// The same additions on the host: in fp32 they are exact to the bit. count: of the share's chunks
template <typename Grad>
void check_parts(int rank, int ranks, int64_t count, bool start, bool whole) {
    const int64_t n = kNormChunk + kShort, stride = n + 64;
    DeviceArray<float> sums(floats(whole ? kAll : n, 1));
    DeviceArray<Grad> own(floats(kAll, 2)), arrived(floats((ranks - 1) * stride + 8, 3));
    DeviceArray<NormChunk> chunks(kShare);
    Floats expected = sums.uploaded();
    for (int r = 0; r < ranks; r++) {
        for (int64_t k = 0; k < count; k++) {
            for (int64_t i = 0; i < kShare[(size_t)k].size; i++) {
                const int64_t place = (r < rank ? r : r - 1) * stride;
                const int64_t at = kShare[(size_t)k].begin + i, kept = kShare[(size_t)k].kept + i;
                const auto x = (float)(r == rank ? own.uploaded()[at] : arrived.uploaded()[place + kept]);
                float& sum = expected[whole ? at : kept];
                sum = start && r == 0 ? x : sum + x;
            }
        }
    }
    const GroupParts<Grad> parts = {own.data(), arrived.data(), stride, rank, ranks, chunks.data(), count};
    add_parts<Grad>(sums.data(), whole, parts, start, kStream);
    const std::string name = fmt::format("add_parts {} rank {} of {} chunks={} start={} whole={}",
                                         type_name<Grad>(), rank, ranks, count, (int)start, (int)whole);
    CHECK_MESSAGE(sums.download() == expected, name);
    check_guards(name, sums);
    expect_unchanged(name, own, arrived);
}

// What a thread adds in fp32 before it goes on in double: the squares of a vector of 4.
void check_chunks(int64_t n) {
    DeviceArray<float> x(floats(n, 4, 0.1));
    std::vector<NormChunk> chunks;
    for (int64_t at = 0; at < n; at += kNormChunk) {
        chunks.push_back({at, at, (int32_t)std::min(kNormChunk, n - at), (int32_t)chunks.size()});
    }
    const auto count = (int64_t)chunks.size();
    DeviceArray<double> sums(count);
    Vector expected((size_t)count);
    squares_of_chunks_cpu(expected.data(), x.values().data(), n);
    DeviceArray<NormChunk> table(chunks);
    squares_of_chunks(sums.data(), x.data(), false, table.data(), count, kStream);
    const std::string name = fmt::format("squares_of_chunks n={}", n);
    expect_near(name, sums, expected, [&](size_t k) { return 5 * u * expected[k]; });
    check_guards(name, sums);
    expect_unchanged(name, x);
    // the last and the first, of all elements; what they would be in a share is not looked at
    const NormChunk last = chunks.back();
    DeviceArray<NormChunk> some(
        std::vector<NormChunk>{{last.begin, 1 << 30, last.size, 0}, {0, 1 << 30, chunks[0].size, 1}});
    DeviceArray<double> two(2);
    squares_of_chunks(two.data(), x.data(), true, some.data(), 2, kStream);
    const Vector all = sums.download();
    CHECK_MESSAGE(two.download() == Vector({all.back(), all[0]}), name);
    check_guards(name, two);
}

}  // namespace

TEST_CASE_TEMPLATE("bias_backward", T, float, bf16) {
    constexpr std::pair<int, int> shapes[] = {{1, 1},     {3, 3},       {17, 65},     {1000, 769}, {4099, 65},
                                              {4099, 64}, {1023, 4800}, {4099, 3072}, {300, 12800}};
    for (auto [N, OC] : shapes) {
        for (bool accumulate : {false, true}) {
            check_bias_backward<T, float>(N, OC, accumulate);
            if (!std::is_same_v<T, float>) { check_bias_backward<T, T>(N, OC, accumulate); }
        }
    }
}

// rows of whole 16-byte vectors that lie on no 16 bytes
TEST_CASE_TEMPLATE("bias_backward: arrays one element off their alignment", T, float, bf16) {
    for (auto [dout, dbias] : {std::pair{1, 0}, {0, 1}}) {
        CAPTURE(dout);
        check_bias_backward<T, float>(17, 768, true, dout, dbias);
        if (!std::is_same_v<T, float>) { check_bias_backward<T, T>(17, 768, true, dout, dbias); }
    }
}

TEST_CASE_TEMPLATE("sum_of_squares", Grad, float, bf16) {
    for (int64_t n : {1, 3, 17, 1000, 65537, (1 << 20) + 7}) { check_sum_of_squares<Grad>(n); }
}

TEST_CASE_TEMPLATE("sum_of_squares: NaN and infinity come through", Grad, float, bf16) {
    for (float bad : {NAN, INFINITY}) {
        for (int at : {0, 5000, 9999}) {
            Floats values = floats(10000, 1);
            values[at] = bad;
            DeviceArray<Grad> x(values);
            DeviceArray<double> sum(1);
            Scratch scratch(sum_of_squares_scratch());
            sum_of_squares(sum.data(), scratch.data(), x.data(), x.size(), kStream);
            double found = sum.download()[0];
            CHECK(std::isnan(bad) == std::isnan(found));
            CHECK(!std::isfinite(found));
        }
    }
}

TEST_SUITE_BEGIN("groups");

TEST_CASE_TEMPLATE("add_parts: bit for bit in the ranks' order", Grad, float, bf16) {
    for (int ranks : {1, 2, 5}) {
        for (int rank = 0; rank < ranks; rank++) {
            for (int64_t count : {0, 1, 2}) {
                for (bool start : {false, true}) {
                    for (bool whole : {false, true}) { check_parts<Grad>(rank, ranks, count, start, whole); }
                }
            }
        }
    }
    DeviceArray<float> sums(8);
    DeviceArray<Grad> own(8);
    CHECK_THROWS_AS(
        add_parts<Grad>(sums.data(), false, {own.data(), nullptr, 4, 0, 1, nullptr, 0}, true, kStream),
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
        std::vector<NormChunk> chunks;
        for (int32_t k = 0; k < 3; k++) {
            chunks.push_back({k * kNormChunk, k * kNormChunk, (int32_t)kNormChunk, k});
        }
        DeviceArray<NormChunk> table(chunks);
        squares_of_chunks(sums.data(), x.data(), false, table.data(), 3, kStream);
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
