#!/usr/bin/env python3
"""Races causal attention in one process, in bfloat16, head size 64: ours (build/libllmc_attention.so), ours without Hopper's
instructions (mma.sync), PyTorch's scaled_dot_product_attention with cuDNN and with FlashAttention-2.

First every provider is checked against float64 at two small shapes: ours must be as near to it as the others are. Then the
clock: CUDA events around single calls, queued behind a pause of the GPU so that launches cost nothing; two sets of
buffers by turns; providers take turns, too; median. Backward is the call that gives dq, dk, dv: for PyTorch
autograd.grad, with and without torch.use_deterministic_algorithms.

    make build/libllmc_attention.so && dev/bench/bench_attention.py [--shapes 64x12x1024,8x12x1024] [--json attention.json]
    dev/bench/plots.py attention attention.json -o attention.svg
    dev/bench/tables.py --take attention.json attention/h100

Prints microseconds and ratios to cuDNN; exit 1 if ours is wrong or fails.
"""
import ctypes
import statistics

from lab import ROOT, add_rows, measured_here, needs, parser

needs(__doc__, "torch")
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HS = 64
SHAPES = "64x12x1024,16x25x1024,8x12x1024,4x12x8192"  # B x NH x T: GPT-2 124M, 1558M, a small batch, long sequences
CHECKED = ((2, 3, 200), (2, 3, 1000))
ROUNDS, CALLS, WARMUP = 4, 8, 2
PAUSE = 15_000_000  # GPU cycles: longer than the host takes to queue a round of calls
KERNELS = {"ours": 0, "ours, mma.sync": 1}


def library():
    lib = ctypes.CDLL(f"{ROOT}/build/libllmc_attention.so")
    pointer, size = ctypes.c_void_p, ctypes.c_int32
    lib.llmc_attention_last_error.restype = ctypes.c_char_p
    lib.llmc_attention_workspace.restype = ctypes.c_size_t
    lib.llmc_attention_workspace.argtypes = [size] * 3
    lib.llmc_attention_forward.argtypes = [pointer] * 4 + [size] * 4 + [ctypes.c_int, pointer]
    lib.llmc_attention_backward.argtypes = [pointer] * 6 + [size] * 4 + [ctypes.c_int, pointer]
    return lib


class Ours:
    """One set of buffers."""

    def __init__(self, lib, kernels, qkv, dout):
        B, T, _, NH, _ = qkv.shape
        self.lib, self.more = lib, (B, T, NH, HS, kernels)
        self.qkv, self.dout = qkv, dout
        self.out, self.dqkv = torch.empty_like(dout), torch.empty_like(qkv)
        self.lse = torch.empty(B, NH, T, device="cuda")
        self.workspace = torch.zeros(lib.llmc_attention_workspace(B, T, NH), dtype=torch.uint8, device="cuda")

    def call(self, function, *tensors):
        if function(*(t.data_ptr() for t in tensors), *self.more, torch.cuda.current_stream().cuda_stream) != 0:
            raise RuntimeError(self.lib.llmc_attention_last_error().decode())

    def forward(self):
        self.call(self.lib.llmc_attention_forward, self.out, self.lse, self.qkv, self.workspace)
        return self.out

    def backward(self):
        self.call(self.lib.llmc_attention_backward, self.dqkv, self.dout, self.qkv, self.out, self.lse, self.workspace)
        return self.dqkv


class Torch:
    def __init__(self, backend, qkv, dout):
        self.backend, self.dout = backend, dout.transpose(1, 2)
        self.inputs = [x.transpose(1, 2).detach().requires_grad_() for x in qkv.unbind(2)]
        self.out = None

    def forward(self):
        with sdpa_kernel(self.backend):
            self.out = F.scaled_dot_product_attention(*self.inputs, is_causal=True)
        return self.out.transpose(1, 2)

    def gradients(self):
        return torch.autograd.grad(self.out, self.inputs, self.dout, retain_graph=True)

    def backward(self):
        return torch.stack([g.transpose(1, 2) for g in self.gradients()], 2)


def providers(lib, qkv, dout):
    made = {name: Ours(lib, kernels, qkv, dout) for name, kernels in KERNELS.items()}
    made["cuDNN"] = Torch(SDPBackend.CUDNN_ATTENTION, qkv, dout)
    made["FlashAttention-2"] = Torch(SDPBackend.FLASH_ATTENTION, qkv, dout)
    return made


