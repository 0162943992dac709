"""LayerNorm and RMSNorm for PyTorch by plumb's CUDA kernels: for training, drop-ins for torch.nn.LayerNorm and RMSNorm.

    import plumb_layernorm
    plumb_layernorm.replace_norms(model)                   # nn.LayerNorm, nn.RMSNorm and Llama's, in place
    count = plumb_layernorm.replace_layernorms(model)      # every nn.LayerNorm alone
    y = plumb_layernorm.layer_norm(x, (768,), weight, bias)
    y, residual = plumb_layernorm.residual_layer_norm(x, residual, (768,), weight, bias)
    y = plumb_layernorm.rms_norm(x, (768,), weight)
    y, residual = plumb_layernorm.residual_rms_norm(x, residual, (768,), weight)
    r = plumb_layernorm.layer_norm_fp8(x, weight, bias, scale)     # e4m3 for torch._scaled_mm: its help says more
    y, residual = plumb_layernorm.layer_norm_modulate(h, scale, shift, residual=residual, gate=gate)  # adaLN: likewise

What the kernels take: float32, bfloat16, float16 and float64 on a CUDA device; weight and bias of x's type,
or both of float32 beside 16 bits; either may be None. Everything else, CPU tensors above all, goes to
torch.nn.functional.layer_norm (or rms_norm), and so do forward-mode derivatives; second derivatives are PyTorch's too.

Autocast casts nothing of what the kernels take: the result is of x's type, or of out_dtype, where
torch.nn.functional.layer_norm makes float32 of 16 bits under autocast. So bfloat16 rows beside float32
weights are read and written once, in bfloat16.

Copies: a tensor whose rows can be read in place is not copied: the normalised dimensions lie side by side,
and the rows at one distance. A transposed or expanded x, residual or incoming gradient is copied first.
Results are contiguous.

Numbers: float32 and 16 bits are computed in float32. A row whose squares of x - mean have no sum there (3.4e38:
a standard deviation from 1.8e19 / sqrt(columns) on) gives its bias, one whose elements have none may give NaN.
A row of equal elements gives its bias, but NaN with eps = 0, as PyTorch's.

Results are the same bits in every run. A row's results and its gradient have the same bits in any batch: whatever the
number of rows, whatever the row's place among them and whatever the others are. So it is for rows of at most 65536 elements,
on GPUs of one model, with one version of this package, for tensors of the same types that are aligned alike (addresses and
the distance between rows), and for the same gradients asked for. Rows, weights or biases at addresses that are no multiples
of 16 bytes may have another kernel, whose last bits may differ. The gradients of weight and bias are sums over the batch.

Calls are queued on the current stream, and CUDA graphs may capture them. The backward pass takes 2 KiB a column for itself:
rows of more than 65536 elements go to
PyTorch where that would be several times the size of the tensors.

Under torch.compile the forward pass is PyTorch's own operations, which Inductor fuses with what is around them; the
backward pass is this package's kernel where that is ahead of Inductor's (rows of 16 bits, a weight that learns:
plumb_layernorm._compiled.kernel_is_ahead), else PyTorch's, too. In programs of torch.export, torch.onnx.export and
torch.jit.trace all is PyTorch's, and no package is needed to load them.

backend says what answers, chosen at import by PyTorch's version: "extension" (C++ autograd), "stable" (the
portable operators; torch.autograd.Function around them costs some microseconds of Python a call, and
everything that is not contiguous is copied) or "torch" (a PyTorch without CUDA: everything goes to it).
PLUMB_LAYERNORM_BACKEND=stable in the environment asks for one.
"""
import importlib

import torch

from . import _compiled
from ._backend import backend
from ._compiled import compiles
from ._fp8 import LayerNormFp8, layer_norm_fp8
from ._modulate import layer_norm_modulate
from ._products import find_products
from ._replace import Replaced, why_kept

__all__ = ["LayerNorm", "LayerNormFp8", "RMSNorm", "backend", "layer_norm", "layer_norm_fp8", "layer_norm_modulate",
           "replace_layernorms", "replace_norms", "residual_layer_norm", "residual_rms_norm", "rms_norm"]
if backend == "extension":
    _layer_norm, _residual_layer_norm, _rms_norm, _residual_rms_norm = (
        getattr(torch.ops.plumb_layernorm, name).default
        for name in ("layer_norm", "residual_layer_norm", "rms_norm", "residual_rms_norm"))
else:
    _eager = importlib.import_module("._compiled" if backend == "torch" else "._stable", __name__)
    _layer_norm, _residual_layer_norm, _rms_norm, _residual_rms_norm = (
        _eager.layer_norm, _eager.residual_layer_norm, _eager.rms_norm, _eager.residual_rms_norm)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, *, out_dtype=None):
    """torch.nn.functional.layer_norm: input normalised over its last dimensions, normalized_shape (an int, or
    several), times weight, plus bias, both of that shape. For what is copied, and what goes to PyTorch:
    help(plumb_layernorm). out_dtype: the type of the result, else input's. bfloat16 or float16 beside a float32 input are
    written, and their gradient is read, by the kernels: where a product in 16 bits follows, as under autocast, neither is cast
    by a pass of its own."""
    if isinstance(normalized_shape, int):
        normalized_shape = (normalized_shape,)
    return (_compiled.layer_norm if compiles() else _layer_norm)(input, normalized_shape, weight, bias, eps, out_dtype)


