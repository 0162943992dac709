"""LayerNorm whose result torch._scaled_mm reads, over the operator of csrc/stable.cpp."""
from collections import namedtuple

import torch

from ._backend import backend

if backend != "torch":
    from ._stable import DEVICE, PLAIN, learns, operators

    torch.library.register_fake("plumb_layernorm_stable::forward_fp8", lambda *arguments: None)


LayerNormFp8 = namedtuple("LayerNormFp8", "out transposed amax mean rstd residual")


def require(condition, error, found, expected):
    if not condition:
        raise error(f"layer_norm_fp8: {found}; expected {expected}")


def check(x, weight, bias, scale, residual, amax):
    """what the library would call a row or a pointer, in the words of the caller"""
    C = x.shape[-1] if x.dim() > 0 else 0
    bf16 = {"x": x, "weight": weight, "bias": bias} | ({} if residual is None else {"residual": residual})
    one = {"scale": scale} | ({} if amax is None else {"amax": amax})
    for name, t in (bf16 | one).items():
        dtype = torch.bfloat16 if name in bf16 else torch.float32
        require(type(t) in PLAIN and t is not None, TypeError, f"{name} is a {type(t).__name__}", "a plain torch.Tensor")
        require(t.device == x.device and t.device.type == DEVICE, ValueError, f"{name} is on {t.device}, x on {x.device}",
                f"all on one {DEVICE} device")
        require(t.dtype == dtype, TypeError, f"{name} is of {t.dtype}", f"{dtype}: {name}.to({dtype})")
    require(C > 0 and C % 16 == 0 and C <= 6144, ValueError, f"rows of {C} elements",
            "a multiple of 16, at most 6144, as FP8 products take no other; layer_norm takes all")
    require(x.numel() // C % 16 == 0, ValueError, f"{x.numel() // C} rows", "a multiple of 16: pad x with rows of zeros")
    for name, t in one.items():
        require(t.numel() == 1, ValueError, f"{name} is of shape {tuple(t.shape)}", "one number for all of the tensor")
    for name, t in bf16.items():
        shape = x.shape if t is residual or t is x else x.shape[-1:]
        require(t.shape == shape, ValueError, f"{name} is of shape {tuple(t.shape)}", f"{tuple(shape)}")
    require(not learns(x, weight, bias, residual), RuntimeError, "a gradient is wanted, and this has none",
            "a call in torch.autograd.Function, as help(plumb_layernorm.layer_norm_fp8) says, or under torch.no_grad()")


def layer_norm_fp8(x, weight, bias, scale, eps=1e-5, *, residual=None, amax=None, transpose=True):
    """LayerNorm over x's last dimension for torch._scaled_mm: e4m3 and its transpose from one read of x, on Hopper and later.
    (out, transposed, amax, mean, rstd, residual), where
    out         (rows,C) torch.float8_e4m3fn: saturated(y * scale), y = layer_norm(x, (C,), weight, bias, eps) in float32
    transposed  (C,rows) the same numbers, None without transpose
    amax        (1) float32: the largest |y|, for the scale of calls to come (448 / amax at most); NaN does not count. An amax
                that is given is raised in place: one of several calls or steps
    mean, rstd  (rows) float32
    residual    with residual: x + residual in bfloat16, which is what is normalised then; else None
    x, residual, weight and bias are bfloat16, scale is one float32 on their device. C and the rows, all dimensions but the
    last together, are multiples of 16. On other GPUs: (layer_norm(...) * scale).to(torch.float8_e4m3fn).

    A product with W (OC,C), and the gradient of W, where dy_t is dY (OC,rows), each with the inverse of its scale:
        torch._scaled_mm(r.out, w8.t(), 1 / scale, 1 / w_scale, out_dtype=torch.bfloat16)
        torch._scaled_mm(dy_t, r.transposed.t(), 1 / dy_scale, 1 / scale, out_dtype=torch.bfloat16)

    It is forward only, as the rounding to FP8 has no derivative that is of use. To train, call it and the products in
    the forward of a torch.autograd.Function of your own, and in its backward, with dy the gradient of y,
        torch.ops.aten.native_layer_norm_backward(dy, x, [C], r.mean, r.rstd, weight, bias, [True] * 3)
    gives those of x (or of x + residual), weight and bias."""
    require(backend != "torch", RuntimeError, "this PyTorch has no CUDA", "one with it")
    check(x, weight, bias, scale, residual, amax)
    C, rows = x.shape[-1], x.numel() // x.shape[-1]
    x, residual, weight, bias = (None if t is None else t.contiguous() for t in (x, residual, weight, bias))
    out = torch.empty((rows, C), dtype=torch.float8_e4m3fn, device=x.device)
    transposed = torch.empty((C, rows), dtype=out.dtype, device=x.device) if transpose else None
    amax = torch.zeros(1, dtype=torch.float32, device=x.device) if amax is None else amax
    statistics = torch.empty((2, rows), dtype=torch.float32, device=x.device)
    total = None if residual is None else torch.empty_like(x)
    operators.forward_fp8(out, transposed, amax, statistics, total, x, residual, weight, bias, scale, eps)
    return LayerNormFp8(out, transposed, amax, statistics[0], statistics[1], total)
