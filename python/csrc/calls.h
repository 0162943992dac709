// Calls of llmc/layernorm/c_abi.h on PyTorch's tensors.
#pragma once
#include <array>
#include <optional>

#include <ATen/core/Tensor.h>

namespace plumb {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// null: not given
inline const Tensor* given(const MaybeTensor& t) { return t.has_value() && t->defined() ? &*t : nullptr; }

// Does the library have a kernel for this call? weight and bias may be null. False too for arguments that are
// wrong: PyTorch, which gets what the library does not take, says what is wrong with them.
bool takes(const Tensor& x, c10::SymIntArrayRef normalized_shape, const Tensor* weight, const Tensor* bias);

// Is other of x's shape, dense, on x's device?
bool lies_like(const Tensor& x, const Tensor& other);

// Can the kernel add the two? (x + residual is PyTorch's else.)
inline bool takes_residual(const Tensor& x, const Tensor& residual) {
    return residual.scalar_type() == x.scalar_type() && lies_like(x, residual);
}

// Is this a type of the result beside rows x: theirs, or of 16 bits beside float32?
inline bool takes_out(const Tensor& x, at::ScalarType out) {
    return out == x.scalar_type() ||
           (x.scalar_type() == at::kFloat && (out == at::kBFloat16 || out == at::kHalf));
}

// the type of mean and rstd beside rows of this type
inline at::ScalarType statistics_type(at::ScalarType rows) {
    return rows == at::kDouble ? at::kDouble : at::kFloat;
}

struct Forward {
    Tensor out;         // as x but of out_type, contiguous
    Tensor sum;         // x + residual, as x, contiguous; undefined without residual
    Tensor statistics;  // (2,N): mean and rstd of each row; undefined if not wanted
};

// A norm as the library has it.
struct Norm {
    double eps;
    bool rms = false;  // RMSNorm: no mean is taken off
};

// LayerNorm or RMSNorm over the last `dims` dimensions of x, or of x + residual. For what takes() takes; residual, if
// given, has x's shape, type and device; out_type is one that takes_out(). Queued on the current stream of x's
// device. Rows that cannot be read in place (the last dims dimensions not side by side, or rows not at one distance) are
// copied first.
Forward run_forward(const Tensor& x, const Tensor* residual, int64_t dims, const Tensor* weight,
                    const Tensor* bias, const Norm& norm, bool want_statistics, at::ScalarType out_type);

struct Gradients {
    Tensor dx, dweight, dbias;  // undefined if not wanted
};

// The gradients of run_forward's out by what was normalised (x: its x or its sum), weight and bias, those
// that `wanted` says in this order. dweight and dbias are of grad_type. dx, if defined, is contiguous and
// added to (+=), else it is made. dout has x's shape and device, and the type of run_forward's out. rms: as in
// run_forward's norm.
Gradients run_backward(const Tensor& dout, const Tensor& x, const Tensor& statistics, int64_t dims,
                       const Tensor* weight, at::ScalarType grad_type, std::array<bool, 3> wanted, Tensor dx,
                       bool rms);

}  // namespace plumb
