"""Results and gradients against PyTorch's in float64: types, shapes, strides."""
import pytest
import torch

import plumb_layernorm
from helpers import (DEVICE, NORMS, TYPES, exact, gradients, inputs, is_ours, learning, near, ours, ours_residual,
                     theirs, theirs_residual)

each_norm = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
SHAPES = [(1, 3), (1, 5, 7, 65), (131, 768), (2, 9, 769), (17, 1600), (64, 1024), (5, 4097), (40, 8192),
          (3, 20000)]


@each_norm
@pytest.mark.parametrize("dtype,weight_dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, dtype, weight_dtype, norm):
    *tensors, dy = inputs(shape, dtype, weight_dtype)
    tensors = tensors[:1 + norm.parameters]
    leaves = learning(*tensors)
    y = norm.ours(*leaves)
    assert is_ours(y) and y.dtype == dtype and y.is_contiguous()
    near(gradients(norm.ours, leaves, dy), exact(norm.theirs, tensors, dy))
    assert torch.equal(norm.ours(*tensors), y), "without gradients, other bits"


@pytest.mark.parametrize("dtype,weight_dtype", TYPES, ids=str)
@pytest.mark.parametrize("has_weight,has_bias", [(0, 0), (1, 0), (0, 1)])
def test_absent_parameters(dtype, weight_dtype, has_weight, has_bias):
    x, weight, bias, dy = inputs((7, 130), dtype, weight_dtype)
    given = x, weight if has_weight else None, bias if has_bias else None
    leaves = learning(*given)
    assert is_ours(ours(*leaves))
    near(gradients(ours, leaves, dy), exact(theirs, given, dy))


@each_norm
@pytest.mark.parametrize("dtype,weight_dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 64), (33, 768), (9, 1025)], ids=str)
def test_residual(shape, dtype, weight_dtype, norm):
    x, *parameters, dy = inputs(shape, dtype, weight_dtype)
    residual, _, _, dsum = inputs(shape, dtype, seed=1)
    parameters = parameters[:norm.parameters]
    leaves = learning(x, residual, *parameters)
    y, total = norm.ours_residual(*leaves)
    assert is_ours(y) and is_ours(total) and torch.equal(total, x + residual)
    assert torch.equal(y, norm.ours(total, *parameters)), "the sum is not rounded as x + residual is"

    def from_sum(s, *parameters):  # the rounding of the sum, which is of 16 bits, is no error
        return norm.theirs(s, *parameters), s + 0

    y, s, ds, *of_parameters = exact(from_sum, (total, *parameters), dy, dsum)
    near(gradients(norm.ours_residual, leaves, dy, dsum), [y, s, ds, ds, *of_parameters])


@pytest.mark.parametrize("which", [0, 1])
def test_residual_one_result_used(which):
    x, weight, bias, dy = inputs((6, 64))
    leaves = learning(x, inputs((6, 64), seed=1)[0], weight, bias)
    doubles = learning(*leaves, dtype=torch.float64)
    found = [torch.autograd.grad(function(*given)[which], given, dy.to(given[0].dtype), allow_unused=True)
             for function, given in ((ours_residual, leaves), (theirs_residual, doubles))]
    none = [False, False, which == 1, which == 1]
    assert [g is None for g in found[0]] == [g is None for g in found[1]] == none
    near(*([g for g in gradients if g is not None] for gradients in found))


@each_norm
def test_residual_of_other_types_or_shapes_is_added_by_pytorch(norm):
    x, *parameters, _ = inputs((4, 6, 64), torch.bfloat16, torch.float32)
    parameters = parameters[:norm.parameters]
    for residual in (torch.randn(4, 6, 64, device=DEVICE),
                     torch.randn(6, 64, device=DEVICE, dtype=torch.bfloat16)):
        y, total = norm.ours_residual(*learning(x, residual, *parameters))
        assert torch.equal(total, x + residual) and total.dtype == (x + residual).dtype
        assert torch.equal(y, norm.ours(total, *parameters))


@each_norm
def test_two_normalized_dimensions_and_eps(norm):
    *tensors, dy = inputs((6, 4, 24), normalized=2)
    tensors = tensors[:1 + norm.parameters]
    near(gradients(lambda *a: norm.ours(*a, 2, 0.1), learning(*tensors), dy),
         exact(lambda *a: norm.theirs(*a, 2, 0.1), tensors, dy))


def apart(x, first):
    """x's values in rows of thrice the columns, from this one on"""
    wide = x.new_empty(*x.shape[:-1], 3 * x.shape[-1])
    return wide[..., first:first + x.shape[-1]].copy_(x)


def strided(x):
    wide = torch.cat([x, x, x], -1)
    C = x.shape[-1]
    return {"rows apart": wide[..., C:2 * C], "not aligned": wide[..., 1:C + 1],
            "transposed": x.transpose(0, 1), "columns apart": wide[..., ::3][..., :C],
            "expanded": x[:, :1].expand(x.shape),
            "row expanded": x[:1, :1].expand(x.shape), "inner dimension expanded": x[:, :1].expand(-1, 5, -1),
            "overlapping": x.flatten().unfold(0, C, C // 2)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", strided(torch.zeros(4, 9, 96)))
def test_strides(kind, dtype):
    x, weight, bias, dy = inputs((4, 9, 96), dtype)
    x, dy = strided(x)[kind], strided(dy)[kind]
    near(gradients(ours, learning(x, weight, bias), dy), exact(theirs, (x, weight, bias), dy))
    in_place = gradients(ours, learning(x, weight, bias), dy)
    # Rows that are not aligned may have another kernel than aligned ones, which adds up a row in another order,
    # the same at each such address.
    same_x, same_dy = ((apart(t, 3) if kind == "not aligned" else t.contiguous()) for t in (x, dy))
    elsewhere = gradients(ours, learning(same_x, weight, bias), same_dy)
    assert all(torch.equal(a, b) for a, b in zip(in_place, elsewhere))
    near(gradients(ours_residual, learning(x, x, weight, bias), dy, dy),
         exact(theirs_residual, (x, x, weight, bias), dy, dy))  # x + x is exact


def test_strided_parameters():
    x, weight, bias, dy = inputs((4, 96))
    weight, bias = (t.repeat_interleave(2)[::2] for t in (weight, bias))
    assert weight.stride() == (2,)
    near(gradients(ours, learning(x, weight, bias), dy), exact(theirs, (x, weight, bias), dy))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (3, 0)], ids=str)
def test_empty(shape):
    x, weight, bias, dy = inputs(shape)
    y, dx, dweight, dbias = gradients(ours, learning(x, weight, bias), dy)
    assert y.shape == dx.shape == shape and dbias.shape == shape[-1:]
    assert not dweight.any() and not dbias.any()
    assert [t.shape for t in ours_residual(x, x, weight, bias)] == [shape, shape]


def test_tutorial():
    """the test of Triton's tutorial: 1151 x 8192 float16, every result within 0.01 of torch's"""
    x, weight, bias, dy = inputs((1151 if DEVICE == "cuda" else 51, 8192), torch.float16)
    for a, b in zip(*(gradients(function, learning(x, weight, bias), dy) for function in (ours, theirs))):
        assert torch.allclose(a, b, atol=1e-2, rtol=0)


def test_same_bits_every_time():
    x, weight, bias, dy = inputs((515, 768), torch.bfloat16)
    first = gradients(ours, learning(x, weight, bias), dy)
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(ours, learning(x, weight, bias), dy)))


