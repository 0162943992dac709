// narrow.cuh for fp16 rows.
#include "llmc/layernorm/forward/short_rows.cuh"

namespace llmc {
template bool layernorm_forward_narrow(const LayerNormForward<__half, __half>&, cudaStream_t);
template bool layernorm_forward_narrow(const LayerNormForward<__half, float>&, cudaStream_t);
}  // namespace llmc