def residual_layer_norm(x, residual, normalized_shape, weight=None, bias=None, eps=1e-5):
    """(layer_norm(new_residual, ...), new_residual), where new_residual = x + residual, in one pass over
    memory: a block's end and the next one's LayerNorm. x and residual are of one shape and type, else PyTorch
    adds them. Their gradients are one tensor: what comes from new_residual and from the LayerNorm is added in
    the kernel. Both results are of one node of the graph: a hook of new_residual, retain_grad and
    torch.autograd.grad for it see what comes from its other uses, without the LayerNorm's part."""
    if isinstance(normalized_shape, int):
        normalized_shape = (normalized_shape,)
    norm = _compiled.residual_layer_norm if compiles() else _residual_layer_norm
    return norm(x, residual, normalized_shape, weight, bias, eps)


def rms_norm(input, normalized_shape, weight=None, eps=None, *, offset=0.0, out_dtype=None):
    """torch.nn.functional.rms_norm: input over its root mean square of the last dimensions, normalized_shape, times weight;
    eps None is torch.finfo's of the type it is computed in, float32 or float64, as PyTorch's. The result is of input's type,
    also where float32 weights are beside 16 bits. With an offset, 1 in Gemma's, weight is weight + offset, which is added in
    float32 and not rounded to the weight's type. out_dtype: as layer_norm's."""
    shape, weight, eps = _of_rms(input, normalized_shape, weight, eps, offset)
    return (_compiled.rms_norm if compiles() else _rms_norm)(input, shape, weight, eps, out_dtype)


def residual_rms_norm(x, residual, normalized_shape, weight=None, eps=None, *, offset=0.0):
    """(rms_norm(new_residual, ...), new_residual), where new_residual = x + residual: as residual_layer_norm"""
    shape, weight, eps = _of_rms(x, normalized_shape, weight, eps, offset)
    return (_compiled.residual_rms_norm if compiles() else _residual_rms_norm)(x, residual, shape, weight, eps)


def _of_rms(x, normalized_shape, weight, eps, offset):
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
    if weight is not None and offset != 0:
        weight = (weight if weight.dtype == torch.float64 else weight.float()) + offset
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    return shape, weight, eps


def _out_dtype(module, x):
    """autocast's type, if replace_norms has found that products alone read the module's result; None: x's"""
    if not module.feeds_products or x.dtype != torch.float32 or not torch.is_autocast_enabled(x.device.type):
        return None
    return torch.get_autocast_dtype(x.device.type)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm, its arguments, parameters and state dict, by layer_norm above"""
    feeds_products = False

    def forward(self, input):
        norm = _compiled.layer_norm if compiles() else _layer_norm
        return norm(input, self.normalized_shape, self.weight, self.bias, self.eps, _out_dtype(self, input))


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm, its arguments, parameters and state dict, by rms_norm above, and its offset, with which weight
    begins as 1 - offset"""
    offset = 0.0
    feeds_products = False

    def __init__(self, normalized_shape, eps=None, elementwise_affine=True, device=None, dtype=None, *, offset=0.0):
        self.offset = offset  # before the weight is made
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self):
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.offset)

    def forward(self, x):
        shape, weight, eps = _of_rms(x, self.normalized_shape, self.weight, self.eps, self.offset)
        return (_compiled.rms_norm if compiles() else _rms_norm)(x, shape, weight, eps, _out_dtype(self, x))


def replace_layernorms(model):
    """Makes every torch.nn.LayerNorm of model, itself included, a LayerNorm of this package, and returns how
    many. In place: parameters, hooks and names stay, only the class changes. Subclasses stay, and so does a
    module with a forward of its own, as accelerate gives it; call this before fully_shard and
    register_parametrization, which make subclasses."""
    found = [module for module in model.modules()
             if type(module) is torch.nn.LayerNorm and "forward" not in vars(module)]
    for module in found:
        module.__class__ = LayerNorm
    return len(found)


def replace_norms(model, example=None):
    """Makes the norms of model, itself included, those of this package: every torch.nn.LayerNorm, every torch.nn.RMSNorm, and
    modules of other classes that do what RMSNorm does, which is found out from the operations of their forward, not from
    their names: x / sqrt(mean(x^2) + eps) times weight, or times weight + 1 as Gemma's. In place: parameters, hooks and names
    stay, only the class changes, to one derived from what it was. Returns two lists,
        replaced   (name, class) of each that is one of the package's now
        kept       (name, class, why) of each other module whose class has norm in its name
    A module's own eps is read once, here. Where such a class gives float32 for 16-bit rows beside float32 weights, the result
    is of the rows' type now. Call this before fully_shard and register_parametrization, which make subclasses.

    example, a function such as lambda: model(ids), says which results may be of autocast's type beside float32 rows, so that
    products need not cast them: it is called once, without gradients, in the mode and under the autocast that training has. A
    norm whose result is read by casts to that type alone, or through views, gives it from then on wherever autocast is on; all
    else stays as it is. Values and gradients are rounded as by the casts, but where several products read one result: their
    gradients are added in 16 bits. The answer's `out` says for each norm that ran (name: number of casts that are not there any
    more), or (name: the operation that reads float32)."""
    classes = {torch.nn.LayerNorm: LayerNorm, torch.nn.RMSNorm: RMSNorm}
    replaced, kept = [], []
    for name, module in list(model.named_modules()):
        kind = type(module).__name__
        reason = why_kept(module, classes)
        if reason == "":
            replaced.append((name, kind))
        elif reason is not None:
            kept.append((name, kind, reason))
    answer = Replaced(replaced, kept)
    if example is not None:
        answer.out = find_products(model, [name for name, _ in replaced], example)
    return answer
