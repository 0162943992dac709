// attention.h's attention_backward_bias(). It is no part of attention's own library, which has no bias.
#include <algorithm>
#include <type_traits>

#include "llmc/cuda/branch.cuh"
#include "llmc/cuda/column_sums.cuh"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/attention/kernels.h"
#include "llmc/ops/matmul/matmul.h"

namespace llmc {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kRows = 64;  // of a sequence, whose sums Hopper's kernels leave

}  // namespace

// behind what attention_backward() needs: their sums; or, when it is done, what bias_backward() needs
size_t attention_backward_bias_scratch(int B, int T, int NH, int HS) {
    size_t sums = HS == kWgmmaHeadSize ? sizeof(float) * B * ceil_div(T, kRows) * 3 * NH * HS : 0;
    return std::max(attention_backward_scratch(B, T, NH) + sums, bias_backward_scratch(3 * NH * HS));
}

template <typename Real, typename Grad>
void attention_backward_bias(Grad* dbias, bool accumulate, Real* dqkv, void* scratch, unsigned* counters,
                             const Real* dout, const Real* qkv, const Real* out, const float* lse, int B,
                             int T, int NH, int HS, cudaStream_t stream, Branch* branch) {
    const int columns = 3 * NH * HS;
    if constexpr (std::is_same_v<Real, bf16>) {
        bool rows = B > 0 && T > 0;
        if (rows && attention_kernels(T, HS, {dqkv, dout, qkv, out, scratch}) == AttentionKernels::kWgmma) {
            float* sums = (float*)((char*)scratch + attention_backward_scratch(B, T, NH));
            attention_backward_wgmma(dqkv, scratch, counters, dout, qkv, out, lse, B, T, NH, stream, sums);
            return finish_columns<Grad, float>({dbias}, {sums, B * ceil_div(T, kRows), columns}, columns,
                                               accumulate, beside(stream, branch));
        }
    }
    attention_backward(dqkv, scratch, counters, dout, qkv, out, lse, B, T, NH, HS, stream);
    bias_backward(dbias, scratch, dqkv, (int64_t)B * T, columns, accumulate, beside(stream, branch));
}

template void attention_backward_bias(float*, bool, float*, void*, unsigned*, const float*, const float*,
                                      const float*, const float*, int, int, int, int, cudaStream_t, Branch*);
template void attention_backward_bias(float*, bool, bf16*, void*, unsigned*, const bf16*, const bf16*,
                                      const bf16*, const float*, int, int, int, int, cudaStream_t, Branch*);
template void attention_backward_bias(bf16*, bool, bf16*, void*, unsigned*, const bf16*, const bf16*,
                                      const bf16*, const float*, int, int, int, int, cudaStream_t, Branch*);

}  // namespace llmc
