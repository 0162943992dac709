"""LayerNorm whose scale and shift each sample has for itself (adaLN), over the operators of csrc/stable.cpp."""
import torch

from ._backend import backend
from ._compiled import needs_pytorchs

TYPES = (torch.float32, torch.bfloat16, torch.float16)
if backend != "torch":
    from ._stable import DEVICE, PLAIN, has_tangent, learns, new_like, operators

    for name in ("forward", "backward"):  # they write into what they are given: no shapes to tell
        torch.library.register_fake(f"plumb_layernorm_stable::modulate_{name}", lambda *arguments: None)


def takes(x, of_samples, residual):
    """whether the library has a kernel for this call"""
    tensors = (x, *of_samples) if residual is None else (x, *of_samples, residual)
    return (backend != "torch" and all(type(t) in PLAIN and t.device.type == DEVICE and t.device == x.device
                                       and t.dtype == x.dtype for t in tensors)
            and x.dtype in TYPES and 0 < x.numel() < 2**31 * x.shape[-1] and not has_tangent(*tensors) and not needs_pytorchs())


def rows_of(p):
    """(B,C) whose rows the library can read: each side by side"""
    p = p.reshape(p.shape[0], p.shape[-1])
    return p if p.stride(1) == 1 and p.stride(0) >= p.shape[1] else p.contiguous()


def run_forward(x, scale, shift, residual, gate, eps, want_statistics):
    """out, what was normalised, and its statistics (2,B,T) or None"""
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    out, total = new_like(x), None if residual is None else new_like(x)
    statistics = torch.empty((2, x.numel() // x.shape[-1]), dtype=torch.float32, device=x.device) if want_statistics else None
    inp, inp2 = (x, None) if residual is None else (residual, x)
    operators.modulate_forward(out, total, statistics, inp, rows_of(scale), rows_of(shift), inp2,
                               None if gate is None else rows_of(gate), eps)
    return out, x if total is None else total, statistics


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, shift, residual, gate, eps):
        out, normalised, statistics = run_forward(x, scale, shift, residual, gate, eps, True)
        ctx.save_for_backward(normalised, statistics, scale, gate, None if residual is None else x)
        ctx.set_materialize_grads(False)
        return out if residual is None else (out, normalised)

    @staticmethod
    def backward(ctx, dout, dtotal=None):
        if torch.is_grad_enabled():
            raise RuntimeError("layer_norm_modulate has no second derivative: create_graph is not supported")
        normalised, statistics, scale, gate, h = ctx.saved_tensors
        dout = torch.zeros_like(normalised) if dout is None else dout.contiguous()
        dtotal = None if dtotal is None else dtotal.contiguous()
        dinp, dh = new_like(normalised), None if h is None else new_like(normalised)
        dscale, dshift = (torch.empty(scale.shape, dtype=scale.dtype, device=scale.device) for _ in range(2))
        dgate = None if h is None else torch.empty_like(dscale)
        operators.modulate_backward(dinp, dscale, dshift, dh, dgate, dout, normalised, statistics, rows_of(scale), dtotal,
                                    None if h is None else h.contiguous(), None if gate is None else rows_of(gate))
        return (dinp, dscale, dshift, None, None, None) if h is None else (dh, dscale, dshift, dinp, dgate, None)


def composed(x, scale, shift, residual, gate, eps):
    """by PyTorch's operators"""
    scale, shift, gate = (p if p is None else p.reshape(p.shape[0], *(1,) * (x.dim() - 2), p.shape[-1])
                          for p in (scale, shift, gate))
    x = x if residual is None else residual + gate * x
    out = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale) + shift
    return out if residual is None else (out, x)


def layer_norm_modulate(x, scale, shift, eps=1e-6, *, residual=None, gate=None):
    """layer_norm(x) * (1 + scale) + shift, with a scale and a shift of each sample's own, as between the layers of a diffusion
    transformer (adaLN), in one pass over x. x is (B,...,C); scale and shift are (B,C), or with dimensions of 1 between; chunks
    of one tensor are read in place. The LayerNorm is over the last dimension, without weight and bias.

    With residual (like x) and gate (like scale): (layer_norm(new_residual) * (1 + scale) + shift, new_residual), where
    new_residual = residual + gate * x, in one pass over x and residual: the end of a block and the next one's modulation. The
    gradients of a sample's scale, shift and gate are summed over its rows in a fixed order: the same call gives the same bits.

    float32, bfloat16 and float16, all of one type, on a CUDA device, are computed in float32 and rounded once; everything
    else, CPU tensors above all, goes to PyTorch's operators. Second derivatives are refused."""
    given = (scale, shift) if gate is None else (scale, shift, gate)
    if (residual is None) != (gate is None):
        raise ValueError("layer_norm_modulate: residual and gate go together, one of them is None")
    if x.dim() < 2 or any(p.shape[0] != x.shape[0] or p.shape[-1] != x.shape[-1] or p.numel() != x.shape[0] * x.shape[-1]
                          for p in given) or (residual is not None and residual.shape != x.shape):
        shapes = [tuple(p.shape) for p in given]
        raise ValueError(f"layer_norm_modulate: x is {tuple(x.shape)}, scale, shift, gate {shapes}; expected (B,...,C), (B,C) "
                         "for the others, and residual like x")
    if not takes(x, given, residual):
        return composed(x, scale, shift, residual, gate, eps)
    if learns(x, residual, *given):
        return Function.apply(x, scale, shift, residual, gate, eps)
    out, total, _ = run_forward(x, scale, shift, residual, gate, eps, False)
    return out if residual is None else (out, total)
