#!/usr/bin/env python3
"""Races LayerNorms, all of a point in one process, on the same buffers: ours (the package of python/), torch eager, torch.compile,
Triton's tutorial, and Apex, Liger, QuACK, TransformerEngine and flash-attention where they can be imported
(layernorm_peers.py).

Two clocks. Kernel time: replay of a CUDA graph that goes round a ring of inputs of more than 800 MB; the results of a
whole round stay allocated, so that nobody reads or writes what is still in L2; providers take turns, each replays
once before it is timed; median of the replays. Tutorial's clock: triton.testing.do_bench of the forward call or of
y.backward, as Triton's tutorial does it (rep 500, median and 20/80 % quantiles): launches and Python included, and 100
of the 500 ms at each of five places in memory, as far as the ring has inputs and the allocator other blocks for outputs.
GB/s: 2 x elements x bytes forward, 3 x backward. Every result is compared with float64 before it is timed.

    dev/bench/bench_layernorm.py --sweep               M = 4096, N = 512 i, i = 2 .. 31, float16
    dev/bench/bench_layernorm.py --gpt2                the shapes of GPT-2, bfloat16 and float32
    dev/bench/bench_layernorm.py --sweep --gpt2 --quick --timing kernel
    dev/bench/bench_layernorm.py --sweep --gpt2 --gpus 0,1       a process for each GPU: they share the points
    dev/bench/tables.py --take FOLDER race/points            what is in --out FOLDER, as this project's figures

A point is added to --out's *.jsonl once it is measured, --quick's points first; the same command goes on where one
ended, by Ctrl-C, a time limit or a GPU that fails, with a report of what was measured. A provider that fails gets a note
in place of its times. Exit 1 if ours failed or is wrong anywhere. Result: make tables
"""
import argparse
import collections
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from needs import needs

needs(__doc__, "torch", "triton")
import torch
import triton

import layernorm_peers
from layernorm_peers import Autograd, Problem
from take import points_in

REPLAYS, WARMUP_REPLAYS = 9, 2
REPLAY_US = 3000
PLACES = 5  # where input and output lie badly for each other, a call alone takes longer, whoever makes it
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}

Shape = collections.namedtuple("Shape", "N C dtype")


def label(shape):
    return f"{shape.N}x{shape.C} {NAMES[shape.dtype]}"


FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
SWEEP = [Shape(4096, 512 * i, FP16) for i in range(2, 32)]
GPT2 = ([Shape(65536, C, BF16) for C in (768, 1024, 1280, 1600)] + [Shape(8192, C, BF16) for C in (768, 1600)]
        + [Shape(65536, C, FP32) for C in (768, 1024, 1280, 1600)] + [Shape(8192, 768, FP32)])
QUICK = [Shape(4096, 512 * i, FP16) for i in (2, 4, 8, 16, 24, 31)] + [
    Shape(65536, 768, BF16), Shape(8192, 768, BF16), Shape(65536, 768, FP32)]


def shapes(options):
    """QUICK's first: what is cut short has them"""
    wanted = (SWEEP if options.sweep else []) + (GPT2 if options.gpt2 else [])
    return [s for s in wanted if s in QUICK] + ([] if options.quick else [s for s in wanted if s not in QUICK])


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


class GpuLost(Exception):
    """the GPU answers every further call of this process with an error"""


def gpu_answers():
    for _ in range(2):  # an error that does not stay is told once
        try:
            torch.cuda.synchronize()
            return True
        except Exception:
            pass
    return False


def note_failure(error, *rows):
    """what went wrong, into the rows; the race goes on unless nothing can run any more"""
    for row in rows:
        row.setdefault("note", f"{type(error).__name__}: {error}".split("\n")[0][:100])
    if not gpu_answers():
        names = ", ".join(row["provider"] for row in rows)
        raise GpuLost(f"{row['mode']} {row['N']}x{row['C']} {row['dtype']}, {names}: {row['note']}") from error


def kernel_times(runners, problem, rows):
    """us of one call into the rows; on the current stream"""
    replays = {}
    for name, runner in runners.items():
        try:
            torch.cuda.synchronize()
            replays[name] = Replay(runner, problem)
        except Exception as error:  # cannot be captured: the others go on
            note_failure(error, rows[name])
    for _ in range(WARMUP_REPLAYS + REPLAYS):
        for replay in replays.values():
            replay.run()
    torch.cuda.synchronize()
    for name, replay in replays.items():
        us = replay.median_us()
        rows[name] |= {"us": round(us, 3), "GB/s": round(problem.gigabytes_a_second(us), 1)}


