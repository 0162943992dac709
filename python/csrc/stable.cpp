// torch.ops.plumb_layernorm_stable: the library's calls over PyTorch's stable ABI, one file for every
// PyTorch from 2.10 on. That ABI has no autograd: python/plumb_layernorm/_stable.py puts
// torch.autograd.Function around these. They write into tensors of the caller's, who has checked them:
// contiguous, of fitting types, on one device.
#include <optional>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include "llmc/layernorm/c_abi.h"
#include "stable_device.h"  // of python/csrc/cuda or python/test/host

namespace plumb {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

int type_code(const Tensor& t) {
    switch (t.scalar_type()) {
        case ScalarType::Float:
            return LLMC_LAYERNORM_FLOAT32;
        case ScalarType::BFloat16:
            return LLMC_LAYERNORM_BFLOAT16;
        case ScalarType::Half:
            return LLMC_LAYERNORM_FLOAT16;
        case ScalarType::Double:
            return LLMC_LAYERNORM_FLOAT64;
        default:
            return 0;  // which the library refuses
    }
}

void check(int status) { STD_TORCH_CHECK(status == LLMC_LAYERNORM_OK, llmc_layernorm_last_error()); }

void* writable(const MaybeTensor& t) { return t.has_value() ? t->mutable_data_ptr() : nullptr; }
const void* readable(const MaybeTensor& t) { return t.has_value() ? t->const_data_ptr() : nullptr; }

// mean and rstd, the rows of (2,N)
template <typename T>
T* second_row(T* statistics, const Tensor& x, int64_t N) {
    return statistics + N * (x.scalar_type() == ScalarType::Double ? 8 : 4);
}

Tensor new_bytes(int64_t bytes, const Tensor& beside) {
    int32_t device = 0, index = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(beside.get(), &device));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(beside.get(), &index));
    AtenTensorHandle made = nullptr;
    const int64_t side_by_side = 1;
    TORCH_ERROR_CODE_CHECK(
        aoti_torch_empty_strided(1, &bytes, &side_by_side, aoti_torch_dtype_uint8(), device, index, &made));
    return Tensor(made);
}

// what all calls have: the type and the place of the rows x, and the stream
template <typename Arguments>
Arguments arguments_for(const Tensor& x, const StablePlace& place) {
    Arguments a{};
    a.struct_size = sizeof a;
    a.dtype = type_code(x);
    a.inp = x.const_data_ptr();
    a.stream = place.stream();
    return a;
}

void forward(const Tensor& out, const MaybeTensor& sum, const MaybeTensor& statistics, const Tensor& x,
             const MaybeTensor& residual, const MaybeTensor& weight, const MaybeTensor& bias, int64_t C,
             double eps, bool rms) {
    StablePlace place(x.get_device_index());
    auto a = arguments_for<llmc_layernorm_forward_args>(x, place);
    const MaybeTensor& parameter = weight.has_value() ? weight : bias;
    a.weight_dtype = parameter.has_value() ? type_code(*parameter) : 0;
    a.N = x.numel() / C;
    a.C = C;
    a.eps = eps;
    a.rms = rms;
    a.out = out.mutable_data_ptr();
    a.out_dtype = type_code(out);
    if (statistics.has_value()) {
        a.mean = statistics->mutable_data_ptr();
        a.rstd = second_row((char*)a.mean, x, a.N);
    }
    a.weight = readable(weight);
    a.bias = readable(bias);
    a.residual = writable(sum);
    a.inp2 = readable(residual);
    check(llmc_layernorm_forward(&a));
}

// dx is added to (+=) if accumulate_dx; mean is not read with rms
void backward(const MaybeTensor& dx, const MaybeTensor& dweight, const MaybeTensor& dbias, const Tensor& dout,
              const Tensor& x, const MaybeTensor& mean, const Tensor& rstd, const MaybeTensor& weight,
              int64_t C, bool accumulate_dx, bool rms) {
    StablePlace place(x.get_device_index());
    auto a = arguments_for<llmc_layernorm_backward_args>(x, place);
    a.weight_dtype = weight.has_value() ? type_code(*weight) : 0;
    const MaybeTensor& grad = dweight.has_value() ? dweight : dbias;
    a.grad_dtype = grad.has_value() ? type_code(*grad) : 0;
    a.accumulate_dinp = accumulate_dx;
    a.rms = rms;
    a.N = x.numel() / C;
    a.C = C;
    a.dinp = writable(dx);
    a.dweight = writable(dweight);
    a.dbias = writable(dbias);
    a.dout = dout.const_data_ptr();
    a.dout_dtype = type_code(dout);
    a.weight = readable(weight);
    a.mean = readable(mean);
    a.rstd = rstd.const_data_ptr();
    check(llmc_layernorm_backward_workspace(C, &a.workspace_size));
    Tensor workspace = new_bytes((int64_t)a.workspace_size, x);
    a.workspace = workspace.mutable_data_ptr();
    check(llmc_layernorm_backward(&a));
}

// statistics: (2,N); amax is raised
void forward_fp8(const Tensor& out, const MaybeTensor& transposed, const Tensor& amax,
                 const Tensor& statistics, const MaybeTensor& sum, const Tensor& x,
                 const MaybeTensor& residual, const Tensor& weight, const Tensor& bias, const Tensor& scale,
                 double eps) {
    StablePlace place(x.get_device_index());
    auto a = arguments_for<llmc_layernorm_forward_fp8_args>(x, place);
    a.C = weight.numel();
    a.N = x.numel() / a.C;
    a.eps = eps;
    a.out = out.mutable_data_ptr();
    a.transposed = writable(transposed);
    a.amax = (float*)amax.mutable_data_ptr();
    a.mean = (float*)statistics.mutable_data_ptr();
    a.rstd = a.mean + a.N;
    a.weight = weight.const_data_ptr();
    a.bias = bias.const_data_ptr();
    a.scale = (const float*)scale.const_data_ptr();
    a.residual = writable(sum);
    a.inp2 = readable(residual);
    check(llmc_layernorm_forward_fp8(&a));
}

