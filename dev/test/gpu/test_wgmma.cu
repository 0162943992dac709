// Each wrapper of wgmma.cuh and tensor_map.cuh alone, in a kernel around it: products of whole numbers, which bf16 and fp32 hold
// exactly. And the comparison of arrays on the device that the tests of attention use. On the default stream; nothing waits but
// count_differences().
#include "dev/test/gpu/attention_check.h"
#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/tensor_map.cuh"
#include "llmc/cuda/wgmma.cuh"

namespace llmc::gpu_test {

namespace {

// a from shared memory or registers, b's sum over its columns (a b^T) or rows (a b)
enum class Product { kSharedColumns, kSharedRows, kRegistersColumns, kRegistersRows };

constexpr int kWarpgroup = 128, kThreads = 3 * kWarpgroup;

struct __align__(kAtomBytes) Shared {
    bf16 a[kTileElements], b[kTileElements];
    uint64_t full;
};

constexpr int kSharedBytes = sizeof(Shared) + kAtomBytes;

__device__ Shared& aligned_shared() {
    extern __shared__ __align__(kAtomBytes) unsigned char raw[];
    uint32_t past = shared_address(raw) % kAtomBytes;
    return *reinterpret_cast<Shared*>(raw + (past > 0 ? kAtomBytes - past : 0));
}

template <Product product>
__device__ void multiply(Result& d, Shared& s, int warp, int lane) {
    Left a;
    load_left(a, s.a + warp * 16 * kTileColumns, lane);
    hold(d);
    hold(a);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint64_t columns = descriptor(s.b) + kNextColumns * k, rows = descriptor(s.b) + kNextRows * k,
                 left = descriptor(s.a) + kNextColumns * k;
        if constexpr (product == Product::kSharedColumns) {
            multiply16<Over::kColumns>(d, left, columns, true);
        }
        if constexpr (product == Product::kSharedRows) { multiply16<Over::kRows>(d, left, rows, true); }
        if constexpr (product == Product::kRegistersColumns) {
            multiply16<Over::kColumns>(d, a[k], columns, true);
        }
        if constexpr (product == Product::kRegistersRows) { multiply16<Over::kRows>(d, a[k], rows, true); }
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(d);
}

// One warpgroup multiplies, another one copies, a third one only gives its registers: each thread begins with 168, which
// is 65536 / 384.
template <Product product>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                   const __grid_constant__ CUtensorMap rounded_map, float* out, const float* before,
                   int rows) {
    if constexpr (kSm90a) {
        Shared& s = aligned_shared();
        int warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0), lane = threadIdx.x % kWarp;
        if (threadIdx.x == 0) {
            prefetch_map(a_map);
            mbarrier_init(&s.full, 1);
            mbarrier_init_fence();
        }
        __syncthreads();
        if (warp >= 4) {
            fewer_registers<24>();
            if (threadIdx.x == kWarpgroup) {
                mbarrier_arrive_expect(&s.full, 2 * kTileBytes);
                load_box(s.a, a_map, 0, 0, 0, &s.full);
                load_box(s.b, b_map, 0, 0, 0, &s.full);
            }
        } else {
            more_registers<240>();
            Result d;
#pragma unroll
            for (int i = 0; i < 32; i++) {
                d[i] = before[(warp * 16 + result_row(lane, i)) * kTileColumns + result_column(lane, i)];
            }
            mbarrier_wait(&s.full, 0);
            multiply<product>(d, s, warp, lane);
#pragma unroll
            for (int i = 0; i < 32; i++) {
                out[(warp * 16 + result_row(lane, i)) * kTileColumns + result_column(lane, i)] = d[i];
            }
            warpgroup_sync(1);  // all products have read a
            bf16* mine = s.a + warp * 16 * kTileColumns;
            store_result(mine, d, 1, 2, lane);
            fence_proxy_async();
            __syncwarp();
            if (lane == 0 && warp * 16 < rows) { store_box(rounded_map, mine, 0, warp * 16, 0); }
            bulk_commit();
            bulk_wait_read<0>();
        }
    }
}

