"""layer_norm_modulate beside PyTorch's operators."""
import pytest
import torch

import plumb_layernorm
from helpers import DEVICE, UNITS, gradients, learning
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


def ours(x, scale, shift, residual, gate):
    return layer_norm_modulate(x, scale, shift, residual=residual, gate=gate)


def theirs(*tensors):
    return composed(*tensors, 1e-6)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 37, 1152), (3, 5, 4, 768), (5, 1, 384), (1, 19, 77), (40, 3, 64)], ids=str)
def test_modulate_is_pytorchs(shape, dtype, gated):
    tensors, douts = given(shape, dtype, gated)
    found, again = (gradients(ours, learning(*tensors), *douts) for _ in "12")
    exact = learning(*tensors, dtype=torch.float64)
    if gated:  # what is normalised is rounded
        total = (exact[3] + exact[4].reshape(shape[0], *(1,) * (len(shape) - 2), -1) * exact[0]).to(dtype)
        assert (found[1] - total).abs().max() <= UNITS[dtype] * total.abs().max()
    expected = gradients(theirs, exact, *douts)
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

    def call(x, *others):
        found = ours(x * 2, *others)
        return tuple(t + 1 for t in found) if gated else found + 1

    compiled = torch.compile(call, fullgraph=True)
    for a, b in zip(*(gradients(function, learning(*tensors), *douts) for function in (compiled, call))):
        assert torch.equal(a, b)


def test_modulate_refuses():
    (x, scale, shift, residual, gate), _ = given((2, 9, 64), torch.float32, True)
    for change in (dict(gate=gate), dict(residual=residual), dict(residual=residual[:1], gate=gate), dict(scale=scale[:, :8])):
        with pytest.raises(ValueError, match="layer_norm_modulate"):
            layer_norm_modulate(**dict(x=x, scale=scale, shift=shift) | change)
