"""layer_norm_fp8 beside PyTorch's operator and its cast."""
import pytest
import torch

import plumb_layernorm
from helpers import DEVICE, UNITS, inputs, learning, near, theirs

HOPPER = DEVICE != "cuda" or torch.cuda.get_device_capability() >= (9, 0)
pytestmark = pytest.mark.skipif(not HOPPER, reason="of Hopper and later")
products = pytest.mark.skipif(DEVICE != "cuda", reason="of FP8 tensor cores")
E4M3, BF16, MOST = torch.float8_e4m3fn, torch.bfloat16, 448


def given(shape=(64, 768), scale=8.0):
    x, weight, bias, dy = inputs(shape, BF16)
    return x, weight, bias, torch.tensor(scale, device=DEVICE), dy


def cast(y, scale):
    return (y * scale).clamp(-MOST, MOST).to(E4M3)


def is_cast_of(out, y, scale):
    """PyTorch's cast is monotone: out lies between those of what y, computed in float32, can be at least and at most"""
    slack = UNITS[torch.float32] * y.abs().max()
    return bool((cast(y - slack, scale).float() <= out.float()).all() and
                (out.float() <= cast(y + slack, scale).float()).all())


@pytest.mark.parametrize("shape", [(16, 16), (64, 768), (4, 36, 1280), (80, 1600), (32, 6144)], ids=str)
@pytest.mark.parametrize("scale", [8.0, 1000.0])  # 1000: much of it saturates
@pytest.mark.parametrize("with_residual", [False, True])
def test_fp8_is_the_cast_of_pytorchs(shape, scale, with_residual):
    x, weight, bias, at, residual = given(shape, scale)
    found = plumb_layernorm.layer_norm_fp8(x, weight, bias, at, residual=residual if with_residual else None)
    normalised = x + residual if with_residual else x
    y = theirs(normalised.double(), weight.double(), bias.double()).view(-1, shape[-1])
    assert found.out.dtype == E4M3 and found.out.shape == y.shape and is_cast_of(found.out, y, scale)
    assert (found.out.float() == cast(y, scale).float()).double().mean() > 0.99
    assert found.out.float().abs().max() == MOST or scale == 8
    assert torch.equal(found.transposed.view(torch.uint8), found.out.view(torch.uint8).t())
    rows = normalised.double().view_as(y)
    rstd = (rows.var(-1, correction=0) + 1e-5).rsqrt()
    near([found.amax, found.mean, found.rstd], [y.abs().max().view(1), rows.mean(-1), rstd])
    assert torch.equal(found.residual, normalised) if with_residual else found.residual is None


def test_fp8_amax_is_raised_and_the_transpose_left_out():
    x, weight, bias, scale, _ = given()
    amax = torch.full((1,), 1e3, device=DEVICE)
    found = plumb_layernorm.layer_norm_fp8(x.t().contiguous().t(), weight, bias, scale, amax=amax, transpose=False)
    assert found.amax is amax and amax.item() == 1e3 and found.transposed is None
    alone = plumb_layernorm.layer_norm_fp8(x, weight, bias, scale, amax=amax.zero_())
    assert 1 < amax.item() < 100 and torch.equal(alone.out.float(), found.out.float())
    assert plumb_layernorm.layer_norm_fp8(x[:0], weight, bias, scale).transposed.shape == (768, 0)


def call_compiled(x, weight, bias, scale, residual):
    r = plumb_layernorm.layer_norm_fp8(x * 2, weight, bias, scale, 1e-3, residual=residual)
    return r.out.float() + 1, r.transposed.float(), r.amax * 2, r.residual + 1, r.rstd


@pytest.mark.parametrize("dynamic", [False, True])
def test_fp8_compile(dynamic):
    torch.compiler.reset()
    compiled = torch.compile(call_compiled, fullgraph=True, dynamic=dynamic)
    for shape in ((64, 768), (96, 1280)):
        arguments = given(shape)
        for a, b in zip(compiled(*arguments), call_compiled(*arguments)):
            assert torch.equal(a, b)


@products
def test_fp8_products_and_gradients_as_documented():
    x, weight, bias, scale, _ = given((256, 768), 32.0)
    w, dout = ((s * torch.randn(n, k, device=DEVICE)).to(BF16) for s, n, k in ((0.02, 512, 768), (0.1, 256, 512)))
    w_scale, dy_scale = (torch.full((), s, device=DEVICE) for s in (1024.0, 256.0))
    r = plumb_layernorm.layer_norm_fp8(x, weight, bias, scale)
    out = torch._scaled_mm(r.out, cast(w.float(), w_scale).t(), 1 / scale, 1 / w_scale, out_dtype=BF16)
    dy_t = cast(dout.float().t().contiguous(), dy_scale)
    dw = torch._scaled_mm(dy_t, r.transposed.t(), 1 / dy_scale, 1 / scale, out_dtype=BF16)
    normed = torch.ops.aten.native_layer_norm_backward(dout @ w, x, [768], r.mean, r.rstd, weight, bias, [True] * 3)
    exact = learning(x, weight, bias, w, dtype=torch.float64)
    expected = theirs(*exact[:3]) @ exact[3].t()
    gradients = torch.autograd.grad(expected, exact, dout.double())
    for a, b in zip([out, *normed, dw], [expected, *gradients]):
        assert (a - b).norm() <= 2**-4 * b.norm()  # half a unit of 3 bits, in both factors


@pytest.mark.parametrize("change,kind,says", [
    (dict(x=torch.zeros(16, 768, dtype=BF16, device="meta")), ValueError, "x is on meta.*expected all on one"),
    (dict(x=torch.zeros(16, 768, dtype=torch.float16, device=DEVICE)), TypeError, "x is of torch.float16.*x.to.torch.bf"),
    (dict(bias=torch.zeros(768, device=DEVICE)), TypeError, "bias.to.torch.bfloat16"),
    (dict(scale=8.0), TypeError, "scale is a float"),
    (dict(scale=torch.ones(2, device=DEVICE)), ValueError, "scale is of shape .2,.; expected one number"),
    (dict(amax=torch.zeros(1, dtype=BF16, device=DEVICE)), TypeError, "amax.to.torch.float32"),
    (dict(x=torch.zeros(16, 24, dtype=BF16, device=DEVICE)), ValueError, "rows of 24 elements.*multiple of 16"),
    (dict(x=torch.zeros(16, 6160, dtype=BF16, device=DEVICE)), ValueError, "at most 6144"),
    (dict(x=torch.zeros(2, 9, 768, dtype=BF16, device=DEVICE)), ValueError, "18 rows; expected a multiple of 16"),
    (dict(bias=torch.zeros(16, dtype=BF16, device=DEVICE)), ValueError, "bias is of shape .16,.; expected .768,."),
    (dict(residual=torch.zeros(32, 768, dtype=BF16, device=DEVICE)), ValueError, "residual is of shape"),
    (dict(eps=-1.0), RuntimeError, "eps is"),
    (dict(weight=torch.ones(768, dtype=BF16, device=DEVICE).requires_grad_()), RuntimeError, "autograd.Function"),
], ids=str)
def test_fp8_refuses(change, kind, says):
    arguments = dict(zip(("x", "weight", "bias", "scale"), given())) | change
    with pytest.raises(kind, match=f"(?s){says}"):
        plumb_layernorm.layer_norm_fp8(**arguments)
