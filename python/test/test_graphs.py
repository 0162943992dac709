"""CUDA graphs. PyTorch's own operator goes first through each test: if it fails, the test is wrong. Each test
has a process of its own, as a capture that fails leaves PyTorch's random numbers unusable for others."""
import copy

import pytest
import torch
from torch import nn

import plumb_layernorm
from helpers import DEVICE, gradients, inputs, learning, ours, ours_residual, theirs, theirs_residual

pytestmark = [pytest.mark.alone, pytest.mark.skipif(DEVICE != "cuda", reason="of CUDA")]
SHAPE, DTYPE = (512, 1024), torch.bfloat16


def both(function):
    """of out and the new residual, one result"""
    return lambda x, weight, bias: sum(function(x, x * 1, weight, bias))


PLAIN = {"torch": theirs, "ours": ours}
RESIDUAL = {"torch": both(theirs_residual), "ours": both(ours_residual)}


def differences(got, expected):
    """the results that are not bit for bit as expected: [(number, largest difference)]"""
    assert len(got) == len(expected)
    return [(k, (a.detach().double() - b.detach().double()).abs().max().item())
            for k, (a, b) in enumerate(zip(got, expected)) if not torch.equal(a, b)]


def capture(function, stream):
    """warm-up and capture of function() on the stream; the graph and function's results"""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        results = function()
    return graph, results


@pytest.mark.parametrize("functions", [PLAIN, RESIDUAL], ids=["plain", "residual"])
def test_whole_step_on_a_side_stream(functions):
    """forward, .backward() into .grad; the leaves are first used on the side stream: autograd remembers it"""
    x, weight, bias, dy = inputs(SHAPE, DTYPE)
    other = inputs(SHAPE, DTYPE, seed=1)[0]
    for who, function in functions.items():
        leaves = learning(x.clone(), weight, bias)  # a copy, as each replay gets other rows

        def step():
            for leaf in leaves:
                leaf.grad = None
            y = function(*leaves)
            y.backward(dy)
            return [y, *(leaf.grad for leaf in leaves)]

        graph, results = capture(step, torch.cuda.Stream())
        wrong = {}
        for replay, rows in enumerate((x, other, x)):
            with torch.no_grad():
                leaves[0].copy_(rows)
            graph.replay()
            torch.cuda.synchronize()
            wrong[replay] = differences(results, gradients(function, learning(rows, weight, bias), dy))
        assert not any(wrong.values()), f"{who}: of each replay (result, largest difference): {wrong}"


@pytest.mark.parametrize("functions", [PLAIN, RESIDUAL], ids=["plain", "residual"])
def test_leaves_first_used_within_the_capture(functions):
    """torch.cuda.graph's own stream; the warm-up has leaves of its own"""
    x, weight, bias, dy = inputs(SHAPE, DTYPE)
    for who, function in functions.items():
        expected = gradients(function, learning(x, weight, bias), dy)
        torch.cuda.synchronize()
        graph, leaves = torch.cuda.CUDAGraph(), learning(x, weight, bias)
        with torch.cuda.graph(graph):
            results = gradients(function, leaves, dy)
        for replay in range(2):
            graph.replay()
            torch.cuda.synchronize()
            wrong = differences(results, expected)
            assert not wrong, f"{who}, replay {replay}: (result, largest difference): {wrong}"
            for result in results:
                result.detach().zero_()


def test_make_graphed_callables():
    for kind in (nn.LayerNorm, plumb_layernorm.LayerNorm):
        module = kind(768, device=DEVICE)
        x, dy = (torch.randn(64, 768, device=DEVICE) for _ in range(2))
        graphed = torch.cuda.make_graphed_callables(copy.deepcopy(module), (x.clone().requires_grad_(),))
        found = []
        for m in (module, graphed):
            given = x.clone().requires_grad_()
            y = m(given)
            y.backward(dy)
            found.append([y, given.grad, m.weight.grad, m.bias.grad])
        torch.cuda.synchronize()
        wrong = differences(*found)
        assert not wrong, f"{kind}: (result, largest difference): {wrong}"
