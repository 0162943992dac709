// registers.cuh for fp32 rows.
#include "llmc/layernorm_forward/registers.cuh"

namespace llmc {
template bool layernorm_forward_registers(const LayerNormForward<float, float>&, cudaStream_t);
}  // namespace llmc
