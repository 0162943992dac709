"""The self-test of layernorm_torch.py, against torch.nn.functional.layer_norm in float64.

Command: python3 scripts/layernorm_torch.py --test
"""
import functools
import itertools
import math

import torch
from torch.autograd import forward_ad

from layernorm_torch import as_rows, layer_norm


def worst(got, expected, unit):
    """the largest error, in units: one is `unit` times the largest value expected"""
    if got is None or expected is None or got.numel() == 0:
        return 0.0 if (got is None) == (expected is None) and (got is None or got.shape == expected.shape) else math.inf
    error = (got.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    return math.inf if error.isnan() or got.shape != expected.shape else error.item() / unit


def inputs(shape, dtype, W, device):
    """x, weight, bias, dy as leaves, with the seeds' distributions"""
    torch.manual_seed(sum(shape))
    x = (-2.3 + 0.5 * torch.randn(shape, device=device)).to(dtype)
    weight, bias = torch.rand((2, shape[-1]), device=device).to(W)
    return x, weight.clone(), bias.clone(), (0.1 * torch.randn(shape, device=device)).to(dtype)


def compare(x, weight, bias, dy, normalized=None, eps=1e-5):
    """ours and torch's in float64, forward and backward: worst errors in roundings of the result's type"""
    normalized = normalized or x.shape[-1:]
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, weight, bias)]
    exact = [None if t is None else t.detach().double().requires_grad_() for t in (x, weight, bias)]
    y = layer_norm(leaves[0], normalized, leaves[1], leaves[2], eps)
    y_exact = torch.nn.functional.layer_norm(exact[0], normalized, exact[1], exact[2], eps)
    given = [t for t in leaves if t is not None]
    grads = torch.autograd.grad(y, given, dy)
    grads_exact = torch.autograd.grad(y_exact, [t for t in exact if t is not None], dy.double())
    if y.dtype != x.dtype or any(g.dtype != t.dtype for g, t in zip(grads, given)):
        return math.inf
    # float32 sums: a few roundings; float64 the same; 16 bits: the last rounding is the largest
    units = {torch.float64: 1e-13, torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}
    errors = [worst(a.detach(), b.detach(), units[a.dtype])
              for a, b in zip([y, *grads], [y_exact, *grads_exact])]
    return max(errors)


def raises(kind, text, act):
    try:
        act()
    except kind as error:
        return text in str(error)
    return False


