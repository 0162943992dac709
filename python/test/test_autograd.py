"""Autograd's rules: what is saved, asked for twice, changed, hooked, differentiated again."""
from concurrent.futures import ThreadPoolExecutor

import plumb_layernorm
import pytest
import torch
from torch.autograd import forward_ad
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

from helpers import (EXTENSION, NORMS, exact, gradients, inputs, is_ours, learning, near, ours, ours_residual, second, theirs,
                     theirs_residual)

only_extension = pytest.mark.skipif(not EXTENSION, reason="of the extension")


@pytest.fixture
def case():
    x, weight, bias, dy = inputs((6, 64))
    return learning(x, weight, bias), dy, exact(theirs, (x, weight, bias), dy)


def test_grad_accumulates(case):
    leaves, dy, expected = case
    y = ours(*leaves)
    for _ in range(3):
        y.backward(dy, retain_graph=True)
    near([t.grad for t in leaves], [3 * e for e in expected[1:]])


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_gradient_alone(case, which):
    leaves, dy, expected = case
    near(torch.autograd.grad(ours(*leaves), leaves[which], dy), [expected[1 + which]])
    frozen = [t if k == which else t.detach() for k, t in enumerate(leaves)]
    ours(*frozen).backward(dy)
    near([leaves[which].grad], [expected[1 + which]])


def test_shared_weight(case):
    (x, weight, bias), dy, expected = case
    (ours(x, weight, bias) + ours(x, weight, bias)).backward(dy)
    near([x.grad, weight.grad, bias.grad], [2 * e for e in expected[1:]])


def test_hooks(case):
    (x, weight, bias), dy, expected = case
    seen = []
    weight.register_hook(lambda g: seen.append(g.clone()))
    weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    ours(x, weight, bias).backward(dy)
    near(seen, [expected[2]] * 2)


def test_saved_tensor_hooks(case):
    leaves, dy, expected = case
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        y = ours(*leaves)
    near(torch.autograd.grad(y, leaves, dy), expected[1:])
    assert any(t.shape == leaves[0].shape for t in packed), "x is saved where no hook sees it"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(case, use_reentrant):
    (x, weight, bias), dy, expected = case
    checkpoint(ours, x, weight, bias, use_reentrant=use_reentrant).backward(dy)
    near([x.grad, weight.grad, bias.grad], expected[1:])
    x.grad = weight.grad = bias.grad = None
    y = checkpoint(lambda *a: sum(ours_residual(*a)), x, dy, weight, bias, use_reentrant=use_reentrant)
    y.backward(dy)
    near([x.grad], exact(lambda *a: sum(theirs_residual(*a)), (x, dy, weight, bias), dy)[1:2])


def test_backward_twice_is_refused(case):
    leaves, dy, _ = case
    y = ours(*leaves)
    y.backward(dy)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward(dy)


def test_x_changed_in_place_is_refused(case):
    (x, weight, bias), dy, _ = case
    changed = x * 1
    y = ours(changed, weight, bias)
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(dy)


def test_residuals_gradient_of_others_is_not_overwritten():
    """dx is made in the place of the sum's gradient only where nobody else holds that"""
    x, weight, bias, dy = inputs((6, 64))
    residual, _, _, dsum = inputs((6, 64), seed=1)
    expected = exact(theirs_residual, (x, residual, weight, bias), dy, dsum)[2:]
    kept = dsum.clone()
    leaves = learning(x, residual, weight, bias)
    near(torch.autograd.grad(ours_residual(*leaves), leaves, (dy, dsum)), expected)  # the caller holds it
    assert torch.equal(dsum, kept)
    y, total = ours_residual(*leaves)
    seen = []
    total.register_hook(lambda g: seen.append(g))
    near(torch.autograd.grad((y, total * 1), leaves, (dy, dsum)), expected)  # a hook holds it
    assert torch.equal(seen[0], kept)
    y, total = ours_residual(*leaves)
    total.retain_grad()
    torch.autograd.backward((y, total * 1), (dy, dsum))
    near([t.grad for t in leaves], expected)
    assert torch.equal(total.grad, kept)
    y, total = ours_residual(*leaves)
    near(torch.autograd.grad((y, total * 1), leaves, (dy, dsum)), expected)  # nobody does
    assert torch.equal(dsum, kept)


def test_no_grad_and_inference_mode(case):
    leaves, _, expected = case
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            y = ours(*leaves)
            near([y], expected[:1])
            twice = leaves[0], *leaves
            near(ours_residual(*twice), theirs_residual(*twice))
        assert not y.requires_grad


def test_threads():
    def work(seed):
        x, weight, bias, dy = inputs((64, 256), seed=seed)
        expected = exact(theirs, (x, weight, bias), dy)
        for _ in range(20):
            near(gradients(ours, learning(x, weight, bias), dy), expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))  # what is wrong in a thread is raised here


# ---- derivatives of derivatives, tangents, transforms ------------------------------------------------------
def second_terms(function, leaves, dout):
    """The second derivatives of `second` are sums of products: the same sums of the products' magnitudes,
    to which the error of each rounding is in proportion"""
    def first(*leaves):
        return torch.cat([g.flatten() for g in torch.autograd.grad(function(*leaves), leaves, dout,
                                                                   create_graph=True)])

    twice = 2 * first(*leaves).detach().abs()
    return [torch.tensordot(twice, j.abs(), 1) for j in torch.autograd.functional.jacobian(first, leaves)]


