"""Which norms' results are read by products in 16 bits alone."""
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Readers(TorchDispatchMode):
    """of results(): the casts to autocast's type, by module's name, and the first operation that is none"""

    def __init__(self):
        super().__init__()
        self.of, self.casts, self.other = {}, {}, {}  # of: a tensor's id: the module, and the tensor, so that the id stays its

    def result(self, name, tensor):
        self.of[id(tensor)] = name, tensor
        self.casts.setdefault(name, 0)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for name in {self.of[id(t)][0] for t in tree_leaves((args, kwargs)) if id(t) in self.of}:
            if function.is_view:
                for t in tree_leaves(made):
                    self.result(name, t)
            elif function is torch.ops.aten._to_copy.default and made.dtype == torch.get_autocast_dtype(made.device.type):
                self.casts[name] += 1
            else:
                self.other.setdefault(name, str(function))
        return made


def find_products(model, names, example):
    """see replace_norms, whose `out` this is; marks the modules of these names"""
    modules, readers = dict(model.named_modules()), Readers()
    hooks = [modules[name].register_forward_hook(lambda module, args, out, name=name: readers.result(name, out))
             for name in names]
    try:
        with torch.no_grad(), readers:
            result = example()
    finally:
        for hook in hooks:
            hook.remove()
    for t in tree_leaves(result):  # who called for it reads it
        if id(t) in readers.of:
            readers.other.setdefault(readers.of[id(t)][0], "the model's result")
    for name, casts in readers.casts.items():
        modules[name].feeds_products = casts > 0 and name not in readers.other
    return {name: readers.other.get(name, casts) for name, casts in readers.casts.items()}
