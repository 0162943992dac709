"""Results of 16 bits beside float32 rows, as autocast's products read them: values and gradients, and which norms of a model
have them."""
import pytest
import torch

import plumb_layernorm
from helpers import DEVICE, HALF, exact, gradients, inputs, is_ours, learning, near, theirs

SHAPES = [(131, 768), (3, 5, 65), (17, 1600), (5, 4097), (3, 20000)]


def norms(kind, out_dtype):
    """ours with a result of out_dtype, and PyTorch's in the type that it is given"""
    if kind == "layer_norm":
        return (lambda x, w, b: plumb_layernorm.layer_norm(x, x.shape[-1], w, b, out_dtype=out_dtype)), theirs
    return ((lambda x, w: plumb_layernorm.rms_norm(x, x.shape[-1], w, 1e-6, out_dtype=out_dtype)),
            (lambda x, w: torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)))


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("out_dtype", HALF, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape, out_dtype, kind):
    x, weight, bias, dy = inputs(shape)
    tensors = (x, weight, bias) if kind == "layer_norm" else (x, weight)
    mine, reference = norms(kind, out_dtype)
    leaves, dy = learning(*tensors), dy.to(out_dtype)
    y = mine(*leaves)
    assert is_ours(y) and y.dtype == out_dtype and y.is_contiguous()
    made = gradients(mine, leaves, dy)
    assert [t.dtype for t in made] == [out_dtype] + [torch.float32] * len(tensors)
    near(made, exact(reference, tensors, dy))
    with torch.no_grad():
        assert torch.equal(mine(*tensors), y), "without gradients, other bits"


def test_strides_and_what_goes_to_pytorch():
    x, weight, bias, dy = inputs((6, 40, 96))
    mine, _ = norms("layer_norm", torch.bfloat16)
    near(gradients(mine, learning(x[:, ::2], weight, bias), dy[:, ::2].bfloat16()),
         exact(theirs, (x[:, ::2], weight, bias), dy[:, ::2].bfloat16()))
    for rows, out_dtype in ((torch.float64, torch.bfloat16), (torch.bfloat16, torch.float16)):
        y = norms("layer_norm", out_dtype)[0](x.to(rows), weight.to(rows), bias.to(rows))
        assert y.dtype == out_dtype
    assert norms("layer_norm", torch.float32)[0](x, weight, bias).dtype == torch.float32


def test_second_derivative():
    x, weight, bias, dy = inputs((5, 33))
    mine, _ = norms("layer_norm", torch.bfloat16)

    def squared(function, leaves, dout):
        dx, = torch.autograd.grad(function(*leaves), leaves[0], dout, create_graph=True)
        return torch.autograd.grad((dx * dx).sum(), leaves[:2])

    got = squared(mine, learning(x, weight, bias), dy.bfloat16())
    near(got, squared(theirs, learning(x, weight, bias, dtype=torch.float64), dy.bfloat16().double()))


class Block(torch.nn.Module):
    """before: one product reads it; several: three do; kept: a sum reads it, too; last: the model's result"""

    def __init__(self, norm):
        super().__init__()
        self.before, self.several, self.kept, self.last, self.idle = (norm(64) for _ in range(5))
        self.products = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(5))

    def forward(self, x):
        x = x + self.products[0](self.before(x).view(-1, 64)).view_as(x)
        y = self.several(x)
        x = x + self.products[1](y) + self.products[2](y) * self.products[3](y)
        y = self.kept(x)
        return self.last(y + self.products[4](y))


@pytest.mark.parametrize("norm", [torch.nn.LayerNorm, torch.nn.RMSNorm], ids=["LayerNorm", "RMSNorm"])
def test_replace_norms_decides_by_an_example(norm):
    torch.manual_seed(0)
    model, x = Block(norm).to(DEVICE), torch.randn(7, 3, 64, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        answer = plumb_layernorm.replace_norms(model, lambda: model(x))
        replaced, kept = answer
        assert len(replaced) == 5 and not kept
        assert {name: answer.out[name] for name in ("before", "several")} == {"before": 1, "several": 3}
        assert "add" in answer.out["kept"] and answer.out["last"] == "the model's result" and "idle" not in answer.out
        halves = [name for name, _ in replaced if model.get_submodule(name).feeds_products]
        assert halves == ["before", "several"]
        assert model.before(x).dtype == torch.bfloat16 and model.kept(x).dtype == torch.float32
        found = gradients(model, [x.requires_grad_()], torch.ones_like(x))
        for name in halves:
            model.get_submodule(name).feeds_products = False
        cast = gradients(model, [x], torch.ones_like(x))
    for a, b in zip(found, cast):
        assert (a - b).abs().max() <= 2**-6 * b.abs().max()
    assert model.before(x).dtype == torch.float32, "without autocast"


def test_replace_norms_without_an_example_changes_no_type():
    model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)).to(DEVICE)
    answer = plumb_layernorm.replace_norms(model)
    assert answer.out == {}
    with torch.autocast(DEVICE, torch.bfloat16):
        assert model[0](torch.randn(3, 8, device=DEVICE)).dtype == torch.float32
