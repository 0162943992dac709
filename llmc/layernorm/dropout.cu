// What dropout leaves of rows, for those that no other kernel drops: of types and widths of the fallbacks.
#include "llmc/layernorm/kernel.cuh"

namespace llmc {

namespace dropped_rows {

constexpr int kDropBlock = 256;

// to = x, or nothing if that is null, + what dropout leaves of y; n elements a thread
template <typename T>
struct DroppedSum {
    T* to;
    const T *x, *y;
    int64_t rows;
    int columns;
    std::array<int64_t, 3> strides;  // of to, x, y
};
template <int n, typename T>
__global__ void __launch_bounds__(kDropBlock) layernorm_dropped_kernel(DroppedSum<T> call, Dropout dropout) {
    const int64_t column = ((int64_t)blockIdx.x * kDropBlock + threadIdx.x) * n;
    if (column >= call.columns) { return; }
    for (int64_t row = blockIdx.y; row < call.rows; row += gridDim.y) {
        const auto y = load<n>(call.y + row * call.strides[2] + column);
        auto x = Elements<T, n>{};
        if (call.x != nullptr) { x = load<n>(call.x + row * call.strides[1] + column); }
        const auto factors = DropoutRow(dropout, row, call.columns).factors<n>((int)column);
        acc_t<T> sum[n];
        unrolled<n>([&](int j) { sum[j] = as_acc<acc_t<T>>(y, j) * factors[j] + as_acc<acc_t<T>>(x, j); });
        store(call.to + row * call.strides[0] + column, rounded<T>(sum));
    }
}

}  // namespace dropped_rows

template <typename T>
void layernorm_add_dropped(T* to, const T* x, const T* y, int64_t N, int C, std::array<int64_t, 3> strides,
                           const Dropout& dropout, cudaStream_t stream) {
    using namespace dropped_rows;
    constexpr int kV = Vec<T>::size;
    const DroppedSum<T> sum{to, x, y, N, C, strides};
    const bool vectors = (C | strides[0] | strides[1] | strides[2]) % kV == 0 && aligned(to, x, y);
    const dim3 grid(grid_x(ceil_div((int64_t)C, (int64_t)kDropBlock * (vectors ? kV : 1))),
                    (unsigned)std::min<int64_t>(N, UINT16_MAX));
    auto* kernel = vectors ? layernorm_dropped_kernel<kV, T> : layernorm_dropped_kernel<1, T>;
    kernel<<<grid, kDropBlock, 0, stream>>>(sum, dropout);
    check_launch();
}

template decltype(layernorm_add_dropped<float>) layernorm_add_dropped<float>;
template decltype(layernorm_add_dropped<__nv_bfloat16>) layernorm_add_dropped<__nv_bfloat16>;
template decltype(layernorm_add_dropped<__half>) layernorm_add_dropped<__half>;
template decltype(layernorm_add_dropped<double>) layernorm_add_dropped<double>;

}  // namespace llmc