def inputs(B, NH, T, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    qkv = torch.randn(B, T, 3, NH, HS, device="cuda", generator=generator).bfloat16()
    dout = torch.randn(B, T, NH, HS, device="cuda", generator=generator).bfloat16()
    return qkv, dout


def reference(qkv, dout):
    """out and dqkv in float64"""
    x = qkv.double().requires_grad_()
    q, k, v = (y.transpose(1, 2) for y in x.unbind(2))
    T = qkv.shape[1]
    future = torch.ones(T, T, dtype=torch.bool, device="cuda").triu(1)
    p = (q @ k.transpose(2, 3) / HS**0.5).masked_fill(future, float("-inf")).softmax(3)
    out = (p @ v).transpose(1, 2)
    return out.detach(), torch.autograd.grad(out, x, dout.double())[0]


def error(found, expected):
    """of the whole tensor, relative; NaN is one"""
    e = ((found.double() - expected).norm() / expected.norm()).item()
    return e if e == e else float("inf")


def check(lib):
    right = True
    for B, NH, T in CHECKED:
        qkv, dout = inputs(B, NH, T, 1)
        out, dqkv = reference(qkv, dout)
        errors = {}
        for name, p in providers(lib, qkv, dout).items():
            try:
                forward = error(p.forward(), out)
                gradient = p.backward()
                errors[name] = [forward] + [error(gradient[:, :, i], dqkv[:, :, i]) for i in range(3)]
            except RuntimeError as failure:
                print(f"{name}: {failure}", flush=True)
                right = right and name not in KERNELS
        for name, e in errors.items():
            others = [errors[n] for n in errors if n not in KERNELS]
            fits = name not in KERNELS or all(x <= 1.2 * max(o) for x, o in zip(e, zip(*others)))
            right = right and bool(others) and fits
            text = " ".join(f"{tensor} {x:.2e}" for tensor, x in zip(("out", "dq", "dk", "dv"), e))
            print(f"B={B} NH={NH} T={T} {name:17} {text}{'' if fits else '   WRONG'}", flush=True)
    return right


def time_calls(calls):
    """microseconds of each of CALLS calls, round the list"""
    for i in range(WARMUP):
        calls[i % len(calls)]()
    torch.cuda._sleep(PAUSE)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
    for i, (begin, end) in enumerate(events):
        begin.record()
        calls[i % len(calls)]()
        end.record()
    torch.cuda.synchronize()
    return [1000 * begin.elapsed_time(end) for begin, end in events]


def deterministic(act):
    def call():
        torch.use_deterministic_algorithms(True, warn_only=True)
        act()
        torch.use_deterministic_algorithms(False)
    return call


def race(lib, B, NH, T):
    """{(provider, direction): [microseconds]}"""
    sets = [providers(lib, *inputs(B, NH, T, seed)) for seed in (1, 2)]
    tracks = {}
    for name in list(sets[0]):
        both = [s[name] for s in sets]
        try:
            for p in both:
                p.forward()
            torch.cuda.synchronize()
        except RuntimeError as failure:
            print(f"{name}: {failure}", flush=True)
            continue
        tracks[name, "forward"] = [p.forward for p in both]
        tracks[name, "backward"] = [p.gradients if name not in KERNELS else p.backward for p in both]
        if name not in KERNELS:
            tracks[name, "backward, deterministic"] = [deterministic(p.gradients) for p in both]
    times = {track: [] for track in tracks}
    for _ in range(ROUNDS):
        for track, calls in tracks.items():
            times[track] += time_calls(calls)
    return times


def report(shape, times):
    """prints the medians; {direction: a row of doc/measured}"""
    median, rows = {track: statistics.median(t) for track, t in times.items()}, {}
    label = "B={} NH={} T={}".format(*shape)
    print(f"\n{label}, HS=64: microseconds, and their ratio to cuDNN's")
    for (name, direction), t in median.items():
        ratio = t / median.get(("cuDNN", direction.split(",")[0]), float("nan"))
        print(f"  {direction:24} {name:17} {t:9.1f} {ratio:6.2f}   least {min(times[name, direction]):.1f}", flush=True)
        rows.setdefault(direction, {"row": f"{label}, {direction}"})[name] = f"{t:.1f} ({ratio:.2f})"
    return list(rows.values())


def main():
    p = parser(__doc__)
    p.add_argument("--shapes", default=SHAPES, help=f"BxNHxT,... (default {SHAPES})")
    p.add_argument("--json", help="file for the table; it keeps its other rows of this GPU and day")
    o = p.parse_args()
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would be part of the time
    cudnn, lib = torch.backends.cudnn.version(), library()
    head = measured_here("bench_attention.py", cuda=torch.version.cuda, cudnn=f"{cudnn // 10000}.{cudnn % 10000 // 100}")
    print(*(f"{key} {value}" for key, value in head.items()), sep=", ")
    if not check(lib):
        raise SystemExit("bench_attention.py: a result of ours is wrong: not timed")
    for text in o.shapes.split(","):
        shape = tuple(int(x) for x in text.split("x"))
        rows = report(shape, race(lib, *shape))
        torch.cuda.empty_cache()
        if o.json:
            add_rows(o.json, head, rows, "row")


if __name__ == "__main__":
    main()
