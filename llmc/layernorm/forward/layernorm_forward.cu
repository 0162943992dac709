// LayerNorm forward, alone or on the sum of the residual stream and a block's output: asks the regimes in
// turn, layernorm_forward/regimes.h, and gives the call to the first that takes it.
#include "llmc/cuda/check.cuh"
#include "llmc/cuda/device.cuh"
#include "llmc/layernorm/forward/regimes.h"

namespace llmc {

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
    if constexpr (!std::is_same_v<T, double>) {
        for (auto* regime : {layernorm_forward_narrow<T, W>, layernorm_forward_registers<T, W>,
                             layernorm_forward_odd<T, W>}) {
            if (regime(call, stream)) { return; }
        }
    }
    layernorm_forward_general(call, stream);
}

using bf16 = __nv_bfloat16;
template void layernorm_forward(const LayerNormForward<float, float>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<bf16, bf16>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<bf16, float>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<__half, __half>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<__half, float>&, cudaStream_t);
template void layernorm_forward(const LayerNormForward<double, double>&, cudaStream_t);

}  // namespace llmc
