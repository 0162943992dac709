// The derivatives of layer_norm, rms_norm and those behind a residual, in C++: nothing of a backward pass is Python.
#include <algorithm>
#include <mutex>

#include <ATen/TensorOperators.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "python/csrc/operators.h"

namespace plumb {
namespace {

using operators::MaybeTensorRef;
using operators::MaybeType;
using operators::Shape;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

bool has_tangent(const Tensor* t) {
    return t != nullptr && t->defined() && t->_fw_grad(/*level=*/0).defined();
}

// Nobody else holds the gradient, so that dx may be made in its place. The engine decides likewise when it
// adds gradients.
bool may_overwrite(const Tensor& gradient) {
    return gradient.is_contiguous() && !gradient.is_neg() && !at::isTensorSubclassLike(gradient) &&
           gradient.use_count() == 1 && gradient.has_storage() && gradient.storage().use_count() == 1;
}

// inputs: x, residual (with one), weight, bias; outputs: out, sum (with a residual)
struct LayerNormBackward final : public Node {
    SavedVariable x, weight;  // x: what was normalised
    Tensor statistics;
    int64_t dims = 0;
    Norm norm{};
    at::ScalarType grad_type = at::kFloat;  // of weight and bias
    bool residual = false, has_weight = false, has_bias = false, released = false;

    std::string name() const override {
        if (norm.rms) { return residual ? "PlumbResidualRmsNormBackward" : "PlumbRmsNormBackward"; }
        return residual ? "PlumbResidualLayerNormBackward" : "PlumbLayerNormBackward";
    }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        x.reset_data();
        weight.reset_data();
        statistics.reset();
        released = true;
    }

    variable_list apply(variable_list&& grads) override {
        std::lock_guard<std::mutex> lock(mutex_);
        Tensor dout = std::move(grads[0]), dsum = residual ? std::move(grads[1]) : Tensor();
        size_t inputs = residual ? 2 : 1;  // then come weight and bias
        std::array<bool, 3> wanted{
            task_should_compute_output(0) || (residual && task_should_compute_output(1)),
            task_should_compute_output(inputs), task_should_compute_output(inputs + 1)};
        std::array<Tensor, 3> made{dsum, Tensor(), Tensor()};
        if (dout.defined()) {
            made = {};
            made = gradients(dout, std::move(dsum), wanted);
        }
        variable_list out(inputs, made[0]);
        out.push_back(std::move(made[1]));
        out.push_back(std::move(made[2]));
        return out;
    }

private:
    std::array<Tensor, 3> gradients(const Tensor& dout, Tensor dsum, std::array<bool, 3> wanted) {
        TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
        Tensor rows = residual ? x.unpack(getptr()) : x.unpack();
        MaybeTensor w = has_weight ? MaybeTensor(weight.unpack()) : std::nullopt;
        if (at::GradMode::is_enabled() || has_tangent(&dout) || has_tangent(&dsum)) {
            return differentiable(dout, dsum, rows, w, wanted);
        }
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        // past the dispatcher: not for tensors that are more than their memory
        bool plain = !at::isTensorSubclassLike(dout) && !dout._is_zerotensor() && !dout.is_neg() &&
                     (!w || (!w->_is_zerotensor() && !w->is_neg()));
        if (dsum.defined() && wanted[0] && may_overwrite(dsum) && plain) {
            Gradients made = run_backward(dout, rows, statistics, dims, given(w), grad_type, wanted,
                                          std::move(dsum), norm.rms);
            return {std::move(made.dx), std::move(made.dweight), std::move(made.dbias)};
        }
        MaybeTensor added = dsum.defined() ? MaybeTensor(std::move(dsum)) : std::nullopt;
        auto [dx, dweight, dbias] =
            operators::backward().call(dout, rows, statistics, dims, w, added, grad_type, wanted, norm.rms);
        return {std::move(dx), std::move(dweight), std::move(dbias)};
    }