def tutorial_times(peers, problem, rows):
    """us by the clock of Triton's tutorial into the rows: median, 20 % and 80 % quantiles; at each place all take turns, so that
    a machine that is disturbed for a second disturbs all alike"""
    times = {peer.name: [] for peer in peers}
    places = {peer.name: set() for peer in peers}
    for place in range(PLACES):
        for peer in [peer for peer in peers if peer.name in times]:
            try:
                where, ms = times_at(place, peer, problem)
                places[peer.name].add(where)
                times[peer.name] += ms
            except Exception as error:  # the others go on
                note_failure(error, rows[peer.name])
                del times[peer.name]
    for name, ms in times.items():
        quantiles = torch.tensor(ms).quantile(torch.tensor([0.5, 0.2, 0.8])).tolist()
        for key, us in zip(("p50", "p20", "p80"), (1e3 * t for t in quantiles)):
            rows[name] |= {f"tutorial {key} us": round(us, 3),
                           f"tutorial {key} GB/s": round(problem.gigabytes_a_second(us), 1)}
        rows[name]["places"] = len(places[name])


def times_at(place, peer, problem):
    """(the addresses of what a call reads and writes, ms of the calls) for the set of this place; what is kept allocated moves
    what a call allocates"""
    p = problem
    kept = [torch.empty_like(p.x[0]) for _ in range(place)]
    x, weight, bias = (t.detach().requires_grad_() for t in (p.x[place % p.sets], p.weight, p.bias))
    options = dict(warmup=5, rep=500 // PLACES, return_mode="all")
    y = peer.apply(x, weight, bias)
    if p.mode == "forward":
        where = x.data_ptr(), y.data_ptr()
        del y  # the timed calls get its block, but for one as large as what do_bench allocates
        times = triton.testing.do_bench(lambda: peer.apply(x, weight, bias), **options)
    else:
        dy = p.dy[place % p.sets]
        y.backward(dy, retain_graph=True)
        where = x.data_ptr(), dy.data_ptr(), x.grad.data_ptr()
        x.grad = None
        times = triton.testing.do_bench(lambda: y.backward(dy, retain_graph=True), grad_to_none=[x], **options)
    del kept
    return where, times


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
            runner = Autograd(peer, p)
            results = runner.results()
            row["error"] = round(layernorm_peers.worst_error(results, expected), 3)
        except Exception as error:  # refuses this shape: the others go on
            note_failure(error, row)
            continue
        # 16-bit sums over rows, as some peers keep them, cost several roundings
        if row["error"] <= (2 if peer.name == "ours" or p.mode == "forward" else 8):
            runners[peer.name] = runner
        else:
            row["note"] = "WRONG"
    return runners


def time_all(rows, problem, peers, options):
    """into rows, {provider: row}"""
    runners = correct_runners(peers, problem, rows)
    if options.timing != "tutorial":
        kernel_times(runners, problem, rows)
    names = list(runners)
    del runners  # and what it keeps allocated
    torch.cuda.synchronize()
    if options.timing != "kernel":
        tutorial_times([peer for peer in peers if peer.name in names], problem, rows)


def measure(rows, shape, mode, peers, options, device="cuda"):
    """into rows, {provider: row}"""
    try:
        time_all(rows, Problem(shape, mode, device), peers, options)
    except GpuLost:
        raise
    except Exception as error:  # no memory for the problem, say: the next one may be smaller
        note_failure(error, *rows.values())
    torch.cuda.empty_cache()  # else the memory of ended graphs is kept apart for ever


def name_of(mode, shape):
    return [mode, shape.N, shape.C, NAMES[shape.dtype]]


def missing(modes, shape, folder):
    """the modes in which the folder has nothing of this shape"""
    there = [point["point"] for point in points_in(folder)]
    return [mode for mode in modes if name_of(mode, shape) not in there]


def head():
    """of what the figures of a point are: a line below the tables says so"""
    others = []
    for package in ("liger_kernel", "quack_kernels", "flash_attn"):
        try:
            others.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return {"gpu": torch.cuda.get_device_name(), "date": time.strftime("%Y-%m-%d"), "others": ", ".join(others),
            "pytorch": torch.__version__, "triton": triton.__version__}


def race(modes, points, peers, options, results):
    """adds a line to the file `results` for each shape and mode, with a row (dict) for each provider"""
    start, about = time.perf_counter(), head()
    for shape in points:
        for peer in peers:
            peer.new_shape()
        for mode in missing(modes, shape, results.parent):
            new = {peer.name: {"mode": mode, "N": shape.N, "C": shape.C, "dtype": NAMES[shape.dtype],
                               "provider": peer.name} for peer in peers}
            measure(new, shape, mode, peers, options)
            found = [row for row in new.values() if row.keys() & {"us", "tutorial p50 us", "note"}]
            order = 1000 * (mode == "backward") + (SWEEP + GPT2).index(shape)
            with open(results, "a") as out:  # a line that a kill cut short does not spoil the next
                out.write("\n" + json.dumps({"point": name_of(mode, shape), "order": order, "head": about, "rows": found}))
            times = ", ".join(f"{row['provider']} {row.get('us', row.get('tutorial p50 us', row.get('note')))}"
                              for row in found)
            print(f"{time.perf_counter() - start:6.1f} s  {mode:8} {label(shape)}  us: {times}", flush=True)


def start_processes(count, gpus, arguments):
    """arguments(k): of the k-th process; how many failed"""
    children = [subprocess.Popen([sys.executable, __file__, *arguments(k)],
                                 env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
                                 | ({"CUDA_VISIBLE_DEVICES": gpus[k % len(gpus)]} if gpus else {})) for k in range(count)]
    return sum(child.wait() != 0 for child in children)


def warm_up(points, gpus):
    """Compiles what is compiled for each shape in processes side by side: the caches on disk are then warm, and a sweep
    need not wait 30 times. A process that fails costs time, nothing else."""
    jobs = min((os.cpu_count() or 2) * 3 // 4, len(points))
    if jobs < 2:
        return
    start = time.perf_counter()
    failed = start_processes(jobs, gpus, lambda k: ["--only-compile"] + [f"{s.N}x{s.C}x{NAMES[s.dtype]}" for s in points[k::jobs]])
    print(f"compiled for {len(points)} shapes in {jobs} processes, {failed} failed: "
          f"{time.perf_counter() - start:.1f} s", flush=True)


def only_compile(texts):
    found, _ = layernorm_peers.peers()
    for text in texts:
        N, C, dtype = text.split("x")
        x = torch.randn(int(N), int(C), dtype=DTYPES[dtype], device="cuda").requires_grad_()
        weight, bias = (torch.ones(int(C), dtype=x.dtype, device="cuda").requires_grad_() for _ in range(2))
        for peer in found:
            try:
                peer.new_shape()
                torch.autograd.grad(peer.apply(x, weight, bias), (x, weight, bias), torch.ones_like(x))
            except Exception as error:  # refuses this shape: the race says so
                print(f"{peer.name} {text}: {type(error).__name__}", flush=True)
    torch.cuda.synchronize()


# ---- the report ------------------------------------------------------------------------------------------------------
def cell(row, clock):
    if row is None:
        return ""
    if clock == "kernel":
        return f"{row['GB/s']:.0f} ({row['us']:.2f})" if "us" in row else row.get("note", "")
    if "tutorial p50 GB/s" not in row:
        return row.get("note", "")
    p50, p20, p80 = (row[f"tutorial {q} GB/s"] for q in ("p50", "p20", "p80"))
    return f"{p50:.0f} [{p80:.0f}, {p20:.0f}]"  # a slow call is a low rate


def titles(rows, mode):
    """{provider: what its column and its line are called}: the port's says whether it counts as the tutorial"""
    names = {row["provider"]: row["provider"] for row in rows}
    if "triton" in names:
        points, near, wanted = layernorm_peers.tutorial_points(rows, mode)
        names["triton"] += (", counts as the tutorial" if near == wanted else
                            f", NOT the tutorial (within 3 % at {near} of {wanted} points)" if points else
                            ", not held against the tutorial (--sweep does)")
    return names


def markdown(rows, clock, names):
    """a table of one mode: a line a shape, a column a provider"""
    lines = ["| N x C, dtype | " + " | ".join(names.values()) + " |", "|---" * (len(names) + 1) + "|"]
    by_shape = collections.defaultdict(dict)
    for row in rows:
        by_shape[f"{row['N']}x{row['C']} {row['dtype']}"][row["provider"]] = row
    for shape, found in by_shape.items():
        lines.append(f"| {shape} | " + " | ".join(cell(found.get(name), clock) for name in names) + " |")
    return "\n".join(lines)


def report(rows, mode):
    rows = [row for row in rows if row["mode"] == mode]
    if not rows:
        return
    names = titles(rows, mode)
    clocks = {"kernel": "kernel time: GB/s (us)", "tutorial": "tutorial's clock: GB/s, median [slowest, fastest 20 %]"}
    for clock, title in clocks.items():
        if any(("us" if clock == "kernel" else "tutorial p50 us") in row for row in rows):
            print(f"\n### LayerNorm {mode}, {title}\n\n{markdown(rows, clock, names)}\n")


def failures_of_ours(rows):
    """a line to print, or None"""
    failed = [f"{row['mode']} {row['N']}x{row['C']} {row['dtype']} ({row['note']})" for row in rows
              if row["provider"] == "ours" and "note" in row]
    return "OURS FAILED OR IS WRONG at " + ", ".join(failed) if failed else None


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
    p.add_argument("--out", default="build/bench_layernorm", help="folder of the points; what is there is not measured again")
    p.add_argument("--gpus", help="such as 0,1: a process for each of them")
    p.add_argument("--part", help=argparse.SUPPRESS)
    p.add_argument("--only-compile", nargs="+", metavar="NxCxTYPE", help=argparse.SUPPRESS)
    return p.parse_args()


def find_peers(names):
    """those who race; says who does not, and why"""
    found, missing = layernorm_peers.peers(names)
    if names is None or "ours" in names:
        try:
            found.insert(0, layernorm_peers.ours())
        except ImportError as error:
            raise SystemExit(f"bench_layernorm.py: {error}; expected the package: python/README.md") from None
    # torch.compile's turn is the last: its kernels load with evict_last, and such lines outlive the clearing of L2, so
    # that a provider which reads the same input after it has part of the input from L2
    found.sort(key=lambda peer: peer.name == "torch.compile")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton {triton.__version__}; "
          f"{', '.join(peer.name for peer in found)}")
    for name, why in missing.items():
        print(f"without {name}: {why}")
    return found


def main():
    options = parse_options()
    if not (options.sweep or options.gpt2 or options.only_compile):
        raise SystemExit("nothing to do: --sweep, --gpt2 or both (--help)")
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device")
    if options.only_compile:
        return only_compile(options.only_compile)
    folder, points = Path(options.out), shapes(options)
    folder.mkdir(parents=True, exist_ok=True)
    gpus = options.gpus.split(",") if options.gpus else []
    modes = ("forward", "backward") if options.mode == "both" else (options.mode,)
    if not options.part:
        print(f"{len(points_in(folder))} points are in {folder} and are not measured again")
        warm_up([shape for shape in points if missing(modes, shape, folder)], gpus)
    if gpus and not options.part:
        start_processes(len(gpus), gpus, lambda k: sys.argv[1:] + ["--part", f"{k}/{len(gpus)}"])
        return conclude(folder, modes, None)
    # one stream for all, not the default one, of which no graph can be captured: once a process has used two, each
    # launch takes 0.4 us more (doc/tried.md)
    torch.cuda.set_stream(torch.cuda.Stream())
    layernorm_peers.TritonFunction.new_parts = staticmethod(getattr(torch, options.triton_parts))
    peers = find_peers(options.providers.split(",") if options.providers else None)
    part, parts = (int(n) for n in (options.part or "0/1").split("/"))
    lost = None
    try:
        race(modes, points[part::parts], peers, options, folder / f"part_{part}_of_{parts}.jsonl")
    except KeyboardInterrupt:
        print("stopped: the report has what was measured until now")
    except GpuLost as error:
        lost = f"THE GPU FAILED at {error}; nothing could be measured after it"
    if options.part:
        print(lost or f"part {options.part} done")
        return lost is not None
    return conclude(folder, modes, lost)


def conclude(folder, modes, lost):
    """prints the report; lost: how the GPU failed, or None; returns the exit code"""
    rows = [row for point in points_in(folder) for row in point["rows"]]
    for mode in modes:
        report(rows, mode)
    verdicts = [layernorm_peers.tutorial_verdict(rows, mode) for mode in modes]
    print(*filter(None, (*verdicts, failures_of_ours(rows), lost)), sep="\n")
    return lost is not None or failures_of_ours(rows) is not None


if __name__ == "__main__":
    sys.exit(main())
