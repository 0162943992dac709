#!/usr/bin/env python3
"""Draws what was measured, as SVG files. Needs matplotlib.

    dev/bench/plots.py sweep a.json [b.json ...] -o sweep.svg     what dev/cuda/<op> --sweep wrote: GB/s and share of the roof
    dev/bench/plots.py race -o doc                              doc/measured/race.json: doc/layer-norm-{forward,backward}.svg
    dev/bench/plots.py attention a.json [b.json] -o race.svg    what bench_attention.py, or dev/cuda/attention_* --json wrote:
                                                                TFLOP/s, counted for the pairs of a query and a key that there are
    dev/bench/plots.py compare OURS_BF16 TORCH_BF16 OURS_FP32 TORCH_FP32 -o compare.svg
                                                                logs of four runs: do ours learn as PyTorch's (compare_pytorch.py) do?
    dev/bench/plots.py minutes NAME=LOG [NAME=LOG ...] -o enwik8.svg    training losses along the time that was trained

compare: two runs that round differently drift apart; how far is natural, PyTorch shows by itself, its bf16 against its fp32. So
at every step from 20 on |ours - PyTorch| in the same type may be at most twice the largest |PyTorch bf16 - PyTorch fp32|, and at
the last step at most 0.05; else exit 1. One run may miss that by chance: doc/gpu_training.md has five seeds.
"""
import itertools
import json
import math
import os
import re
import statistics
import sys

from lab import PROVIDERS, load, parser
from tables import rates

FIRST, TIMES, LAST_BOUND = 20, 2.0, 0.05


def rows_of(path):
    """of a JSON file that a program of this project wrote"""
    with open(path) as file:
        rows = json.load(file)["rows"]
    if not rows or not ("us" in rows[0] or "row" in rows[0]):
        raise SystemExit(f"{path}: found no row with a time; expected what a shootout writes by --json")
    return rows


def figure(panels, height):
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "plumb", "axes.grid": True, "grid.color": "#ddd",
                                "axes.axisbelow": True, "font.family": "sans-serif"})
    import matplotlib.pyplot as plot
    return plot.subplots(panels, 1, figsize=(9, height * panels), layout="constrained", squeeze=False)


def save(picture, path):
    picture.savefig(path, format="svg", metadata={"Date": None})
    print("wrote", path)


def sweep(files, out):
    lines, roofs = {}, {}
    for path in files:
        rows = rows_of(path)
        slow = [row for row in rows if row.get("roof_counts") is False]
        if slow:
            print(f"warning: {path}: {len(slow)} of {len(rows)} rows do not count: their roof was slower than is known of its GPU; "
                  "expected a GPU that nothing else uses: measure again", file=sys.stderr)
        for row in rows:
            if row["us"] and row["roof_us"]:
                at = int(row["C"])
                lines.setdefault(f"{row['op']} {row['version']}, {row['N']} rows, {row['dtype']}", []).append(
                    (at, float(row["gb_per_s"]), float(row["percent_of_roof"])))
                roofs.setdefault(f"roof {row['roof']}", {})[at] = float(row["useful_bytes"]) / 1e3 / float(row["roof_us"])
    if not lines:
        raise SystemExit(f"{', '.join(files)}: nothing was timed")
    picture, ((speed,), (share,)) = figure(2, 3.6)
    for name, points in lines.items():
        columns, rates, shares = zip(*sorted(points))
        speed.plot(columns, rates, label=name)
        share.plot(columns, shares, label=name)
    for name, points in roofs.items():
        speed.plot(*zip(*sorted(points.items())), "--", label=name)
    share.axhline(100, linestyle="--", color="#444")
    speed.set(ylabel="useful GB/s", ylim=(0, None))
    share.set(ylabel="% of the roof", ylim=(0, None), xlabel="columns")
    speed.legend()
    save(picture, out)


def race(out):
    rows = [row for row in load("race/points")["rows"] if row["shape"].startswith("4096x") and row["shape"].endswith("fp16")]
    for direction in ("forward", "backward"):
        picture, axes = figure(2, 3.6)
        for (panel,), clock, more in zip(axes, ("kernel time", "tutorial's clock"), ("", ", launches included")):
            found = [(int(row["shape"][5:-5]), rates(row, clock)) for row in rows if row["direction"] == direction]
            for who in PROVIDERS.values():
                points = sorted((columns, rate[who]) for columns, rate in found if who in rate)
                if points:
                    panel.plot(*zip(*points), label=who)
            title = f"{direction}, {'the ' if more else ''}{clock}{more}"
            panel.set(title=title, ylabel="GB/s", ylim=(0, 5000), xlim=(0, 16384))
        axes[0][0].legend(fontsize="small")
        axes[1][0].set(xlabel="columns")
        save(picture, os.path.join(out, f"layer-norm-{direction}.svg"))


