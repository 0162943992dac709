"""What torch.compile makes of the norms: PyTorch's operations, and our backward pass where _compiled.py's rule says so."""
import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import plumb_layernorm
from helpers import (DEVICE, HALF, NORMS, compiled_graphs, error, exact, group_of_one, inputs, learning, near, ours,
                     ours_residual, theirs)

BACKWARD = "plumb_layernorm_stable.backward"


def graphs_of(*call):
    """(text of the forward and of the backward graph, results and gradients)"""
    graphs, results = compiled_graphs(*call)
    return [graph.print_readable(print_output=False) for graph in graphs], results


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("dtype,weight_dtype", [(t, w) for t in HALF for w in (t, torch.float32)], ids=str)
@pytest.mark.parametrize("shape", [(6, 1024), (2, 3, 768)], ids=str)
def test_backward_is_ours(shape, dtype, weight_dtype, norm):
    *given, dy = inputs(shape, dtype, weight_dtype)
    given = given[:1 + norm.parameters]
    (forward, backward), results = graphs_of(norm.ours, learning(*given), dy)
    assert BACKWARD in backward and "plumb" not in forward.replace("plumb_layernorm/", "")
    assert [r.dtype for r in results] == [dtype, dtype, *[weight_dtype] * norm.parameters]
    near(results, exact(norm.theirs, given, dy))


def columns(shape, dtype=torch.bfloat16, weight_dtype=None, without=()):
    x, weight, bias, dy = inputs(shape, dtype, weight_dtype)
    return [None if k in without else t for k, t in enumerate((x, weight, bias))], dy


@pytest.mark.parametrize("case", [columns((6, 1024), torch.float32), columns((6, 64)), columns((6, 1025)),
                                  columns((6, 1024), without=(1, 2))],
                         ids=["float32", "narrow", "unaligned", "no weight"])
def test_backward_is_pytorchs(case):
    given, dy = case
    found = []
    for function in (ours, theirs):
        texts, results = graphs_of(function, learning(*given), dy)
        found.append(results)
        assert not any(BACKWARD in text for text in texts)
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize("rows", [33, 1])
def test_residual(rows):
    """the stream's gradient goes into the kernel, which adds its own"""
    (x, weight, bias), dy = columns((rows, 1024))
    residual, _, _, dsum = inputs((rows, 1024), torch.bfloat16, seed=1)
    (_, backward), results = graphs_of(ours_residual, learning(x, residual, weight, bias), dy, dsum)
    assert backward.count("accumulate_dx = True") == 1
    y, s, ds, dw, db = exact(lambda s, w, b: (theirs(s, w, b), s + 0), (x + residual, weight, bias), dy, dsum)
    near(results, [y, s, ds, ds, dw, db])


class Blocks(nn.Module):
    def __init__(self, norm, checkpointed=False):
        super().__init__()
        self.norms = nn.ModuleList(norm(512) for _ in range(2))
        self.products = nn.ModuleList(nn.Linear(512, 512) for _ in range(2))
        self.checkpointed = checkpointed

    def block(self, x, k):
        return x + self.products[k](self.norms[k](x))

    def forward(self, x):
        for k in range(2):
            x = checkpoint(self.block, x, k, use_reentrant=False) if self.checkpointed else self.block(x, k)
        return x


def trained(model, x, compiled, **options):
    """the result and gradients of a step"""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = torch.compile(model, **options)(x) if compiled else model(x)
    y.backward(torch.full_like(y, 0.1))
    return [y.detach().clone(), x.grad] + [p.grad.clone() for p in model.parameters()]


def new_blocks(norm=nn.LayerNorm, **more):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(1)
    model = Blocks(norm, **more).to(DEVICE, torch.bfloat16)
    other = copy.deepcopy(model)
    assert len(plumb_layernorm.replace_norms(other).replaced) == 2
    return model, other


