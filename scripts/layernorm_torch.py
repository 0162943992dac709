#!/usr/bin/env python3
"""LayerNorm for PyTorch by this project's kernels: a drop-in for torch.nn.functional.layer_norm on CUDA tensors.

Build the library once, in the project's folder, and let Python find this file:

    make build/libllmc_layernorm.so
    PYTHONPATH=scripts python3 example.py

example.py:

    import torch
    from layernorm_torch import layer_norm

    x = torch.randn(64, 768, device="cuda", requires_grad=True)
    weight = torch.ones(768, device="cuda", requires_grad=True)
    bias = torch.zeros(768, device="cuda", requires_grad=True)
    y = layer_norm(x, 768, weight, bias)
    y.square().sum().backward()
    print(y.shape, weight.grad.shape)

LLMC_LAYERNORM_LIBRARY may name the library's file, if it is elsewhere than build/libllmc_layernorm.so.

Types: float32, bfloat16, float16, float64, as they come (autocast changes nothing); weight and bias of x's type, or
float32 beside a 16-bit x; either may be None. Rows may be strided (the normalised dimensions must be contiguous, else
a copy is made). Bitwise reproducible.
Calls run on the current stream and may be captured into a CUDA graph. torch.compile, with fullgraph=True and dynamic
shapes too, and torch.export take a call as one operator (PyTorch 2.11; 2.4 breaks the graph at the call).
Differentiable once. Not provided, and refused: second derivatives, forward-mode AD, vmap and the other transforms of
torch.func, is_grads_batched. torch.nn.functional.layer_norm has them.

Command: python3 scripts/layernorm_torch.py --test
Result:  152 checks passed on an H200, PyTorch 2.11, 2026-11-23
"""
import argparse
import ctypes
import functools
import math
import operator
import os
import sys
from pathlib import Path

try:
    import torch
    from torch.autograd import forward_ad
    from torch.compiler import is_compiling
    from torch.library import custom_op
except ImportError as missing:
    message = f"layernorm_torch.py: {missing}; expected PyTorch for CUDA, 2.4 or newer: pip install torch"
    raise (SystemExit if __name__ == "__main__" else ImportError)(message) from None

DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.float64: 4}
POINTER, I32, I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
ABI_VERSION = 1


class ForwardArgs(ctypes.Structure):
    """llmc_layernorm_forward_args of llmc/layernorm/c_abi.h"""
    _fields_ = ([("struct_size", ctypes.c_size_t), ("dtype", I32), ("weight_dtype", I32)]
                + [(name, POINTER) for name in ("out", "mean", "rstd", "inp", "weight", "bias")]
                + [("N", I64), ("C", I64), ("eps", ctypes.c_double), ("residual", POINTER), ("inp2", POINTER)]
                + [(name, I64) for name in ("out_stride", "inp_stride", "residual_stride", "inp2_stride")]
                + [("stream", POINTER)])


class BackwardArgs(ctypes.Structure):
    """llmc_layernorm_backward_args of llmc/layernorm/c_abi.h"""
    _fields_ = ([("struct_size", ctypes.c_size_t)]
                + [(name, I32) for name in ("dtype", "weight_dtype", "grad_dtype", "accumulate_dinp", "accumulate",
                                            "reserved")]
                + [(name, POINTER) for name in ("dinp", "dweight", "dbias", "dout", "inp", "weight", "mean", "rstd")]
                + [("N", I64), ("C", I64)]
                + [(name, I64) for name in ("dinp_stride", "dout_stride", "inp_stride")]
                + [("workspace", POINTER), ("workspace_size", ctypes.c_size_t), ("stream", POINTER)])


FORWARD_SIZE, BACKWARD_SIZE = ctypes.sizeof(ForwardArgs), ctypes.sizeof(BackwardArgs)


