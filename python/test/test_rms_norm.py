"""RMSNorm: results and gradients against PyTorch's in float64; the modules; what replace_norms finds by its code."""
import copy
import pickle

import pytest
import torch

import plumb_layernorm
from helpers import DEVICE, NODES, exact, gradients, inputs, is_ours, learning, near, second
from helpers import ours_rms as ours
from helpers import theirs_rms as theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_without_weight_and_with_an_offset(dtype):
    x, weight, _, dy = inputs((7, 130), dtype)
    near(gradients(lambda x: ours(x, None), learning(x), dy), exact(lambda x: theirs(x, None), [x], dy))
    near(gradients(lambda *a: ours(*a, offset=1.0), learning(x, weight), dy),
         exact(lambda *a: theirs(*a, offset=1.0), (x, weight), dy))


def test_eps_is_that_of_pytorch():
    """so small that eps counts"""
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        x = 1e-4 * inputs((5, 64), dtype)[0]
        eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
        near([plumb_layernorm.rms_norm(x, 64), torch.nn.functional.rms_norm(x, (64,))],
             2 * [theirs(x.double(), None, eps=eps)])


@pytest.mark.parametrize("dims", [1, 2])
def test_second_derivative(dims):
    x, weight, _, dy = inputs((5, 16)[-dims:], torch.float64)
    near(*(second(function, learning(x, weight), dy) for function in (ours, theirs)))


def test_operators():
    """schemas, shapes without data, what autograd does"""
    if plumb_layernorm.backend != "extension":
        return
    x, weight, _, _ = inputs((5, 16))
    for leaves in (learning(x, weight), (x, None)):
        torch.library.opcheck(torch.ops.plumb_layernorm.rms_norm.default, (leaves[0], [16], leaves[1], 1e-6))
        torch.library.opcheck(torch.ops.plumb_layernorm.residual_rms_norm.default,
                              (leaves[0], x.clone(), [16], leaves[1], 1e-6))


# ---- modules -----------------------------------------------------------------------------------------------
def test_module():
    ours, theirs = (m.RMSNorm(64, eps=1e-5, device=DEVICE) for m in (plumb_layernorm, torch.nn))
    with torch.no_grad():
        theirs.weight.uniform_()
    ours.load_state_dict(theirs.state_dict())
    x = inputs((5, 64))[0].requires_grad_()
    assert is_ours(ours(x)) and isinstance(ours, torch.nn.RMSNorm)
    near([ours(x)], [theirs(x)])
    assert plumb_layernorm.RMSNorm(64, elementwise_affine=False).weight is None
    gemma = plumb_layernorm.RMSNorm(64, offset=1.0, device=DEVICE)
    assert gemma.weight.count_nonzero() == 0
    near([gemma(x)], [torch.nn.functional.rms_norm(x, (64,))])


class Scaled(torch.nn.Module):
    """Llama's formula in other words; eps may be a list's, weight may be called anything"""

    def __init__(self, columns, eps=1e-6):
        super().__init__()
        self.gain, self.small = torch.nn.Parameter(torch.rand(columns)), eps

    def forward(self, states):
        wide = states.to(torch.float32)
        size = wide.pow(2).mean(-1, keepdim=True) + self.small
        return self.gain * (wide * torch.rsqrt(size)).to(states.dtype)


class Shifted(Scaled):
    """Gemma's"""

    def forward(self, x):
        y = x.float() / torch.sqrt(torch.mean(x.float() ** 2, dim=-1, keepdim=True) + self.small)
        return (y * (1.0 + self.gain.float())).type_as(x)


class Plain(Scaled):
    def forward(self, x):
        return torch.nn.functional.rms_norm(x, self.gain.shape, self.gain, self.small)


def over_root(self, x, squares):
    return x * torch.rsqrt(squares + self.small)


OTHER_FORMULAS = {
    # no mean, but a sum
    "SumNorm": lambda self, x: self.gain * over_root(self, x, x.pow(2).sum(-1, keepdim=True)),
    # over another dimension
    "FirstNorm": lambda self, x: self.gain * over_root(self, x, x.pow(2).mean(0, keepdim=True)),
    "CentredNorm": lambda self, x: Scaled.forward(self, x - x.mean(-1, keepdim=True)),
    "GatedNorm": lambda self, x, gate: Scaled.forward(self, x) * gate,
    # the weight is not used
    "UnweighedNorm": lambda self, x: over_root(self, x, x.pow(2).mean(-1, keepdim=True)),
}


class Silent(Scaled):
    """no norm, and none by its name"""

    def forward(self, x):
        return x * self.gain


