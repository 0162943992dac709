"""What PyTorch does with a call: torch.compile, export, autocast, CUDA graphs, DistributedDataParallel; and
the module."""
import copy
import itertools

import pytest
import torch
from torch import nn
from torch.distributed.tensor import distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import plumb_layernorm
from helpers import (DEVICE, EXTENSION, HALF, compiled_graphs, exact, gradients, group_of_one, inputs, is_ours, learning, near,
                     ours, ours_residual, theirs)

cuda = pytest.mark.skipif(DEVICE != "cuda", reason="of CUDA")
BACKENDS = ["inductor"] if DEVICE == "cuda" else ["aot_eager", "inductor"]


# ---- the module --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("arguments",
                         [dict(), dict(eps=0.1), dict(elementwise_affine=False), dict(bias=False),
                          dict(dtype=torch.bfloat16), dict(device=DEVICE)], ids=str)
def test_module(arguments):
    module, reference = (kind((3, 16), **arguments).to(DEVICE)
                         for kind in (plumb_layernorm.LayerNorm, nn.LayerNorm))
    assert list(module.state_dict()) == list(reference.state_dict()) and repr(module) == repr(reference)
    with torch.no_grad():
        for p in reference.parameters():
            p.normal_()
    module.load_state_dict(reference.state_dict())
    x = torch.randn(5, 3, 16, device=DEVICE, dtype=arguments.get("dtype")).requires_grad_()
    y = module(x)
    assert is_ours(y)
    near([y], [reference.double()(x.double())])
    assert copy.deepcopy(module).state_dict().keys() == module.state_dict().keys()


def test_replace_layernorms():
    class Own(nn.LayerNorm):
        def forward(self, x):
            return x

    inner = nn.Sequential(nn.LayerNorm(8, bias=False), Own(8))
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), inner)
    model.append(model[1])  # one module in two places is one
    model.to(DEVICE)
    parameters, x = list(model.parameters()), torch.randn(4, 8, device=DEVICE)
    seen = []
    model[1].register_forward_hook(lambda *a: seen.append(a))
    expected = model(x)
    assert plumb_layernorm.replace_layernorms(model) == 2 and plumb_layernorm.replace_layernorms(model) == 0
    near([model(x)], [expected])
    assert len(seen) == 4 and is_ours(model[1](x)) and type(model[2][1]) is Own
    assert all(a is b for a, b in zip(model.parameters(), parameters))
    assert plumb_layernorm.replace_layernorms(nn.LayerNorm(8)) == 1
    wrapped = nn.LayerNorm(8)
    wrapped.forward = wrapped.forward  # as accelerate does, around it
    assert plumb_layernorm.replace_layernorms(wrapped) == 0


def test_few_rows_of_very_many_columns_are_pytorchs():
    """the workspace of 70,000 columns is 140 MB, whatever the rows"""
    weight = torch.ones(70_000, device=DEVICE, dtype=torch.float64, requires_grad=True)
    assert not is_ours(ours(torch.randn(63, 70_000, device=DEVICE, dtype=torch.float64), weight, None))
    assert is_ours(ours(torch.randn(64, 70_000, device=DEVICE, dtype=torch.float64), weight, None))
    assert is_ours(ours(torch.randn(1, 65_536, device=DEVICE), weight[:65_536].float(), None))


# ---- autocast ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_autocast(dtype):
    """16-bit rows beside float32 weights stay in 16 bits"""
    x, weight, bias, dy = inputs((6, 64), dtype, torch.float32)
    leaves = learning(x, weight, bias)
    with torch.autocast(DEVICE, dtype):
        y = ours(*leaves)
        total = ours_residual(*leaves[:1], *leaves)[1]
    assert is_ours(y) and y.dtype == total.dtype == dtype
    near([y, *torch.autograd.grad(y, leaves, dy)], exact(theirs, (x, weight, bias), dy))


@cuda
def test_autocast_of_what_the_library_lacks():
    """is PyTorch's: float32"""
    x, weight, bias, _ = inputs((6, 64))
    with torch.autocast("cuda", torch.bfloat16):
        y = ours(x, weight.bfloat16(), bias.bfloat16())
    assert y.dtype == torch.float32
    assert torch.equal(y, theirs(x, weight.bfloat16().float(), bias.bfloat16().float()))


