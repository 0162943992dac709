#!/usr/bin/env python3
"""Races LayerNorms in one process, on the same buffers: ours, torch eager, torch.compile, Triton's tutorial, and Apex,
Liger, QuACK, TransformerEngine and flash-attention where they can be imported (layernorm_peers.py).

Two clocks. Kernel time: replay of a CUDA graph that goes round a ring of inputs of more than 800 MB; the results of a
whole round stay allocated, so that nobody reads or writes what is still in L2; providers take turns, each replays
once before it is timed; median of the replays. Tutorial's clock: triton.testing.do_bench of the forward call or of
y.backward, as Triton's tutorial does it (rep 500, median and 20/80 % quantiles): launches and Python included.
GB/s: 2 x elements x bytes forward, 3 x backward. Every result is compared with float64 before it is timed.

    scripts/bench_layernorm.py --sweep               M = 4096, N = 512 i, i = 2 .. 31, float16
    scripts/bench_layernorm.py --gpt2                the shapes of GPT-2, bfloat16 and float32
    scripts/bench_layernorm.py --sweep --gpt2 --quick --timing kernel

Writes layer-norm-forward.csv and -backward.csv into --out, and figures of the sweep (.png, .svg; needs matplotlib).
Ctrl-C ends it early, with a report of what was measured. Exit 1 if our results are wrong.
Result: doc/layernorm_race.md
"""
import argparse
import collections
import csv
import itertools
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

try:
    import torch
    import triton
except ImportError as missing:
    raise SystemExit(f"bench_layernorm.py: {missing}; expected PyTorch for CUDA, which brings Triton: "
                     "pip install torch") from None

import layernorm_peers
import plot_sweep
from layernorm_peers import Autograd, Ours, Problem

REPLAYS, WARMUP_REPLAYS = 9, 2
REPLAY_US = 3000
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}

# The tutorial's own kernels by the same method, us: one H200, PyTorch 2.11, Triton 3.6, CUDA 13.0, 2026-11-20, 4096 x N
# float16. A port counts as the tutorial if it is within 3 % of these.
TUTORIAL_US = {
    "forward": {1024: 8.48, 2048: 14.92, 4096: 24.56, 8192: 52.03, 12288: 74.23, 15872: 83.46},
    "backward": {1024: 43.40, 2048: 60.28, 4096: 74.04, 8192: 116.41, 12288: 194.64, 15872: 217.81},
}

Shape = collections.namedtuple("Shape", "N C dtype")


def label(shape):
    return f"{shape.N}x{shape.C} {NAMES[shape.dtype]}"


def shapes(options):
    fp16, bf16, fp32 = torch.float16, torch.bfloat16, torch.float32
    sweep = [Shape(4096, 512 * i, fp16) for i in ((2, 4, 8, 16, 24, 31) if options.quick else range(2, 32))]
    gpt2 = ([Shape(65536, C, bf16) for C in (768, 1024, 1280, 1600)] + [Shape(8192, C, bf16) for C in (768, 1600)]
            + [Shape(65536, C, fp32) for C in (768, 1024, 1280, 1600)] + [Shape(8192, 768, fp32)])
    if options.quick:
        gpt2 = [Shape(65536, 768, bf16), Shape(8192, 768, bf16), Shape(65536, 768, fp32)]
    return (sweep if options.sweep else []) + (gpt2 if options.gpt2 else [])


