// ring.cuh for fp32 rows.
#include "llmc/layernorm/backward/team_ring.cuh"

namespace llmc {
template ColumnGroups layernorm_backward_ring(const LayerNormBackwardRows<float, float>&, cudaStream_t);
}  // namespace llmc