def attention(files, out):
    bars, roofs = {}, {}  # direction -> shape -> name -> TFLOP/s
    for row in (row for path in files for row in rows_of(path)):
        if "row" in row:
            *sizes, direction = re.fullmatch(r"B=(\d+) NH=(\d+) T=(\d+), (.*)", row["row"]).groups()
            B, NH, T = map(int, sizes)
            times = {name: float(text.split()[0]) for name, text in row.items() if name != "row"}
        elif row["dtype"] == "bf16" and row["us"]:
            B, NH, T = row["N"] // row["T"], row["C"] // 64, row["T"]
            direction, times = row["op"].removeprefix("attention_"), {row["version"]: row["us"]}
        else:
            continue
        shape, work = f"{B}x{NH}x{T}", (10 if direction.startswith("backward") else 4) * 64 * B * NH * T * (T + 1) / 2 / 1e6
        bars.setdefault(direction, {}).setdefault(shape, {}).update({name: work / us for name, us in times.items()})
        if row.get("roof_us"):
            roofs[direction, shape] = work / row["roof_us"]
    picture, axes = figure(len(bars), 2.8)
    for (panel,), (direction, shapes) in zip(axes, bars.items()):
        names = list(dict.fromkeys(name for of in shapes.values() for name in of))
        width = 0.8 / len(names)
        for k, name in enumerate(names):
            there = [(i - 0.4 + (k + 0.5) * width, of[name]) for i, of in enumerate(shapes.values()) if name in of]
            panel.bar_label(panel.bar(*zip(*there), width, label=name), fmt="%.0f", fontsize=7)
        for i, shape in enumerate(shapes):
            if (direction, shape) in roofs:
                panel.hlines(roofs[direction, shape], i - 0.4, i + 0.4, linestyles="--", color="#444")
        panel.set(title=f"{direction}, TFLOP/s", xticks=range(len(shapes)), xticklabels=shapes)
        panel.legend(fontsize="small", ncols=len(names))
    save(picture, out)


def losses_of(path):
    with open(path) as file:
        return {line["step"]: line["train_loss"] for line in map(json.loads, file) if "train_loss" in line}


def compare(logs, out):
    """writes the picture; returns 1 if ours are farther from PyTorch's than the rule allows"""
    names = ("ours bf16", "PyTorch bf16", "ours fp32", "PyTorch fp32")
    runs = {name: losses_of(path) for name, path in zip(names, logs, strict=True)}
    steps = sorted(runs[names[0]])
    for name, path in zip(names, logs):
        if sorted(runs[name]) != steps or not all(map(math.isfinite, runs[name].values())) or not steps or steps[-1] < FIRST:
            raise SystemExit(f"{path}: expected a finite loss for each step of {logs[0]}, at least {FIRST}")
    pairs = {"ours - PyTorch, bf16": names[:2], "ours - PyTorch, fp32": names[2:], "PyTorch bf16 - fp32": (names[1], names[3])}
    apart = {name: {s: abs(runs[a][s] - runs[b][s]) for s in steps if s >= FIRST} for name, (a, b) in pairs.items()}
    bound = TIMES * max(apart["PyTorch bf16 - fp32"].values())
    failed = 0
    for name in list(apart)[:2]:
        worst, last = max(apart[name].values()), apart[name][steps[-1]]
        bad = worst > bound or last > LAST_BOUND
        failed |= bad
        print(f"{name}: largest {worst:.5f} (bound {bound:.5f}), {last:.5f} at the end (bound {LAST_BOUND}): {'FAIL' if bad else 'ok'}")
    picture, ((loss,), (difference,)) = figure(2, 3.2)
    for name, run in runs.items():
        ours = name.startswith("ours")
        loss.plot(steps, [run[s] for s in steps], label=name, linewidth=1 if ours else 3, alpha=1 if ours else 0.4)
    for name, points in apart.items():
        difference.plot(*zip(*points.items()), label=name, linewidth=1)
    difference.axhline(bound, linestyle="--", color="#000")
    loss.set(ylabel="loss, nats per token")
    difference.set(ylabel="|difference|; dashed: the bound", xlabel="step")
    for panel in (loss, difference):
        panel.legend(fontsize="small")
    save(picture, out)
    return int(failed)


def minutes(logs, out):
    """each point: the mean of a hundredth of a run; bits a token"""
    picture, ((loss,),) = figure(1, 3.2)
    for name, path in (log.split("=", 1) for log in logs):
        with open(path) as file:
            rows = {row["step"]: row for row in map(json.loads, file) if "train_loss" in row}  # a step done again counts once
        ends = list(itertools.accumulate(row["ms"] / 6e4 for row in rows.values()))
        bits, each = [row["train_loss"] / math.log(2) for row in rows.values()], math.ceil(len(rows) / 100)
        points = [(ends[min(at + each, len(ends)) - 1], statistics.fmean(bits[at: at + each])) for at in range(0, len(bits), each)]
        loss.plot(*zip(*points), label=name)
    lowest = min(min(line.get_ydata()) for line in loss.get_lines())
    loss.set(ylabel="training loss, bits a token", xlabel="minutes of training", ylim=(lowest - 0.05, lowest + 1), xlim=(0, None))
    loss.legend()
    save(picture, out)


def main():
    p = parser(__doc__)
    p.add_argument("what", choices=["sweep", "race", "attention", "compare", "minutes"])
    p.add_argument("files", nargs="*")
    p.add_argument("-o", "--out", required=True)
    o = p.parse_args()
    if o.what == "race":
        return race(o.out)
    if not o.files or (o.what == "compare" and len(o.files) != 4):
        p.error(f"{o.what}: found {len(o.files)} files, expected {'4' if o.what == 'compare' else 'some'}")
    return {"sweep": sweep, "attention": attention, "compare": compare, "minutes": minutes}[o.what](o.files, o.out)


if __name__ == "__main__":
    sys.exit(main())
