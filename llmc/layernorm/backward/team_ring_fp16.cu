// ring.cuh for fp16 rows.
#include "llmc/layernorm/backward/team_ring.cuh"

namespace llmc {
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<__half, __half>&, cudaStream_t);
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<__half, float>&, cudaStream_t);
}  // namespace llmc
