// Matmul and attention of the CPU model, through a BLAS. Same contracts as their twins in reference.h, float
// only. They must be called outside parallel regions: the BLAS has threads of its own.
#pragma once
#include <cstdint>

namespace llmc {

// out (N,OC) with rows ldo elements apart = inp (N,C) weight (OC,C)^T + bias (OC) or null
void matmul_forward_blas(float* out, int64_t ldo, const float* inp, const float* weight, const float* bias,
                         int64_t N, int C, int OC);

// dinp (N,C) = dout weight; dweight (OC,C) += dout^T inp; dbias (OC) or null += sums over dout's rows (ldo apart)
void matmul_backward_blas(float* dinp, float* dweight, float* dbias, const float* dout, int64_t ldo,
                          const float* inp, const float* weight, int64_t N, int C, int OC);

// x (rows,cols) in place, as newton_schulz_cpu of reference.h makes it; and the floats of its scratch
void newton_schulz_blas(float* x, float* scratch, int rows, int cols);
int64_t newton_schulz_scratch_blas(int rows, int cols);

// floats of scratch that the two attention functions need
int64_t attention_scratch_blas(int T);

void attention_forward_blas(float* out, float* lse, float* scratch, const float* qkv, int B, int T, int C,
                            int NH);
void attention_backward_blas(float* dqkv, float* scratch, const float* dout, const float* qkv,
                             const float* out, const float* lse, int B, int T, int C, int NH);

// the library that computes, and its threads
int blas_threads();
const char* blas_name();

// FLOP/s of one large matrix product, measured for half a second: what this machine can do now, beside its other work
double measure_blas_speed();

}  // namespace llmc
