// attention.h's attention_backward_bias(). It is no part of attention's own library, which has no bias.
#include <type_traits>

#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/resources.cuh"
#include "llmc/ops/attention/attention.h"
#include "llmc/ops/column_sums/bias.h"

namespace llmc {

using bf16 = __nv_bfloat16;

static constexpr int kRows = 64;  // of a sequence, whose sums Hopper's kernels leave

// behind what attention_backward() needs: their sums; or, when it is done, what bias_backward() needs
size_t attention_backward_bias_scratch(int B, int T, int NH, int HS) {
    size_t sums = HS == kWgmmaHeadSize ? sizeof(float) * B * ceil_div(T, kRows) * 3 * NH * HS : 0;
    return std::max(attention_backward_scratch(B, T, NH) + sums, bias_backward_scratch(3 * NH * HS));
}

template <typename Real, typename Grad>
void attention_backward_bias(Grad* dbias, bool accumulate, const AttentionBackward<Real>& c,
                             cudaStream_t stream, Branch* branch) {
    const int columns = 3 * c.NH * c.HS;
    if constexpr (std::is_same_v<Real, bf16>) {
        if (c.B > 0 && attention_by_wgmma(c.T, c.HS)) {
            float* sums = (float*)((char*)c.scratch + attention_backward_scratch(c.B, c.T, c.NH));
            attention_backward_wgmma(c, stream, sums);
            return finish_columns<Grad, float>({dbias}, {sums, c.B * ceil_div(c.T, kRows), columns}, columns,
                                               accumulate, beside(stream, branch));
        }
    }
    attention_backward(c, stream);
    bias_backward(dbias, c.scratch, c.dqkv, (int64_t)c.B * c.T, columns, accumulate, beside(stream, branch));
}

template decltype(attention_backward_bias<float, float>) attention_backward_bias<float, float>;
template decltype(attention_backward_bias<bf16, float>) attention_backward_bias<bf16, float>;
template decltype(attention_backward_bias<bf16, bf16>) attention_backward_bias<bf16, bf16>;

}  // namespace llmc