@functools.cache
def library():
    default = Path(__file__).resolve().parent.parent / "build" / "libllmc_layernorm.so"
    path = os.environ.get("LLMC_LAYERNORM_LIBRARY", str(default))
    if not os.path.exists(path):
        raise FileNotFoundError(f"layer_norm: no library {path}: make build/libllmc_layernorm.so, or set "
                                "LLMC_LAYERNORM_LIBRARY to the file")
    try:
        loaded = ctypes.CDLL(path)
        version = loaded.llmc_layernorm_abi_version()
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"layer_norm: cannot use {path}: {error}; expected what make build/libllmc_layernorm.so "
                           "makes") from None
    if version < ABI_VERSION:
        raise RuntimeError(f"layer_norm: {path} has ABI version {version}, expected {ABI_VERSION} or newer")
    loaded.llmc_layernorm_last_error.restype = ctypes.c_char_p
    loaded.llmc_layernorm_forward.argtypes = [ctypes.POINTER(ForwardArgs)]
    loaded.llmc_layernorm_backward.argtypes = [ctypes.POINTER(BackwardArgs)]
    loaded.llmc_layernorm_backward_workspace.argtypes = [I64, ctypes.POINTER(ctypes.c_size_t)]
    return loaded


def check(status):
    if status != 0:
        message = library().llmc_layernorm_last_error().decode(errors="replace")
        raise (ValueError if status == 1 else TypeError if status == 2 else RuntimeError)(message)


IN_TRANSFORM = ("layer_norm: within vmap, grad, jvp or another transform of torch.func (or is_grads_batched), expected "
                "plain autograd; torch.nn.functional.layer_norm works there")


def address(tensor):
    """of its memory; None for None"""
    if tensor is None:
        return None
    try:
        return tensor.data_ptr()
    except RuntimeError as error:  # a tensor within a transform has no memory of its own
        raise NotImplementedError(IN_TRANSFORM) from error


try:  # what torch.cuda's functions end in; compiled graphs use them too
    from torch._C import _cuda_getCurrentRawStream as current_stream, _cuda_getDevice as current_device
except ImportError:  # a PyTorch without CUDA, or other names in a later one
    current_device = torch.cuda.current_device

    def current_stream(device):
        return torch.cuda.current_stream(device).cuda_stream


def call(function, args, x):
    """a function of the library, with x's device the current one"""
    if x.get_device() == current_device():
        check(function(ctypes.byref(args)))
    else:
        with torch.cuda.device(x.device):
            check(function(ctypes.byref(args)))


@functools.cache
def workspace_bytes(C, device):
    """device: its number; the answer may differ between devices"""
    size = ctypes.c_size_t()
    with torch.cuda.device(device):
        check(library().llmc_layernorm_backward_workspace(C, ctypes.byref(size)))
    return size.value


def new_workspace(x, C):
    """for a backward of x in rows of C; may be used again by what follows on the same stream"""
    return torch.empty(workspace_bytes(C, x.get_device()), dtype=torch.uint8, device=x.device)


def as_rows(x, C):
    """(tensor, elements from one row of C to the next) over x's memory where its strides allow, else over a copy's"""
    if x.is_contiguous():
        return x, C
    try:
        rows = x.view(-1, C)
    except RuntimeError:
        return x.contiguous(), C
    usable = (C == 1 or rows.stride(1) == 1) and rows.stride(0) >= C
    return (rows, rows.stride(0)) if usable else (x.contiguous(), C)


def statistics_of(statistics):
    """addresses of mean and rstd, the rows of statistics (2,N); None: not wanted"""
    if statistics is None:
        return None, None
    mean = statistics.data_ptr()
    return mean, mean + statistics.shape[1] * statistics.element_size()


# The arguments of one call: fields by position, in the order of the structs, which is quicker than by name.
def forward_args(out, statistics, x, weight, bias, C, eps):
    """all on one device and checked; out contiguous. Returns the struct, and what must live until the call is made"""
    rows, row_stride = as_rows(x, C)
    parameter = weight if weight is not None else bias
    weight_dtype = 0 if parameter is None else DTYPES[parameter.dtype]
    return ForwardArgs(FORWARD_SIZE, DTYPES[x.dtype], weight_dtype, out.data_ptr(), *statistics_of(statistics),
                       rows.data_ptr(), address(weight), address(bias), x.numel() // C, C, eps, None, None, C,
                       row_stride, 0, 0, current_stream(x.get_device())), rows


