"""LayerNorm and RMSNorm over the operators of csrc/stable.cpp, which any PyTorch from 2.10 on loads: autograd in
Python."""
import math

import torch
from torch.autograd import forward_ad

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
PLAIN = (torch.Tensor, torch.nn.Parameter, type(None))
operators = torch.ops.plumb_layernorm_stable
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
DEVICE = "cuda" if has_kernel("plumb_layernorm_stable::forward", "CUDA") else "cpu"

for name in ("forward", "backward"):  # they write into what they are given: no shapes to tell
    torch.library.register_fake(f"plumb_layernorm_stable::{name}", lambda *arguments: None)


def takes(x, normalized_shape, weight, bias):
    """csrc/calls.h; but no subclass of Tensor, such as DTensor: the operator writes into tensors that are
    made for it, which are plain ones"""
    if any(type(t) not in PLAIN for t in (x, weight, bias)) or x.is_nested:
        return False
    dims = len(normalized_shape)
    if x.device.type != DEVICE or x.dtype not in TYPES or not 0 < dims <= x.dim() or \
            tuple(x.shape[-dims:]) != tuple(normalized_shape) or math.prod(normalized_shape) == 0:
        return False
    if is_too_wide(x, math.prod(normalized_shape)):
        return False
    given = [p for p in (weight, bias) if p is not None]
    types = (x.dtype, torch.float32) if x.dtype.itemsize == 2 else (x.dtype,)
    return (all(p.device == x.device and p.dtype in types and p.shape == x.shape[-dims:] for p in given)
            and len({p.dtype for p in given}) < 2)


def is_too_wide(x, columns):
    """whether the backward pass's workspace, 2 KiB a column, would be far larger than the tensors"""
    return columns > 65536 and x.numel() * x.element_size() < columns * 512


def alike(x, residual):
    return (type(residual) in PLAIN and not residual.is_nested and x.dtype == residual.dtype
            and x.shape == residual.shape and x.device == residual.device)


def has_tangent(*tensors):
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def is_transformed(*tensors):
    """by torch.func, whose transforms the operators do not know, or batched by torch.autograd.grad"""
    functorch = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None or any(
        functorch.is_batchedtensor(t) or functorch.is_legacy_batchedtensor(t) for t in tensors if t is not None)


