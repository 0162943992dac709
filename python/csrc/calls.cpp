#include "python/csrc/calls.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "device.h"  // of python/csrc/cuda or python/test/host
#include "llmc/layernorm/c_abi.h"

namespace plumb {
namespace {

// the library's number of a type; 0: it has none
int type_code(at::ScalarType type) {
    switch (type) {
        case at::kFloat:
            return LLMC_LAYERNORM_FLOAT32;
        case at::kBFloat16:
            return LLMC_LAYERNORM_BFLOAT16;
        case at::kHalf:
            return LLMC_LAYERNORM_FLOAT16;
        case at::kDouble:
            return LLMC_LAYERNORM_FLOAT64;
        default:
            return 0;
    }
}

void check(int status) {
    if (C10_LIKELY(status == LLMC_LAYERNORM_OK)) { return; }
    const char* message = llmc_layernorm_last_error();
    TORCH_CHECK_VALUE(status != LLMC_LAYERNORM_INVALID, message);
    TORCH_CHECK_TYPE(status != LLMC_LAYERNORM_UNSUPPORTED, message);
    TORCH_CHECK(false, message);
}

// at::empty asks for the device and its state at each call, which x has answered already
Tensor new_tensor(at::IntArrayRef sizes, at::ScalarType type) {
    caffe2::TypeMeta meta = caffe2::TypeMeta::fromScalarType(type);
    size_t bytes = c10::multiply_integers(sizes) * meta.itemsize();
    auto storage =
        c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                              allocator()->allocate(bytes), allocator(), /*resizable=*/true);
    Tensor made =
        at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(kDeviceKey), meta);
    made.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return made;
}

struct Sizes {
    int64_t N = 1, C = 1;
    int64_t lead;  // dimensions before the normalised ones
    Sizes(const Tensor& x, int64_t dims) : lead(x.dim() - dims) {
        for (int64_t i = 0; i < x.dim(); ++i) { (i < lead ? N : C) *= x.size(i); }
    }
};

// elements from one row of t to the next, if its rows can be read where they are; else 0
int64_t row_stride(const Tensor& t, const Sizes& s) {
    int64_t expected = 1;
    for (int64_t i = t.dim() - 1; i >= s.lead; --i) {
        if (t.size(i) != 1 && t.stride(i) != expected) { return 0; }
        expected *= t.size(i);
    }
    int64_t stride = 0, next = 0;  // of a row; of the dimension before
    for (int64_t i = s.lead - 1; i >= 0; --i) {
        if (t.size(i) == 1) { continue; }
        if (t.stride(i) < s.C) { return 0; }  // expanded, or rows that overlap
        if (next == 0) {
            stride = t.stride(i);
        } else if (t.stride(i) != next) {
            return 0;
        }
        next = t.stride(i) * t.size(i);
    }
    return next == 0 ? s.C : stride;
}

// a tensor's rows: its own, or a copy's
struct Rows {
    const void* at = nullptr;
    int64_t stride = 0;
    Tensor copy;

    Rows(const Tensor& t, const Sizes& s) : stride(t.is_contiguous() ? s.C : row_stride(t, s)) {
        if (C10_UNLIKELY(stride == 0)) {
            at::AutoDispatchBelowADInplaceOrView below_autograd;
            copy = t.contiguous();
            stride = s.C;
        }
        at = (copy.defined() ? copy : t).const_data_ptr();
    }
    // weight or bias: one row, or none
    Rows(const Tensor* t, const Sizes& s) {
        if (t != nullptr) { *this = Rows(*t, Sizes{*t, t->dim()}); }
    }
};

bool parameter_fits(const Tensor& p, const Tensor& x, c10::SymIntArrayRef normalized_shape) {
    at::ScalarType rows = x.scalar_type(), type = p.scalar_type();
    bool half = rows == at::kHalf || rows == at::kBFloat16;
    return p.device() == x.device() && (type == rows || (half && type == at::kFloat)) &&
           p.sym_sizes() == normalized_shape;
}

// whether the backward pass's workspace, 2 KiB a column, would be several times the size of the tensors: few rows of very
// many columns
bool is_too_wide(const Tensor& x, c10::SymIntArrayRef normalized_shape) {
    constexpr int64_t kWideColumns = 65536,
                      kLeastRowBytes = 512;  // of the rows, a column: a quarter of the workspace
    c10::SymInt columns = 1;
    for (const c10::SymInt& size : normalized_shape) { columns = columns * size; }
    return columns > kWideColumns && x.sym_numel() * (int64_t)x.element_size() < columns * kLeastRowBytes;
}

}  // namespace