def backward_args(dx, dweight, dbias, workspace, dy, x, weight, statistics, C):
    """likewise; dx contiguous"""
    x_rows, x_stride = as_rows(x, C)
    dy_rows, dy_stride = as_rows(dy, C)
    grad = dweight if dweight is not None else dbias
    return BackwardArgs(BACKWARD_SIZE, DTYPES[x.dtype], 0 if weight is None else DTYPES[weight.dtype],
                        0 if grad is None else DTYPES[grad.dtype], 0, 0, 0, address(dx), address(dweight),
                        address(dbias), address(dy_rows), x_rows.data_ptr(), address(weight),
                        *statistics_of(statistics), x.numel() // C, C, C, dy_stride, x_stride, workspace.data_ptr(),
                        workspace.nbytes, current_stream(x.get_device())), (x_rows, dy_rows)


def new_like(x):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def new_statistics(x, C):
    """room for mean and rstd (2,N)"""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.empty((2, x.numel() // C), dtype=dtype, device=x.device)


def run_forward(x, weight, bias, C, eps, with_statistics=True):
    """y, and mean and rstd (2,N) if wanted"""
    y, statistics = new_like(x), new_statistics(x, C) if with_statistics else None
    args, _rows = forward_args(y, statistics, x, weight, bias, C, eps)
    call(library().llmc_layernorm_forward, args, x)
    return y, statistics


def run_backward(dy, x, weight, bias, statistics, C, wanted):
    """wanted: three bools, for x, weight, bias; None for what is not"""
    dx = new_like(x) if wanted[0] else None
    dweight = torch.empty_like(weight) if wanted[1] else None
    dbias = torch.empty_like(bias) if wanted[2] else None
    workspace = new_workspace(x, C)
    args, _rows = backward_args(dx, dweight, dbias, workspace, dy, x, weight, statistics, C)
    call(library().llmc_layernorm_backward, args, x)
    return dx, dweight, dbias


try:
    from torch._C import _are_functorch_transforms_active as in_transform
except ImportError:  # another name in a later PyTorch, which says itself what is wrong
    def in_transform():
        return False


def within_dual_level():
    """outside of one no tensor has a tangent; True if this PyTorch does not say"""
    return getattr(forward_ad, "_current_level", 0) >= 0


def refuse_tangents(*tensors):
    """The kernels know nothing of forward-mode AD: a tangent would be lost in silence. Where torch.compile looks no
    tangents are seen: there it is to leave the call as it is, which this exception makes it do."""
    if is_compiling() or any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise NotImplementedError("layer_norm: a tensor has a tangent (forward-mode AD), expected none; "
                                  "torch.nn.functional.layer_norm has the rule for them")


def second_derivative(ctx, *grads):
    raise NotImplementedError("layer_norm: second derivatives are not provided; "
                              "torch.nn.functional.layer_norm has them")


class Backward(torch.autograd.Function):
    """The gradients as a function of their own, so that asking for theirs says what is wrong."""

    @staticmethod
    def forward(ctx, *given):
        return run_backward(*given)

    backward = staticmethod(second_derivative)


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, C, eps):
        y, statistics = run_forward(x, weight, bias, C, eps, True)
        ctx.save_for_backward(x, weight, bias, statistics)
        ctx.C = C
        return y

    @staticmethod
    def backward(ctx, dy):
        if within_dual_level():
            refuse_tangents(dy, *ctx.saved_tensors)
        gradients = Backward.apply if torch.is_grad_enabled() else run_backward  # enabled by create_graph
        return *gradients(dy, *ctx.saved_tensors, ctx.C, ctx.needs_input_grad[:3]), None, None


# ---- torch.compile and torch.export: the same calls as operators, into which they do not look ------------------------
def keep_for_backward(ctx, inputs, output):
    x, weight, bias, ctx.C, _eps = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, bias, output[1])


def forward_op_backward(ctx, dy, _dstatistics):
    if within_dual_level():
        refuse_tangents(dy, *ctx.saved_tensors)
    wanted = ctx.needs_input_grad[:3]
    found = iter(backward_op(dy, *ctx.saved_tensors, ctx.C, wanted))
    return *(next(found) if w else None for w in wanted), None, None


def only(gradients):
    """without the None of those not wanted, which an operator cannot return"""
    return [g for g in gradients if g is not None]


