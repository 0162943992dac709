// LayerNorm backward: chooses the kernels for the shape and launches them; they are in layernorm_backward/<regime>.cuh.
#include "llmc/layernorm.h"
#include "llmc/device_facts.cuh"
#include "llmc/layernorm_backward/general.cuh"
#include "llmc/layernorm_backward/ring.cuh"

namespace llmc {

size_t layernorm_backward_scratch(int C) { return layernorm_general::layernorm_backward_scratch(C); }

// were the ring's kernels compiled for Hopper, and is this one?
template <typename T, typename W>
bool hopper() {
    using namespace layernorm_ring;
    constexpr int n = sizeof(T) == 2 ? 8 : 4;
    static const bool compiled = has_hopper_code(
        layernorm_backward_kernel<false, false, n, 2, most_threads<Tile<n, 2>, T>(false), T, float, W>);
    return compiled && device_facts().capability >= 90;
}

template <typename T, typename Grad, typename W>
void layernorm_backward(const LayerNormBackward<T, Grad, W>& given, cudaStream_t stream) {
    LayerNormBackward<T, Grad, W> call = given;
    require(call.C > 0 && call.N >= 0, "layernorm_backward: C must be positive, N not negative");
    for (int64_t* stride : {&call.dinp_stride, &call.dout_stride, &call.inp_stride}) {
        if (*stride == 0) { *stride = call.C; }
    }
    bool vectors = (call.C | call.dinp_stride | call.dout_stride | call.inp_stride) % Vec<T>::size == 0 &&
                   aligned(call.dinp, call.dout, call.inp, call.weight);
    if constexpr (!std::is_same_v<T, double>) {
        bool sums = call.dweight != nullptr && call.dbias != nullptr && call.dinp != nullptr;
        if (vectors && sums && hopper<T, W>() && layernorm_ring::layernorm_backward(call, stream)) { return; }
    }
    layernorm_general::layernorm_backward(call, vectors, stream);
}

using bf16 = __nv_bfloat16;
template void layernorm_backward(const LayerNormBackward<float, float, float>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<bf16, float, bf16>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<bf16, bf16, bf16>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<bf16, float, float>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<__half, float, __half>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<__half, __half, __half>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<__half, float, float>&, cudaStream_t);
template void layernorm_backward(const LayerNormBackward<double, double, double>&, cudaStream_t);

}  // namespace llmc
