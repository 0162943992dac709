"""What bench_layernorm.py races: LayerNorms behind apply(x, weight, bias) with autograd, and the calls that are timed.

TritonTutorial is the algorithm of Triton's fifth tutorial, written from its description: forward, a program a
row, three masked passes (mean, variance about it, result); backward, a program a row, which adds its part of dweight
and dbias to one of `groups` buffers in x's type under a lock, then a second kernel that adds the buffers up. Which row
comes first is left to chance: two runs may differ in the last bits. Its launch rules are in launch() and backward().
"""
import functools
import importlib
import math

import torch
import triton
import triton.language as tl

EPS = 1e-5
RING_BYTES = 800e6  # 13 times the L2 of an H200; with the results twice as much


# ---- Triton's tutorial -----------------------------------------------------------------------------------------------
@triton.jit
def read_row(row, columns, C):
    """float32, 0 past the end"""
    return tl.load(row + columns, mask=columns < C, other=0.0).to(tl.float32)


@triton.jit
def forward_kernel(out, mean_out, rstd_out, inp, weight, bias, stride, C, eps, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    x_row = inp + n * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, C, BLOCK):
        total += read_row(x_row, begin + tl.arange(0, BLOCK), C)
    mean = tl.sum(total, axis=0) / C

    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, C, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        centred = tl.where(columns < C, read_row(x_row, columns, C) - mean, 0.0)
        squares += centred * centred
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / C + eps)
    tl.store(mean_out + n, mean)
    tl.store(rstd_out + n, rstd)

    for begin in range(0, C, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        inside = columns < C
        w = tl.load(weight + columns, mask=inside)
        b = tl.load(bias + columns, mask=inside)
        xhat = (read_row(x_row, columns, C) - mean) * rstd
        tl.store(out + n * stride + columns, xhat * w + b, mask=inside)


@triton.jit
def backward_kernel(dinp, dweight_parts, dbias_parts, dout, inp, weight, mean_in, rstd_in, locks, stride, C,
                    GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """locks: GROUPS of them, then for each whether its buffer has been written"""
    n = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < C
    x = read_row(inp + n * stride, columns, C)
    dy = read_row(dout + n * stride, columns, C)
    w = tl.load(weight + columns, mask=inside)
    wdy = tl.where(inside, w.to(tl.float32) * dy, 0.0)
    mean = tl.load(mean_in + n)
    rstd = tl.load(rstd_in + n)
    xhat = tl.where(inside, (x - mean) * rstd, 0.0)
    c1 = tl.sum(wdy, axis=0) / C
    c2 = tl.sum(xhat * wdy, axis=0) / C
    tl.store(dinp + n * stride + columns, (wdy - c1 - xhat * c2) * rstd, mask=inside)

    dweight_sum = (dy * xhat).to(w.dtype)
    dbias_sum = dy.to(w.dtype)
    group = n % GROUPS
    lock = locks + group
    written = lock + GROUPS
    at = group * C + columns
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(written) == 0:  # the first to come says so and writes, the others add
        tl.atomic_xchg(written, 1)
    else:
        dweight_sum += tl.load(dweight_parts + at, mask=inside)
        dbias_sum += tl.load(dbias_parts + at, mask=inside)
    tl.store(dweight_parts + at, dweight_sum, mask=inside)
    tl.store(dbias_parts + at, dbias_sum, mask=inside)
    tl.debug_barrier()  # every thread's stores before the lock opens
    tl.atomic_xchg(lock, 0)


@triton.jit
def column_total(parts, rows_in_all, columns, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for begin in range(0, rows_in_all, ROWS):
        rows = begin + tl.arange(0, ROWS)
        inside = (rows[:, None] < rows_in_all) & (columns[None, :] < C)
        total += tl.load(parts + rows[:, None] * C + columns[None, :], mask=inside, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def finish_kernel(dweight, dbias, dweight_parts, dbias_parts, groups, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(dweight + columns, column_total(dweight_parts, groups, columns, C, ROWS, COLUMNS), mask=columns < C)
    tl.store(dbias + columns, column_total(dbias_parts, groups, columns, C, ROWS, COLUMNS), mask=columns < C)


class TritonFunction(torch.autograd.Function):
    @staticmethod
    def launch(C, element_size):
        """the rule of the tutorial: the whole row in one block of at most 64 KB"""
        block = min(65536 // element_size, triton.next_power_of_2(C))
        if C > block:
            raise RuntimeError(f"rows of {C * element_size} bytes, expected at most 64 KB")
        return block, min(max(block // 256, 1), 8)

    @staticmethod
    def forward(ctx, x, weight, bias):
        N, C = x.shape
        block, warps = TritonFunction.launch(C, x.element_size())
        y = torch.empty_like(x)
        mean, rstd = (torch.empty(N, dtype=torch.float32, device=x.device) for _ in range(2))
        forward_kernel[(N,)](y, mean, rstd, x, weight, bias, x.stride(0), C, EPS, BLOCK=block, num_warps=warps,
                             num_ctas=1)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        N, C = x.shape
        block, warps = TritonFunction.launch(C, x.element_size())
        groups = 256 if C <= 1024 else 128 if C <= 4096 else 96 if C <= 8192 else 64
        locks = torch.zeros(2 * groups, dtype=torch.int32, device=x.device)
        parts = [torch.empty((groups, C), dtype=x.dtype, device=x.device) for _ in range(2)]
        dx, dweight, dbias = torch.empty_like(dy), torch.empty_like(weight), torch.empty_like(bias)
        backward_kernel[(N,)](dx, *parts, dy, x, weight, mean, rstd, locks, x.stride(0), C, GROUPS=groups,
                              BLOCK=block, num_warps=warps)
        finish_kernel[(triton.cdiv(C, 128),)](dweight, dbias, *parts, min(groups, N), C, ROWS=32, COLUMNS=128,
                                              num_ctas=1)
        return dx, dweight, dbias


# The tutorial's own kernels by the same method, us: one H200, PyTorch 2.11, Triton 3.6, CUDA 13.0, 2026-11-20, 4096 x N
# float16. A port counts as the tutorial if it is within 3 % of these.
TUTORIAL_US = {
    "forward": {1024: 8.48, 2048: 14.92, 4096: 24.56, 8192: 52.03, 12288: 74.23, 15872: 83.46},
    "backward": {1024: 43.40, 2048: 60.28, 4096: 74.04, 8192: 116.41, 12288: 194.64, 15872: 217.81},
}


def tutorial_verdict(rows, mode):
    """is our port of the tutorial as fast as the tutorial? Of the points that were measured; None if none was"""
    found = {row["C"]: row["us"] for row in rows if row["provider"] == "triton" and row["mode"] == mode
             and (row["N"], row["dtype"]) == (4096, "fp16") and "us" in row}
    points = {C: (found[C], us, found[C] / us - 1) for C, us in TUTORIAL_US[mode].items() if C in found}
    near, wanted = sum(abs(off) <= 0.03 for _, _, off in points.values()), len(TUTORIAL_US[mode])
    text = ", ".join(f"{C}: {port_us:.2f} us for {us:.2f} ({100 * off:+.1f} %)" for C, (port_us, us, off) in points.items())
    return (f"Triton port, {mode}: within 3 % of the tutorial at {near} of {wanted} points "
            f"({'counts' if near == wanted else 'DOES NOT COUNT'} as the tutorial): {text}") if points else None


# ---- all of them: each returns apply(x, weight, bias), LayerNorm over rows of x (N,C), for one shape and type --------
def eager(x, weight, bias):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def compiled():
    # backward may be called again (retain_graph), so that it may not reuse what forward saved
    importlib.import_module("torch._functorch.config").donated_buffer = False
    # tuning results of a busy machine (see warm_up in bench_layernorm.py) are not for the timed runs
    importlib.import_module("torch._inductor.config").autotune_local_cache = False
    torch._dynamo.reset()  # else it would generalise to any size after the first
    return torch.compile(eager, dynamic=False)


def liger():
    function = importlib.import_module("liger_kernel.ops.layer_norm").LigerLayerNormFunction
    return lambda x, w, b: function.apply(x, w, b, EPS)


def quack():
    """takes float32 weights only: they are converted once a shape, outside of what is timed"""
    kernels, made = importlib.import_module("quack.rmsnorm"), {}

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias, weight32, bias32):
            y, rstd, mean = kernels.layernorm_fwd(x, weight32, bias32, EPS, return_rstd=True, return_mean=True)
            ctx.save_for_backward(x, weight32, rstd, mean)
            ctx.dtypes = weight.dtype, bias.dtype
            return y

        @staticmethod
        def backward(ctx, dy):
            x, weight32, rstd, mean = ctx.saved_tensors
            dx, *sums = kernels.layernorm_bwd(x, weight32, dy, rstd, mean)
            return dx, *(s.to(dtype) for s, dtype in zip(sums, ctx.dtypes)), None, None

    def apply(x, weight, bias):
        key = id(weight), id(bias)
        if key not in made:
            made[key] = weight, bias, weight.detach().float(), bias.detach().float()
        return Function.apply(x, weight, bias, *made[key][2:])

    return apply


def flash_attention():
    function = importlib.import_module("flash_attn.ops.triton.layer_norm").layer_norm_fn
    return lambda x, w, b: function(x, w, b, eps=EPS)


def ours():
    package = importlib.import_module("plumb_layernorm")
    if package.backend == "torch":
        raise ImportError("plumb_layernorm has no kernels for this PyTorch")
    return lambda x, w, b: package.layer_norm(x, x.shape[-1:], w, b, EPS)


def peers():
    """({name: what makes it} of those that can be imported, {name: why the others cannot})"""
    # torch.compile's turn is the last: its kernels load with evict_last, and such lines outlive the clearing of L2, so
    # that a provider which reads the same input after it has part of the input from L2
    makers = {"ours": ours, "torch": lambda: eager, "triton": lambda: TritonFunction.apply, "liger": liger, "quack": quack,
              "flash_attn": flash_attention, "torch.compile": compiled}
    return found(makers)


def found(makers):
    missing = {}
    for name, make in makers.items():
        try:
            make()
        except Exception as error:  # whatever a package that does not fit this machine raises
            missing[name] = f"{type(error).__name__}: {error}"
    return {name: make for name, make in makers.items() if name not in missing}, missing


# ---- RMSNorm: apply(x, weight, None) ----------------------------------------------------------------------------------
def eager_rms(x, weight, _):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPS)


def compiled_rms():
    compiled()  # its settings
    return torch.compile(eager_rms, dynamic=False)


def liger_rms():
    function = importlib.import_module("liger_kernel.ops.rms_norm").LigerRMSNormFunction
    return lambda x, w, _: function.apply(x, w, EPS, 0.0, "gemma", False)  # else dx takes dy's place, which is used again


def quack_rms():
    function = importlib.import_module("quack.rmsnorm").rmsnorm
    return lambda x, w, _: function(x, w, eps=EPS)


def ours_rms():
    ours()  # is it there?
    package = importlib.import_module("plumb_layernorm")
    return lambda x, w, _: package.rms_norm(x, x.shape[-1], w, EPS)


OUR_LAYERNORM = "our LayerNorm"  # without a bias: what RMSNorm is to cost


def rms_peers():
    return found({"ours": ours_rms, OUR_LAYERNORM: ours, "torch": lambda: eager_rms, "liger": liger_rms, "quack": quack_rms,
                  "torch.compile": compiled_rms})


# ---- LayerNorm with each sample's scale and shift: apply(x, scale, shift), or with residual and gate behind -----------
def eager_modulate(x, scale, shift, residual=None, gate=None):
    x = x if residual is None else residual + gate[:, None] * x
    out = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPS) * (1 + scale[:, None]) + shift[:, None]
    return (out,) if residual is None else (out, x)


def ours_modulate():
    norm = importlib.import_module("plumb_layernorm").layer_norm_modulate
    return lambda x, scale, shift, residual=None, gate=None: norm(x, scale, shift, EPS, residual=residual, gate=gate)


def modulate_peers():
    torch._dynamo.reset()
    return found({"ours": ours_modulate, "torch": lambda: eager_modulate,
                  "torch.compile": lambda: torch.compile(eager_modulate, dynamic=False)})


class ModulateProblem:
    """a ring of (x, scale, shift) or (x, scale, shift, residual, gate), leaves, and of the gradients that come, in bfloat16;
    scale, shift and gate are chunks of one tensor"""

    def __init__(self, samples, tokens, C, gated, mode):
        rows, tensors = (samples, tokens, C), (4 if gated else 2) if mode == "forward" else (6 if gated else 3)
        self.bytes, self.mode = tensors * samples * tokens * C * 2, mode
        self.sets = max(2, math.ceil(RING_BYTES / self.bytes))
        new = dict(device="cuda", dtype=torch.bfloat16)
        self.given, self.douts = [], []
        for _ in range(self.sets):
            shift, scale, gate, *_ = (0.5 * torch.randn(samples, 6 * C, **new)).chunk(6, dim=1)
            leaves = [torch.randn(rows, **new), scale, shift] + ([torch.randn(rows, **new), gate] if gated else [])
            self.given.append([t.detach().requires_grad_() for t in leaves])
            self.douts.append([torch.randn(rows, **new) for _ in range(2 if gated else 1)])

    gigabytes_a_second = lambda self, us: self.bytes / us * 1e-3  # noqa: E731

    def exact(self, name):
        """what set 0 gives, in float64, whoever computes it"""
        leaves = [t.detach().double().requires_grad_() for t in self.given[0]]
        results = eager_modulate(*leaves)
        grads = torch.autograd.grad(results, leaves, [d.double() for d in self.douts[0]]) if self.mode == "backward" else ()
        return grads or results


# ---- LayerNorm to e4m3 and its transpose: apply(x, weight, bias) gives both and the largest |y| ----------------------
MOST_E4M3, FP8_SCALE = 448.0, 32.0


@triton.jit
def fp8_rows_kernel(out, amax, inp, weight, bias, scale, N, C, eps, BLOCK: tl.constexpr):
    """a program takes every so many rows, so that amax is raised once a program"""
    columns = tl.arange(0, BLOCK)
    w = tl.load(weight + columns, mask=columns < C, other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=columns < C, other=0.0).to(tl.float32)
    times = tl.load(scale)
    largest = tl.zeros([BLOCK], dtype=tl.float32)
    for n in tl.range(tl.program_id(0), N, tl.num_programs(0), num_stages=3):
        x = read_row(inp + n * C, columns, C)
        mean = tl.sum(x, axis=0) / C
        centred = tl.where(columns < C, x - mean, 0.0)
        y = centred / tl.sqrt(tl.sum(centred * centred, axis=0) / C + eps) * w + b
        largest = tl.maximum(largest, tl.abs(y))
        q = tl.clamp(y * times, -448.0, 448.0).to(tl.float8e4nv)
        tl.store(out + n * C + columns, q, mask=columns < C)
    tl.atomic_max(amax, tl.max(largest, axis=0))


@triton.autotune([triton.Config(dict(ROWS=rows, COLUMNS=columns), num_warps=warps) for rows in (64, 128)
                  for columns in (32, 64, 128) for warps in (4, 8)], key=["N", "C"])
@triton.jit
def transpose_kernel(out, inp, N, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows[:, None] < N) & (columns[None, :] < C)
    tile = tl.load(inp + rows[:, None] * C + columns[None, :], mask=inside)
    tl.store(out + columns[:, None] * N + rows[None, :], tl.trans(tile), mask=tl.trans(inside))


def fp8_triton_pair(warps, programs):
    """programs: for each multiprocessor"""
    def apply(x, weight, bias):
        N, C = x.shape
        out, transposed = (torch.empty(s, dtype=torch.float8_e4m3fn, device=x.device) for s in ((N, C), (C, N)))
        amax = torch.zeros(1, device=x.device)
        grid = programs * torch.cuda.get_device_properties(x.device).multi_processor_count
        fp8_rows_kernel[(min(N, grid),)](out, amax, x, weight, bias, fp8_scale(), N, C, EPS, num_warps=warps,
                                         BLOCK=triton.next_power_of_2(C))
        transpose_kernel[lambda m: (triton.cdiv(C, m["COLUMNS"]), triton.cdiv(N, m["ROWS"]))](
            transposed.view(torch.uint8), out.view(torch.uint8), N, C)
        return out, transposed, amax

    return apply


@functools.cache
def fp8_scale():
    return torch.full((), FP8_SCALE, device="cuda")


def fp8_cast(x, weight, bias, scale):
    y = torch.nn.functional.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), EPS)
    return (y * scale).clamp(-MOST_E4M3, MOST_E4M3).to(torch.float8_e4m3fn), y.abs().amax()


def fp8_compiled(parts, mode):
    """of one graph, or of two: then the transpose is a kernel of its own"""
    compiled = functools.partial(torch.compile, dynamic=False, mode=mode)
    cast, transpose = fp8_cast, lambda q: q.view(torch.uint8).t().contiguous()
    if parts == 2:
        cast, transpose = compiled(cast), compiled(transpose)

    def apply(x, weight, bias, scale):
        out, amax = cast(x, weight, bias, scale)
        return out, transpose(out).view(out.dtype), amax

    whole = compiled(apply) if parts == 1 else apply
    return lambda x, weight, bias: whole(x, weight, bias, fp8_scale())


def fp8_peers():
    """what makes them, by name"""
    torch._dynamo.reset()  # else it would generalise to any size after the first
    package, pairs = importlib.import_module("plumb_layernorm"), ((1, 32), (2, 16), (4, 8), (8, 4))
    return {"ours": lambda: lambda x, w, b: package.layer_norm_fp8(x, w, b, fp8_scale(), EPS)[:3],
            **{f"triton pair, {pair}": functools.partial(fp8_triton_pair, *pair) for pair in pairs},
            **{f"torch.compile of {parts}, {mode}": functools.partial(fp8_compiled, parts, mode)
               for parts in (1, 2) for mode in ("default", "max-autotune-no-cudagraphs")}}


def fp8_is_right(found, x, weight, bias):
    """but for a share of roundings that computing in float32 turns the other way"""
    out, transposed, amax = found
    expected, largest = fp8_cast(x.double(), weight.double(), bias.double(), FP8_SCALE)
    apart = (out.float() != expected.float()).float().mean()
    return bool(apart < 1e-2 and (out.float() - expected.float()).abs().max() <= 32 and torch.equal(
        transposed.view(torch.uint8), out.view(torch.uint8).t()) and (amax / largest - 1).abs().max() < 1e-4)


# ---- correctness -----------------------------------------------------------------------------------------------------
UNITS = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


def given(*tensors):
    return [t for t in tensors if t is not None]


def exact(x, weight, bias, dy, function=eager):
    """y, dx, dweight, dbias in float64; bias may be None, and has no gradient then"""
    x, weight, bias = (t if t is None else t.detach().double().requires_grad_() for t in (x, weight, bias))
    y = function(x, weight, bias)
    return y.detach(), *torch.autograd.grad(y, given(x, weight, bias), dy.double())


def worst_error(got, expected):
    """over result, in units of the type's rounding of the largest value expected; inf if anything is not finite"""
    worst = 0.0
    for ours, theirs in zip(got, expected):
        error = (ours.detach().double() - theirs).abs().max() / theirs.abs().max() / UNITS[ours.dtype]
        worst = max(worst, error.item()) if math.isfinite(error.item()) else math.inf
    return worst


# ---- what is timed ---------------------------------------------------------------------------------------------------
class Problem:
    """a ring of x (leaves) and dy, one weight and bias, with the distributions of Triton's tutorial; of RMSNorm bias is None"""

    def __init__(self, shape, mode, rms=False):
        tensors = 2 if mode == "forward" else 3
        set_bytes = tensors * shape.N * shape.C * shape.dtype.itemsize
        self.bytes, self.mode, self.sets = set_bytes, mode, max(2, math.ceil(RING_BYTES / set_bytes))
        new = dict(device="cuda", dtype=shape.dtype)
        self.weight, self.bias = (torch.rand(shape.C, **new).requires_grad_() for _ in range(2))
        self.bias = None if rms else self.bias
        self.x = [torch.randn(shape.N, shape.C, **new).mul_(0.5).sub_(2.3).requires_grad_() for _ in range(self.sets)]
        self.given = [(x, self.weight, self.bias) for x in self.x]
        self.douts = [torch.randn(shape.N, shape.C, **new).mul_(0.1)
                      for _ in range(self.sets if mode == "backward" else 1)]

    def gigabytes_a_second(self, us):
        return self.bytes / us * 1e-3

    def exact(self, name):
        """what set 0 gives, in float64: y, or the gradients"""
        rms = self.bias is None and name != OUR_LAYERNORM
        y, *gradients = exact(*self.given[0], self.douts[0], eager_rms if rms else eager)
        return gradients if self.mode == "backward" else [y]


class Runner:
    """a peer as the clocks call it, on a problem: a call's results are returned, so that they can be kept"""

    def __init__(self, apply, problem):
        self.apply, self.problem = apply, problem
        self.results = [apply(*leaves) for leaves in problem.given] if problem.mode == "backward" else None

    def forward(self, k):
        found = self.apply(*self.problem.given[k])
        return found if isinstance(found, tuple) else (found,)

    def backward(self, k):
        p = self.problem
        return torch.autograd.grad(self.results[k], given(*p.given[k]), p.douts[k], retain_graph=True)
