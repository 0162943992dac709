// odd.cuh for fp32 rows.
#include "llmc/layernorm_forward/odd.cuh"

namespace llmc {
template bool layernorm_forward_odd(const LayerNormForward<float, float>&, cudaStream_t);
}  // namespace llmc
