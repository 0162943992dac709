"""The norms in what torch.compile, torch.export and torch.jit.trace make programs of: PyTorch's operations, which Inductor
fuses with what is around them, and under torch.compile, where that is ahead, this package's kernel for the backward pass."""
import math

import torch
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.jit import is_tracing

from ._backend import backend

if backend != "torch":
    from ._stable import alike, is_transformed, learns, new_like, operators, takes, takes_out

F = torch.nn.functional


def compiles():
    """whether a program is being made of the calls: asked at each call, so what it calls is found once"""
    return backend != "torch" and (is_dynamo_compiling() or is_exporting() or is_tracing())


@torch.compiler.assume_constant_result
def needs_pytorchs():
    """whether an exported program or a derivative of torch.func comes of it. Dynamo takes the answer as it is when it traces:
    looking into this, it would take is_exporting() for True under torch.compile, too"""
    return is_exporting() or is_transformed()


def kernel_is_ahead(x, normalized_shape, weight, bias, out_dtype=None):
    """The one rule for who does the backward pass of a compiled norm: the kernel for aligned rows of 16 bits whose weight
    learns. It reads the rows once for the sums over rows and those over columns; that is worth more there than what Inductor
    fuses with its own passes, a sum with the residual stream's gradient: on an H200 20 to 30 us a LayerNorm of 12608 to 32768
    rows. Between float32 rows and 16-bit products Inductor leaves out the conversions, and without a weight it
    needs no sums over columns; narrower rows than these have not been measured."""
    columns = math.prod(normalized_shape)
    return (backend != "torch" and is_dynamo_compiling() and not needs_pytorchs() and x.dtype.itemsize == 2
            and 512 <= columns <= 65536 and columns % 8 == 0 and weight is not None and learns(x) and learns(weight)
            and takes(x, normalized_shape, weight, bias) and takes_out(x, out_dtype))


class Norm(torch.autograd.Function):
    """statistics are made in float32; where a residual is given it is added"""

    @staticmethod
    def forward(ctx, x, residual, weight, bias, normalized_shape, eps, rms, out_dtype):
        total = x if residual is None else x + residual
        rows, w, b = (None if t is None else t.float() for t in (total, weight, bias))
        if rms:
            row = tuple(range(-len(normalized_shape), 0))
            mean, rstd = None, torch.rsqrt(rows.pow(2).mean(row, keepdim=True) + eps)
            out = rows * rstd * w
        else:
            out, mean, rstd = torch.native_layer_norm(rows, normalized_shape, w, b, eps)
        ctx.save_for_backward(total, weight, mean, rstd)
        ctx.normalized_shape, ctx.rms = normalized_shape, rms
        out = out.to(out_dtype or x.dtype)
        return out if residual is None else (out, total)

    @staticmethod
    def backward(ctx, dout, dtotal=None):
        x, weight, mean, rstd = ctx.saved_tensors
        # Inductor leaves the copy out where nothing else reads dtotal
        dx = new_like(x) if dtotal is None else dtotal.clone(memory_format=torch.contiguous_format)
        dweight, dbias = (new_like(weight) if wanted else None for wanted in ctx.needs_input_grad[2:4])
        operators.backward(dx, dweight, dbias, dout.contiguous(), x.contiguous(), mean, rstd, weight.contiguous(),
                           math.prod(ctx.normalized_shape), dtotal is not None, ctx.rms)
        return dx, None if dtotal is None else dx, dweight, dbias, None, None, None, None


def layer_norm(x, normalized_shape, weight, bias, eps, out_dtype=None):
    if kernel_is_ahead(x, normalized_shape, weight, bias, out_dtype):
        return Norm.apply(x, None, weight, bias, tuple(normalized_shape), eps, False, out_dtype)
    parameter = bias if weight is None else weight
    # PyTorch's operator for CUDA takes no float32 parameters beside 16-bit rows
    mixed = parameter is not None and parameter.dtype == torch.float32 and x.dtype in (torch.bfloat16, torch.float16)
    return F.layer_norm(x.float() if mixed else x, normalized_shape, weight, bias, eps).to(out_dtype or x.dtype)


def residual_layer_norm(x, residual, normalized_shape, weight, bias, eps):
    if kernel_is_ahead(x, normalized_shape, weight, bias) and alike(x, residual):
        return Norm.apply(x, residual, weight, bias, tuple(normalized_shape), eps, False, None)
    total = x + residual
    return layer_norm(total, normalized_shape, weight, bias, eps), total


def rms_norm(x, normalized_shape, weight, eps, out_dtype=None):
    if kernel_is_ahead(x, normalized_shape, weight, None, out_dtype):
        return Norm.apply(x, None, weight, None, tuple(normalized_shape), eps, True, out_dtype)
    return F.rms_norm(x if weight is None else x.to(weight.dtype), normalized_shape, weight, eps).to(out_dtype or x.dtype)


def residual_rms_norm(x, residual, normalized_shape, weight, eps):
    if kernel_is_ahead(x, normalized_shape, weight, None) and alike(x, residual):
        return Norm.apply(x, residual, weight, None, tuple(normalized_shape), eps, True, None)
    total = x + residual
    return rms_norm(total, normalized_shape, weight, eps), total