forward_op = custom_op(
    "llmc_layernorm::forward", run_forward, mutates_args=(),
    schema="(Tensor x, Tensor? weight, Tensor? bias, SymInt C, float eps) -> (Tensor, Tensor)")
forward_op.register_fake(lambda x, weight, bias, C, eps: (new_like(x), new_statistics(x, C)))
forward_op.register_autograd(forward_op_backward, setup_context=keep_for_backward)

backward_op = custom_op(
    "llmc_layernorm::backward", lambda *given: only(run_backward(*given)), mutates_args=(),
    schema="(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor statistics, SymInt C, bool[] wanted) "
           "-> Tensor[]")
backward_op.register_fake(
    lambda dy, x, weight, bias, statistics, C, wanted: [new_like(t) for t, w in zip((x, weight, bias), wanted) if w])
backward_op.register_autograd(second_derivative)


def integers(normalized_shape):
    """a tuple of ints, from one or several of any integer type, NumPy's too"""
    try:
        return tuple(map(operator.index, normalized_shape))
    except TypeError:
        pass
    try:
        return (operator.index(normalized_shape),)
    except TypeError:
        raise TypeError(f"layer_norm: normalized_shape is {normalized_shape!r}, expected an integer or a sequence of "
                        "integers, such as x.shape[-1:]") from None


def check_tensors(**arguments):
    for name, value in arguments.items():
        if value is not None and not isinstance(value, torch.Tensor):
            raise TypeError(f"layer_norm: {name} is of {type(value)}, expected a torch.Tensor, which "
                            "torch.as_tensor(..., device='cuda') makes")


def check_arguments(x, shape, weight, bias):
    if not shape or x.shape[-len(shape):] != shape:
        raise ValueError(f"layer_norm: x has shape {tuple(x.shape)}, expected it to end with normalized_shape "
                         f"{shape}, which may not be empty")
    if not x.is_cuda:
        raise ValueError(f"layer_norm: x is on {x.device}, expected a CUDA device")
    dtype, device = x.dtype, x.get_device()
    if dtype not in DTYPES:
        raise TypeError(f"layer_norm: x is {dtype}, expected one of {', '.join(map(str, DTYPES))}")
    allowed = (dtype, torch.float32) if dtype.itemsize == 2 else (dtype,)
    for name, p in (("weight", weight), ("bias", bias)):
        if p is None:
            continue
        if p.shape != shape or p.get_device() != device:
            raise ValueError(f"layer_norm: {name} is {tuple(p.shape)} on {p.device}, expected {shape} on {x.device}")
        if p.dtype not in allowed:
            raise TypeError(f"layer_norm: {name} is {p.dtype}, expected {' or '.join(map(str, allowed))} beside "
                            f"x of {dtype}")
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        raise TypeError(f"layer_norm: weight is {weight.dtype} and bias {bias.dtype}, expected the same type")


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    """torch.nn.functional.layer_norm; what may differ is said at the top of this file"""
    if isinstance(normalized_shape, int):
        shape = (normalized_shape,)
    else:
        shape = normalized_shape if isinstance(normalized_shape, torch.Size) else integers(normalized_shape)
    try:
        check_arguments(x, shape, weight, bias)
    except AttributeError:
        check_tensors(x=x, weight=weight, bias=bias)
        raise
    C = math.prod(shape)
    if C == 0:
        return x.clone()
    learns = x.requires_grad
    if weight is not None:
        weight, learns = weight.contiguous(), learns or weight.requires_grad
    if bias is not None:
        bias, learns = bias.contiguous(), learns or bias.requires_grad
    if in_transform():
        raise NotImplementedError(IN_TRANSFORM)
    if within_dual_level():
        refuse_tangents(x, weight, bias)
    if is_compiling():
        return forward_op(x, weight, bias, C, eps)[0]
    if learns and torch.is_grad_enabled():
        return Forward.apply(x, weight, bias, C, eps)
    return run_forward(x, weight, bias, C, eps, False)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", action="store_true", help="checks every result against PyTorch's, on a GPU")
    if not parser.parse_args().test:
        raise SystemExit("nothing to do: --test (--help)")
    import layernorm_torch_test
    return layernorm_torch_test.main()


if __name__ == "__main__":
    sys.exit(main())
