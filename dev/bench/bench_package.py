#!/usr/bin/env python3
"""What a call of python/'s package costs the processor: ours beside PyTorch's, in turns in one process.

    dev/bench/bench_package.py [--rounds N] [--json FILE]

The rows are few (64 x 256, float16), so that the GPU waits for the processor. us a call: the least and the median of the rounds.
FILE keeps its other rows of this GPU and day.
"""
import statistics
import time

from lab import add_rows, measured_here, needs, parser

needs(__doc__, "torch", "plumb_layernorm")
import torch
import torch.nn.functional as F

import plumb_layernorm

N, C, EPS, CALLS = 64, 256, 1e-5, 1000


def tensors(N):
    torch.manual_seed(1)
    x = torch.randn(N, C, dtype=torch.float16, device="cuda", requires_grad=True)
    weight, bias = (torch.rand(C, dtype=x.dtype, device="cuda", requires_grad=True) for _ in range(2))
    return x, weight, bias, torch.randn_like(x)


def theirs(x, weight, bias):
    return F.layer_norm(x, (C,), weight, bias, EPS)


def ours(x, weight, bias):
    return plumb_layernorm.layer_norm(x, (C,), weight, bias, EPS)


def forward_lines():
    """name -> what is called of ours and, where there is one, of PyTorch's"""
    x, weight, bias, _ = tensors(N)
    fixed, empty = [t.detach() for t in (x, weight, bias)], tensors(0)[:3]
    modules = [kind(C, dtype=x.dtype, device="cuda") for kind in (torch.nn.LayerNorm, plumb_layernorm.LayerNorm)]

    def under_autocast(function):
        def call():
            with torch.autocast("cuda", torch.float16):
                function(x, weight, bias)
        return call

    return {
        "forward": (lambda: ours(x, weight, bias), lambda: theirs(x, weight, bias)),
        "forward of the module": (lambda: modules[1](x), lambda: modules[0](x)),
        "forward under autocast": (under_autocast(ours), under_autocast(theirs)),
        "forward, nothing learns": (lambda: ours(*fixed), lambda: theirs(*fixed)),
        "forward of no rows: nothing is launched": (lambda: ours(*empty), lambda: theirs(*empty)),
        "one allocation (torch.empty_like)": (lambda: torch.empty_like(fixed[0]),),
    }


def backwards_of(function):
    """y.backward(dy), and torch.autograd.grad, of a y that is there"""
    x, weight, bias, dy = tensors(N)
    y = function(x, weight, bias)

    def backward():
        x.grad = None
        y.backward(dy, retain_graph=True)

    return backward, lambda: torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)


def backward_lines():
    whole, grad = zip(backwards_of(ours), backwards_of(theirs))
    return {
        "backward: y.backward(dy)": whole,
        "backward: torch.autograd.grad": grad,
        "y.backward of a view: the engine and its thread": backwards_of(lambda x, w, b: x.view_as(x))[:1],
        "y.backward of x + weight + bias": backwards_of(lambda x, w, b: x + w + b)[:1],
    }


def us_a_call(function, calls):
    torch.cuda.synchronize()  # what is queued is not part of the time
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls * 1e6


def host(o):
    calls = forward_lines() | backward_lines()
    times = {name: [[] for _ in pair] for name, pair in calls.items()}
    for call in (call for pair in calls.values() for call in pair):
        us_a_call(call, CALLS // 5)
    for _ in range(o.rounds):
        for name, pair in calls.items():
            for found, call in zip(times[name], pair):
                found.append(us_a_call(call, CALLS))
    print(f"{N} x {C} float16, us a call: least (median) of {o.rounds} rounds of {CALLS}")
    rows = []
    for name, both in times.items():
        row = {"row": name} | {who: round(min(us), 2) for who, us in zip(("ours", "torch"), both)}
        row |= {"torch / ours": round(row["torch"] / row["ours"], 2)} if "torch" in row else {}
        cells = [f"{who} {min(us):7.2f} ({statistics.median(us):7.2f})" for who, us in zip(("ours", "torch"), both)]
        print(f"{name:50} {'   '.join(cells)}" + (f"  torch / ours {row['torch / ours']:.2f}" if "torch" in row else ""))
        rows.append(row)
    if o.json:
        head = measured_here("bench_package.py", others=f"plumb_layernorm's {plumb_layernorm.backend}")
        add_rows(o.json, head, rows, "row")


def main():
    p = parser(__doc__)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--json", metavar="FILE")
    o = p.parse_args()
    if not torch.cuda.is_available():
        p.error("no CUDA device")
    print(torch.cuda.get_device_name(), f"PyTorch {torch.__version__}", f"plumb_layernorm's {plumb_layernorm.backend}", sep=", ")
    host(o)


if __name__ == "__main__":
    main()