def test_gradcheck():
    x, weight, bias, _ = learning(*inputs((5, 12), torch.float64))
    residual = learning(inputs((5, 12), torch.float64, seed=1)[0])[0]
    assert torch.autograd.gradcheck(ours, (x, weight, bias))
    assert torch.autograd.gradcheck(lambda x: ours(x, None, None), (x,))
    assert torch.autograd.gradcheck(ours_residual, (x, residual, weight, bias))


@pytest.mark.skipif(DEVICE == "cpu", reason="here the library has CPU tensors")
def test_cpu_tensors_go_to_pytorch():
    x, weight, bias, dy = (t.cpu() for t in inputs((3, 8)))
    assert not is_ours(ours(*learning(x, weight, bias)))
    for a, b in zip(*(gradients(function, learning(x, weight, bias), dy) for function in (ours, theirs))):
        assert torch.equal(a, b)


def test_meta_tensors_go_to_pytorch():
    x = torch.ones(3, 8, device="meta")
    assert ours(x, None, None).device.type == "meta" and ours_residual(x, x, None, None)[1].shape == (3, 8)


@pytest.mark.parametrize("normalized_shape,weight_shape",
                         [((7,), None), ((), None), ((2, 3, 8), None), ((8,), (7,)), ((8,), (2, 4))], ids=str)
def test_wrong_shapes_get_pytorchs_words(normalized_shape, weight_shape):
    x = torch.ones((3, 8), device=DEVICE)
    weight = None if weight_shape is None else torch.ones(weight_shape, device=DEVICE)
    found = []
    for function in (plumb_layernorm.layer_norm, torch.nn.functional.layer_norm):
        with pytest.raises(RuntimeError) as caught:
            function(x, normalized_shape, weight)
        found.append(str(caught.value).split("\n")[0])
    assert found[0] == found[1]


def test_negative_eps_is_refused():
    with pytest.raises((ValueError, RuntimeError), match="eps is"):
        ours(torch.ones(3, 8, device=DEVICE), None, None, eps=-1.0)
