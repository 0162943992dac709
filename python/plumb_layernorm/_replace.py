"""Which modules of a model are norms that the kernels take, and what stands in for them."""
import copy
from collections import namedtuple

import torch
from torch.fx.experimental.proxy_tensor import make_fx


class Replaced(namedtuple("Replaced", "replaced kept")):
    """what replace_norms answers; out: {} unless it was given an example"""
    out = {}


RmsFormula = namedtuple("RmsFormula", "weight eps offset")  # weight: the parameter's name

aten = torch.ops.aten
CASTS = {aten._to_copy.default, aten.detach.default, aten.alias.default, aten.clone.default}


def meaning(node, of):
    """What a node of a graph is, given what its arguments are: ("x",), ("w", offset), ("x2",), the mean of that over a row,
    ("mean",), with eps ("var", eps), its root ("root", eps), 1 / root ("rstd", eps), ("xhat", eps), ("out", eps, offset);
    None: something else."""
    target, given = node.target, [of.get(a, a) for a in node.args]
    tags = [g[0] if isinstance(g, tuple) else None for g in given]
    number = next((g for g in given if isinstance(g, (int, float))), None)
    if target in CASTS:
        return given[0]
    if target is aten.pow.Tensor_Scalar and tags[0] == "x" and given[1] == 2:
        return ("x2",)
    if target is aten.mean.dim and tags[0] == "x2" and list(given[1]) in ([-1], [1]) and given[2:3] == [True]:
        return ("mean",)
    in_place = target is aten.add_.Scalar and len(node.args[0].users) == 1  # nobody else sees the change
    if (target in (aten.add.Tensor, aten.add.Scalar) or in_place) and number is not None and not node.kwargs:
        first = next((g for g in given if isinstance(g, tuple)), (None,))
        return {"mean": ("var", number), "w": ("w", number)}.get(first[0])
    if target in (aten.rsqrt.default, aten.sqrt.default) and tags[0] == "var":
        return ("rstd" if target is aten.rsqrt.default else "root", given[0][1])
    if target is aten.reciprocal.default and tags[0] == "root":
        return ("rstd", given[0][1])
    if target is aten.div.Tensor and tags == ["x", "root"]:
        return ("xhat", given[1][1])
    if target is aten.mul.Tensor:
        pair = dict(zip(tags, given))
        if tags == ["x", "x"]:
            return ("x2",)
        if set(pair) == {"x", "rstd"}:
            return ("xhat", pair["rstd"][1])
        if set(pair) == {"xhat", "w"}:
            return ("out", pair["xhat"][1], pair["w"][1])
    return None


def rms_formula(module):
    """(RmsFormula, "") if module's forward is x rstd (weight + offset), rstd = 1 / sqrt(mean(x^2) + eps) over the last
    dimension, by what it does with a small tensor, whatever its class and its names are; else (None, why not)"""
    parameters = list(module.named_parameters(recurse=False))
    if len(parameters) != 1 or parameters[0][1].dim() != 1 or any(module.buffers()) or any(module.children()):
        return None, "it has more than one vector for a parameter, or none"
    (name, parameter), = parameters

    def forward(x, w):
        twin = copy.copy(module)  # without its hooks, and on the CPU
        twin.__dict__["_parameters"] = {name: w}
        return type(module).forward(twin, x)

    columns = parameter.numel()
    try:
        with torch.no_grad():
            graph = make_fx(forward)(torch.randn(columns + 1, columns), torch.randn(columns)).graph
    except Exception as error:  # of code that is not ours
        return None, f"its forward cannot be followed: {type(error).__name__}: {error}".splitlines()[0]
    x, w = [node for node in graph.nodes if node.op == "placeholder"]
    of, result = {x: ("x",), w: ("w", 0.0)}, None
    for node in graph.nodes:
        if node.op == "call_function":
            of[node] = meaning(node, of)
        elif node.op == "output":
            result = of.get(node.args[0])
    if result is None or result[0] != "out":
        return None, "its forward is another formula"
    return RmsFormula(name, float(result[1]), float(result[2])), ""


made = {}  # class: the one that stands in for it


def restore(base):
    made_class = subclass_of(base)
    return made_class.__new__(made_class)


def subclass_of(base):
    """base with a forward by the kernels; pickled as what it is made of"""
    if base not in made:
        from . import _out_dtype, rms_norm
        from ._compiled import compiles, kernel_is_ahead

        def forward(self, *rows, **named):
            x, = (*rows, *named.values())
            weight = getattr(self, self.plumb.weight)
            out_dtype = _out_dtype(self, x)
            if compiles() and not kernel_is_ahead(x, weight.shape, weight, None, out_dtype):
                return base.forward(self, x)
            return rms_norm(x, weight.shape, weight, self.plumb.eps, offset=self.plumb.offset, out_dtype=out_dtype)

        def __reduce_ex__(self, protocol):
            return restore, (base,), self.__dict__

        made[base] = type(base.__name__, (base,), {"forward": forward, "__reduce_ex__": __reduce_ex__, "feeds_products": False,
                                                   "__module__": base.__module__, "__doc__": base.__doc__})
    return made[base]


def why_kept(module, classes):
    """"" if it is replaced now, None if it is no norm"""
    kind = type(module)
    named = "norm" in kind.__name__.lower() or isinstance(module, tuple(classes))
    if kind in classes.values() or kind in made.values():
        return "it is one of this package's"
    if "forward" in vars(module):
        return "it has a forward of its own" if named else None
    if kind in classes:
        module.__class__ = classes[kind]
        return ""
    if kind.__module__.startswith("torch."):
        return "this package has no such norm" if named else None
    formula, reason = rms_formula(module)
    if formula is None:
        return reason if named else None
    module.plumb = formula
    module.__class__ = subclass_of(kind)
    return ""