    // by PyTorch's operators, which have derivatives themselves; in one type, the statistics', as PyTorch's
    // kernels for the CPU and for CUDA take different mixtures
    std::array<Tensor, 3> differentiable(const Tensor& dout, const Tensor& dsum, const Tensor& rows,
                                         const MaybeTensor& w, std::array<bool, 3> wanted) {
        at::ScalarType type = statistics.scalar_type();
        auto normalized_shape = rows.sym_sizes().slice(rows.dim() - dims);
        std::vector<c10::SymInt> each_row(rows.sym_sizes().begin(), rows.sym_sizes().end() - dims);
        each_row.resize(rows.dim(), 1);
        MaybeTensor factor, bias;  // of bias only shape and type are asked for
        if (has_weight) { factor = w->to(type); }
        if (has_bias) { bias = at::empty_symint(normalized_shape, statistics.options()); }
        auto [dx, dweight, dbias] =
            norm.rms ? of_rms_norm(dout.to(type), rows.to(type), factor, wanted[1] && has_weight)
                     : at::native_layer_norm_backward_symint(
                           dout.to(type), rows.to(type), normalized_shape,
                           statistics.select(0, 0).view_symint(each_row),
                           statistics.select(0, 1).view_symint(each_row), factor, bias,
                           {wanted[0], wanted[1] && has_weight, wanted[2] && has_bias});
        if (dx.defined()) { dx = dx.to(rows.scalar_type()); }
        if (dx.defined() && dsum.defined()) { dx = at::add(dx, dsum); }
        if (dweight.defined()) { dweight = dweight.to(grad_type); }
        if (dbias.defined()) { dbias = dbias.to(grad_type); }
        return {dx, dweight, dbias};
    }

