// v1: the formulas, a kernel a line: dot; p and ds of all pairs; dq, a thread an element; dk and dv likewise.
// Why:    what one writes first. p and ds lie in memory between the kernels, as the formulas have them.
// Costs:  8 T^2 bytes a head, written once, then read 4 bytes for each of dq, dk, dv and each query and key.
//         Five products.
// Result: 119 ms, 0.3 % of the roof at 64x12x1024; H100, 2026-11-25
#include "llmc/ops/attention/ladder/pairs.cuh"
#include "llmc/ops/attention/ladder/rungs.h"

namespace llmc {
namespace v1 {
namespace {

// all that the kernels read; p, ds (B NH,T,T)
struct Pairs {
    const bf16 *qkv, *dout;
    const float *lse, *dot;
    float *p, *ds;
};

// of keys up to the query
__global__ void pairs_kernel(Pairs x, AttentionSizes s) {
    int key = blockIdx.x * blockDim.x + threadIdx.x, query = blockIdx.y, head = blockIdx.z;
    if (key > query) { return; }
    int64_t row = (int64_t)head * s.T + query;
    float score = dot_product(row_of(x.qkv, s, head, 3, 0, query), row_of(x.qkv, s, head, 3, 1, key));
    float dp = dot_product(row_of(x.dout, s, head, 1, 0, query), row_of(x.qkv, s, head, 3, 2, key));
    float p = expf(s.scale * score - x.lse[row]);
    x.p[row * s.T + key] = p;
    x.ds[row * s.T + key] = p * (dp - x.dot[row]) * s.scale;
}

__global__ void dq_kernel(bf16* dqkv, Pairs x, AttentionSizes s) {
    int c = threadIdx.x, query = blockIdx.x * blockDim.y + threadIdx.y, head = blockIdx.y;
    if (query >= s.T) { return; }
    const float* ds = x.ds + ((int64_t)head * s.T + query) * s.T;
    const bf16* k = row_of(x.qkv, s, head, 3, 1, 0) + c;
    float sum = 0;
    for (int j = 0; j <= query; j++) { sum += ds[j] * (float)k[(int64_t)j * 3 * s.NH * kHeadSize]; }
    const_cast<bf16*>(row_of(dqkv, s, head, 3, 0, query))[c] = (bf16)sum;
}

__global__ void dkv_kernel(bf16* dqkv, Pairs x, AttentionSizes s) {
    int c = threadIdx.x, key = blockIdx.x * blockDim.y + threadIdx.y, head = blockIdx.y;
    if (key >= s.T) { return; }
    const bf16 *q = row_of(x.qkv, s, head, 3, 0, 0) + c, *d = row_of(x.dout, s, head, 1, 0, 0) + c;
    float dk = 0, dv = 0;
    for (int64_t i = key; i < s.T; i++) {
        int64_t pair = ((int64_t)head * s.T + i) * s.T + key;
        dk += x.ds[pair] * (float)q[i * 3 * s.NH * kHeadSize];
        dv += x.p[pair] * (float)d[i * s.NH * kHeadSize];
    }
    const_cast<bf16*>(row_of(dqkv, s, head, 3, 1, key))[c] = (bf16)dk;
    const_cast<bf16*>(row_of(dqkv, s, head, 3, 2, key))[c] = (bf16)dv;
}

}  // namespace

// dot, then p and ds
size_t attention_backward_scratch(int B, int T, int NH) {
    return llmc::attention_backward_scratch(B, T, NH) + 2 * scores_bytes(B, T, NH);
}

void attention_backward(bf16* dqkv, void* scratch, const bf16* dout, const bf16* qkv, const bf16* out,
                        const float* lse, int B, int T, int NH, cudaStream_t stream) {
    AttentionSizes sizes = sizes_of(T, NH);
    float *dot = (float*)scratch, *p = dot + llmc::attention_backward_scratch(B, T, NH) / sizeof(float);
    Pairs pairs{qkv, dout, lse, dot, p, p + scores_bytes(B, T, NH) / sizeof(float)};
    int64_t rows = (int64_t)B * T * NH;
    attention_dot_kernel<kWarp, 2><<<grid_x(ceil_div(rows, kThreads / kWarp)), kThreads, 0, stream>>>(
        dot, dout, out, rows, T, NH, kHeadSize);
    check_launch();
    pairs_kernel<<<grid_of_pairs(B, T, NH), kThreads, 0, stream>>>(pairs, sizes);
    check_launch();
    dq_kernel<<<grid_of_rows(B, T, NH), block_of_rows(), 0, stream>>>(dqkv, pairs, sizes);
    check_launch();
    dkv_kernel<<<grid_of_rows(B, T, NH), block_of_rows(), 0, stream>>>(dqkv, pairs, sizes);
    check_launch();
}

}  // namespace v1
}  // namespace llmc
