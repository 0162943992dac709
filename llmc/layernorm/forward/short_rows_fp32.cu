// narrow.cuh for fp32 rows.
#include "llmc/layernorm/forward/short_rows.cuh"

namespace llmc {
template bool layernorm_forward_narrow(const LayerNormForward<float, float>&, cudaStream_t);
}  // namespace llmc