# ---- the clocks ------------------------------------------------------------------------------------------------------
class Replay:
    """a graph of calls that go round the ring, the results of the last round kept"""

    def __init__(self, runner, problem):
        expected_us = 3 + problem.bytes / 3e6
        rounds = min(max(1, math.ceil(REPLAY_US / expected_us / problem.sets)), max(1, 600 // problem.sets))
        self.launches, self.events = rounds * problem.sets, []
        self.runner, self.kept = runner, collections.deque(maxlen=problem.sets)
        call = getattr(runner, problem.mode)
        self.graph = torch.cuda.CUDAGraph()
        self.graph.capture_begin()
        try:
            for k in range(self.launches):
                self.kept.append(call(k % problem.sets))
        finally:
            self.graph.capture_end()

    def run(self):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.graph.replay()  # not timed: else one provider waits until what another has left in L2 is written
        begin.record()
        self.graph.replay()
        end.record()
        self.events.append((begin, end))

    def median_us(self):
        times = [begin.elapsed_time(end) * 1e3 / self.launches for begin, end in self.events]
        return statistics.median(times[WARMUP_REPLAYS:])


def kernel_times(runners, problem):
    """{name: us of one call}, or the message of what went wrong; on the current stream"""
    replays, failures = {}, {}
    for name, runner in runners.items():
        try:
            torch.cuda.synchronize()
            replays[name] = Replay(runner, problem)
        except Exception as error:  # a peer that cannot be captured is reported, the others go on
            if name == "ours":
                raise
            failures[name] = f"{type(error).__name__}: {error}".split("\n")[0][:100]
    for _ in range(WARMUP_REPLAYS + REPLAYS):
        for replay in replays.values():
            replay.run()
    torch.cuda.synchronize()
    return {name: replay.median_us() for name, replay in replays.items()}, failures


def tutorial_times(peer, problem):
    """us: median, 20 % and 80 % quantiles, by the clock of Triton's tutorial"""
    p = problem
    x, weight, bias = (t.detach().requires_grad_() for t in (p.x[0], p.weight, p.bias))
    options = dict(quantiles=[0.5, 0.2, 0.8], rep=500)
    if p.mode == "forward":
        ms = triton.testing.do_bench(lambda: peer.apply(x, weight, bias), **options)
    else:
        y = peer.apply(x, weight, bias)
        ms = triton.testing.do_bench(lambda: y.backward(p.dy[0], retain_graph=True), grad_to_none=[x], **options)
    return [1e3 * t for t in ms]


# ---- one point -------------------------------------------------------------------------------------------------------
def correct_runners(peers, problem, rows):
    """{name: runner} of those whose results are right; the others get a note in rows"""
    p = problem
    expected = layernorm_peers.exact(p.x[0], p.weight, p.bias, p.dy[0])
    expected = expected[1:] if p.mode == "backward" else expected[:1]
    runners = {}
    for peer in peers:
        row = rows[peer.name]
        try:
            runner = (Ours if peer.name == "ours" else Autograd)(peer, p)
            results = runner.results()
            row["error"] = round(layernorm_peers.worst_error(results, expected), 3)
        except Exception as error:  # a peer that refuses this shape is reported, the others go on
            if peer.name == "ours":
                raise
            row["note"] = f"{type(error).__name__}: {error}".split("\n")[0][:100]
            continue
        # 16-bit sums over rows, as some peers keep them, cost several roundings
        if row["error"] <= (2 if peer.name == "ours" or p.mode == "forward" else 8):
            runners[peer.name] = runner
        else:
            row["note"] = "WRONG"
    return runners


def measure(shape, mode, peers, options, device="cuda"):
    """a row (dict) for each provider"""
    rows = {peer.name: {"mode": mode, "N": shape.N, "C": shape.C, "dtype": NAMES[shape.dtype], "provider": peer.name}
            for peer in peers}
    problem = Problem(shape, mode, device)
    runners = correct_runners(peers, problem, rows)
    times, failures = kernel_times(runners, problem) if options.timing != "tutorial" else ({}, {})
    for name, us in times.items():
        rows[name] |= {"us": round(us, 3), "GB/s": round(problem.gigabytes_a_second(us), 1)}
    for name, why in failures.items():
        rows[name]["note"] = why
    names = list(runners)
    del runners  # and what it keeps allocated
    torch.cuda.synchronize()
    for peer in peers:
        if options.timing != "kernel" and peer.name in names:
            for key, us in zip(("p50", "p20", "p80"), tutorial_times(peer, problem)):
                rows[peer.name] |= {f"tutorial {key} us": round(us, 3),
                                    f"tutorial {key} GB/s": round(problem.gigabytes_a_second(us), 1)}
    del problem
    torch.cuda.empty_cache()  # else the memory of ended graphs is kept apart for ever
    return list(rows.values())


def warm_up(points):
    """Compiles what is compiled for each shape (torch.compile, Triton) in processes side by side: the caches on disk
    are then warm, and a sweep need not wait 30 times. A process that fails costs time, nothing else."""
    jobs = min(8, (os.cpu_count() or 2) // 2, len(points))
    if jobs < 2:
        return
    start = time.perf_counter()
    command = [sys.executable, __file__, "--only-compile"]
    children = [subprocess.Popen(command + [f"{s.N}x{s.C}x{NAMES[s.dtype]}" for s in points[k::jobs]],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for k in range(jobs)]
    failed = sum(child.wait() != 0 for child in children)
    print(f"compiled for {len(points)} shapes in {jobs} processes, {failed} failed: "
          f"{time.perf_counter() - start:.1f} s", flush=True)


def only_compile(texts):
    for text in texts:
        N, C, dtype = text.split("x")
        found, _ = layernorm_peers.peers(["torch.compile", "triton"])
        x = torch.randn(int(N), int(C), dtype=DTYPES[dtype], device="cuda").requires_grad_()
        weight, bias = (torch.ones(int(C), dtype=x.dtype, device="cuda").requires_grad_() for _ in range(2))
        for peer in found:
            peer.new_shape()
            torch.autograd.grad(peer.apply(x, weight, bias), (x, weight, bias), torch.ones_like(x))
    torch.cuda.synchronize()


# ---- the report ------------------------------------------------------------------------------------------------------
COLUMNS = (["mode", "N", "C", "dtype", "provider", "us", "GB/s", "roof us", "share of roof", "error"]
           + [f"tutorial {q} {unit}" for unit in ("us", "GB/s") for q in ("p50", "p20", "p80")] + ["note"])


def read_roofs(paths):
    """{(mode, N, C, dtype): us} from files that dev/cuda/layernorm_forward and _backward write with --csv"""
    kinds = {"layernorm_forward": ("forward", "1R1W"), "layernorm_backward": ("backward", "2R1W")}
    roofs = {}

    def add(row):
        mode, kind = kinds.get(row["op"], (None, None))
        if mode and row["roof"].split()[:1] == [kind] and row["roof_us"]:  # "2R1W pdl" too
            roofs[mode, int(row["N"]), int(row["C"]), row["dtype"]] = float(row["roof_us"])

    for path in paths:
        plot_sweep.read_rows(path, add)
    print(f"{len(roofs)} roofs from {', '.join(paths)}" if paths else "no roofs given (--roofs)")
    return roofs


def add_roofs(rows, roofs):
    for row in rows:
        roof = roofs.get((row["mode"], row["N"], row["C"], row["dtype"]))
        if roof and "us" in row:
            row |= {"roof us": roof, "share of roof": round(roof / row["us"], 4)}


def write_csv(rows, path):
    with open(path, "w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    print("wrote", path)


def cell(row, clock):
    if row is None:
        return ""
    if clock == "kernel":
        text = f"{row['GB/s']:.0f} ({row['us']:.2f})" if "us" in row else row.get("note", "")
        return text + (f" {100 * row['share of roof']:.1f} %" if "share of roof" in row else "")
    if "tutorial p50 GB/s" not in row:
        return row.get("note", "")
    p50, p20, p80 = (row[f"tutorial {q} GB/s"] for q in ("p50", "p20", "p80"))
    return f"{p50:.0f} [{p80:.0f}, {p20:.0f}]"  # a slow call is a low rate


def markdown(rows, clock):
    """a table of one mode: a line a shape, a column a provider"""
    names = list(dict.fromkeys(row["provider"] for row in rows))
    lines = ["| N x C, dtype | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    by_shape = collections.defaultdict(dict)
    for row in rows:
        by_shape[f"{row['N']}x{row['C']} {row['dtype']}"][row["provider"]] = row
    for shape, found in by_shape.items():
        lines.append(f"| {shape} | " + " | ".join(cell(found.get(name), clock) for name in names) + " |")
    return "\n".join(lines)


def tutorial_verdict(rows, mode):
    """is our port of the tutorial as fast as the tutorial?"""
    found = {row["C"]: row["us"] for row in rows if row["provider"] == "triton" and row["mode"] == mode
             and (row["N"], row["dtype"]) == (4096, "fp16") and "us" in row}
    points = [(C, found[C], us) for C, us in TUTORIAL_US[mode].items() if C in found]
    if not points:
        return None
    off = [100 * (ours_us / us - 1) for _, ours_us, us in points]
    near = sum(abs(x) <= 3 for x in off)
    text = ", ".join(f"{C}: {ours_us:.2f} us for {us:.2f} ({x:+.1f} %)" for (C, ours_us, us), x in zip(points, off))
    return (f"Triton port, {mode}: within 3 % of the tutorial at {near} of {len(points)} points "
            f"({'counts' if near == 6 else 'DOES NOT COUNT'} as the tutorial): {text}")


def plot(rows, mode, folder):
    """the sweep: kernel time on the left, the tutorial's clock on the right"""
    rows = [row for row in rows if row["N"] == 4096 and row["dtype"] == "fp16"]
    if len({row["C"] for row in rows}) < 2:
        return
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no figure: matplotlib is not installed")
        return
    keys = {"GB/s": "kernel time", "tutorial p50 GB/s": "triton.testing.do_bench, launches included"}
    keys = {key: title for key, title in keys.items() if any(key in row for row in rows)}
    figure, panels = pyplot.subplots(1, len(keys), figsize=(7.5 * len(keys), 5), squeeze=False, sharey=True)
    for axes, (key, title) in zip(panels[0], keys.items()):
        for name in dict.fromkeys(row["provider"] for row in rows):
            points = [(row["C"], row[key]) for row in rows if row["provider"] == name and key in row]
            if points:
                axes.plot(*zip(*points), label=name, linewidth=2.5 if name == "ours" else 1.2)
        roof = {row["C"]: row["GB/s"] / row["share of roof"] for row in rows if row.get("share of roof")}
        if roof:
            axes.plot(*zip(*sorted(roof.items())), "k--", linewidth=1, label="roof")
        axes.set(title=f"layer-norm-{mode}, 4096 x N fp16: {title}", xlabel="N", ylabel="GB/s", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"layer-norm-{mode}.{suffix}", dpi=120)
        print("wrote", folder / f"layer-norm-{mode}.{suffix}")
    pyplot.close(figure)


def report(rows, mode, folder):
    rows = [row for row in rows if row["mode"] == mode]
    write_csv(rows, folder / f"layer-norm-{mode}.csv")
    plot(rows, mode, folder)
    titles = {"kernel": "kernel time: GB/s (us)", "tutorial": "tutorial's clock: GB/s, median [slowest, fastest 20 %]"}
    for clock, title in titles.items():
        if any(("us" if clock == "kernel" else "tutorial p50 us") in row for row in rows):
            print(f"\n### LayerNorm {mode}, {title}\n\n{markdown(rows, clock)}\n")


def parse_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sweep", action="store_true", help="4096 x 512 i, i = 2 .. 31, float16")
    p.add_argument("--gpt2", action="store_true", help="the shapes of GPT-2")
    p.add_argument("--quick", action="store_true", help="a few of their points")
    p.add_argument("--mode", choices=("forward", "backward", "both"), default="both")
    p.add_argument("--timing", choices=("kernel", "tutorial", "both"), default="both")
    p.add_argument("--providers", help="comma-separated: ours,torch,torch.compile,triton,apex,... (default: all)")
    p.add_argument("--triton-parts", choices=("zeros", "empty"), default="empty",
                   help="how the Triton port allocates its partial sums: zeros cost two more kernels (default empty)")
    p.add_argument("--roofs", nargs="+", default=[], metavar="FILE",
                   help="files of dev/cuda/layernorm_forward and _backward --csv: adds the share of the roof")
    p.add_argument("--out", default="build/bench_layernorm", help="folder for the CSV files and figures")
    p.add_argument("--only-compile", nargs="+", metavar="NxCxTYPE", help=argparse.SUPPRESS)
    return p.parse_args()


def main():
    options = parse_options()
    if not (options.sweep or options.gpt2 or options.only_compile):
        raise SystemExit("nothing to do: --sweep, --gpt2 or both (--help)")
    roofs = read_roofs(options.roofs)
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    if options.only_compile:
        return only_compile(options.only_compile)
    # one stream for all, not the default one, of which no graph can be captured: once a process has used two, each
    # launch takes 0.4 us more (dev/cuda/README.md)
    torch.cuda.set_stream(torch.cuda.Stream())
    layernorm_peers.TritonFunction.new_parts = staticmethod(getattr(torch, options.triton_parts))
    names = options.providers.split(",") if options.providers else None
    peers, missing = layernorm_peers.peers(names)
    peers = ([layernorm_peers.ours()] if names is None or "ours" in names else []) + peers
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton {triton.__version__}; "
          f"{', '.join(peer.name for peer in peers)}")
    for name, why in missing.items():
        print(f"without {name}: {why}")
    folder, points, rows, start = Path(options.out), shapes(options), [], time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    if any(isinstance(peer, layernorm_peers.Compiled) for peer in peers):
        warm_up(points)
    modes = ("forward", "backward") if options.mode == "both" else (options.mode,)
    try:
        for mode, shape in itertools.product(modes, points):
            new = measure(shape, mode, peers, options)
            rows += new
            times = ", ".join(f"{row['provider']} {row.get('us', row.get('tutorial p50 us', row.get('note')))}"
                              for row in new)
            print(f"{time.perf_counter() - start:6.1f} s  {mode:8} {label(shape)}  us: {times}", flush=True)
    except KeyboardInterrupt:
        print("stopped: the report has what was measured until now")
    add_roofs(rows, roofs)
    for mode in modes:
        report(rows, mode, folder)
    for verdict in filter(None, (tutorial_verdict(rows, mode) for mode in modes)):
        print(verdict)
    wrong = [label(Shape(row["N"], row["C"], DTYPES[row["dtype"]])) + " " + row["mode"] for row in rows
             if row["provider"] == "ours" and row.get("note")]
    if wrong:
        print("OURS IS WRONG at " + ", ".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
