// attention.h's attention_backward_bias(). It is no part of attention's own library, which has no bias.
#include <algorithm>
#include <type_traits>

#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/resources.cuh"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/attention/kernels.h"
#include "llmc/ops/column_sums/bias.h"

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
void attention_backward_bias(const AttentionBackwardBias<Real, Grad>& call, cudaStream_t stream,
                             Branch* branch) {
    const auto& [dbias, accumulate, dqkv, scratch, counters, dout, qkv, out, lse, B, T, NH, HS] = call;
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

template void attention_backward_bias(const AttentionBackwardBias<float, float>&, cudaStream_t, Branch*);
template void attention_backward_bias(const AttentionBackwardBias<bf16, float>&, cudaStream_t, Branch*);
template void attention_backward_bias(const AttentionBackwardBias<bf16, bf16>&, cudaStream_t, Branch*);

}  // namespace llmc