int64_t stride_of(const MaybeTensor& samples) { return samples.has_value() ? samples->stride(0) : 0; }

// statistics: (2,N); scale, shift and gate: (samples,C), side by side in a row. sum, inp2 and gate: all or none
void modulate_forward(const Tensor& out, const MaybeTensor& sum, const MaybeTensor& statistics,
                      const Tensor& inp, const Tensor& scale, const Tensor& shift, const MaybeTensor& inp2,
                      const MaybeTensor& gate, double eps) {
    StablePlace place(inp.get_device_index());
    auto a = arguments_for<llmc_layernorm_modulate_forward_args>(inp, place);
    a.samples = scale.size(0);
    a.C = scale.size(1);
    a.tokens = inp.numel() / scale.numel();
    a.eps = eps;
    a.out = out.mutable_data_ptr();
    if (statistics.has_value()) {
        a.mean = (float*)statistics->mutable_data_ptr();
        a.rstd = a.mean + a.samples * a.tokens;
    }
    a.scale = scale.const_data_ptr();
    a.shift = shift.const_data_ptr();
    a.residual = writable(sum);
    a.inp2 = readable(inp2);
    a.gate = readable(gate);
    a.scale_stride = stride_of(scale);
    a.shift_stride = stride_of(shift);
    a.gate_stride = stride_of(gate);
    check(llmc_layernorm_modulate_forward(&a));
}

// dinp2, dgate, inp2 and gate: all or none; the gradients of what samples have are packed
void modulate_backward(const Tensor& dinp, const Tensor& dscale, const Tensor& dshift,
                       const MaybeTensor& dinp2, const MaybeTensor& dgate, const Tensor& dout,
                       const Tensor& inp, const Tensor& statistics, const Tensor& scale,
                       const MaybeTensor& dresidual, const MaybeTensor& inp2, const MaybeTensor& gate) {
    StablePlace place(inp.get_device_index());
    auto a = arguments_for<llmc_layernorm_modulate_backward_args>(inp, place);
    a.samples = scale.size(0);
    a.C = scale.size(1);
    a.tokens = inp.numel() / scale.numel();
    a.dinp = dinp.mutable_data_ptr();
    a.dscale = dscale.mutable_data_ptr();
    a.dshift = dshift.mutable_data_ptr();
    a.dout = dout.const_data_ptr();
    a.mean = (const float*)statistics.const_data_ptr();
    a.rstd = a.mean + a.samples * a.tokens;
    a.scale = scale.const_data_ptr();
    a.dresidual = readable(dresidual);
    a.dinp2 = writable(dinp2);
    a.dgate = writable(dgate);
    a.inp2 = readable(inp2);
    a.gate = readable(gate);
    a.scale_stride = stride_of(scale);
    a.gate_stride = stride_of(gate);
    check(llmc_layernorm_modulate_backward_workspace(a.C, &a.workspace_size));
    Tensor workspace = new_bytes((int64_t)a.workspace_size, inp);
    a.workspace = workspace.mutable_data_ptr();
    check(llmc_layernorm_modulate_backward(&a));
}

void kernels(torch::stable::detail::StableLibrary& m) {
    m.impl("modulate_forward", TORCH_BOX(&modulate_forward));
    m.impl("modulate_backward", TORCH_BOX(&modulate_backward));
    m.impl("forward", TORCH_BOX(&forward));
    m.impl("forward_fp8", TORCH_BOX(&forward_fp8));
    m.impl("backward", TORCH_BOX(&backward));
}

}  // namespace

STABLE_TORCH_LIBRARY(plumb_layernorm_stable, m) {
    m.def(
        "forward(Tensor(a!) out, Tensor(b!)? sum, Tensor(c!)? statistics, Tensor x, Tensor? residual, "
        "Tensor? weight, Tensor? bias, int C, float eps, bool rms) -> ()");
    m.def(
        "backward(Tensor(a!)? dx, Tensor(b!)? dweight, Tensor(c!)? dbias, Tensor dout, Tensor x, Tensor? "
        "mean, Tensor rstd, Tensor? weight, int C, bool accumulate_dx, bool rms) -> ()");
    m.def(
        "forward_fp8(Tensor(a!) out, Tensor(b!)? transposed, Tensor(c!) amax, Tensor(d!) statistics, "
        "Tensor(e!)? sum, "
        "Tensor x, Tensor? residual, Tensor weight, Tensor bias, Tensor scale, float eps) -> ()");
    m.def(
        "modulate_forward(Tensor(a!) out, Tensor(b!)? sum, Tensor(c!)? statistics, Tensor inp, Tensor scale, "
        "Tensor shift, Tensor? inp2, Tensor? gate, float eps) -> ()");
    m.def(
        "modulate_backward(Tensor(a!) dinp, Tensor(b!) dscale, Tensor(c!) dshift, Tensor(d!)? dinp2, "
        "Tensor(e!)? dgate, Tensor dout, Tensor inp, Tensor statistics, Tensor scale, Tensor? dresidual, "
        "Tensor? inp2, Tensor? gate) -> ()");
}

static const torch::stable::detail::StableTorchLibraryInit device_kernels(
    torch::stable::detail::StableLibrary::Kind::IMPL, &kernels, "plumb_layernorm_stable", kDeviceKey,
    __FILE__, __LINE__);

}  // namespace plumb
