"""What the tests share. They run on a GPU, or with PLUMB_TEST_DEVICE=cpu on a package made with --host."""
import contextlib
import math
import os
import socket
from collections import namedtuple

import torch

import plumb_layernorm

DEVICE = os.environ.get("PLUMB_TEST_DEVICE", "cuda")
EXTENSION = plumb_layernorm.backend == "extension"
NODES = {f"Plumb{r}{n}NormBackward" for r in ("", "Residual") for n in ("Layer", "Rms")} if EXTENSION else {"FunctionBackward"}
HALF = (torch.bfloat16, torch.float16)
# (rows' type, weights' type): all that the library has
TYPES = [(t, t) for t in (torch.float32, torch.float64, *HALF)] + [(t, torch.float32) for t in HALF]
# one rounding of the largest value expected; float32 and float64: of sums over rows and columns
UNITS = {torch.float64: 1e-13, torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}


def is_ours(result):
    return result.grad_fn.name() in NODES


def inputs(shape, dtype=torch.float32, weight_dtype=None, normalized=1, seed=0):
    """x, weight, bias, dy: leaves that want no gradient yet"""
    torch.manual_seed(seed + sum(shape))
    tail = shape[-normalized:]
    x = torch.randn(shape, device=DEVICE) * 0.5 - 2.3
    weight, bias = (torch.rand(tail, device=DEVICE).to(weight_dtype or dtype) for _ in range(2))
    return x.to(dtype), weight, bias, (0.1 * torch.randn(shape, device=DEVICE)).to(dtype)


def learning(*tensors, dtype=None):
    return [None if t is None else t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]


def error(got, expected):
    """the largest, in units; inf where shapes differ or anything is not finite"""
    if got.shape != expected.shape:
        return math.inf
    if got.numel() == 0:
        return 0.0
    worst = (got.detach().double() - expected.double()).abs().max() / expected.abs().max().clamp(min=1e-30)
    return worst.item() / UNITS[got.dtype] if worst.isfinite() else math.inf


def near(got, expected):
    assert len(got) == len(expected)
    for k, (a, b) in enumerate(zip(got, expected)):
        assert error(a, b) <= 1, f"result {k} of {len(got)}: {error(a, b):.3g} units of {a.dtype}"


def gradients(function, leaves, *douts):
    """[results, gradients of the leaves given]"""
    results = function(*leaves)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    given = [t for t in leaves if t is not None]
    douts = [d.to(r.dtype) for d, r in zip(douts, results)]
    return results + list(torch.autograd.grad(results, given, douts))


def exact(function, tensors, *douts):
    """the same by PyTorch in float64"""
    return gradients(function, learning(*tensors, dtype=torch.float64), *(d.double() for d in douts))


def second(function, leaves, *douts):
    first = torch.autograd.grad(function(*leaves), leaves, douts, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)


def compiled_graphs(function, leaves, *douts):
    """the graphs that torch.compile makes of it, that of the forward pass first; results and gradients"""
    from torch._dynamo.backends.common import aot_autograd
    graphs = []

    def look(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=look, bw_compiler=look))
    results = gradients(compiled, leaves, *douts)
    return graphs, results


def ours(x, weight, bias, normalized=1, eps=1e-5):
    return plumb_layernorm.layer_norm(x, tuple(x.shape[-normalized:]), weight, bias, eps)


def theirs(x, weight, bias, normalized=1, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-normalized:], weight, bias, eps)


def ours_residual(x, residual, weight, bias):
    return plumb_layernorm.residual_layer_norm(x, residual, x.shape[-1], weight, bias)


def theirs_residual(x, residual, weight, bias):
    return theirs(x + residual, weight, bias), x + residual


def ours_rms(x, weight, normalized=1, eps=1e-6, offset=0.0):
    return plumb_layernorm.rms_norm(x, tuple(x.shape[-normalized:]), weight, eps, offset=offset)


def theirs_rms(x, weight, normalized=1, eps=1e-6, offset=0.0):
    weight = weight if weight is None else weight + offset
    return torch.nn.functional.rms_norm(x, x.shape[-normalized:], weight, eps)


def ours_residual_rms(x, residual, weight):
    return plumb_layernorm.residual_rms_norm(x, residual, x.shape[-1], weight, 1e-6)


Norm = namedtuple("Norm", "ours ours_residual theirs parameters")  # parameters: of weight and bias, how many
NORMS = {"layer_norm": Norm(ours, ours_residual, theirs, 2), "rms_norm": Norm(ours_rms, ours_residual_rms, theirs_rms, 1)}


@contextlib.contextmanager
def group_of_one():
    """torch.distributed, of this process alone"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.distributed.init_process_group("nccl" if DEVICE == "cuda" else "gloo", world_size=1, rank=0,
                                         init_method=f"tcp://127.0.0.1:{port}")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