    // dx, dweight: from x alone, as 1 / deviation has a derivative, too
    std::tuple<Tensor, Tensor, Tensor> of_rms_norm(const Tensor& dout, const Tensor& rows,
                                                   const MaybeTensor& w, bool wants_weight) const {
        std::vector<int64_t> of_row, before;  // dimensions
        for (int64_t i = 0; i < rows.dim(); i++) { (i < rows.dim() - dims ? before : of_row).push_back(i); }
        auto mean = [&](const Tensor& t) { return at::mean(t, of_row, /*keepdim=*/true); };
        Tensor rstd = at::rsqrt(mean(rows * rows) + norm.eps), xhat = rows * rstd;
        Tensor g = w ? dout * *w : dout, dx = rstd * (g - xhat * mean(g * xhat)), dweight;
        if (wants_weight) { dweight = before.empty() ? dout * xhat : at::sum(dout * xhat, before); }
        return {dx, dweight, Tensor()};
    }
};

// Do PyTorch's own operators take this call? Those below have a derivative in neither a transform of
// torch.func, whose levels all look at them, nor by forward mode.
bool transformed(std::initializer_list<const Tensor*> tensors) {
    return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
           std::any_of(tensors.begin(), tensors.end(), has_tangent);
}

bool requires_grad(const Tensor* t) { return t != nullptr && t->requires_grad(); }

// A node as this PyTorch owns nodes: by std::shared_ptr or, in later versions, by c10::intrusive_ptr.
template <typename Made, typename Owner = decltype(torch::autograd::Edge::function)>
auto make_node() {
    if constexpr (std::is_same_v<Owner, std::shared_ptr<Node>>) {
        // deleteNode takes a long graph apart without recursion; later versions do it otherwise
        return std::shared_ptr<Made>(new Made, [](auto* node) { deleteNode(node); });
    } else {
        return c10::make_intrusive<Made>();
    }
}

// without x, which is saved once it is known to be an output or an input
auto new_node(const Tensor& x, const Tensor* residual, int64_t dims, const Tensor* weight, const Tensor* bias,
              const Norm& norm) {
    auto node = make_node<LayerNormBackward>();
    torch::autograd::edge_list edges;
    edges.reserve(4);
    auto add = [&](const Tensor* t) {
        edges.push_back(t != nullptr ? torch::autograd::impl::gradient_edge(*t) : torch::autograd::Edge());
    };
    add(&x);
    if (residual != nullptr) { add(residual); }
    add(weight);
    add(bias);
    node->set_next_edges(std::move(edges));
    node->residual = residual != nullptr;
    node->dims = dims;
    node->norm = norm;
    const Tensor* parameter = weight != nullptr ? weight : bias != nullptr ? bias : &x;
    node->grad_type = parameter->scalar_type();
    node->has_weight = weight != nullptr;
    node->has_bias = bias != nullptr;
    if (weight != nullptr) { node->weight = SavedVariable(*weight, /*is_output=*/false); }
    return node;
}

// pytorch(): PyTorch's own operator; unrecorded(): this package's, where nothing learns
template <typename PyTorch, typename Unrecorded>
Tensor norm(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, MaybeTensorRef bias,
            const Norm& norm, MaybeType out_dtype, const PyTorch& pytorch, const Unrecorded& unrecorded) {
    const Tensor *w = given(weight), *b = given(bias);
    at::ScalarType type = out_dtype.value_or(x.scalar_type());
    if (!takes(x, normalized_shape, w, b) || !takes_out(x, type) || transformed({&x, w, b})) {
        return out_dtype ? pytorch().to(type) : pytorch();
    }
    bool learns = at::GradMode::is_enabled() && (requires_grad(&x) || requires_grad(w) || requires_grad(b));
    if (!learns) {
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        return unrecorded();
    }
    auto node = new_node(x, nullptr, (int64_t)normalized_shape.size(), w, b, norm);
    node->x = SavedVariable(x, /*is_output=*/false);
    Tensor out;
    {
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        std::tie(out, node->statistics) =
            operators::forward().call(x, node->dims, weight, bias, norm.eps, norm.rms, out_dtype);
    }
    torch::autograd::set_history(out, node);
    return out;
}

// behind(sum): the norm by its own operator, where PyTorch has added x and residual
template <typename Behind, typename Unrecorded>
std::tuple<Tensor, Tensor> residual_norm(const Tensor& x, const Tensor& residual, Shape normalized_shape,
                                         MaybeTensorRef weight, MaybeTensorRef bias, const Norm& norm,
                                         const Behind& behind, const Unrecorded& unrecorded) {
    const Tensor *w = given(weight), *b = given(bias);
    if (!takes_residual(x, residual) || !takes(x, normalized_shape, w, b) ||
        transformed({&x, &residual, w, b})) {
        Tensor sum = at::add(x, residual);
        return {behind(sum), sum};
    }
    bool learns = at::GradMode::is_enabled() &&
                  (requires_grad(&x) || requires_grad(&residual) || requires_grad(w) || requires_grad(b));
    if (!learns) {
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        return unrecorded();
    }
    auto node = new_node(x, &residual, (int64_t)normalized_shape.size(), w, b, norm);
    Tensor out, sum;
    {
        at::AutoDispatchBelowADInplaceOrView below_autograd;
        std::tie(out, sum, node->statistics) =
            operators::residual_forward().call(x, residual, node->dims, weight, bias, norm.eps, norm.rms);
    }
    torch::autograd::set_history(variable_list{out, sum}, node);
    node->x = SavedVariable(sum, /*is_output=*/true);
    return {out, sum};
}

Tensor layer_norm(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, MaybeTensorRef bias,
                  double eps, MaybeType out_dtype) {
    return norm(
        x, normalized_shape, weight, bias, {eps}, out_dtype,
        [&] { return at::layer_norm_symint(x, normalized_shape, weight, bias, eps); },
        [&] { return operators::layer_norm().call(x, normalized_shape, weight, bias, eps, out_dtype); });
}

Tensor rms_norm(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, double eps,
                MaybeType out_dtype) {
    return norm(
        x, normalized_shape, weight, std::nullopt, {eps, true}, out_dtype,
        [&] { return at::rms_norm_symint(x, normalized_shape, weight, eps); },
        [&] { return operators::rms_norm().call(x, normalized_shape, weight, eps, out_dtype); });
}

std::tuple<Tensor, Tensor> residual_layer_norm(const Tensor& x, const Tensor& residual,
                                               Shape normalized_shape, MaybeTensorRef weight,
                                               MaybeTensorRef bias, double eps) {
    return residual_norm(
        x, residual, normalized_shape, weight, bias, {eps},
        [&](const Tensor& sum) {
            return operators::layer_norm().call(sum, normalized_shape, weight, bias, eps, {});
        },
        [&] {
            return operators::residual_layer_norm().call(x, residual, normalized_shape, weight, bias, eps);
        });
}

std::tuple<Tensor, Tensor> residual_rms_norm(const Tensor& x, const Tensor& residual, Shape normalized_shape,
                                             MaybeTensorRef weight, double eps) {
    return residual_norm(
        x, residual, normalized_shape, weight, std::nullopt, {eps, true},
        [&](const Tensor& sum) { return operators::rms_norm().call(sum, normalized_shape, weight, eps, {}); },
        [&] { return operators::residual_rms_norm().call(x, residual, normalized_shape, weight, eps); });
}

}  // namespace

TORCH_LIBRARY_IMPL(plumb_layernorm, Autograd, m) {
    m.impl("layer_norm", &layer_norm);
    m.impl("residual_layer_norm", &residual_layer_norm);
    m.impl("rms_norm", &rms_norm);
    m.impl("residual_rms_norm", &residual_rms_norm);
}

}  // namespace plumb
