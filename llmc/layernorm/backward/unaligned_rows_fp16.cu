// odd.cuh for fp16 rows.
#include "llmc/layernorm/backward/unaligned_rows.cuh"

namespace llmc {
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<__half, __half>&, cudaStream_t);
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<__half, float>&, cudaStream_t);
}  // namespace llmc
