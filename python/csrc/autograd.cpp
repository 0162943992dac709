// torch.ops.plumb_layernorm: layer_norm, rms_norm and those behind a residual, with their derivatives in C++: nothing of a
// backward pass is Python. Each is CompositeImplicitAutograd, one function for every key: what the library does not take is
// PyTorch's operator for whoever looks at operators, as subclasses of Tensor, dispatch modes and torch.func's transforms do.
#include <algorithm>
#include <mutex>

#include <ATen/TensorOperators.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include "llmc/layernorm/c_abi.h"
#include "python/csrc/calls.h"

namespace plumb {
namespace {

using MaybeTensorRef = const MaybeTensor&;
using MaybeType = std::optional<at::ScalarType>;  // of a result beside float32 rows; x's without
using Shape = c10::SymIntArrayRef;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Are these no more than their memory? Else the kernels would miss a dispatch mode or a transform that looks at all
// operators, a derivative by forward mode, or that the memory has the negative.
bool are_plain(std::initializer_list<const Tensor*> tensors) {
    return std::none_of(tensors.begin(), tensors.end(), [](const Tensor* t) {
        return t != nullptr && t->defined() &&
               (at::isTensorSubclassLike(*t) || t->_is_zerotensor() || t->is_neg() ||
                t->_fw_grad(/*level=*/0).defined());
    });
}

// Nobody else holds the gradient, so that dx may be made in its place. The engine decides likewise when it
// adds gradients.
bool may_overwrite(const Tensor& gradient) {
    return gradient.is_contiguous() && gradient.use_count() == 1 && gradient.has_storage() &&
           gradient.storage().use_count() == 1;
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
        // hooks of saved tensors may have put something else in their place
        bool fits = takes(rows, rows.sym_sizes().slice(rows.dim() - dims), given(w), nullptr) &&
                    lies_like(rows, dout) && takes_out(rows, dout.scalar_type()) &&
                    (!dsum.defined() || takes_residual(rows, dsum));
        if (at::GradMode::is_enabled() || !fits || !are_plain({&dout, &dsum, &rows, given(w)})) {
            return differentiable(dout, dsum, rows, w, wanted);
        }
        Tensor dx;
        if (dsum.defined() && wanted[0]) {
            dx = may_overwrite(dsum) ? std::move(dsum) : dsum.clone(at::MemoryFormat::Contiguous);
        }
        Gradients made =
            run_backward(dout, rows, statistics, dims, given(w), grad_type, wanted, std::move(dx), norm.rms);
        return {std::move(made.dx), std::move(made.dweight), std::move(made.dbias)};
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

bool any_learns(std::initializer_list<const Tensor*> tensors) {
    return at::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), [](const Tensor* t) {
               return t != nullptr && t->requires_grad();
           });
}

// pytorch(): PyTorch's own operator
template <typename PyTorch>
Tensor run_norm(const Tensor& x, Shape normalized_shape, const Tensor* w, const Tensor* b, const Norm& norm,
                MaybeType out_dtype, const PyTorch& pytorch) {
    at::ScalarType type = out_dtype.value_or(x.scalar_type());
    if (!takes(x, normalized_shape, w, b) || !takes_out(x, type) || !are_plain({&x, w, b})) {
        return out_dtype ? pytorch().to(type) : pytorch();
    }
    bool learns = any_learns({&x, w, b});
    auto dims = (int64_t)normalized_shape.size();
    Forward made = run_forward(x, nullptr, dims, w, b, norm, /*want_statistics=*/learns, type);
    if (learns) {
        auto node = new_node(x, nullptr, dims, w, b, norm);
        node->x = SavedVariable(x, /*is_output=*/false);
        node->statistics = std::move(made.statistics);
        torch::autograd::set_history(made.out, node);
    }
    return std::move(made.out);
}

// behind(sum): the norm alone, where PyTorch has added x and residual
template <typename Behind>
std::tuple<Tensor, Tensor> run_residual_norm(const Tensor& x, const Tensor& residual, Shape normalized_shape,
                                             const Tensor* w, const Tensor* b, const Norm& norm,
                                             const Behind& behind) {
    if (!takes_residual(x, residual) || !takes(x, normalized_shape, w, b) ||
        !are_plain({&x, &residual, w, b})) {
        Tensor sum = at::add(x, residual);
        return {behind(sum), sum};
    }
    bool learns = any_learns({&x, &residual, w, b});
    auto dims = (int64_t)normalized_shape.size();
    Forward made = run_forward(x, &residual, dims, w, b, norm, /*want_statistics=*/learns, x.scalar_type());
    if (learns) {
        auto node = new_node(x, &residual, dims, w, b, norm);
        node->statistics = std::move(made.statistics);
        torch::autograd::set_history(variable_list{made.out, made.sum}, node);
        node->x = SavedVariable(made.sum, /*is_output=*/true);
    }
    return {std::move(made.out), std::move(made.sum)};
}

Tensor layer_norm(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, MaybeTensorRef bias,
                  double eps, MaybeType out_dtype) {
    return run_norm(x, normalized_shape, given(weight), given(bias), {eps}, out_dtype,
                    [&] { return at::layer_norm_symint(x, normalized_shape, weight, bias, eps); });
}

Tensor rms_norm(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, double eps,
                MaybeType out_dtype) {
    return run_norm(x, normalized_shape, given(weight), nullptr, {eps, true}, out_dtype,
                    [&] { return at::rms_norm_symint(x, normalized_shape, weight, eps); });
}

std::tuple<Tensor, Tensor> residual_layer_norm(const Tensor& x, const Tensor& residual,
                                               Shape normalized_shape, MaybeTensorRef weight,
                                               MaybeTensorRef bias, double eps) {
    return run_residual_norm(
        x, residual, normalized_shape, given(weight), given(bias), {eps},
        [&](const Tensor& sum) { return layer_norm(sum, normalized_shape, weight, bias, eps, {}); });
}

std::tuple<Tensor, Tensor> residual_rms_norm(const Tensor& x, const Tensor& residual, Shape normalized_shape,
                                             MaybeTensorRef weight, double eps) {
    return run_residual_norm(
        x, residual, normalized_shape, given(weight), nullptr, {eps, true},
        [&](const Tensor& sum) { return rms_norm(sum, normalized_shape, weight, eps, {}); });
}

}  // namespace

TORCH_LIBRARY(plumb_layernorm, m) {
    TORCH_CHECK(llmc_layernorm_abi_version() >= LLMC_LAYERNORM_ABI_VERSION,
                "plumb_layernorm: libllmc_layernorm.so has ABI ", "version ", llmc_layernorm_abi_version(),
                ", expected ", (int)LLMC_LAYERNORM_ABI_VERSION, " or newer: was another one loaded before?");
    m.def(
        "layer_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float "
        "eps=1e-05, ScalarType? out_dtype=None) -> Tensor",
        &layer_norm);
    m.def(
        "residual_layer_norm(Tensor x, Tensor residual, SymInt[] normalized_shape, Tensor? weight=None, "
        "Tensor? bias=None, float eps=1e-05) -> (Tensor out, Tensor sum)",
        &residual_layer_norm);
    m.def(
        "rms_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight, float eps, ScalarType? "
        "out_dtype=None) -> Tensor",
        &rms_norm);
    m.def(
        "residual_rms_norm(Tensor x, Tensor residual, SymInt[] normalized_shape, Tensor? weight, float eps)"
        " -> (Tensor out, Tensor sum)",
        &residual_rms_norm);
}

}  // namespace plumb
