// v2: tiles in shared memory and an online softmax, on the CUDA cores: attention/fp32.cuh, which trains in
//     fp32, on bf16.
// Why:    v1's scores go through memory seven times. Here a block takes 64 queries, walks over tiles of 64 keys
//         and keeps of each row the largest score and the sum of exponentials so far; when the largest grows,
//         what was summed is scaled down (Milakov and Gimelshein 2018, arXiv:1805.02867). Scores exist for
//         one tile at a time.
// Costs:  q and out once, k and v once for every 64 queries, from L2. A row read from shared memory serves 4
//         x 4 scores. As many fp32 operations as v1: 4 x 64 a pair, plus those of the tiles' upper halves.
// Result: 5.3 ms, 2.6 % of the roof at 64x12x1024; H100, 2026-11-25
#include "llmc/cuda/mma.cuh"
#include "llmc/ops/attention/fp32.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {

void v2::attention_forward(bf16* out, float* lse, void*, const bf16* qkv, int B, int T, int NH,
                           cudaStream_t stream) {
    attention_fp32::forward<64, 64>(out, lse, qkv, B, sizes_of(T, NH, 64), stream);
}

}  // namespace llmc
