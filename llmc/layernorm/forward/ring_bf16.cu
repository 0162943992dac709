// ring.cuh for bf16 rows.
#include "llmc/layernorm/forward/ring.cuh"

namespace llmc {
template bool layernorm_forward_ring(const LayerNormForward<__nv_bfloat16, __nv_bfloat16>&, cudaStream_t);
template bool layernorm_forward_ring(const LayerNormForward<__nv_bfloat16, float>&, cudaStream_t);
}  // namespace llmc