bool takes(const Tensor& x, c10::SymIntArrayRef normalized_shape, const Tensor* weight, const Tensor* bias) {
    size_t dims = normalized_shape.size();
    return x.device().type() == kDevice && x.layout() == at::kStrided && !x.is_nested() &&
           type_code(x.scalar_type()) != 0 && dims > 0 && dims <= (size_t)x.dim() &&
           x.sym_sizes().slice(x.dim() - dims) == normalized_shape &&
           (weight == nullptr || parameter_fits(*weight, x, normalized_shape)) &&
           (bias == nullptr || parameter_fits(*bias, x, normalized_shape)) &&
           (weight == nullptr || bias == nullptr || weight->scalar_type() == bias->scalar_type()) &&
           !is_too_wide(x, normalized_shape);
}

bool lies_like(const Tensor& x, const Tensor& other) {
    return other.device() == x.device() && other.layout() == at::kStrided && !other.is_nested() &&
           other.sym_sizes() == x.sym_sizes();
}

Forward run_forward(const Tensor& x, const Tensor* residual, int64_t dims, const Tensor* weight,
                    const Tensor* bias, const Norm& norm, bool want_statistics, at::ScalarType out_type) {
    Sizes s(x, dims);
    Place place(x);
    Forward made;
    made.out = new_tensor(x.sizes(), out_type);
    if (residual != nullptr) { made.sum = new_tensor(x.sizes(), x.scalar_type()); }
    if (want_statistics) { made.statistics = new_tensor({2, s.N}, statistics_type(x.scalar_type())); }
    if (s.C == 0) { return made; }
    Rows inp(x, s), w(weight, s), b(bias, s);
    llmc_layernorm_forward_args a{};
    a.struct_size = sizeof a;
    a.dtype = type_code(x.scalar_type());
    const Tensor* parameter = weight != nullptr ? weight : bias;
    a.weight_dtype = parameter != nullptr ? type_code(parameter->scalar_type()) : 0;
    a.out = made.out.mutable_data_ptr();
    a.out_dtype = type_code(out_type);
    if (want_statistics) {
        a.mean = made.statistics.mutable_data_ptr();
        a.rstd = (char*)a.mean + s.N * made.statistics.element_size();
    }
    a.inp = inp.at;
    a.inp_stride = inp.stride;
    a.weight = w.at;
    a.bias = b.at;
    a.N = s.N;
    a.C = s.C;
    a.eps = norm.eps;
    a.rms = norm.rms;
    a.stream = place.stream();
    if (residual == nullptr) {
        check(llmc_layernorm_forward(&a));
        return made;
    }
    Rows inp2(*residual, s);
    a.residual = made.sum.mutable_data_ptr();
    a.inp2 = inp2.at;
    a.inp2_stride = inp2.stride;
    check(llmc_layernorm_forward(&a));
    return made;
}

Gradients run_backward(const Tensor& dout, const Tensor& x, const Tensor& statistics, int64_t dims,
                       const Tensor* weight, at::ScalarType grad_type, std::array<bool, 3> wanted, Tensor dx,
                       bool rms) {
    Sizes s(x, dims);
    Place place(x);
    Gradients made;
    bool accumulate_dx = dx.defined();
    if (wanted[0]) { made.dx = accumulate_dx ? std::move(dx) : new_tensor(x.sizes(), x.scalar_type()); }
    at::IntArrayRef normalized_shape = x.sizes().slice(s.lead);
    if (wanted[1]) { made.dweight = new_tensor(normalized_shape, grad_type); }
    if (wanted[2]) { made.dbias = new_tensor(normalized_shape, grad_type); }
    if (s.C == 0) { return made; }
    Rows inp(x, s), dy(dout, s), w(weight, s);
    llmc_layernorm_backward_args a{};
    a.struct_size = sizeof a;
    a.dtype = type_code(x.scalar_type());
    a.weight_dtype = weight != nullptr ? type_code(weight->scalar_type()) : 0;
    a.grad_dtype = type_code(grad_type);
    a.accumulate_dinp = accumulate_dx;
    a.rms = rms;
    a.dinp = wanted[0] ? made.dx.mutable_data_ptr() : nullptr;
    a.dweight = wanted[1] ? made.dweight.mutable_data_ptr() : nullptr;
    a.dbias = wanted[2] ? made.dbias.mutable_data_ptr() : nullptr;
    a.dout = dy.at;
    a.dout_dtype = type_code(dout.scalar_type());
    a.dout_stride = dy.stride;
    a.inp = inp.at;
    a.inp_stride = inp.stride;
    a.weight = w.at;
    a.mean = statistics.const_data_ptr();
    a.rstd = (const char*)a.mean + s.N * statistics.element_size();
    a.N = s.N;
    a.C = s.C;
    a.stream = place.stream();
    check(llmc_layernorm_backward_workspace(s.C, &a.workspace_size));
    // Kept beyond the call, it would belong to the pool of whoever captures or warms up a CUDA graph here.
    const c10::DataPtr workspace = allocator()->allocate(a.workspace_size);
    a.workspace = workspace.get();
    check(llmc_layernorm_backward(&a));
    return made;
}

}  // namespace plumb
