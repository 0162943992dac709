// odd.cuh for fp32 rows.
#include "llmc/layernorm/backward/unaligned_rows.cuh"

namespace llmc {
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<float, float>&, cudaStream_t);
}  // namespace llmc
