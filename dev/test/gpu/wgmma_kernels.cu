#include "dev/test/gpu/wgmma_kernels.h"

#include "llmc/cuda/device_facts.cuh"
#include "llmc/cuda/tensor_map.cuh"
#include "llmc/cuda/wgmma.cuh"

namespace llmc::gpu_test {

namespace {

constexpr int kWarpgroup = 128, kThreads = 3 * kWarpgroup;

struct __align__(kAtomBytes) Shared {
    bf16 a[kTileElements], b[kTileElements];
    uint64_t full;
};

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

template <Product product>
void launch_product(float* d, bf16* rounded, const float* before, const bf16* a, const bf16* b, int rows) {
    constexpr int kBytes = sizeof(Shared) + kAtomBytes;
    auto* kernel = product_kernel<product>;
    kernel<<<1, kThreads, kBytes>>>(head_map(a, 1, 64, 1, 64), head_map(b, 1, 64, 1, 64),
                                    head_map(rounded, 1, rows, 1, 16), d, before, rows);
    check_launch();
}

}  // namespace

void run_product(Product product, float* d, bf16* rounded, const float* before, const bf16* a, const bf16* b,
                 int rows) {
    switch (product) {
        case Product::kSharedColumns:
            return launch_product<Product::kSharedColumns>(d, rounded, before, a, b, rows);
        case Product::kSharedRows:
            return launch_product<Product::kSharedRows>(d, rounded, before, a, b, rows);
        case Product::kRegistersColumns:
            return launch_product<Product::kRegistersColumns>(d, rounded, before, a, b, rows);
        case Product::kRegistersRows:
            return launch_product<Product::kRegistersRows>(d, rounded, before, a, b, rows);
    }
}

void run_load_box(bf16* box, const bf16* tensor, int heads, int T, int B, int h, int t, int s) {
    load_box_kernel<<<1, kWarpgroup, sizeof(Shared) + kAtomBytes>>>(head_map(tensor, heads, T, B, kTileRows),
                                                                    box, h, t, s);
    check_launch();
}

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

}  // namespace llmc::gpu_test
