// registers.cuh for fp32 rows.
#include "llmc/layernorm/forward/row_in_registers.cuh"

namespace llmc {
template bool layernorm_forward_registers(const LayerNormForward<float, float>&, cudaStream_t);
}  // namespace llmc
