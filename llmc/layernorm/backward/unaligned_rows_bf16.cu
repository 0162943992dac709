// odd.cuh for bf16 rows.
#include "llmc/layernorm/backward/unaligned_rows.cuh"

namespace llmc {
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<__nv_bfloat16, __nv_bfloat16>&,
                                             cudaStream_t);
template ColumnGroups layernorm_backward_odd(const LayerNormBackwardRows<__nv_bfloat16, float>&,
                                             cudaStream_t);
}  // namespace llmc
