// LayerNorm forward, alone or on the sum of the residual stream and a block's output: chooses the kernel for the shape
// and launches it. The kernels: layernorm_forward/<regime>.cuh.
#include "llmc/layernorm.h"
#include "llmc/device_facts.cuh"
#include "llmc/layernorm_forward/general.cuh"
#include "llmc/layernorm_forward/registers.cuh"

namespace llmc {

template <typename T, typename W>
bool clusters_possible() {
    using namespace layernorm_registers;
    static const bool compiled =
        has_hopper_code(layernorm_forward_kernel<Team::kCluster, Vec<T>::size, 4, false, T, W>);
    return compiled && device_facts().capability >= 90;
}

template <typename T, typename W>
void layernorm_forward(const LayerNormForward<T, W>& given, cudaStream_t stream) {
    LayerNormForward<T, W> call = given;
    require(call.C > 0 && call.N >= 0, "layernorm_forward: C must be positive, N not negative");
    require((call.residual != nullptr) == (call.inp2 != nullptr),
            "layernorm_forward: residual and inp2 go together");
    for (int64_t* stride : {&call.out_stride, &call.inp_stride, &call.residual_stride, &call.inp2_stride}) {
        if (*stride == 0) { *stride = call.C; }
    }
    if (call.N == 0) { return; }
    constexpr int kV = Vec<T>::size;
    bool vectors = (call.C | call.out_stride | call.inp_stride | call.residual_stride | call.inp2_stride) % kV == 0 &&
                   aligned(call.out, call.inp, call.weight, call.bias, call.residual, call.inp2);
    if constexpr (!std::is_same_v<T, double>) {
        bool clusters = clusters_possible<T, W>();
        bool done = call.residual != nullptr
                        ? layernorm_registers::layernorm_forward<true>(call, vectors, clusters, stream)
                        : layernorm_registers::layernorm_forward<false>(call, vectors, clusters, stream);
        if (done) { return; }
    }
    layernorm_general::layernorm_forward(call, vectors, stream);
}

using bf16 = __nv_bfloat16;
template void layernorm_forward(const LayerNormForward<float, float>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<bf16, bf16>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<bf16, float>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<__half, __half>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<__half, float>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<double, double>&, cudaStream_t);

}  // namespace llmc
