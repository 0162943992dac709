// LayerNorm backward: the call goes to the kernel that choose.h chooses; the sums by column that it leaves are added up.
// Those of dinp, where it leaves none, are made by another pass over dinp.
#include <bit>

#include "llmc/cuda/column_sums.cuh"
#include "llmc/cuda/resources.cuh"
#include "llmc/layernorm/kernel.cuh"

namespace llmc {

using namespace layernorm;

// Of each set of sums 128 groups of doubles, or 256 of floats.
static_assert(layouts::kMostGroups * sizeof(float) == kColumnGroups * sizeof(double));
size_t layernorm_backward_scratch(int C) {
    int sets = C <= kSummedColumns ? 3 : 2;
    return sets * sizeof(double) * kColumnGroups * (size_t)C;
}

template <typename T, typename W, typename Out>
ColumnGroups launch(const LayerNormBackwardRows<T, W, Out>& call, const Choice& choice, cudaStream_t stream) {
    if constexpr (!std::is_same_v<T, double>) {
        if (choice.kernel == Kernel::kTeamRing) { return team_ring_backward::launch(call, choice, stream); }
    }
    if constexpr (!std::is_same_v<T, double> && std::is_same_v<T, Out>) {
        if (choice.kernel == Kernel::kShortRows) { return short_rows_backward::launch(call, choice, stream); }
        if (choice.kernel == Kernel::kUnalignedRows) {
            return unaligned_rows_backward::launch(call, choice, stream);
        }
    }
    return fallback_backward::launch(call, choice, stream);
}

// the call that the kernels are given; dweight, dbias and dinp_sums, whose type alone differs, stay with what adds them up
template <typename T, typename Grad, typename W, typename Out>
LayerNormBackwardRows<T, W, Out> rows_of(const LayerNormBackward<T, Grad, W, Out>& given) {
    LayerNormBackwardRows<T, W, Out> call{std::bit_cast<LayerNormBackward<T, float, W, Out>>(given)};
    call.dweight = call.dbias = call.dinp_sums = nullptr;
    for (int64_t* stride :
         {&call.dinp_stride, &call.dout_stride, &call.inp_stride, &call.dropped_stride, &call.copy_stride}) {
        if (*stride == 0) { *stride = call.C; }
    }
    if (call.rms) { call.mean = call.rstd; }  // something to read
    Grad* dinp_sums =
        given.dropped == nullptr || kDrops<T, W> ? given.dinp_sums : nullptr;  // else they come later
    call.sum_dinp = dinp_sums != nullptr;
    call.columns = given.dweight != nullptr || given.dbias != nullptr;
    bool at_once = given.N == 1 && aligned(given.dweight, given.dbias, given.dinp_sums);
    call.of_one_row = {at_once,  std::is_same_v<Grad, float>, given.accumulate, given.dweight, given.dbias,
                       dinp_sums};
    return call;
}

// by this kernel, or where that is none the one that is chosen; false: it does not take the call
template <typename T, typename Grad, typename W, typename Out>
bool backward(const LayerNormBackward<T, Grad, W, Out>& given, const std::optional<Kernel>& by,
              cudaStream_t stream, Branch* branch) {
    using Acc = acc_t<T>;
    require(given.C > 0 && given.N >= 0, "layernorm_backward: C must be positive, N not negative");
    require(
        given.dinp_sums == nullptr || given.dinp != nullptr || given.N == 0,
        "layernorm_backward: dinp_sums are wanted, but dinp is null: give memory for both, or null for both");
    require((given.dropped != nullptr) == (given.dropout.rows != nullptr) &&
                (given.dropped == nullptr || given.dinp != nullptr),
            "layernorm_backward: dropped, dropout and dinp go together");
    require(given.copy == nullptr ||
                (!std::is_same_v<T, Out> && given.dinp != nullptr && given.dropped == nullptr),
            "layernorm_backward: copy is of dinp, of 16 bits beside rows of float, and without dropout");
    const LayerNormBackwardRows<T, W, Out> call = rows_of(given);
    ColumnGroups groups;
    if (call.N > 0) {
        const Call shape = packed(call);
        const bool launched = launch_chosen(
            this_gpu(sum_columns_kernel<T, 1>),
            [&](const Gpu& gpu) {
                return by ? choose_backward_by(*by, shape, gpu) : choose_backward(shape, gpu);
            },
            [&](const Choice& choice) { return (groups = launch(call, choice, stream)).count > 0; });
        if (!launched) { return false; }
    }
    const bool drops = call.dropped != nullptr && call.N > 0;
    if (drops && !groups.dropped) {
        layernorm_add_dropped<T>(call.dropped, nullptr, call.dinp, call.N, call.C,
                                 {call.dropped_stride, call.C, call.dinp_stride}, call.dropout, stream);
    }
    const bool another_pass = given.dinp_sums != nullptr && !groups.dinp;
    if (another_pass) { branch = nullptr; }
    if (call.columns && !groups.done) {  // no rows: no groups, and the sums are 0
        int stride = groups.stride > 0 ? groups.stride : call.C;
        ColumnPartials<Acc> partials{(const Acc*)call.scratch, groups.count, stride,
                                     groups.early && branch == nullptr};
        finish_columns<Grad, Acc>({given.dweight, given.dbias, groups.dinp ? given.dinp_sums : nullptr},
                                  partials, call.C, given.accumulate, beside(stream, branch));
    }
    if (another_pass) {
        sum_columns(given.dinp_sums, call.scratch, drops ? call.dropped : call.dinp,
                    drops ? call.dropped_stride : call.dinp_stride, call.N, call.C, given.accumulate, stream);
    }
    return true;
}

template <typename T, typename Grad, typename W, typename Out>
void layernorm_backward(const LayerNormBackward<T, Grad, W, Out>& given, cudaStream_t stream,
                        Branch* branch) {
    backward(given, {}, stream, branch);
}

template <typename T, typename Grad, typename W, typename Out>
bool layernorm_backward_by(Kernel kernel, const LayerNormBackward<T, Grad, W, Out>& given,
                           cudaStream_t stream) {
    return backward(given, kernel, stream, nullptr);
}

using bf16 = __nv_bfloat16;
template void layernorm_backward(const LayerNormBackward<float, float, float>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<bf16, float, bf16>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<bf16, bf16, bf16>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<bf16, float, float>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<__half, float, __half>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<__half, __half, __half>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<__half, float, float>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<double, double, double>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<float, float, float, bf16>&, cudaStream_t, Branch*);
template void layernorm_backward(const LayerNormBackward<float, float, float, __half>&, cudaStream_t,
                                 Branch*);
template bool layernorm_backward_by(Kernel, const LayerNormBackward<float, float, float>&, cudaStream_t);
template bool layernorm_backward_by(Kernel, const LayerNormBackward<bf16, bf16, bf16>&, cudaStream_t);
template bool layernorm_backward_by(Kernel, const LayerNormBackward<__half, __half, __half>&, cudaStream_t);

}  // namespace llmc
