// v2: tiles in shared memory, on the CUDA cores: attention/fp32.cuh, which trains in fp32, on bf16.
// Why:    v1 writes p and ds and reads them again. Here two kernels compute them a tile at a time and forget
//         them: one walks over the queries of 64 keys and adds up dk and dv, one over the keys of 64 queries
//         and adds up dq. So each element has one writer and a fixed order; the price is that p and ds are
//         computed twice.
// Costs:  seven products instead of five, 14 x 64 operations of fp32 a pair, and two exponentials; no T^2
//         bytes.
// Result: 16.1 ms, 2.1 % of the roof at 64x12x1024; H100, 2026-11-25
#include "llmc/cuda/mma.cuh"
#include "llmc/ops/attention/fp32.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {

void v2::attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                            const float* lse, int B, int T, int NH, cudaStream_t stream) {
    auto sizes = sizes_of(T, NH, 64);
    float* dot = (float*)scratch;
    find_dots<kWarp, 1>(dot, dout, out, B, sizes, stream);
    attention_fp32::backward<64, 64>(dqkv, dout, qkv, lse, dot, B, sizes, stream);
}

}  // namespace llmc
