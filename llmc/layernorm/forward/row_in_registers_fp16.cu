// registers.cuh for fp16 rows.
#include "llmc/layernorm/forward/row_in_registers.cuh"

namespace llmc {
template bool layernorm_forward_registers(const LayerNormForward<__half, __half>&, cudaStream_t);
template bool layernorm_forward_registers(const LayerNormForward<__half, float>&, cudaStream_t);
}  // namespace llmc
