// ring.cuh for fp32 rows.
#include "llmc/layernorm/forward/ring.cuh"

namespace llmc {
template bool layernorm_forward_ring(const LayerNormForward<float, float>&, cudaStream_t);
}  // namespace llmc
