#!/usr/bin/env python3
"""Races LayerNorms, all of a point in one process, on the same buffers: ours (the package of python/), torch eager,
torch.compile, Triton's tutorial, and Liger, QuACK and flash-attention where they can be imported (layernorm_peers.py).

Two clocks. Kernel time: replay of a CUDA graph that goes round a ring of inputs of more than 800 MB; the results of a
whole round stay allocated, so that nobody reads or writes what is still in L2; providers take turns, each replays
once before it is timed; median of the replays. Tutorial's clock: triton.testing.do_bench of the forward call or of
y.backward, as Triton's tutorial does it (rep 500, median and 20/80 % quantiles): launches and Python included, and 100
of the 500 ms at each of five places in memory, as far as the ring has inputs and the allocator other blocks for outputs.
GB/s: 2 x elements x bytes forward, 3 x backward. Every result is compared with float64 before it is timed.

    dev/bench/bench_layernorm.py --sweep               M = 4096, N = 512 i, i = 2 .. 31, float16
    dev/bench/bench_layernorm.py --gpt2                the shapes of GPT-2, bfloat16 and float32
    dev/bench/bench_layernorm.py --sweep --gpt2 --quick
    dev/bench/bench_layernorm.py --fp8 [--json FILE]   LayerNorm to e4m3 and its transpose, bfloat16, by kernel time alone
    dev/bench/bench_layernorm.py --rms [--json FILE]   RMSNorm, bfloat16, forward and backward, both clocks
    dev/bench/bench_layernorm.py --modulate [--json FILE]  layer_norm_modulate, alone and gated, bfloat16, by kernel time alone
    dev/bench/tables.py --take FOLDER race/points            what is in --out FOLDER, as this project's figures

A point is added to FOLDER/points.jsonl once it is measured, --quick's points first; the same command goes on where one
ended, by Ctrl-C, a time limit or a GPU that fails, with a report of what was measured. A provider that fails gets a note
in place of its times. Exit 1 if ours failed or is wrong anywhere; with
--fp8 also where ours is not 1.3 times as fast as each peer, with --rms where it takes 1.02 times our LayerNorm's kernel time,
forward is slower than 1 / 0.99 of a peer, or backward than any, with --modulate where backward is not 1.5 times as fast as each
peer. Result: make tables
"""
import collections
import contextlib
import importlib.metadata
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from lab import add_rows, measured_here, needs, parser, shape

needs(__doc__, "torch", "triton")
import torch
import triton

import layernorm_peers
import tables
from layernorm_peers import Problem, Runner

REPLAYS, WARMUP_REPLAYS, REPLAY_US = 9, 2, 3000
PLACES = 5  # where input and output lie badly for each other, a call alone takes longer, whoever makes it
NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}

Shape = collections.namedtuple("Shape", "N C dtype")
FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
SWEEP = [Shape(4096, 512 * i, FP16) for i in range(2, 32)]
GPT2 = ([Shape(65536, C, BF16) for C in (768, 1024, 1280, 1600)] + [Shape(8192, C, BF16) for C in (768, 1600)]
        + [Shape(65536, C, FP32) for C in (768, 1024, 1280, 1600)] + [Shape(8192, 768, FP32)])
FP8 = [Shape(65536, 768, BF16), Shape(32768, 1280, BF16), Shape(16384, 1600, BF16)]
RMS = [Shape(N, C, BF16) for N, C in ((65536, 768), (8192, 2048), (8192, 4096), (16384, 5120), (4096, 8192), (2048, 16384))]
MODULATE = [(64, 256, 1152), (4, 4096, 3072)]  # samples, tokens, channels of DiT-XL/2 and of a larger one
QUICK = [Shape(4096, 512 * i, FP16) for i in (2, 4, 8, 16, 24, 31)] + [
    Shape(65536, 768, BF16), Shape(8192, 768, BF16), Shape(65536, 768, FP32)]