def as_near(found, model, x):
    """to float64's as those of nn's model, in twice its units and one more: 16 bits lie between the layers"""
    precise = trained(copy.deepcopy(model).double(), x.double(), False)
    for a, b, c in zip(found, trained(model, x, False), precise, strict=True):
        assert a.dtype == b.dtype and error(a, c) <= 2 * error(b, c) + 1


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("options", [{}, {"dynamic": True}, {"checkpointed": True}], ids=str)
def test_models(norm, options):
    """by Inductor; dynamic: one graph for all numbers of rows"""
    dynamic = options.get("dynamic", False)
    model, other = new_blocks(norm, **{k: v for k, v in options.items() if k != "dynamic"})
    for rows in (8, 24, 40):
        x = torch.randn(2, rows, 512, device=DEVICE, dtype=torch.bfloat16)
        as_near(trained(other, x, True, fullgraph=True, dynamic=dynamic or None), model, x)
    if dynamic:
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_inference_is_pytorchs():
    model, other = new_blocks()
    x, names = torch.randn(4, 512, device=DEVICE, dtype=torch.bfloat16), []

    def look(graph, _):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    with torch.no_grad():
        torch.compile(other, fullgraph=True, backend=look)(x)
    assert names and not any("plumb" in name for name in names)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_training_is_pytorchs(strict):
    model = nn.Sequential(plumb_layernorm.LayerNorm(1024), nn.Linear(1024, 8)).to(DEVICE, torch.bfloat16)
    program = torch.export.export(model, (torch.randn(4, 1024, device=DEVICE, dtype=torch.bfloat16, requires_grad=True),),
                                  strict=strict)
    names = {str(node.target) for node in program.graph.nodes}
    assert "aten.layer_norm.default" in names and not any("plumb" in name for name in names)


def test_derivatives_of_torch_func_are_pytorchs():
    (x, weight, bias), dy = columns((6, 1024))
    weight.requires_grad_()
    torch.compiler.reset()
    found = [torch.compile(torch.func.grad(lambda x, norm=norm: (norm(x, weight, bias) * dy).sum()), fullgraph=True)(x)
             for norm in (ours, theirs)]
    near(found[:1], found[1:])


def test_autocast():
    """16-bit rows of a product before beside float32 weights"""
    model = nn.Sequential(nn.Linear(512, 512), plumb_layernorm.LayerNorm(512), nn.Linear(512, 512)).to(DEVICE)
    x = torch.randn(16, 512, device=DEVICE)

    def step(x):
        with torch.autocast(DEVICE, torch.bfloat16):
            return model(x)

    (_, backward), results = graphs_of(step, [x.requires_grad_()], torch.randn(16, 512, device=DEVICE))
    assert BACKWARD in backward and results[0].dtype == torch.bfloat16


@pytest.mark.parametrize("function", [plumb_layernorm.layer_norm, plumb_layernorm.rms_norm])
def test_out_dtype(function):
    (x, weight, _), dy = columns((6, 1024), torch.float32)
    _, found = graphs_of(lambda x, w: function(x, 1024, w, eps=1e-6, out_dtype=torch.bfloat16), learning(x, weight), dy)
    assert found[0].dtype == torch.bfloat16
    near(found, exact(lambda x, w: function(x, 1024, w, eps=1e-6), (x, weight), dy.bfloat16()))


@pytest.mark.skipif(DEVICE != "cuda", reason="of CUDA graphs")
def test_reduce_overhead():
    model, other = new_blocks()
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(64, 512, device=DEVICE, dtype=torch.bfloat16)
        as_near(trained(other, x, True, mode="reduce-overhead"), model, x)


def test_distributed_data_parallel():
    with group_of_one():
        model, other = new_blocks()
        x = torch.randn(8, 512, device=DEVICE, dtype=torch.bfloat16)
        as_near(trained(nn.parallel.DistributedDataParallel(other), x, True), model, x)