# How many roundings a product sees. In 16 bits: of the first derivative, of its part by x or by weight, and
# of their sum. Else also in the sums over C = 16 columns of the first derivative and of the second, in the
# sum over 5 rows, and in 11 products and differences.
@pytest.mark.parametrize("dtype,weight_dtype,roundings",
                         [(torch.float64, torch.float64, 48), (torch.float32, torch.float32, 48),
                          (torch.bfloat16, torch.float32, 3), (torch.float16, torch.float16, 3)], ids=str)
def test_second_derivative(dtype, weight_dtype, roundings):
    x, weight, bias, dy = inputs((5, 16), dtype, weight_dtype)
    dy = dy * 10
    leaves, doubles = learning(x, weight), tuple(learning(x, weight, dtype=torch.float64))

    def reference(x, w):
        return theirs(x, w, bias.double())

    got = second(lambda x, w: ours(x, w, bias), leaves, dy)
    expected = second(reference, doubles, dy.double())
    for a, b, terms in zip(got, expected, second_terms(reference, doubles, dy.double())):
        bound = roundings * torch.finfo(dtype).eps / 2 * terms.max()
        assert (a.double() - b).abs().max() <= bound


def test_second_derivative_of_residual():
    x, weight, bias, dy = inputs((5, 16), torch.float64)
    residual, _, _, dsum = inputs((5, 16), torch.float64, seed=1)
    leaves = learning(x, residual, weight)
    near(second(lambda *a: ours_residual(*a, bias), leaves, dy, dsum),
         second(lambda *a: theirs_residual(*a, bias), leaves, dy, dsum))
    assert torch.autograd.gradgradcheck(lambda *a: ours_residual(*a, bias), leaves)


def test_gradient_penalty():
    """what comes in has no derivative, what goes out has one"""
    x, weight, bias, _ = inputs((5, 16), torch.float64)
    found = []
    for function in (ours, theirs):
        leaves = learning(x, weight, bias)
        part = function(*leaves)[:, :3].sum()
        grad, = torch.autograd.grad(part, leaves[0], create_graph=True)
        found.append(torch.autograd.grad(part + grad.square().sum(), leaves))
    near(*found)


@pytest.mark.parametrize("learn", [False, True])
def test_tangents(learn):
    x, weight, bias, dx = inputs((5, 16), torch.float64)
    found = []
    for function in (ours, theirs):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.clone().requires_grad_(learn), dx)
            found.append(forward_ad.unpack_dual(function(dual, weight, bias)).tangent)
    near(found[:1], found[1:])


def test_nested_rows_by_keyword():
    _, weight, bias, _ = inputs((5, 16), torch.float32)
    rows = [inputs((n, 16), torch.float32, seed=n)[0] for n in (3, 5)]
    nested = torch.nested.nested_tensor(rows)
    out = plumb_layernorm.layer_norm(input=nested, normalized_shape=(16,), weight=weight, bias=bias)
    near(out.unbind(), [theirs(r, weight, bias) for r in rows])


def test_subclass_of_two_tensors():
    """each of them has statistics of its own"""
    x, weight, bias, dy = inputs((5, 16), torch.float64)
    two = TwoTensor(x, 2 * x).requires_grad_()
    parameters = [TwoTensor(t, t) for t in (weight, bias)]
    ours(two, *parameters).backward(TwoTensor(dy, dy))
    for part, rows in ((two.grad.a, x), (two.grad.b, 2 * x)):
        leaf = rows.clone().requires_grad_()
        theirs(leaf, weight, bias).backward(dy)
        near([part], [leaf.grad])


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_function_transforms(norm):
    x, weight, bias, dy = inputs((5, 16), torch.float64)
    more = (bias,)[:norm.parameters - 1]

    def cubes_gradient(function, x):
        return torch.func.grad(lambda x: function(x, weight, *more).pow(3).sum())(x)

    for transform in (lambda f: torch.func.grad(lambda x: (f(x, weight, *more) * dy).sum())(x),
                      lambda f: torch.func.grad(lambda w: (f(x, w, *more) * dy).sum())(weight),
                      lambda f: torch.func.jacrev(lambda x: f(x, weight, *more))(x),
                      lambda f: torch.func.jvp(lambda x: f(x, weight, *more), (x,), (dy,))[1],
                      lambda f: torch.func.vmap(lambda x: f(x, weight, *more))(x),
                      lambda f: torch.func.grad(lambda x: cubes_gradient(f, x).square().sum())(x),
                      lambda f: torch.func.hessian(lambda x: f(x, weight, *more).square().sum())(x[:1])):
        near([transform(norm.ours)], [transform(norm.theirs)])
    leaves = learning(x, weight, *more)
    near(*[torch.autograd.grad(f(*leaves), leaves, torch.stack([dy, -dy]), is_grads_batched=True)
           for f in (norm.ours, norm.theirs)])


def test_tangent_of_the_incoming_gradient():
    x, weight, bias, dy = inputs((5, 16), torch.float64)
    found = []
    for function in (ours, theirs):
        leaves = learning(x, weight, bias)
        y = function(*leaves)
        with forward_ad.dual_level():
            grads = torch.autograd.grad(y, leaves, forward_ad.make_dual(dy, dy.flip(0)))
            found.append([forward_ad.unpack_dual(g).tangent for g in grads])
    near(*found)


@only_extension
def test_no_python_in_backward(case):
    """one node, which is C++, and no operator below it"""
    (x, weight, bias), dy, _ = case
    y = ours(x, weight, bias)
    assert is_ours(y) and not hasattr(type(y.grad_fn), "backward")
    assert {type(next_).__name__ for next_, _ in y.grad_fn.next_functions} == {"AccumulateGrad"}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y.backward(dy)
    names = sorted(e.name for e in profile.events() if "plumb" in e.name.lower() and "engine" not in e.name)
    assert names == ["PlumbLayerNormBackward"]
