// narrow.cuh for fp32 rows.
#include "llmc/layernorm/backward/short_rows.cuh"

namespace llmc {
template ColumnGroups layernorm_backward_narrow(const LayerNormBackwardRows<float, float>&, cudaStream_t);
}  // namespace llmc
