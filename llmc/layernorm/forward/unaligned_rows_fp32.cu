// odd.cuh for fp32 rows.
#include "llmc/layernorm/forward/unaligned_rows.cuh"

namespace llmc {
template bool layernorm_forward_odd(const LayerNormForward<float, float>&, cudaStream_t);
}  // namespace llmc
