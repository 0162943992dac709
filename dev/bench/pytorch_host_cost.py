#!/usr/bin/env python3
"""What a call of LayerNorm costs the processor, ours and PyTorch's, and where the time goes. The rows are few
(64 x 256, float16), so that the GPU waits for the processor. us a call: the least and the median of the
rounds, which take turns.

    dev/bench/pytorch_host_cost.py [--json FILE]
"""
import argparse
import json
import statistics
import time

from needs import needs

needs(__doc__, "torch", "plumb_layernorm")
import torch
import torch.nn.functional as F

import plumb_layernorm

N, C, EPS = 64, 256, 1e-5


def tensors(N):
    torch.manual_seed(1)
    x = torch.randn(N, C, dtype=torch.float16, device=DEVICE, requires_grad=True)
    weight, bias = (torch.rand(C, dtype=x.dtype, device=DEVICE, requires_grad=True) for _ in range(2))
    return x, weight, bias, torch.randn_like(x)


def theirs(x, weight, bias):
    return F.layer_norm(x, (C,), weight, bias, EPS)


def ours(x, weight, bias):
    return plumb_layernorm.layer_norm(x, (C,), weight, bias, EPS)


def forward_lines():
    x, weight, bias, _ = tensors(N)
    fixed, empty = [t.detach() for t in (x, weight, bias)], tensors(0)[:3]
    modules = [kind(C, dtype=x.dtype, device=DEVICE)
               for kind in (torch.nn.LayerNorm, plumb_layernorm.LayerNorm)]

    def autocast():
        with torch.autocast(DEVICE, torch.float16):
            ours(x, weight, bias)

    def autocast_theirs():
        with torch.autocast(DEVICE, torch.float16):
            theirs(x, weight, bias)

    lines = {
        "forward": (lambda: ours(x, weight, bias), lambda: theirs(x, weight, bias)),
        "forward of the module": (lambda: modules[1](x), lambda: modules[0](x)),
        "forward under autocast": (autocast, autocast_theirs),
        "forward, nothing learns": (lambda: ours(*fixed), lambda: theirs(*fixed)),
        "forward of no rows: nothing is launched": (lambda: ours(*empty), lambda: theirs(*empty)),
        "one allocation (torch.empty_like)": (lambda: torch.empty_like(fixed[0]), None),
    }
    if plumb_layernorm.backend == "extension":
        raw = torch.ops.plumb_layernorm.forward.default
        native = torch.ops.aten.native_layer_norm.default
        lines["forward below autograd: out, mean, rstd"] = (lambda: raw(fixed[0], 1, *fixed[1:], EPS),
                                                            lambda: native(fixed[0], [C], *fixed[1:], EPS))
    return lines


def backward_of(function, argument=None):
    x, weight, bias, dy = tensors(N)
    y = function(x, weight, bias)

    def call():
        x.grad = None
        y.backward(dy, retain_graph=True)

    def grad():
        torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)

    return grad if argument == "grad" else call


def backward_lines():
    lines = {
        "backward: y.backward(dy)": (backward_of(ours), backward_of(theirs)),
        "backward: torch.autograd.grad": (backward_of(ours, "grad"), backward_of(theirs, "grad")),
        "y.backward of a view: the engine and its thread": (backward_of(lambda x, w, b: x.view_as(x)), None),
        "y.backward of x + weight + bias": (backward_of(lambda x, w, b: x + w + b), None),
    }
    if plumb_layernorm.backend == "extension":
        x, weight, bias, dy = (t.detach() for t in tensors(N))
        operators, aten = torch.ops.plumb_layernorm, torch.ops.aten
        statistics_, wanted = operators.forward(x, 1, weight, bias, EPS)[1], [True] * 3
        _, mean, rstd = aten.native_layer_norm(x, [C], weight, bias, EPS)
        raw, native = operators.backward.default, aten.native_layer_norm_backward.default
        lines["backward below autograd"] = (
            lambda: raw(dy, x, statistics_, 1, weight, None, torch.float16, wanted),
            lambda: native(dy, x, [C], mean, rstd, weight, bias, wanted))
    return lines


def us_a_call(function, calls):
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    us = (time.perf_counter() - begin) / calls * 1e6
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return us


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="writes the table there too")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda", help="cpu: for a package made with --host")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device")
    global DEVICE
    DEVICE = options.device
    lines = forward_lines() | backward_lines()
    times = {(name, k): [] for name in lines for k in (0, 1) if lines[name][k]}
    for name, k in times:
        us_a_call(lines[name][k], options.calls // 5)
    for _ in range(options.rounds):
        for name, k in times:
            times[name, k].append(us_a_call(lines[name][k], options.calls))
    gpu = torch.cuda.get_device_name() if DEVICE == "cuda" else "host memory"
    print(f"{gpu}, PyTorch {torch.__version__}, plumb_layernorm's {plumb_layernorm.backend}; {N} x {C} "
          f"float16, us a call: least (median) of {options.rounds} rounds of {options.calls}")
    table = []
    for name in lines:
        row = {"line": name}
        for k, who in enumerate(("ours", "torch")):
            if (name, k) in times:
                found = times[name, k]
                row[who] = {"least": round(min(found), 2), "median": round(statistics.median(found), 2)}
        table.append(row)
        cells = [f"{who} {row[who]['least']:7.2f} ({row[who]['median']:7.2f})"
                 for who in row if who != "line"]
        ratio = f"  torch / ours {row['torch']['least'] / row['ours']['least']:.2f}" if "torch" in row else ""
        print(f"{name:50} {'   '.join(cells)}{ratio}")
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"gpu": gpu, "pytorch": torch.__version__, "backend": plumb_layernorm.backend,
                       "rows": table}, out, indent=1)


if __name__ == "__main__":
    main()