class Tests:
    def __init__(self, device):
        self.device, self.passed, self.failed = device, 0, 0

    def expect(self, ok, what):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        if not ok:
            print("FAILED:", what)

    def near(self, error, what):
        self.expect(error <= 1, f"{what}: worst error {error:.3g} of the bound")

    def shapes(self):
        for dtype, W in ((torch.float32, torch.float32), (torch.float64, torch.float64),
                         (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16),
                         (torch.bfloat16, torch.float32), (torch.float16, torch.float32)):
            for shape in ((1, 3), (1, 5, 7, 65), (131, 768), (2, 9, 769), (17, 1600), (64, 1024), (5, 4097),
                          (40, 8192), (3, 20000)):
                self.near(compare(*inputs(shape, dtype, W, self.device)), f"{shape} {dtype} weight {W}")
            x, weight, bias, dy = inputs((7, 130), dtype, W, self.device)
            self.near(compare(x, None, bias, dy), f"no weight {dtype}")
            self.near(compare(x, weight, None, dy), f"no bias {dtype}")
            self.near(compare(x, None, None, dy), f"neither {dtype}")
        x, weight, bias, dy = inputs((6, 4, 24), torch.float32, torch.float32, self.device)
        w2, b2 = (torch.rand((4, 24), device=self.device) for _ in range(2))
        self.near(compare(x, w2, b2, dy, (4, 24)), "two normalised dimensions")
        self.near(compare(x, weight, bias, dy, eps=0.1), "another eps")
        learned = layer_norm(x.clone().requires_grad_(), 24, weight, bias)
        self.expect(torch.equal(layer_norm(x, 24, weight, bias), learned), "without gradients, the same bits")

    def tutorial(self):
        """the test of Triton's tutorial: 1151 x 8192 float16, every result within 0.01 of torch's"""
        x, weight, bias, dy = inputs((1151, 8192), torch.float16, torch.float16, self.device)
        leaves = [t.requires_grad_() for t in (x, weight, bias)]
        both = [f(x, (8192,), weight, bias, 1e-5) for f in (layer_norm, torch.nn.functional.layer_norm)]
        both = [(y, *torch.autograd.grad(y, leaves, dy)) for y in both]
        for name, a, b in zip(("y", "dx", "dweight", "dbias"), *both):
            self.expect(torch.allclose(a, b, atol=1e-2, rtol=0), f"1151 x 8192 float16: {name}")

    def strided(self):
        for dtype in (torch.float32, torch.bfloat16):
            x, weight, bias, dy = inputs((4, 9, 96), dtype, dtype, self.device)
            wide, wide_dy, _, _ = (torch.cat([t, t, t], -1) for t in (x, dy, x, x))
            middle, offset = wide[..., 96:192], wide[..., 1:97]
            rows, row_stride = as_rows(middle, 96)
            self.expect(rows.data_ptr() == middle.data_ptr() and row_stride == 288, "strided rows are read in place")
            self.near(compare(middle, weight, bias, wide_dy[..., :96]), "row-strided x and dy")
            self.near(compare(offset, weight, bias, dy), "unaligned rows")
            self.near(compare(x.transpose(0, 1), weight, bias, dy.transpose(0, 1)), "transposed leading dimensions")
            self.near(compare(x.transpose(0, 2), weight[:4], bias[:4], dy.transpose(0, 2)), "transposed rows")
            self.near(compare(x, weight, bias, dy[:1, :1].expand(x.shape)), "expanded dy")
            self.near(compare(x, weight.repeat_interleave(2)[::2], bias, dy), "strided weight")

    def empty(self):
        for shape in ((0, 8), (3, 0, 8)):
            x, weight, bias, dy = inputs(shape, torch.float32, torch.float32, self.device)
            leaves = [t.requires_grad_() for t in (x, weight, bias)]
            dx, dweight, dbias = torch.autograd.grad(layer_norm(x, 8, weight, bias), leaves, dy)
            self.expect(dx.shape == x.shape and not dweight.any() and not dbias.any(), f"no rows {shape}")
        self.expect(layer_norm(torch.ones((3, 0), device=self.device), 0).shape == (3, 0), "no columns")

    def gradients(self):
        x, weight, bias, _ = (t.requires_grad_() for t in inputs((5, 12), torch.float64, torch.float64, self.device))
        act = functools.partial(layer_norm, normalized_shape=12)
        self.expect(torch.autograd.gradcheck(lambda x, w, b: act(x, weight=w, bias=b), (x, weight, bias)), "gradcheck")
        self.expect(torch.autograd.gradcheck(act, (x,)), "gradcheck without weight and bias")
        for wanted in (x, weight, bias):
            grad, = torch.autograd.grad(act(x, weight=weight, bias=bias).square().sum(), wanted)
            same, = torch.autograd.grad(torch.nn.functional.layer_norm(x, (12,), weight, bias).square().sum(), wanted)
            self.near(worst(grad, same, 1e-12), "one gradient alone")
        grad, = torch.autograd.grad(act(x).square().sum(), x, create_graph=True)
        self.expect(raises(NotImplementedError, "second derivatives", grad.sum().backward), "second derivative")
        y = act(x, weight=weight)
        first = torch.autograd.grad(y.sum(), (x, weight), retain_graph=True)
        second = torch.autograd.grad(y.sum(), (x, weight))
        self.expect(all(torch.equal(a, b) for a, b in zip(first, second)), "two backward passes, the same bits")

    def forward_mode(self):
        x, weight, bias, dy = inputs((3, 8), torch.float32, torch.float32, self.device)
        for learns, enabled in itertools.product((False, True), repeat=2):
            given = [t.clone().requires_grad_(learns) for t in (x, weight, bias)]
            for k, what in enumerate(("x", "weight", "bias")):
                with torch.set_grad_enabled(enabled), forward_ad.dual_level():
                    one = [forward_ad.make_dual(t, torch.ones_like(t)) if i == k else t for i, t in enumerate(given)]
                    self.expect(raises(NotImplementedError, "has a tangent", lambda: layer_norm(one[0], 8, *one[1:])),
                                f"{what} with a tangent, requires_grad {learns}, enabled {enabled}")
        y = layer_norm(x.requires_grad_(), 8, weight, bias)
        compiled = torch.compile(layer_norm, backend="eager")
        compiled(x, 8, weight, bias)
        with forward_ad.dual_level():
            self.expect(torch.equal(layer_norm(x, 8, weight, bias), y), "no tangent within a level")
            self.expect(raises(NotImplementedError, "has a tangent",
                               lambda: compiled(forward_ad.make_dual(dy, dy), 8, weight, bias)), "compiled, a tangent")
            tangent = forward_ad.make_dual(dy, dy)
            self.expect(raises(NotImplementedError, "has a tangent", lambda: torch.autograd.grad(y, x, tangent)),
                        "dy with a tangent")

    def transforms(self):
        x, weight, bias, dy = inputs((3, 8), torch.float32, torch.float32, self.device)
        act, leaf = functools.partial(layer_norm, normalized_shape=8), x.clone().requires_grad_()
        cases = (lambda: torch.func.grad(lambda t: act(t, weight=weight).sum())(x),
                 lambda: torch.func.grad(lambda w: act(x, weight=w).sum())(weight),
                 lambda: torch.func.jacrev(act)(x),
                 lambda: torch.func.jvp(act, (x,), (dy,)),
                 lambda: torch.func.vmap(act)(x),
                 lambda: torch.func.vmap(lambda b: act(x, bias=b))(bias.expand(2, 8)),
                 lambda: torch.autograd.grad(act(leaf), leaf, dy.expand(2, 3, 8), is_grads_batched=True),
                 lambda: torch.compile(torch.func.vmap(act), backend="eager")(x),
                 lambda: torch.compile(torch.func.grad(lambda t: act(t).sum()), backend="eager")(x))
        for k, case in enumerate(cases):
            self.expect(raises(NotImplementedError, "torch.nn.functional.layer_norm", case), f"transform {k}")

    def compiled(self):
        def twice(x, weight, bias):
            y = layer_norm(x, x.shape[-1:], weight, bias)
            return layer_norm(y, y.shape[-1], eps=1e-3)

        for dynamic, learns in itertools.product((False, True), repeat=2):
            torch.compiler.reset()
            graph = torch.compile(twice, fullgraph=True, dynamic=dynamic)
            for shape in ((5, 7, 64), (9, 33, 80)):
                x, weight, bias, dy = inputs(shape, torch.bfloat16, torch.bfloat16, self.device)
                leaves = [t.requires_grad_(learns) for t in (x, weight, bias)]
                both = [f(*leaves) for f in (graph, twice)]
                if learns:
                    both = [(y, *torch.autograd.grad(y, leaves, dy)) for y in both]
                self.expect(all(torch.equal(a, b) for a, b in zip(*both)),
                            f"compiled, dynamic {dynamic}, learns {learns}, {shape}: the same bits")

    def arguments(self):
        x, weight, bias, _ = inputs((3, 8), torch.float16, torch.float16, self.device)
        cases = ((ValueError, "expected it to end with", lambda: layer_norm(x, 7)),
                 (ValueError, "may not be empty", lambda: layer_norm(x, ())),
                 (TypeError, "normalized_shape is 8.0", lambda: layer_norm(x, 8.0)),
                 (TypeError, "normalized_shape is (8.0,)", lambda: layer_norm(x, (8.0,))),
                 (TypeError, "x is of <class 'list'>", lambda: layer_norm([1.0], 1)),
                 (TypeError, "bias is of <class 'list'>", lambda: layer_norm(x, 8, weight, [0.0] * 8)),
                 (ValueError, "weight is (7,)", lambda: layer_norm(x, 8, weight[:7])),
                 (TypeError, "torch.int32", lambda: layer_norm(x.int(), 8)),
                 (TypeError, "weight is torch.bfloat16", lambda: layer_norm(x, 8, weight.bfloat16())),
                 (TypeError, "bias is torch.float16", lambda: layer_norm(x.float(), 8, weight.float(), bias)),
                 (TypeError, "expected the same type", lambda: layer_norm(x, 8, weight.float(), bias)),
                 (ValueError, "eps is", lambda: layer_norm(x, 8, eps=-1.0)))
        for kind, text, act in cases:
            self.expect(raises(kind, text, act), text)
        y = layer_norm(x, 8, weight, bias)
        for shape in (torch.tensor(8), [8], torch.tensor([8])):  # any integer will do
            self.expect(torch.equal(layer_norm(x, shape, weight, bias), y), f"normalized_shape {shape!r}")

    def cuda(self):
        """what only a GPU has: other streams, graphs, several devices"""
        self.expect(raises(ValueError, "expected a CUDA device", lambda: layer_norm(torch.ones(3, 8), 8)), "CPU tensor")
        x, weight, bias, dy = inputs((512, 1024), torch.bfloat16, torch.bfloat16, self.device)
        leaves = [t.requires_grad_() for t in (x, weight, bias)]

        def both():
            y = layer_norm(x, 1024, weight, bias)
            return y, *torch.autograd.grad(y, leaves, dy)

        with torch.cuda.stream(torch.cuda.Stream()):
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            graph.capture_begin()
            captured = both()
            graph.capture_end()
            graph.replay()
        torch.cuda.synchronize()
        self.expect(all(torch.equal(a, b) for a, b in zip(captured, both())), "a captured graph gives the same bits")
        for k in range(1, torch.cuda.device_count()):
            self.near(compare(*(t.detach().to(f"cuda:{k}") for t in (x, weight, bias, dy))), f"device {k}")


def self_test(device):
    tests = Tests(device)
    parts = [tests.arguments, tests.empty, tests.shapes, tests.tutorial, tests.strided, tests.gradients,
             tests.forward_mode, tests.transforms, tests.compiled]
    for part in ([tests.cuda] if device == "cuda" else []) + parts:  # capture first: nothing is loaded or asked before
        try:
            part()
        except Exception as error:  # the parts after it still run
            tests.expect(False, f"{part.__name__}: {type(error).__name__}: {error}")
    return tests.passed, tests.failed


def main():
    if not torch.cuda.is_available():
        print("no CUDA device: nothing is tested\n0 passed, 0 failed, 1 skipped")
        return 0
    passed, failed = self_test("cuda")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed > 0
