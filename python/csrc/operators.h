// The operators below autograd: a kernel each, no derivative. autograd.cpp calls them; in a graph of
// torch.compile they are what stands for LayerNorm.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "python/csrc/calls.h"

namespace plumb::operators {

using MaybeTensorRef = const MaybeTensor&;
using Shape = c10::SymIntArrayRef;

// of a result beside float32 rows; x's without
using MaybeType = std::optional<at::ScalarType>;

using LayerNorm = Tensor(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, MaybeTensorRef bias,
                         double eps, MaybeType out_dtype);
using ResidualLayerNorm = std::tuple<Tensor, Tensor>(const Tensor& x, const Tensor& residual,
                                                     Shape normalized_shape, MaybeTensorRef weight,
                                                     MaybeTensorRef bias, double eps);
using RmsNorm = Tensor(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, double eps,
                       MaybeType out_dtype);
using ResidualRmsNorm = std::tuple<Tensor, Tensor>(const Tensor& x, const Tensor& residual,
                                                   Shape normalized_shape, MaybeTensorRef weight, double eps);
// rms: RMSNorm, else LayerNorm; dims: how many dimensions are normalised, the last ones. Results: out and statistics
using ForwardOp = std::tuple<Tensor, Tensor>(const Tensor& x, int64_t dims, MaybeTensorRef weight,
                                             MaybeTensorRef bias, double eps, bool rms, MaybeType out_dtype);
// out, sum and statistics
using ResidualForwardOp = std::tuple<Tensor, Tensor, Tensor>(const Tensor& x, const Tensor& residual,
                                                             int64_t dims, MaybeTensorRef weight,
                                                             MaybeTensorRef bias, double eps, bool rms);
// dx (plus dsum, if given), dweight and dbias, of which `wanted` says which
using BackwardOp = std::tuple<Tensor, Tensor, Tensor>(const Tensor& dout, const Tensor& x,
                                                      const Tensor& statistics, int64_t dims,
                                                      MaybeTensorRef weight, MaybeTensorRef dsum,
                                                      at::ScalarType grad_dtype, std::array<bool, 3> wanted,
                                                      bool rms);

// found once, when first called; no two have one signature
template <typename Signature>
struct Operator {
    const char* name;
    const auto& operator()() const {
        static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
        return op;
    }
};
inline constexpr Operator<LayerNorm> layer_norm{"plumb_layernorm::layer_norm"};
inline constexpr Operator<ResidualLayerNorm> residual_layer_norm{"plumb_layernorm::residual_layer_norm"};
inline constexpr Operator<RmsNorm> rms_norm{"plumb_layernorm::rms_norm"};
inline constexpr Operator<ResidualRmsNorm> residual_rms_norm{"plumb_layernorm::residual_rms_norm"};
inline constexpr Operator<ForwardOp> forward{"plumb_layernorm::forward"};
inline constexpr Operator<ResidualForwardOp> residual_forward{"plumb_layernorm::residual_forward"};
inline constexpr Operator<BackwardOp> backward{"plumb_layernorm::backward"};

}  // namespace plumb::operators