@pytest.mark.parametrize("kind", [Scaled, Shifted, Plain])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms_of_others_are_known_by_their_code(kind, dtype):
    module = kind(96, 1e-3).to(DEVICE, dtype)
    twin = copy.deepcopy(module).double()
    hooked = []
    module.register_forward_hook(lambda *a: hooked.append(1))
    model = torch.nn.ModuleList([module])
    report = plumb_layernorm.replace_norms(model)
    assert report.replaced == [("0", kind.__name__)] and report.kept == []
    assert isinstance(module, kind) and not hooked and model[0] is module
    x, _, _, dy = inputs((7, 96), dtype)
    x = x * 0.05  # so small that eps counts
    leaf, double = x.clone().requires_grad_(), x.double().requires_grad_()
    y = module(leaf)
    assert is_ours(y) or y.grad_fn is not None
    assert y.dtype == dtype and hooked == [1]
    # float() in a class's forward makes its own result less exact than float64, for which kernels are not to blame
    y.backward(dy)
    exact_y = torch.nn.functional.rms_norm(double, (96,), twin.gain + (kind is Shifted), 1e-3)
    exact_y.backward(dy.double())
    near([y, leaf.grad, module.gain.grad], [exact_y, double.grad, twin.gain.grad])
    again = copy.deepcopy(module)
    assert type(again) is type(module) and torch.equal(again(x), module(x))
    assert plumb_layernorm.replace_norms(model).kept == [("0", kind.__name__, "it is one of this package's")]


def test_pickle():
    module = Scaled(32)
    plumb_layernorm.replace_norms(module)
    again = pickle.loads(pickle.dumps(module))
    assert type(again) is type(module) and again.plumb == module.plumb and torch.equal(again.gain, module.gain)


@pytest.mark.parametrize("name", OTHER_FORMULAS)
def test_other_formulas_are_kept(name):
    kind = type(name, (Scaled,), {"forward": OTHER_FORMULAS[name]})
    module = kind(96)
    replaced, kept = plumb_layernorm.replace_norms(torch.nn.ModuleList([module, Silent(96)]))
    assert replaced == [] and type(module) is kind
    assert [k[:2] for k in kept] == [("0", name)] and "forward" in kept[0][2]


def test_replace_norms():
    class Own(torch.nn.LayerNorm):
        pass

    model = torch.nn.ModuleDict({"layer": torch.nn.LayerNorm(64), "rms": torch.nn.RMSNorm(64), "llama": Scaled(64),
                                 "group": torch.nn.GroupNorm(4, 64), "own": Own(64), "linear": torch.nn.Linear(64, 64)})
    model["taken"] = torch.nn.RMSNorm(64)
    model["taken"].forward = torch.nn.RMSNorm.forward.__get__(model["taken"])
    model = model.to(DEVICE)
    replaced, kept = plumb_layernorm.replace_norms(model)
    assert replaced == [("layer", "LayerNorm"), ("rms", "RMSNorm"), ("llama", "Scaled")]
    assert [k[:2] for k in kept] == [("group", "GroupNorm"), ("own", "Own"), ("taken", "RMSNorm")]
    x = torch.randn(5, 64, device=DEVICE, requires_grad=True)
    for name in ("layer", "rms", "llama"):
        assert model[name](x).grad_fn.name() in NODES


@pytest.mark.parametrize("kind", [Scaled, lambda n: torch.nn.RMSNorm(n, eps=1e-6)])
def test_compiled_is_pytorchs(kind):
    module = kind(64).to(DEVICE)
    x = inputs((5, 64))[0]
    expected = module(x)
    plumb_layernorm.replace_norms(torch.nn.ModuleList([module]))
    seen = []

    def backend(graph, _):
        seen.extend(str(n.target) for n in graph.graph.nodes)
        return graph.forward

    near([torch.compile(module, backend=backend, fullgraph=True)(x)], [expected])
    assert seen and not any("plumb" in name for name in seen)


# ---- the same bits in any batch ----------------------------------------------------------------------------
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [64, 768, 769, 4096, 8192])
def test_same_bits_in_any_batch(columns, dtype, rms):
    x, weight, bias, dy = inputs((7, columns), dtype)

    def norm(x, weight):
        if rms:
            return plumb_layernorm.rms_norm(x, columns, weight, 1e-6)
        return plumb_layernorm.layer_norm(x, columns, weight, bias)

    y, dx, _ = gradients(norm, learning(x, weight), dy)
    for rows in (1, 2, 33, 132, 1000):
        which = torch.arange(rows, device=DEVICE) * 3 % 7  # each of the seven, at other places
        many = gradients(norm, learning(x[which], weight), dy[which])
        assert torch.equal(many[0], y[which]) and torch.equal(many[1], dx[which])