def new_like(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def run_forward(x, residual, C, weight, bias, eps, rms, want_statistics, out_dtype=None):
    """out, sum (None without residual), statistics (2,N)"""
    x, residual, weight, bias = (None if t is None else t.contiguous() for t in (x, residual, weight, bias))
    out = torch.empty_like(x, dtype=out_dtype, memory_format=torch.contiguous_format)
    total, statistics = None if residual is None else new_like(x), None
    if want_statistics:
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        statistics = torch.empty((2, x.numel() // C), dtype=dtype, device=x.device)
    operators.forward(out, total, statistics, x, residual, weight, bias, C, eps, rms)
    return out, total, statistics


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, bias, normalized_shape, eps, rms, out_dtype=None):
        C = math.prod(normalized_shape)
        out, total, statistics = run_forward(x, residual, C, weight, bias, eps, rms, True, out_dtype)
        ctx.save_for_backward(x if residual is None else total, weight, bias, statistics)
        ctx.C, ctx.normalized_shape, ctx.eps, ctx.rms = C, normalized_shape, eps, rms
        ctx.set_materialize_grads(False)
        return out if residual is None else (out, total)

    @staticmethod
    def backward(ctx, dout, dtotal=None):
        x, weight, bias, statistics = ctx.saved_tensors
        need_x, need_residual, need_weight, need_bias = ctx.needs_input_grad[:4]
        if dout is None:
            return dtotal, dtotal if need_residual else None, None, None, None, None, None, None
        if torch.is_grad_enabled() or has_tangent(dout, dtotal) or is_transformed(dout, dtotal):
            dx, dweight, dbias = differentiable(ctx, dout, dtotal)
            return dx, dx if need_residual else None, dweight, dbias, None, None, None, None
        dx = dweight = dbias = None
        if need_x or need_residual:
            dx = new_like(x) if dtotal is None else dtotal.clone(memory_format=torch.contiguous_format)
        if need_weight:
            dweight = new_like(weight)
        if need_bias:
            dbias = new_like(bias)
        operators.backward(dx, dweight, dbias, dout.contiguous(), x.contiguous(), *statistics,
                           None if weight is None else weight.contiguous(), ctx.C, dtotal is not None, ctx.rms)
        return dx, dx if need_residual else None, dweight, dbias, None, None, None, None


def differentiable(ctx, dout, dtotal):
    """by PyTorch's operator, which has derivatives itself; in one type, the statistics', as PyTorch's kernels
    for the CPU and for CUDA take different mixtures"""
    x, weight, bias, statistics = ctx.saved_tensors
    need_x, need_residual, need_weight, need_bias = ctx.needs_input_grad[:4]
    dims, dtype = len(ctx.normalized_shape), statistics.dtype
    mean, rstd = statistics.view(2, *x.shape[:-dims], *(1,) * dims)
    w, b = (None if t is None else t.to(dtype) for t in (weight, bias))
    if ctx.rms:
        dx, dweight, dbias = of_rms_norm(dout.to(dtype), x.to(dtype), dims, ctx.eps, w, need_weight)
    else:
        dx, dweight, dbias = torch.ops.aten.native_layer_norm_backward(
            dout.to(dtype), x.to(dtype), ctx.normalized_shape, mean, rstd, w, b,
            [need_x or need_residual, need_weight, need_bias])
    if dx is not None:
        dx = dx.to(x.dtype) if dtotal is None else dx.to(x.dtype) + dtotal
    return (dx, None if dweight is None else dweight.to(weight.dtype),
            None if dbias is None else dbias.to(bias.dtype))


def of_rms_norm(dout, x, dims, eps, weight, need_weight):
    """from x alone, as 1 / deviation has a derivative, too"""
    row = tuple(range(x.dim() - dims, x.dim()))
    rstd = torch.rsqrt((x * x).mean(row, keepdim=True) + eps)
    xhat, g = x * rstd, dout if weight is None else dout * weight
    dx = rstd * (g - xhat * (g * xhat).mean(row, keepdim=True))
    return dx, (dout * xhat).sum_to_size(weight.shape) if need_weight else None, None


def learns(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def takes_out(x, out_dtype):
    return out_dtype in (None, x.dtype) or (x.dtype == torch.float32 and out_dtype in (torch.bfloat16, torch.float16))


def layer_norm(x, normalized_shape, weight, bias, eps, out_dtype=None, rms=False):
    if not takes(x, normalized_shape, weight, bias) or not takes_out(x, out_dtype) or \
            has_tangent(x, weight, bias) or is_transformed():
        y = (torch.nn.functional.rms_norm(x, normalized_shape, weight, eps) if rms else
             torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps))
        return y if out_dtype is None else y.to(out_dtype)
    if learns(x, weight, bias):
        return Function.apply(x, None, weight, bias, tuple(normalized_shape), eps, rms, out_dtype)
    return run_forward(x, None, math.prod(normalized_shape), weight, bias, eps, rms, False, out_dtype)[0]


def residual_layer_norm(x, residual, normalized_shape, weight, bias, eps, rms=False):
    if not takes(x, normalized_shape, weight, bias) or not alike(x, residual) or \
            has_tangent(x, residual, weight, bias) or is_transformed():
        total = x + residual
        return layer_norm(total, normalized_shape, weight, bias, eps, rms=rms), total
    if learns(x, residual, weight, bias):
        return Function.apply(x, residual, weight, bias, tuple(normalized_shape), eps, rms)
    return run_forward(x, residual, math.prod(normalized_shape), weight, bias, eps, rms, False)[:2]


def rms_norm(x, normalized_shape, weight, eps, out_dtype=None):
    return layer_norm(x, normalized_shape, weight, None, eps, out_dtype, rms=True)


def residual_rms_norm(x, residual, normalized_shape, weight, eps):
    return residual_layer_norm(x, residual, normalized_shape, weight, None, eps, rms=True)
