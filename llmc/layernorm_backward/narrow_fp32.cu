// narrow.cuh for fp32 rows.
#include "llmc/layernorm_backward/narrow.cuh"

namespace llmc {
template ColumnGroups layernorm_backward_narrow(const LayerNormBackwardRows<float, float>&, cudaStream_t);
}  // namespace llmc
