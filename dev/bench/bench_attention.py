#!/usr/bin/env python3
"""Races causal attention in one process, in bfloat16, head size 64: ours (build/libllmc_attention.so), ours without Hopper's
instructions (mma.sync), PyTorch's scaled_dot_product_attention with cuDNN and with FlashAttention-2, and FlashAttention-3
where its package, flash_attn_interface, can be imported.

First every provider is checked against float64 at two small shapes: ours must be as near to it as the others are. Then the
clock: CUDA events around single calls, queued behind a pause of the GPU so that launches cost nothing; two sets of
buffers by turns; providers take turns, too; median. Backward is the call that gives dq, dk, dv: for PyTorch
autograd.grad, with and without torch.use_deterministic_algorithms.

    make build/libllmc_attention.so && dev/bench/bench_attention.py [--shapes 64x12x1024,8x12x1024] [--json attention.json]
    dev/bench/plots.py attention attention.json -o attention.svg

Prints a table of microseconds and ratios to cuDNN; exit 1 if ours is wrong or fails.
"""
import argparse
import ctypes
import json
import statistics
import sys
import time
from pathlib import Path

from needs import needs

needs(__doc__, "torch")
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
try:
    from flash_attn_interface import flash_attn_func as flash_attention_3
except ImportError:
    flash_attention_3 = None

HS = 64
SHAPES = "64x12x1024,16x25x1024,8x12x1024,4x12x8192"  # B x NH x T: GPT-2 124M, 1558M, a small batch, long sequences
CHECKED = ((2, 3, 200), (2, 3, 1000))
ROUNDS, CALLS, WARMUP = 4, 8, 2
PAUSE = 15_000_000  # GPU cycles: longer than the host takes to queue a round of calls
KERNELS = {"ours": 0, "ours, mma.sync": 1}


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        pointer, size = ctypes.c_void_p, ctypes.c_int32
        self.lib.llmc_attention_last_error.restype = ctypes.c_char_p
        self.lib.llmc_attention_workspace.restype = ctypes.c_size_t
        self.lib.llmc_attention_workspace.argtypes = [size] * 3
        self.lib.llmc_attention_forward.argtypes = [pointer] * 4 + [size] * 4 + [ctypes.c_int, pointer]
        self.lib.llmc_attention_backward.argtypes = [pointer] * 6 + [size] * 4 + [ctypes.c_int, pointer]

    def call(self, name, tensors, sizes, kernels):
        stream = torch.cuda.current_stream().cuda_stream
        code = getattr(self.lib, name)(*(t.data_ptr() for t in tensors), *sizes, kernels, stream)
        if code != 0:
            raise RuntimeError(self.lib.llmc_attention_last_error().decode())


class Ours:
    """One set of buffers."""

    def __init__(self, library, kernels, qkv, dout):
        B, T, _, NH, _ = qkv.shape
        self.library, self.kernels, self.sizes = library, kernels, (B, T, NH, HS)
        self.qkv, self.dout = qkv, dout
        self.out, self.dqkv = torch.empty_like(dout), torch.empty_like(qkv)
        self.lse = torch.empty(B, NH, T, device="cuda")
        size = library.lib.llmc_attention_workspace(B, T, NH)
        self.workspace = torch.zeros(size, dtype=torch.uint8, device="cuda")

    def forward(self):
        self.library.call("llmc_attention_forward", (self.out, self.lse, self.qkv, self.workspace), self.sizes,
                          self.kernels)
        return self.out

    def backward(self):
        self.library.call("llmc_attention_backward",
                          (self.dqkv, self.dout, self.qkv, self.out, self.lse, self.workspace), self.sizes,
                          self.kernels)
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


class Flash3(Torch):
    """(B,T,NH,HS) all through; whether backward is deterministic is said to forward"""

    def __init__(self, qkv, dout):
        super().__init__(None, qkv, dout)
        self.inputs = [x.detach().requires_grad_() for x in qkv.unbind(2)]
        self.dout, self.deterministic = dout, None

    def call(self, deterministic):
        out = flash_attention_3(*self.inputs, causal=True, deterministic=deterministic)
        return out[0] if isinstance(out, tuple) else out

    def forward(self):
        self.out = self.call(False)
        return self.out

    def gradients(self):
        if not torch.are_deterministic_algorithms_enabled():
            return super().gradients()
        if self.deterministic is None:
            self.deterministic = self.call(True)
        return torch.autograd.grad(self.deterministic, self.inputs, self.dout, retain_graph=True)

    def backward(self):
        return torch.stack(self.gradients(), 2)


def providers(library, qkv, dout):
    made = {name: Ours(library, kernels, qkv, dout) for name, kernels in KERNELS.items()}
    made["cuDNN"] = Torch(SDPBackend.CUDNN_ATTENTION, qkv, dout)
    made["FlashAttention-2"] = Torch(SDPBackend.FLASH_ATTENTION, qkv, dout)
    if flash_attention_3:
        made["FlashAttention-3"] = Flash3(qkv, dout)
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


def check(library):
    right = True
    for B, NH, T in CHECKED:
        qkv, dout = inputs(B, NH, T, 1)
        out, dqkv = reference(qkv, dout)
        errors = {}
        for name, p in providers(library, qkv, dout).items():
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
        try:
            act()
        finally:
            torch.use_deterministic_algorithms(False)
    return call


def race(library, B, NH, T):
    """{(provider, direction): [microseconds]}"""
    sets = [providers(library, *inputs(B, NH, T, seed)) for seed in (1, 2)]
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
        backward = [p.gradients if isinstance(p, Torch) else p.backward for p in both]
        tracks[name, "backward"] = backward
        if name not in KERNELS:
            tracks[name, "backward, deterministic"] = [deterministic(b) for b in backward]
    times = {track: [] for track in tracks}
    for _ in range(ROUNDS):
        for track, calls in tracks.items():
            times[track] += time_calls(calls)
    return times


def report(shape, times, rows):
    median = {track: statistics.median(t) for track, t in times.items()}
    print("\nB={} NH={} T={}, HS=64: microseconds, and their ratio to cuDNN's".format(*shape))
    for (name, direction), t in median.items():
        base = median.get(("cuDNN", direction.split(",")[0]))
        ratio = f"{t / base:6.2f}" if base else ""
        print(f"  {direction:24} {name:17} {t:9.1f} {ratio}   least {min(times[name, direction]):.1f}", flush=True)
        rows.append({"B": shape[0], "NH": shape[1], "T": shape[2], "provider": name, "direction": direction,
                     "median_us": t, "least_us": min(times[name, direction]), "ratio_to_cudnn": t / base if base else None})


def main():
    root = Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default=root / "build" / "libllmc_attention.so", type=Path)
    parser.add_argument("--shapes", default=SHAPES, help=f"BxNHxT,... (default {SHAPES})")
    parser.add_argument("--json", type=Path, help="write the table there, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_attention.py: no CUDA device")
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would be part of the time
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    library = Library(options.library)
    if not check(library):
        raise SystemExit("bench_attention.py: a result of ours is wrong: not timed")
    rows = []
    for text in options.shapes.split(","):
        shape = tuple(int(x) for x in text.split("x"))
        report(shape, race(library, *shape), rows)
        torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                                                "cudnn": torch.backends.cudnn.version(),
                                                "date": time.strftime("%Y-%m-%d"), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
