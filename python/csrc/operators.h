// The operators below autograd: a kernel each, no derivative. autograd.cpp calls them; in a graph of
// torch.compile they are what stands for LayerNorm.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "python/csrc/calls.h"

namespace plumb::operators {

using MaybeTensorRef = const MaybeTensor&;
using Shape = c10::SymIntArrayRef;

using LayerNorm = Tensor(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, MaybeTensorRef bias,
                         double eps);
using ResidualLayerNorm = std::tuple<Tensor, Tensor>(const Tensor& x, const Tensor& residual,
                                                     Shape normalized_shape, MaybeTensorRef weight,
                                                     MaybeTensorRef bias, double eps);
// dims: how many dimensions are normalised, the last ones. Results: out and statistics
using ForwardOp = std::tuple<Tensor, Tensor>(const Tensor& x, int64_t dims, MaybeTensorRef weight,
                                             MaybeTensorRef bias, double eps);
// out, sum and statistics
using ResidualForwardOp = std::tuple<Tensor, Tensor, Tensor>(const Tensor& x, const Tensor& residual,
                                                             int64_t dims, MaybeTensorRef weight,
                                                             MaybeTensorRef bias, double eps);
// dx (plus dsum, if given), dweight and dbias, of which `wanted` says which
using BackwardOp = std::tuple<Tensor, Tensor, Tensor>(const Tensor& dout, const Tensor& x,
                                                      const Tensor& statistics, int64_t dims,
                                                      MaybeTensorRef weight, MaybeTensorRef dsum,
                                                      at::ScalarType grad_dtype, std::array<bool, 3> wanted);

// found once, when first called
template <typename Signature>
c10::TypedOperatorHandle<Signature> find(const char* name) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

inline const auto& layer_norm() {
    static const auto op = find<LayerNorm>("plumb_layernorm::layer_norm");
    return op;
}
inline const auto& residual_layer_norm() {
    static const auto op = find<ResidualLayerNorm>("plumb_layernorm::residual_layer_norm");
    return op;
}
inline const auto& forward() {
    static const auto op = find<ForwardOp>("plumb_layernorm::forward");
    return op;
}
inline const auto& residual_forward() {
    static const auto op = find<ResidualForwardOp>("plumb_layernorm::residual_forward");
    return op;
}
inline const auto& backward() {
    static const auto op = find<BackwardOp>("plumb_layernorm::backward");
    return op;
}

}  // namespace plumb::operators