// box (64,64) = rows t to t + 63 of head h of a sequence, as they lie in shared memory, with the swizzle undone
__global__ void load_box_kernel(const __grid_constant__ CUtensorMap map, bf16* box, int h, int t,
                                int sequence) {
    if constexpr (kSm90a) {
        Shared& s = aligned_shared();
        if (threadIdx.x == 0) {
            mbarrier_init(&s.full, 1);
            mbarrier_init_fence();
            mbarrier_arrive_expect(&s.full, kTileBytes);
            load_box(s.a, map, h, t, sequence, &s.full);
        }
        __syncthreads();
        mbarrier_wait(&s.full, 0);
        for (int i = threadIdx.x; i < kTileElements; i += blockDim.x) {
            int row = i / kTileColumns, column = i % kTileColumns;
            box[i] = s.a[swizzled(row, column / 8) / 2 + column % 8];
        }
    }
}

__global__ void count_kernel(unsigned long long* count, const uint32_t* a, const uint32_t* b, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    unsigned long long mine = 0;
    for (; i < n; i += step) { mine += a[i] != b[i]; }
    if (mine > 0) { atomicAdd(count, mine); }
}

// ---- the tests -------------------------------------------------------------------------------------

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

// d (64,64) = before + the product of a and b, which TMA brings in; of its first rows, those whose number has bit 3 set times 2,
// stored by way of store_result() and store_box()
template <Product product>
void check_product(const char* name, int rows) {
    constexpr bool over_columns = product == Product::kSharedColumns || product == Product::kRegistersColumns;
    Floats before = whole_numbers(kElements, 1), a = whole_numbers(kElements, 2),
           b = whole_numbers(kElements, 3);
    DeviceArray<bf16> a_device(a), b_device(b), rounded_device((int64_t)rows * kSide);
    DeviceArray<float> before_device(before), d(kElements);
    auto* kernel = product_kernel<product>;
    kernel<<<1, kThreads, kSharedBytes>>>(
        head_map(a_device.data(), 1, 64, 1, 64), head_map(b_device.data(), 1, 64, 1, 64),
        head_map(rounded_device.data(), 1, rows, 1, 16), d.data(), before_device.data(), rows);
    check_launch();
    Vector expected = product_of(before, a, b, over_columns);
    expect_near(fmt::format("product {}", name), d, expected, [](size_t) { return 0.0; });
    Vector doubled(expected.begin(), expected.begin() + rows * kSide);
    for (size_t i = 0; i < doubled.size(); i++) { doubled[i] *= i / kSide % 16 < 8 ? 1 : 2; }
    expect_near(fmt::format("product {} rows={} stored", name, rows), rounded_device, rounded<bf16>(doubled),
                [](size_t) { return 0.0; });
    expect_unchanged(name, a_device, b_device, before_device);
}

}  // namespace

int64_t count_differences(const void* a, const void* b, int64_t bytes) {
    require(bytes % 4 == 0, "count_differences: bytes must be a multiple of 4");
    unsigned long long *count = nullptr, result = 0;
    check(cudaMalloc(&count, sizeof(result)));
    check(cudaMemset(count, 0, sizeof(result)));
    count_kernel<<<1024, 256>>>(count, (const uint32_t*)a, (const uint32_t*)b, bytes / 4);
    check_launch();
    check(cudaMemcpy(&result, count, sizeof(result), cudaMemcpyDeviceToHost));
    check(cudaFree(count));
    return (int64_t)result;
}

TEST_CASE("wgmma: every product alone, results in registers, and through shared memory by TMA") {
    if (!has_attention_wgmma()) { return; }
    for (int rows : {64, 50, 16, 1}) {
        check_product<Product::kSharedColumns>("a b^T, both in shared memory", rows);
        check_product<Product::kSharedRows>("a b, both in shared memory", rows);
        check_product<Product::kRegistersColumns>("a b^T, a in registers", rows);
        check_product<Product::kRegistersRows>("a b, a in registers", rows);
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
                load_box_kernel<<<1, kWarpgroup, kSharedBytes>>>(
                    head_map(tensor.data(), kHeads, kT, kB, kTileRows), box.data(), h, t, s);
                check_launch();
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

}  // namespace llmc::gpu_test