# ---- torch.compile and export ------------------------------------------------------------------------------
def block(x, residual, weight, bias):
    y = ours(x * 2, weight, bias)
    z, total = plumb_layernorm.residual_layer_norm(y, residual, residual.shape[-1], weight, bias, 1e-3)
    return ours(z, None, None) + total, total


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic,learn", list(itertools.product((False, True), repeat=2)))
def test_compile(dynamic, learn, backend):
    torch.compiler.reset()
    graph = torch.compile(block, fullgraph=True, dynamic=dynamic, backend=backend)
    for shape in ((5, 7, 64), (9, 33, 80)):
        x, weight, bias, dy = inputs(shape)
        residual, _, _, dsum = inputs(shape, seed=1)
        given = learning(x, residual, weight, bias) if learn else (x, residual, weight, bias)
        if not learn:
            near(graph(*given), block(*given))
            continue
        expected = exact(reference_block, (x, residual, weight, bias), dy, dsum)
        near(gradients(graph, given, dy, dsum), expected)


def reference_block(x, residual, weight, bias):
    total = theirs(x * 2, weight, bias) + residual
    z = theirs(total, weight, bias, eps=1e-3)
    return theirs(z, None, None) + total, total


def compiled_operators(*call):
    """(the names of the operators in the graphs that torch.compile makes of it, its results and gradients)"""
    graphs, results = compiled_graphs(*call)
    return [str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"], results


@pytest.mark.skipif(not EXTENSION, reason="of the extension's operators")
def test_compiled_operator_is_pytorchs():
    x, weight, bias, dy = inputs((6, 64))
    operator = torch.ops.plumb_layernorm.layer_norm.default
    found, results = compiled_operators(lambda *leaves: operator(leaves[0], [64], *leaves[1:]), learning(x, weight, bias), dy)
    near(results, exact(theirs, (x, weight, bias), dy))
    assert "aten.native_layer_norm.default" in found and not any("plumb" in name for name in found)


@pytest.mark.parametrize("dtype,autocast", [(torch.float32, False), (torch.float32, True),
                                            (torch.bfloat16, False)], ids=str)
def test_compiled_module_is_pytorchs(dtype, autocast):
    """the graphs are nn.LayerNorm's, which Inductor fuses with what is around it"""
    x, _, _, dy = inputs((6, 64), dtype)
    found = []
    for kind in (plumb_layernorm.LayerNorm, nn.LayerNorm):
        model = nn.Sequential(kind(64), nn.Linear(64, 64)).to(DEVICE, dtype)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            found.append(compiled_operators(model, learning(x), dy)[0])
    assert found[0] == found[1] and any("layer_norm" in name for name in found[0])


@pytest.mark.parametrize("bias", [True, False])
def test_compiled_module_of_float32_takes_16_bits(bias):
    x, weight, b, dy = inputs((6, 64), torch.bfloat16, torch.float32)
    module = plumb_layernorm.LayerNorm(64, bias=bias, device=DEVICE)
    module.load_state_dict({"weight": weight} | ({"bias": b} if bias else {}))
    torch.compiler.reset()
    leaves, found = learning(x) + list(module.parameters()), []
    for function in (torch.compile(module, fullgraph=True), module):
        y = function(leaves[0])
        found.append([y, *torch.autograd.grad(y, leaves, dy)])
    near(*found)


def test_compiled_module_under_autocast():
    model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 32),
                          nn.LayerNorm(32, bias=False))
    model.to(DEVICE)
    assert plumb_layernorm.replace_layernorms(model) == 2
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(16, 32, device=DEVICE)
    results = []
    for function in (model, compiled):
        model.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            y = function(x)
        y.float().square().mean().backward()
        results.append([y.float()] + [p.grad.clone() for p in model.parameters()])
    for a, b in zip(*results):
        assert (a - b).abs().max() <= 2**-6 * b.abs().max() + 1e-6
    assert y.dtype == torch.bfloat16


@pytest.mark.skipif(not EXTENSION, reason="of the extension's operators")
@cuda
def test_compiled_into_cuda_graphs():
    """whose memory pool must hold nothing but the function's results"""
    x, weight, bias, dy = inputs((64, 768))

    def function(norm):
        return lambda x, weight, bias: norm(2 * x, weight, bias) + 1

    torch.compiler.reset()
    compiled = torch.compile(function(ours), mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        found = gradients(compiled, learning(x, weight, bias), dy)
        near([t.clone() for t in found], gradients(function(theirs), learning(x, weight, bias), dy))


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    """the program needs no package: the module is PyTorch's operator in it"""
    model = nn.Sequential(plumb_layernorm.LayerNorm(16), nn.Linear(16, 16)).to(DEVICE)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (torch.randn(4, 16, device=DEVICE),), dynamic_shapes=({0: batch},),
                                  strict=strict)
    assert not any("plumb_layernorm" in str(node.target) for node in program.graph.nodes)
    traced = torch.jit.trace(model, torch.randn(4, 16, device=DEVICE))
    assert "aten::layer_norm(" in str(traced.inlined_graph)
    x = torch.randn(9, 16, device=DEVICE)
    near([program.module()(x), program.run_decompositions().module()(x)], [model(x)] * 2)