# ---- the clocks ------------------------------------------------------------------------------------------------------
def graph_of(runner, problem):
    """a graph of calls that go round the ring, how many they are, and what must stay: the results of the last round"""
    expected_us = 3 + problem.bytes / 3e6
    rounds = min(max(1, math.ceil(REPLAY_US / expected_us / problem.sets)), max(1, 600 // problem.sets))
    call, kept, graph = getattr(runner, problem.mode), collections.deque(maxlen=problem.sets), torch.cuda.CUDAGraph()
    graph.capture_begin()
    try:
        for k in range(rounds * problem.sets):
            kept.append(call(k % problem.sets))
    finally:
        graph.capture_end()
    return graph, rounds * problem.sets, (runner, kept)


def note_failure(error, *rows):
    """what went wrong, into the rows; the race goes on unless nothing can run any more"""
    for row in rows:
        row.setdefault("note", f"{type(error).__name__}: {error}".split("\n")[0][:100])
    with contextlib.suppress(Exception):  # an error that does not stay is told once
        torch.cuda.synchronize()
    torch.cuda.synchronize()  # raises if the GPU is lost


def kernel_times(runners, problem, rows):
    """us of one call into the rows; on the current stream"""
    graphs = {}
    for name, runner in runners.items():
        try:
            torch.cuda.synchronize()
            graphs[name] = graph_of(runner, problem)
        except Exception as error:  # cannot be captured: the others go on
            note_failure(error, rows[name])
    events = {name: [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(WARMUP_REPLAYS + REPLAYS)]
              for name in graphs}
    for k in range(WARMUP_REPLAYS + REPLAYS):
        for name, (graph, _, _) in graphs.items():
            graph.replay()  # not timed: else one provider waits until what another has left in L2 is written
            events[name][k][0].record()
            graph.replay()
            events[name][k][1].record()
    torch.cuda.synchronize()
    for name, (_, calls, _) in graphs.items():
        us = statistics.median(begin.elapsed_time(end) * 1e3 / calls for begin, end in events[name][WARMUP_REPLAYS:])
        rows[name] |= {"us": round(us, 3), "GB/s": round(problem.gigabytes_a_second(us), 1)}


def tutorial_times(peers, problem, rows):
    """us by the clock of Triton's tutorial into the rows: median, 20 % and 80 % quantiles; at each place all take turns, so
    that a machine that is disturbed for a second disturbs all alike"""
    times, places = {name: [] for name in peers}, {name: set() for name in peers}
    for place in range(PLACES):
        for name in list(times):
            try:
                where, ms = times_at(place, peers[name], problem)
                places[name].add(where)
                times[name] += ms
            except Exception as error:  # the others go on
                note_failure(error, rows[name])
                del times[name]
    for name, ms in times.items():
        quantiles = torch.tensor(ms).quantile(torch.tensor([0.5, 0.2, 0.8])).tolist()
        for key, us in zip(("p50", "p20", "p80"), (1e3 * t for t in quantiles)):
            rows[name] |= {f"tutorial {key} us": round(us, 3),
                           f"tutorial {key} GB/s": round(problem.gigabytes_a_second(us), 1)}
        rows[name]["places"] = len(places[name])


def times_at(place, apply, problem):
    """(the addresses of what a call reads and writes, ms of the calls) for the set of this place; what is kept allocated
    moves what a call allocates"""
    p = problem
    kept = [torch.empty_like(p.x[0]) for _ in range(place)]
    x, weight, bias = (t if t is None else t.detach().requires_grad_() for t in (p.x[place % p.sets], p.weight, p.bias))
    options = dict(warmup=5, rep=500 // PLACES, return_mode="all")
    y = apply(x, weight, bias)
    if p.mode == "forward":
        where = x.data_ptr(), y.data_ptr()
        del y  # the timed calls get its block, but for one as large as what do_bench allocates
        times = triton.testing.do_bench(lambda: apply(x, weight, bias), **options)
    else:
        dy = p.douts[place % p.sets]
        y.backward(dy, retain_graph=True)
        where = x.data_ptr(), dy.data_ptr(), x.grad.data_ptr()
        x.grad = None
        times = triton.testing.do_bench(lambda: y.backward(dy, retain_graph=True), grad_to_none=[x], **options)
    del kept
    return where, times


# ---- one point -------------------------------------------------------------------------------------------------------
def correct_runners(peers, problem, rows, most):
    """{name: runner} of those whose results are right; the others get a note in rows; most: of the errors of others than ours"""
    runners = {}
    for name, apply in peers.items():
        try:
            runner, expected = Runner(apply, problem), problem.exact(name)
            worst = layernorm_peers.worst_error(getattr(runner, problem.mode)(0), expected)
        except Exception as error:  # refuses this shape: the others go on
            note_failure(error, rows[name])
            continue
        rows[name]["error"] = round(worst, 3)
        if worst <= (2 if name == "ours" else most):
            runners[name] = runner
        else:
            rows[name]["note"] = "WRONG"
    return runners


def measure(rows, problem, peers):
    """into rows, {provider: row}"""
    # 16-bit sums over rows, as some peers keep them, cost several roundings
    runners = correct_runners(peers, problem, rows, 2 if problem.mode == "forward" else 8)
    kernel_times(runners, problem, rows)
    right = {name: peers[name] for name in runners}
    del runners  # and what it keeps allocated
    torch.cuda.synchronize()
    tutorial_times(right, problem, rows)


def missing(point, folder):
    """the modes in which the folder has nothing of this shape"""
    there = [found["point"] for found in tables.points_in(folder)]
    return [mode for mode in ("forward", "backward") if [mode, point.N, point.C, NAMES[point.dtype]] not in there]


def head():
    """of what the figures of a point are: a line below the tables says so"""
    others = []
    for package in ("liger_kernel", "quack_kernels", "flash_attn"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            others.append(f"{package} {importlib.metadata.version(package)}")
    return measured_here("bench_layernorm.py --sweep --gpt2", others=", ".join(others), triton=triton.__version__)


def race(points, makers, folder):
    """adds a line to the folder's points.jsonl for each shape and mode, with a row (dict) for each provider"""
    start, about = time.perf_counter(), head()
    for point in points:
        peers = {name: make() for name, make in makers.items()}
        for mode in missing(point, folder):
            what = {"mode": mode, "N": point.N, "C": point.C, "dtype": NAMES[point.dtype]}
            new = {name: what | {"provider": name} for name in peers}
            try:
                measure(new, Problem(point, mode), peers)
            except Exception as error:  # no memory for the problem, say: the next one may be smaller
                note_failure(error, *new.values())
            torch.cuda.empty_cache()  # else the memory of ended graphs is kept apart for ever
            order = 1000 * (mode == "backward") + (SWEEP + GPT2).index(point)
            with open(folder / "points.jsonl", "a") as out:  # a line that a kill cut short does not spoil the next
                out.write("\n" + json.dumps({"point": list(what.values()), "order": order, "head": about,
                                             "rows": list(new.values())}))
            times = ", ".join(f"{row['provider']} {row.get('us', row.get('note'))}" for row in new.values())
            print(f"{time.perf_counter() - start:6.1f} s  {mode:8} {shape(what)}  us: {times}", flush=True)


def compile_for(point):
    """in a process of its own"""
    x = torch.randn(point.N, point.C, dtype=point.dtype, device="cuda").requires_grad_()
    weight, bias = (torch.ones(point.C, dtype=x.dtype, device="cuda").requires_grad_() for _ in range(2))
    for make in layernorm_peers.peers()[0].values():
        with contextlib.suppress(Exception):  # refuses this shape: the race says so
            torch.autograd.grad(make()(x, weight, bias), (x, weight, bias), torch.ones_like(x))
    torch.cuda.synchronize()


def warm_up(points):
    """Compiles what is compiled for each shape in processes side by side: the caches on disk are then warm, and a sweep
    need not wait 30 times. A process that fails costs time, nothing else."""
    start, jobs = time.perf_counter(), max(1, (os.cpu_count() or 2) * 3 // 4)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        failed = sum(done.exception() is not None for done in [pool.submit(compile_for, point) for point in points])
    del os.environ["TORCHINDUCTOR_COMPILE_THREADS"]
    print(f"compiled for {len(points)} shapes, {failed} failed: {time.perf_counter() - start:.1f} s", flush=True)


# ---- to FP8 ----------------------------------------------------------------------------------------------------------
def race_fp8(path):
    """the exit code"""
    lines = []
    for point in FP8:
        problem, rows, runners = Problem(point, "forward"), {}, {}  # 4 bytes an element, as a LayerNorm in bfloat16
        for tensor in (*problem.x, problem.weight, problem.bias):
            tensor.requires_grad_(False)
        given = problem.x[0], problem.weight, problem.bias
        for name, make in layernorm_peers.fp8_peers().items():
            rows[name] = {}
            try:
                apply = make()
                if layernorm_peers.fp8_is_right(apply(*given), *given):
                    runners[name] = Runner(apply, problem)
                else:
                    rows[name]["note"] = "WRONG"
            except Exception as error:  # the others go on
                note_failure(error, rows[name])
        kernel_times(runners, problem, rows)
        us = {name: row["us"] for name, row in rows.items() if "us" in row}
        ours, fastest = us.pop("ours", math.inf), min(us, key=us.get)
        lines.append({"N": point.N, "C": point.C, "ours us": ours, "ours GB/s": rows["ours"].get("GB/s"), "fastest": fastest,
                      "its us": us[fastest], "its us / ours": round(us[fastest] / ours, 3)})
        print({name: row.get("us", row.get("note")) for name, row in rows.items()}, lines[-1], sep="\n", flush=True)
        del runners, problem, given, tensor
        torch.cuda.empty_cache()
    if path:
        add_rows(path, measured_here("bench_layernorm.py --fp8", triton=triton.__version__), lines, "N", "C")
    return int(any(line["its us / ours"] < 1.3 for line in lines))


# ---- RMSNorm ---------------------------------------------------------------------------------------------------------
def rms_verdict(mode, rows):
    """what was missed at a point"""
    missed = [f"ours: {rows['ours']['note']}"] if "note" in rows["ours"] else []
    for key in ("us", "tutorial p50 us"):
        us = {name: row[key] for name, row in rows.items() if key in row}
        ours, layer_norm = us.pop("ours", math.inf), us.pop(layernorm_peers.OUR_LAYERNORM, math.inf)
        if key == "us" and ours > 1.02 * layer_norm:
            missed.append(f"{ours} {key} for our LayerNorm's {layer_norm}")
        best = min(us, key=us.get, default=None)
        if best and us[best] < ours * (0.99 if mode == "forward" else 1):
            missed.append(f"{ours} {key} for {us[best]} of {best}")
    return missed


def race_rms(path):
    """the exit code"""
    makers, missing_ones = layernorm_peers.rms_peers()
    print(", ".join(makers), *(f"without {name}: {why}" for name, why in missing_ones.items()), head(), sep="\n")
    lines, failed = [], "ours" in missing_ones
    for point in RMS:
        peers = {name: make() for name, make in makers.items()}
        for mode in ("forward", "backward"):
            rows = {name: {} for name in peers}
            measure(rows, Problem(point, mode, rms=True), peers)
            torch.cuda.empty_cache()
            missed = rms_verdict(mode, rows)
            failed |= bool(missed)
            lines.append({"mode": mode, "N": point.N, "C": point.C} | {
                f"{name} {key}": row[key] for name, row in rows.items() for key in ("us", "tutorial p50 us") if key in row})
            times = ", ".join(f"{name} {row.get('us', row.get('note'))} / {row.get('tutorial p50 us')}"
                              for name, row in rows.items())
            print(f"{mode:8} {point.N}x{point.C}  us: {times}", *(f"    MISSED: {m}" for m in missed), sep="\n", flush=True)
    if path:
        add_rows(path, measured_here("bench_layernorm.py --rms", triton=triton.__version__), lines, "mode", "N", "C")
    return int(failed)


# ---- LayerNorm with each sample's scale and shift ----------------------------------------------------------------------
def race_modulate(path):
    """the exit code"""
    makers, missing_ones = layernorm_peers.modulate_peers()
    print(", ".join(makers), *(f"without {name}: {why}" for name, why in missing_ones.items()), head(), sep="\n")
    lines, failed = [], "ours" in missing_ones
    for samples, tokens, C in MODULATE:
        for gated, mode in ((g, m) for g in (False, True) for m in ("forward", "backward")):
            problem = layernorm_peers.ModulateProblem(samples, tokens, C, gated, mode)
            peers, rows = {name: make() for name, make in makers.items()}, {name: {} for name in makers}
            # 16: of gradients that are rounded before they are summed, too
            runners = correct_runners(peers, problem, rows, 16)
            kernel_times(runners, problem, rows)
            us = {name: row["us"] for name, row in rows.items() if "us" in row}
            lines.append({"mode": mode, "gated": gated, "samples": samples, "tokens": tokens, "C": C} |
                         {f"{name} us": t for name, t in us.items()} | {"ours GB/s": rows["ours"].get("GB/s")})
            print(f"{mode:8} {'gated ' if gated else ''}{samples}x{tokens}x{C}:", rows, flush=True)
            ours = us.pop("ours", math.inf)
            failed |= any(t < ours * (1.5 if mode == "backward" else 1) for t in us.values())
            del runners, problem
            torch.cuda.empty_cache()
    if path:
        add_rows(path, measured_here("bench_layernorm.py --modulate", triton=triton.__version__), lines, "mode", "gated",
                 "samples", "tokens", "C")
    return int(failed)


# ---- all of it -------------------------------------------------------------------------------------------------------
def conclude(folder, lost):
    """prints the tables and verdicts; lost: what ended the race, or None; returns the exit code"""
    points = tables.points_in(folder)
    rows, data = [row for point in points for row in point["rows"]], tables.race_of(points)
    for mode in ("forward", "backward"):
        for clock, what in tables.CLOCKS.items():
            print(f"\n### LayerNorm {mode}, {what}\n", *tables.race(data, mode, clock), sep="\n")
    of_ours = [row for row in rows if row["provider"] == "ours"]
    failed = [f"{row['mode']} {shape(row)} ({row['note']})" for row in of_ours if "note" in row]
    verdicts = [layernorm_peers.tutorial_verdict(rows, mode) for mode in ("forward", "backward")]
    verdicts += ["OURS FAILED OR IS WRONG at " + ", ".join(failed)] if failed else []
    print(*filter(None, (*verdicts, lost)), sep="\n")
    return lost is not None or bool(failed)


def main():
    p = parser(__doc__)
    p.add_argument("--sweep", action="store_true", help="4096 x 512 i, i = 2 .. 31, float16")
    p.add_argument("--gpt2", action="store_true", help="the shapes of GPT-2")
    p.add_argument("--fp8", action="store_true", help="LayerNorm to e4m3 and its transpose, alone")
    p.add_argument("--rms", action="store_true", help="RMSNorm, alone")
    p.add_argument("--modulate", action="store_true", help="LayerNorm with each sample's scale and shift, alone")
    p.add_argument("--json", metavar="FILE", help="with --fp8, --rms, --modulate: its rows are added to FILE")
    p.add_argument("--quick", action="store_true", help="a few of their points")
    p.add_argument("--out", type=Path, default="build/bench_layernorm", metavar="FOLDER",
                   help="what is there is not measured again")
    o = p.parse_args()
    if not (o.sweep or o.gpt2 or o.fp8 or o.rms or o.modulate):
        p.error("nothing to do: --sweep, --gpt2, both, --fp8, --rms, or --modulate")
    if not torch.cuda.is_available():
        p.error("no CUDA device")
    if o.fp8 or o.rms or o.modulate:
        torch.cuda.set_stream(torch.cuda.Stream())
        return race_fp8(o.json) if o.fp8 else race_rms(o.json) if o.rms else race_modulate(o.json)
    wanted = (SWEEP if o.sweep else []) + (GPT2 if o.gpt2 else [])
    # QUICK's first: what is cut short has them
    points = [s for s in wanted if s in QUICK] + ([] if o.quick else [s for s in wanted if s not in QUICK])
    o.out.mkdir(parents=True, exist_ok=True)
    print(f"{len(tables.points_in(o.out))} points are in {o.out} and are not measured again")
    warm_up([point for point in points if missing(point, o.out)])
    # one stream for all, not the default one, of which no graph can be captured: once a process has used two, each
    # launch takes 0.4 us more (doc/tried.md)
    torch.cuda.set_stream(torch.cuda.Stream())
    (makers, missing_ones), lost = layernorm_peers.peers(), None
    print(", ".join(makers), *(f"without {name}: {why}" for name, why in missing_ones.items()), head(), sep="\n")
    if "ours" in missing_ones:
        p.error("expected the package: python/README.md")
    try:
        race(points, makers, o.out)
    except KeyboardInterrupt:
        print("stopped: the report has what was measured until now")
    except Exception as error:
        lost = f"THE RACE ENDED by {type(error).__name__}: {error}"
    return conclude(o.out, lost)


if __name__ == "__main__":
    sys.exit(main())
