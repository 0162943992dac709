// torch.ops.plumb_layernorm: schemas, kernels and shapes. Derivatives: autograd.cpp
#include "python/csrc/operators.h"

#include <ATen/ops/add.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/library.h>

#include "device.h"  // of python/csrc/cuda or python/test/host
#include "llmc/layernorm/c_abi.h"

namespace plumb {
namespace {

using operators::MaybeTensorRef;
using operators::MaybeType;
using operators::Shape;

Shape last(const Tensor& x, int64_t dims) {
    TORCH_CHECK_VALUE(dims > 0 && dims <= x.dim(), "plumb_layernorm: dims is ", dims, ", expected 1 to ",
                      x.dim());
    return x.sym_sizes().slice(x.dim() - dims);
}

void require_taken(const Tensor& x, int64_t dims, const Tensor* weight, const Tensor* bias) {
    TORCH_CHECK_VALUE(
        takes(x, last(x, dims), weight, bias), "plumb_layernorm: x is ", x.sizes(), " of ", x.scalar_type(),
        " on ", x.device(), ", dims ", dims,
        "; expected float32, bfloat16, float16 or float64 on a CUDA device, and weight and bias of x's last "
        "dims dimensions, of x's type or both of float32 beside 16 bits");
}

// ---- what users call, below autograd: in inference mode, and where nothing learns -------------------------
Tensor layer_norm(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, MaybeTensorRef bias,
                  double eps, MaybeType out_dtype) {
    const Tensor *w = given(weight), *b = given(bias);
    at::ScalarType out = out_dtype.value_or(x.scalar_type());
    if (!takes(x, normalized_shape, w, b) || !takes_out(x, out)) {
        Tensor y = at::layer_norm_symint(x, normalized_shape, weight, bias, eps);
        return out_dtype ? y.to(out) : y;
    }
    return run_forward(x, nullptr, (int64_t)normalized_shape.size(), w, b, {eps}, /*want_statistics=*/false,
                       out)
        .out;
}

Tensor rms_norm(const Tensor& x, Shape normalized_shape, MaybeTensorRef weight, double eps,
                MaybeType out_dtype) {
    const Tensor* w = given(weight);
    at::ScalarType out = out_dtype.value_or(x.scalar_type());
    if (!takes(x, normalized_shape, w, nullptr) || !takes_out(x, out)) {
        Tensor y = at::rms_norm_symint(x, normalized_shape, weight, eps);
        return out_dtype ? y.to(out) : y;
    }
    return run_forward(x, nullptr, (int64_t)normalized_shape.size(), w, nullptr, {eps, true},
                       /*want_statistics=*/false, out)
        .out;
}

// behind(sum): the norm by its own operator, where another one has added x and residual
template <typename Behind>
std::tuple<Tensor, Tensor> residual_norm(const Tensor& x, const Tensor& residual, Shape normalized_shape,
                                         const Tensor* w, const Tensor* b, const Norm& norm,
                                         const Behind& behind) {
    if (!takes_residual(x, residual) || !takes(x, normalized_shape, w, b)) {
        Tensor sum = at::add(x, residual);
        return {behind(sum), sum};
    }
    Forward made = run_forward(x, &residual, (int64_t)normalized_shape.size(), w, b, norm,
                               /*want_statistics=*/false, x.scalar_type());
    return {std::move(made.out), std::move(made.sum)};
}

std::tuple<Tensor, Tensor> residual_layer_norm(const Tensor& x, const Tensor& residual,
                                               Shape normalized_shape, MaybeTensorRef weight,
                                               MaybeTensorRef bias, double eps) {
    return residual_norm(
        x, residual, normalized_shape, given(weight), given(bias), {eps}, [&](const Tensor& sum) {
            return operators::layer_norm().call(sum, normalized_shape, weight, bias, eps, {});
        });
}

std::tuple<Tensor, Tensor> residual_rms_norm(const Tensor& x, const Tensor& residual, Shape normalized_shape,
                                             MaybeTensorRef weight, double eps) {
    return residual_norm(x, residual, normalized_shape, given(weight), nullptr, {eps, true},
                         [&](const Tensor& sum) {
                             return operators::rms_norm().call(sum, normalized_shape, weight, eps, {});
                         });
}

// ---- the kernels ------------------------------------------------------------------------------------------
std::tuple<Tensor, Tensor> forward(const Tensor& x, int64_t dims, MaybeTensorRef weight, MaybeTensorRef bias,
                                   double eps, bool rms, MaybeType out_dtype) {
    const Tensor *w = given(weight), *b = given(bias);
    require_taken(x, dims, w, b);
    at::ScalarType out = out_dtype.value_or(x.scalar_type());
    TORCH_CHECK_VALUE(takes_out(x, out), "plumb_layernorm: out_dtype is ", out, " beside x of ",
                      x.scalar_type(), ", expected x's or, beside float32, bfloat16 or float16");
    Forward made = run_forward(x, nullptr, dims, w, b, {eps, rms}, /*want_statistics=*/true, out);
    return {std::move(made.out), std::move(made.statistics)};
}

std::tuple<Tensor, Tensor, Tensor> residual_forward(const Tensor& x, const Tensor& residual, int64_t dims,
                                                    MaybeTensorRef weight, MaybeTensorRef bias, double eps,
                                                    bool rms) {
    const Tensor *w = given(weight), *b = given(bias);
    require_taken(x, dims, w, b);
    TORCH_CHECK_VALUE(takes_residual(x, residual), "plumb_layernorm: residual is ", residual.sizes(), " of ",
                      residual.scalar_type(), " on ", residual.device(), ", expected it like x: ", x.sizes(),
                      " of ", x.scalar_type(), " on ", x.device());
    Forward made =
        run_forward(x, &residual, dims, w, b, {eps, rms}, /*want_statistics=*/true, x.scalar_type());
    return {std::move(made.out), std::move(made.sum), std::move(made.statistics)};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& dout, const Tensor& x, const Tensor& statistics,
                                            int64_t dims, MaybeTensorRef weight, MaybeTensorRef dsum,
                                            at::ScalarType grad_dtype, std::array<bool, 3> wanted, bool rms) {
    const Tensor* w = given(weight);
    require_taken(x, dims, w, nullptr);
    bool out_of_x = takes_out(x, dout.scalar_type()) && dout.sym_sizes() == x.sym_sizes() &&
                    dout.device() == x.device() && dout.layout() == at::kStrided && !dout.is_nested();
    TORCH_CHECK_VALUE(out_of_x && (given(dsum) == nullptr || takes_residual(x, *dsum)),
                      "plumb_layernorm: dout and dsum are expected like x: ", x.sizes(), " of ",
                      x.scalar_type(), " on ", x.device(), "; beside float32 dout may be of 16 bits");
    int64_t rows = 1;
    for (int64_t size : x.sizes().slice(0, x.dim() - dims)) { rows *= size; }
    TORCH_CHECK_VALUE(
        statistics.sizes() == at::IntArrayRef({2, rows}) && statistics.is_contiguous() &&
            statistics.scalar_type() == statistics_type(x.scalar_type()) && statistics.device() == x.device(),
        "plumb_layernorm: statistics is ", statistics.sizes(), ", expected what forward gave for x");
    Tensor dx;
    if (given(dsum) != nullptr && wanted[0]) { dx = dsum->clone(at::MemoryFormat::Contiguous); }
    Gradients made = run_backward(dout, x, statistics, dims, w, grad_dtype, wanted, std::move(dx), rms);
    return {std::move(made.dx), std::move(made.dweight), std::move(made.dbias)};
}

// ---- shapes alone -----------------------------------------------------------------------------------------
namespace meta {

Tensor like(const Tensor& t, MaybeType type = {}) {
    return at::empty_like(t, t.options().dtype(type.value_or(t.scalar_type())), at::MemoryFormat::Contiguous);
}

Tensor statistics(const Tensor& x, int64_t dims) {
    c10::SymInt rows = 1;
    for (const c10::SymInt& size : x.sym_sizes().slice(0, x.dim() - dims)) { rows = rows * size; }
    return at::empty_symint({2, rows}, x.options().dtype(statistics_type(x.scalar_type())));
}

Tensor layer_norm(const Tensor& x, Shape, MaybeTensorRef, MaybeTensorRef, double, MaybeType out_dtype) {
    return like(x, out_dtype);
}

std::tuple<Tensor, Tensor> residual_layer_norm(const Tensor& x, const Tensor& residual, Shape, MaybeTensorRef,
                                               MaybeTensorRef, double) {
    Tensor sum = at::add(x, residual);  // what it broadcasts and promotes where the library does not take it
    return {like(sum), like(sum)};
}

Tensor rms_norm(const Tensor& x, Shape, MaybeTensorRef, double, MaybeType out_dtype) {
    return like(x, out_dtype);
}

std::tuple<Tensor, Tensor> residual_rms_norm(const Tensor& x, const Tensor& residual, Shape, MaybeTensorRef,
                                             double) {
    Tensor sum = at::add(x, residual);
    return {like(sum), like(sum)};
}

std::tuple<Tensor, Tensor> forward(const Tensor& x, int64_t dims, MaybeTensorRef, MaybeTensorRef, double,
                                   bool, MaybeType out_dtype) {
    return {like(x, out_dtype), statistics(x, dims)};
}

std::tuple<Tensor, Tensor, Tensor> residual_forward(const Tensor& x, const Tensor&, int64_t dims,
                                                    MaybeTensorRef, MaybeTensorRef, double, bool) {
    return {like(x), like(x), statistics(x, dims)};
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor&, const Tensor& x, const Tensor&, int64_t dims,
                                            MaybeTensorRef, MaybeTensorRef, at::ScalarType grad_dtype,
                                            std::array<bool, 3> wanted, bool) {
    auto parameter = [&] { return at::empty_symint(last(x, dims), x.options().dtype(grad_dtype)); };
    return {wanted[0] ? like(x) : Tensor(), wanted[1] ? parameter() : Tensor(),
            wanted[2] ? parameter() : Tensor()};
}

}  // namespace meta
}  // namespace

TORCH_LIBRARY(plumb_layernorm, m) {
    TORCH_CHECK(llmc_layernorm_abi_version() >= LLMC_LAYERNORM_ABI_VERSION,
                "plumb_layernorm: libllmc_layernorm.so has ABI ", "version ", llmc_layernorm_abi_version(),
                ", expected ", (int)LLMC_LAYERNORM_ABI_VERSION, " or newer: was another one loaded before?");
    const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
    m.def(
        "layer_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float "
        "eps=1e-05, ScalarType? out_dtype=None) -> Tensor",
        tags);
    m.def(
        "residual_layer_norm(Tensor x, Tensor residual, SymInt[] normalized_shape, Tensor? weight=None, "
        "Tensor? bias=None, float eps=1e-05) -> (Tensor out, Tensor sum)",
        tags);
    m.def(
        "rms_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight, float eps, ScalarType? "
        "out_dtype=None) -> Tensor",
        tags);
    m.def(
        "residual_rms_norm(Tensor x, Tensor residual, SymInt[] normalized_shape, Tensor? weight, float eps)"
        " -> (Tensor out, Tensor sum)",
        tags);
    m.def(
        "forward(Tensor x, int dims, Tensor? weight, Tensor? bias, float eps, bool rms=False, ScalarType? "
        "out_dtype=None) -> (Tensor out, Tensor statistics)",
        tags);
    m.def(
        "residual_forward(Tensor x, Tensor residual, int dims, Tensor? weight, Tensor? bias, float eps, "
        "bool rms=False) -> (Tensor out, Tensor sum, Tensor statistics)",
        tags);
    m.def(
        "backward(Tensor dout, Tensor x, Tensor statistics, int dims, Tensor? weight, Tensor? dsum, "
        "ScalarType grad_dtype, bool[3] wanted, bool rms=False) -> (Tensor dx, Tensor dweight, Tensor dbias)",
        tags);
}

// every device, as what the library does not take is PyTorch's
TORCH_LIBRARY_IMPL(plumb_layernorm, CompositeExplicitAutograd, m) {
    m.impl("layer_norm", &layer_norm);
    m.impl("residual_layer_norm", &residual_layer_norm);
    m.impl("rms_norm", &rms_norm);
    m.impl("residual_rms_norm", &residual_rms_norm);
}

void kernels(torch::Library& m) {
    m.impl("forward", &forward);
    m.impl("residual_forward", &residual_forward);
    m.impl("backward", &backward);
}
static const torch::detail::TorchLibraryInit device_kernels(torch::Library::IMPL, &kernels, "plumb_layernorm",
                                                            kDeviceKey, __FILE__, __LINE__);

TORCH_LIBRARY_IMPL(plumb_layernorm, Meta, m) {
    m.impl("layer_norm", &meta::layer_norm);
    m.impl("residual_layer_norm", &meta::residual_layer_norm);
    m.impl("rms_norm", &meta::rms_norm);
    m.impl("residual_rms_norm", &meta::residual_rms_norm);
    m.impl("forward", &meta::forward);
    m.impl("residual_forward", &meta::residual_forward);
    m.impl("backward", &meta::backward);
}

}  // namespace plumb
