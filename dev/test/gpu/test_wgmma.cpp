// Each wrapper of wgmma.cuh and tensor_map.cuh alone: products of whole numbers, which bf16 and fp32 hold exactly.
#include "dev/test/gpu/layer_test.h"
#include "dev/test/gpu/wgmma_kernels.h"
#include "llmc/ops/attention/attention.h"

using namespace llmc;
using namespace llmc::gpu_test;

namespace {

constexpr int kSide = 64, kElements = kSide * kSide;

// -8 to 8
Floats whole_numbers(int64_t n, uint64_t seed) {
    Floats x = floats(n, seed, 3);
    for (float& v : x) { v = std::round(std::clamp(v, -8.0f, 8.0f)); }
    return x;
}

// before + a b, or a b^T
Vector product_of(const Floats& before, const Floats& a, const Floats& b, bool over_columns) {
    Vector d(before.begin(), before.end());
    for (int i = 0; i < kSide; i++) {
        for (int j = 0; j < kSide; j++) {
            for (int k = 0; k < kSide; k++) {
                d[i * kSide + j] +=
                    (double)a[i * kSide + k] * b[over_columns ? j * kSide + k : k * kSide + j];
            }
        }
    }
    return d;
}

void check_product(const char* name, Product product, bool over_columns, int rows) {
    Floats before = whole_numbers(kElements, 1), a = whole_numbers(kElements, 2),
           b = whole_numbers(kElements, 3);
    DeviceArray<bf16> a_device(a), b_device(b), rounded_device((int64_t)rows * kSide);
    DeviceArray<float> before_device(before), d(kElements);
    run_product(product, d.data(), rounded_device.data(), before_device.data(), a_device.data(),
                b_device.data(), rows);
    Vector expected = product_of(before, a, b, over_columns);
    expect_near(fmt::format("product {}", name), d, expected, [](size_t) { return 0.0; });
    Vector doubled(expected.begin(), expected.begin() + rows * kSide);
    for (size_t i = 0; i < doubled.size(); i++) { doubled[i] *= i / kSide % 16 < 8 ? 1 : 2; }
    expect_near(fmt::format("product {} rows={} stored", name, rows), rounded_device, rounded<bf16>(doubled),
                [](size_t) { return 0.0; });
    expect_unchanged(name, a_device, b_device, before_device);
}

}  // namespace

TEST_CASE("wgmma: every product alone, results in registers, and through shared memory by TMA") {
    if (!has_attention_wgmma()) { return; }
    for (int rows : {64, 50, 16, 1}) {
        check_product("a b^T, both in shared memory", Product::kSharedColumns, true, rows);
        check_product("a b, both in shared memory", Product::kSharedRows, false, rows);
        check_product("a b^T, a in registers", Product::kRegistersColumns, true, rows);
        check_product("a b, a in registers", Product::kRegistersRows, false, rows);
    }
}

// boxes that hang over either end of a sequence bring zeros, not the neighbour's rows
TEST_CASE("wgmma: boxes of one head, within a sequence and over its ends") {
    if (!has_attention_wgmma()) { return; }
    constexpr int kHeads = 3, kT = 100, kB = 2;
    Floats values = whole_numbers((int64_t)kB * kT * kHeads * kSide, 1);
    DeviceArray<bf16> tensor(values);
    for (int t : {-64, -16, 0, 7, 64, 99}) {
        for (int h : {0, 2}) {
            for (int s : {0, 1}) {
                DeviceArray<bf16> box(kElements);
                run_load_box(box.data(), tensor.data(), kHeads, kT, kB, h, t, s);
                Vector expected(kElements);
                for (int i = 0; i < kElements; i++) {
                    int row = t + i / kSide;
                    int64_t at = (((int64_t)s * kT + row) * kHeads + h) * kSide + i % kSide;
                    expected[i] = row >= 0 && row < kT ? values[at] : 0;
                }
                expect_near(fmt::format("box t={} h={} s={}", t, h, s), box, expected,
                            [](size_t) { return 0.0; });
            }
        }
    }
}
