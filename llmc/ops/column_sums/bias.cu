// The kernels of bias.h. Column sums are of whole rows, read as they lie in memory, by blocks that all run at once: a thread
// has a vector of columns and adds up rows that lie evenly apart.
#include "llmc/ops/column_sums/bias.h"

#include "llmc/cuda/check.cuh"
#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/device_facts.cuh"

namespace llmc {
namespace {

constexpr int kAtOnce = 4;  // vectors a thread has on their way from memory

template <typename T>
__global__ void bias_forward_kernel(T* out, const T* bias, int64_t n, int OC) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = bias[i % OC]; }
}

// sum += every step-th row from `row` on
template <int n, typename T>
__device__ __forceinline__ void add_rows(float (&sum)[n], const T* x, int64_t row, int64_t step, int64_t N,
                                         int OC) {
    const T* from = x + row * OC;
    for (; row < N; row += kAtOnce * step) {
        // 0 behind the last row: in a loop over the rows that are left each load would wait for the one before
        Elements<T, n> more[kAtOnce]{};
#pragma unroll
        for (int k = 0; k < kAtOnce; k++, from += step * OC) {
            if (row + k * step < N) { more[k] = load<n>(from); }
        }
        unrolled<kAtOnce, n>([&](int k, int j) { sum[j] += as_float(more[k], j); });
    }
}

// partial (groups,OC) = sums over the rows of each group of dout (N,OC)
template <typename T, int n>
__global__ void __launch_bounds__(ColumnShares::kMostThreads, 2)
    sum_rows_kernel(float* partial, const T* dout, int64_t N, int OC, ColumnShares shares) {
    __shared__ float of_thread[n][ColumnShares::kMostThreads];
    int lane = threadIdx.x % shares.vectors, beside = threadIdx.x / shares.vectors;
    int tile = blockIdx.x % shares.tiles, group = blockIdx.x / shares.tiles;
    int c = (tile * shares.vectors + lane) * n;
    bool mine = beside < shares.rows && c < OC;
    float sum[n] = {};
    if (mine) {
        add_rows<n>(sum, dout + c, (int64_t)group * shares.rows + beside,
                    (int64_t)shares.groups * shares.rows, N, OC);
    }
    if constexpr (kSm90) { dependency_launch(); }
    if (shares.rows > 1) {
        unrolled<n>([&](int j) { of_thread[j][threadIdx.x] = sum[j]; });
        __syncthreads();
        for (int k = 1; k < shares.rows && beside == 0; k++) {
            unrolled<n>([&](int j) { sum[j] += of_thread[j][threadIdx.x + k * shares.vectors]; });
        }
    }
    if (mine && beside == 0) {
        constexpr int four = n % 4 == 0 ? 4 : 1;
#pragma unroll
        for (int j = 0; j < n; j += four) {
            Elements<float, four> out;
            unrolled<four>([&](int i) { out.at[i] = sum[j + i]; });
            store(partial + (int64_t)group * OC + c + j, out);
        }
    }
}

}  // namespace

template <typename T>
void bias_forward(T* out, const T* bias, int64_t N, int OC, cudaStream_t stream) {
    unsigned grid = grid_x(ceil_div(N * OC, (int64_t)kColumnBlock));
    bias_forward_kernel<<<grid, kColumnBlock, 0, stream>>>(out, bias, N * OC, OC);
    check_launch();
}

// of the widest vectors, which leave the most groups
size_t bias_backward_scratch(int OC) {
    return sizeof(float) * (size_t)OC * ColumnShares::of(INT32_MAX, OC, 8).groups;
}

template <typename T, typename Grad>
void bias_backward(Grad* dbias, void* scratch, const T* dout, int64_t N, int OC, bool accumulate,
                   cudaStream_t stream) {
    constexpr int kV = Vec<T>::size;
    bool vectors = OC % kV == 0 && aligned(dout);
    auto shares = ColumnShares::of(N, OC, vectors ? kV : 1);
    auto* kernel = vectors ? sum_rows_kernel<T, kV> : sum_rows_kernel<T, 1>;
    auto* partial = (float*)scratch;
    kernel<<<shares.tiles * shares.groups, shares.threads(), 0, stream>>>(partial, dout, N, OC, shares);
    check_launch();
    bool early = runs_hopper_code(sum_rows_kernel<T, kV>);
    finish_columns<Grad, float>({dbias}, {partial, shares.groups, OC, early}, OC, accumulate, stream);
}

using bf16 = __nv_bfloat16;
template decltype(bias_forward<float>) bias_forward<float>;
template decltype(bias_forward<bf16>) bias_forward<bf16>;
template decltype(bias_backward<float, float>) bias_backward<float, float>;
template decltype(bias_backward<bf16, float>) bias_backward<bf16, float>;
template decltype(bias_backward<bf16, bf16>) bias_backward<bf16, bf16>;

}  // namespace llmc
