// LayerNorm forward, alone or on the sum of the residual stream and a block's output, by the kernel that choose.h chooses. A
// residual is added by those for whole vectors; other rows are summed by a kernel of their own first, and then normalised
// as the plain call would, so that a row's results have the same bits when they are computed again from the residual
// stream.
#include "llmc/layernorm/kernel.cuh"

namespace llmc {

namespace {

using namespace layernorm;

constexpr int kSumBlock = 256;

// residual = inp + inp2, rounded to T: n elements a thread, of rows of `columns`; strides[]: of the three
template <typename T>
struct Sum {
    T* residual;
    const T *inp, *inp2;
    int64_t rows, columns, strides[3];
};
template <int n, typename T>
__global__ void __launch_bounds__(kSumBlock) layernorm_residual_kernel(Sum<T> call) {
    const int64_t c = ((int64_t)blockIdx.x * kSumBlock + threadIdx.x) * n;
    if (c >= call.columns) { return; }
    for (int64_t row = blockIdx.y; row < call.rows; row += gridDim.y) {
        auto a = load<n>(call.inp + row * call.strides[1] + c);
        auto b = load<n>(call.inp2 + row * call.strides[2] + c);
        acc_t<T> sum[n];
#pragma unroll
        for (int j = 0; j < n; j++) { sum[j] = as_acc<acc_t<T>>(a, j) + as_acc<acc_t<T>>(b, j); }
        store(call.residual + row * call.strides[0] + c, rounded<T>(sum));
    }
}

template <typename T, typename W, typename Out>
void add_residual(const LayerNormForward<T, W, Out>& call, cudaStream_t stream) {
    constexpr int kV = Vec<T>::size;
    Sum<T> sum = {call.residual, call.inp, call.inp2,
                  call.N,        call.C,   {call.residual_stride, call.inp_stride, call.inp2_stride}};
    if (std::ranges::all_of(sum.strides, [&](int64_t stride) { return stride == call.C; })) {
        sum.columns *= sum.rows;  // one long row
        sum.rows = 1;
    }
    const bool vectors =
        sum.rows == 1 && sum.columns % kV == 0 && aligned(call.residual, call.inp, call.inp2);
    const int64_t blocks = ceil_div(sum.columns, (int64_t)kSumBlock * (vectors ? kV : 1));
    dim3 grid(grid_x(blocks), (unsigned)std::min<int64_t>(sum.rows, UINT16_MAX));
    if (vectors) {
        layernorm_residual_kernel<kV><<<grid, kSumBlock, 0, stream>>>(sum);
    } else {
        layernorm_residual_kernel<1><<<grid, kSumBlock, 0, stream>>>(sum);
    }
    check_launch();
}

// writes the residual; the call that is left to do
template <typename T, typename W, typename Out>
LayerNormForward<T, W, Out> sum_first(LayerNormForwardRows<T, W, Out> call, cudaStream_t stream) {
    if (call.dropout.rows == nullptr) {
        add_residual<T, W, Out>(call, stream);
    } else {
        layernorm_add_dropped(call.residual, call.inp, call.inp2, call.N, call.C,
                              {call.residual_stride, call.inp_stride, call.inp2_stride}, call.dropout,
                              stream);
    }
    call.inp = call.residual;
    call.inp_stride = call.residual_stride;
    call.residual = nullptr;
    call.inp2 = nullptr;
    call.residual_stride = call.inp2_stride = call.C;
    return call;
}

template <typename T, typename W, typename Out>
bool launch(const LayerNormForwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream) {
    if constexpr (!std::is_same_v<T, double>) {
        if (choice.kernel == Kernel::kRowInRegisters) {
            return row_in_registers_forward::launch(call, choice, stream);
        }
    }
    if constexpr (!std::is_same_v<T, double> && std::is_same_v<T, Out>) {
        if (choice.kernel == Kernel::kShortRows) { return short_rows_forward::launch(call, choice, stream); }
        if (choice.kernel == Kernel::kUnalignedRows) {
            return unaligned_rows_forward::launch<T, W>(call, choice, stream);
        }
    }
    if (choice.kernel == Kernel::kSumFirst) {
        layernorm_forward(sum_first(call, stream), stream);
        return true;
    }
    return fallback_forward::launch<T, W, Out>(call, choice, stream);
}

// by this kernel, or where that is none the one that is chosen; false: it does not take the call
template <typename T, typename W, typename Out>
bool forward(LayerNormForwardRows<T, W, Out> call, const std::optional<Kernel>& by, cudaStream_t stream) {
    require(call.C > 0 && call.N >= 0, "layernorm_forward: C must be positive, N not negative");
    require((call.residual != nullptr) == (call.inp2 != nullptr),
            "layernorm_forward: residual and inp2 go together");
    require(call.dropout.rows == nullptr || call.residual != nullptr,
            "layernorm_forward: dropout is of inp2, but inp2 is null");
    for (int64_t* stride : {&call.out_stride, &call.inp_stride, &call.residual_stride, &call.inp2_stride}) {
        if (*stride == 0) { *stride = call.C; }
    }
    if (call.N == 0) { return true; }
    const Call shape = packed(call);
    return launch_chosen(
        this_gpu(layernorm_residual_kernel<1, T>),
        [&](const Gpu& gpu) { return by ? choose_forward_by(*by, shape, gpu) : choose_forward(shape, gpu); },
        [&](const Choice& choice) { return launch(call, choice, stream); });
}

}  // namespace

template <typename T, typename W, typename Out>
void layernorm_forward(const LayerNormForward<T, W, Out>& call, cudaStream_t stream, const Dropout& dropout) {
    forward(LayerNormForwardRows<T, W, Out>{call, dropout}, {}, stream);
}

template <typename T, typename W, typename Out>
bool layernorm_forward_by(Kernel kernel, const LayerNormForward<T, W, Out>& call, cudaStream_t stream) {
    return forward(LayerNormForwardRows<T, W, Out>{call}, kernel, stream);
}

using bf16 = __nv_bfloat16;
template void layernorm_forward(const LayerNormForward<float, float>&, cudaStream_t, const Dropout&);
template void layernorm_forward(const LayerNormForward<bf16, bf16>&, cudaStream_t, const Dropout&);
template void layernorm_forward(const LayerNormForward<bf16, float>&, cudaStream_t, const Dropout&);
template void layernorm_forward(const LayerNormForward<__half, __half>&, cudaStream_t, const Dropout&);
template void layernorm_forward(const LayerNormForward<__half, float>&, cudaStream_t, const Dropout&);
template void layernorm_forward(const LayerNormForward<double, double>&, cudaStream_t, const Dropout&);
template void layernorm_forward(const LayerNormForward<float, float, bf16>&, cudaStream_t, const Dropout&);
template void layernorm_forward(const LayerNormForward<float, float, __half>&, cudaStream_t, const Dropout&);
template bool layernorm_forward_by(Kernel, const LayerNormForward<float, float>&, cudaStream_t);
template bool layernorm_forward_by(Kernel, const LayerNormForward<bf16, bf16>&, cudaStream_t);
template bool layernorm_forward_by(Kernel, const LayerNormForward<__half, __half>&, cudaStream_t);

}  // namespace llmc
