"""layer_norm_modulate beside PyTorch's operators."""
import pytest
import torch

import plumb_layernorm
from helpers import DEVICE, UNITS, learning
from plumb_layernorm import layer_norm_modulate
from plumb_layernorm._modulate import composed

BF16 = torch.bfloat16
ours_alone = pytest.mark.skipif(plumb_layernorm.backend == "torch", reason="of the package's operators")


def given(shape, dtype, gated):
    """x, scale, shift, residual, gate, which are chunks of one tensor; then the gradients that come"""
    torch.manual_seed(sum(shape))
    make = lambda *s: torch.randn(s, device=DEVICE).to(dtype)
    chunks = make(shape[0], 6 * shape[-1]).chunk(6, dim=1)
    more = (make(*shape), chunks[2]) if gated else (None, None)
    return (make(*shape), chunks[1], chunks[0], *more), [make(*shape) for _ in "12"]


def results(function, tensors, douts, eps=1e-6):
    out = function(*tensors[:3], eps, residual=tensors[3], gate=tensors[4]) if function is layer_norm_modulate else function(
        *tensors, eps)
    out = list(out) if isinstance(out, tuple) else [out]
    leaves = [t for t in tensors if t is not None]
    return out + list(torch.autograd.grad(out, leaves, [d.to(o.dtype) for d, o in zip(douts, out)]))


def chunked(tensors, dtype=None):
    """leaves of the same values; those of samples as far apart as they were"""
    return [t if t is None else t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 37, 1152), (3, 5, 4, 768), (5, 1, 384), (1, 19, 77), (40, 3, 64)], ids=str)
def test_modulate_is_pytorchs(shape, dtype, gated):
    tensors, douts = given(shape, dtype, gated)
    found = results(layer_norm_modulate, chunked(tensors), douts)
    again = results(layer_norm_modulate, chunked(tensors), douts)
    exact = [t if t is None else t.double() for t in chunked(tensors)]
    if gated:  # what is normalised is rounded
        total = (exact[3] + exact[4].reshape(shape[0], *(1,) * (len(shape) - 2), -1) * exact[0]).to(dtype)
        assert (found[1] - total).abs().max() <= UNITS[dtype] * total.abs().max()
    expected = results(composed, learning(*exact), [d.double() for d in douts])
    for k, (a, b, c) in enumerate(zip(found, expected, again)):
        assert a.shape == b.shape and torch.equal(a, c)
        assert (a.double() - b).abs().max() <= 2 * UNITS[dtype] * b.abs().max(), f"result {k}"


def test_modulate_between_dimensions_of_one_and_elsewhere():
    (x, scale, shift, residual, gate), _ = given((2, 9, 64), torch.float32, True)
    wide = [p[:, None] for p in (scale, shift, gate)]
    a = layer_norm_modulate(x, wide[0], wide[1], residual=residual, gate=wide[2])
    b = layer_norm_modulate(x, scale, shift, residual=residual, gate=gate)
    assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
    double = layer_norm_modulate(x.double(), scale.double(), shift.double())
    assert double.dtype == torch.float64 and (layer_norm_modulate(x, scale, shift) - double).abs().max() < 1e-4


@ours_alone
@pytest.mark.parametrize("gated", [False, True])
def test_modulate_compiles(gated):
    torch.compiler.reset()
    tensors, douts = given((2, 16, 256), BF16, gated)

    def call(x, scale, shift, residual, gate, eps):
        found = layer_norm_modulate(x * 2, scale, shift, eps, residual=residual, gate=gate)
        return tuple(t + 1 for t in found) if gated else found + 1

    compiled = torch.compile(call, fullgraph=True)
    for a, b in zip(results(compiled, chunked(tensors), douts), results(call, chunked(tensors), douts)):
        assert torch.equal(a, b)


def test_modulate_refuses():
    (x, scale, shift, residual, gate), _ = given((2, 9, 64), torch.float32, True)
    for change in (dict(gate=gate), dict(residual=residual), dict(residual=residual[:1], gate=gate), dict(scale=scale[:, :8])):
        with pytest.raises(ValueError, match="layer_norm_modulate"):
            layer_norm_modulate(**dict(x=x, scale=scale, shift=shift) | change)
