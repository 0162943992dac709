// ring.cuh for bf16 rows.
#include "llmc/layernorm/backward/team_ring.cuh"

namespace llmc {
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<__nv_bfloat16, __nv_bfloat16>&,
                                              cudaStream_t);
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<__nv_bfloat16, float>&,
                                              cudaStream_t);
}  // namespace llmc