@pytest.mark.skipif(not EXTENSION, reason="of the extension's operators")
@pytest.mark.parametrize("shape", [(6, 64), (2, 3, 33)], ids=str)
def test_opcheck(shape):
    x, weight, bias, dy = inputs(shape)
    operators, given = torch.ops.plumb_layernorm, learning(x, weight, bias)
    torch.library.opcheck(operators.layer_norm.default, (given[0], shape[-1:], *given[1:], 1e-5))
    torch.library.opcheck(operators.residual_layer_norm.default, (given[0], dy, shape[-1:], *given[1:], 1e-5))


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names = [*getattr(self, "names", []), function.__name__]
        return function(*arguments, **(keywords or {}))


def test_dispatch_mode_sees_pytorchs():
    x, weight, bias, dy = inputs((6, 64))
    with Seen() as seen:
        found = gradients(ours, learning(x, weight, bias), dy)
    near(found, exact(theirs, (x, weight, bias), dy))
    if EXTENSION:
        assert {"native_layer_norm.default", "native_layer_norm_backward.default"} < set(seen.names)


def test_memory_that_holds_the_negative():
    x, weight, bias, dy = (torch._neg_view(-t) for t in inputs((6, 64)))
    near([ours(x, weight, bias)], [theirs(x, weight, bias)])
    leaves = learning(*inputs((6, 64))[:3])
    near(torch.autograd.grad(ours(*leaves), leaves, dy), exact(theirs, leaves, dy)[1:])


@pytest.mark.parametrize("changed", [lambda t: t[:1], lambda t: t.double(), lambda t: t.to("meta")])
def test_saved_tensor_of_another_kind_is_refused(changed):
    """where the kernel would read past its end"""
    leaves, dy = learning(*inputs((6, 64))[:3]), inputs((6, 64))[3]
    with torch.autograd.graph.saved_tensors_hooks(changed, lambda t: t):
        y = ours(*leaves)
    try:
        found = torch.autograd.grad(y, leaves, dy)
    except (RuntimeError, ValueError, NotImplementedError):
        return
    near(found, exact(theirs, leaves, dy)[1:])


# ---- several processes -------------------------------------------------------------------------------------
def test_dtensor():
    x, weight, bias, dy = inputs((6, 64))
    with group_of_one():
        mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
        leaves = [distribute_tensor(t, mesh).requires_grad_() for t in (x, weight, bias)]
        y = ours(*leaves)
        y.backward(distribute_tensor(dy, mesh))
        near([t.full_tensor() for t in (y, *(leaf.grad for leaf in leaves))], exact(theirs, (x, weight, bias), dy))


def test_distributed_data_parallel():
    with group_of_one():
        model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)).to(DEVICE)
        plumb_layernorm.replace_layernorms(model)
        alone = copy.deepcopy(model)
        spread = nn.parallel.DistributedDataParallel(model)
        x = torch.randn(8, 16, device=DEVICE)
        for _ in range(3):
            for m in (alone, spread):
                m(x).square().sum().backward()
        near([p.grad for p in model.parameters()], [p.grad for p in alone.parameters()])


# ---- CUDA's own --------------------------------------------------------------------------------------------
@cuda
def test_streams_do_not_share_a_workspace():
    x, weight, bias, dy = inputs((4096, 1024), torch.bfloat16)
    expected = gradients(ours, learning(x, weight, bias), dy)
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(4)], []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(gradients(ours, learning(x, weight, bias), dy))
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for results in found for a, b in zip(results, expected))


@cuda
def test_other_devices():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    given = [t.to("cuda:1") for t in inputs((64, 768))]
    near(gradients(ours, learning(*given[:3]), given[3]), exact(theirs, given[:3], given[3]))


@cuda
def test_allocations_of_a_call():
    """outputs once, and a workspace"""
    x, weight, bias, dy = inputs((512, 1024), torch.bfloat16)
    leaves = learning(x, weight, bias)
    gradients(ours, leaves, dy)

    def count(function):
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        kept = function()
        return torch.cuda.memory_stats()["allocation.all.allocated"] - before, kept

    assert count(lambda: ours(x, weight, bias))[0] == 1
    allocations, y = count(lambda: ours(*leaves))
    assert allocations == 2  # y; mean and rstd
    if EXTENSION:
        assert count(lambda: torch.autograd.grad(y, leaves, dy))[0] == 4
