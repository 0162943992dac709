// registers.cuh for bf16 rows.
#include "llmc/layernorm/forward/row_in_registers.cuh"

namespace llmc {
template bool layernorm_forward_registers(const LayerNormForward<__nv_bfloat16, __nv_bfloat16>&,
                                          cudaStream_t);
template bool layernorm_forward_registers(const LayerNormForward<__nv_bfloat16, float>&, cudaStream_t);
}  // namespace llmc
