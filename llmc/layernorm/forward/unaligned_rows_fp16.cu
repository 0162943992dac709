// odd.cuh for fp16 rows.
#include "llmc/layernorm/forward/unaligned_rows.cuh"

namespace llmc {
template bool layernorm_forward_odd(const LayerNormForward<__half, __half>&, cudaStream_t);
template bool layernorm_forward_odd(const LayerNormForward<__half, float>&, cudaStream_t);
}  // namespace llmc
