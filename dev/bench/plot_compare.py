#!/usr/bin/env python3
"""Do our GPU runs learn as PyTorch's do? Four logs, a table, a picture, a verdict; no packages needed.

    dev/bench/plot_compare.py --ours-bf16 runs/ours_bf16/log.jsonl --ours-fp32 runs/ours_fp32/log.jsonl \\
        --torch-bf16 runs/torch_bf16.jsonl --torch-fp32 runs/torch_fp32.jsonl --out runs/compare
writes runs/compare.md and runs/compare.svg. The runs: see dev/bench/compare_pytorch.py.

Two runs that round differently drift apart; how far is natural, PyTorch shows by itself: its bf16 against its
fp32. So at every step from 20 to the last, |ours - PyTorch| in the same type may be at most twice the
largest |PyTorch bf16 - PyTorch fp32| over those steps, and at the last step at most 0.05; else exit 1.

Result: H200, PyTorch 2.11, 2026-11-21, 124M, 200 steps of 8 x 1024. The bound is 0.24022; ours - PyTorch
        bf16  largest 0.15513 (step 86), 0.06841 at step 200: misses, by noise (five seeds: doc/gpu_training.md)
        fp32  largest 0.10662 (step 39), 0.01493 at step 200: ok; up to step 20 at most 2.8e-5
        Table and picture: doc/gpu_training.md.
"""
import argparse
import math

from plot_loss import HEIGHT, LEFT, RIGHT, TOP, BOTTOM, WIDTH, axes, polyline, read_log, write, write_svg

FIRST, EVERY, TIMES, LAST_BOUND = 20, 20, 2.0, 0.05
RUNS = ["ours_bf16", "torch_bf16", "ours_fp32", "torch_fp32"]
BLUE, GREEN, BLACK = "#1f77b4", "#2ca02c", "#000"
# color, width, opacity, in the order in which they are drawn: PyTorch's curves lie broad and pale under ours
LOSS_STYLES = {"PyTorch bf16": (BLUE, 4, 0.3), "PyTorch fp32": (GREEN, 4, 0.3), "ours bf16": (BLUE, 1, 1),
               "ours fp32": (GREEN, 1, 1)}
DIFFERENCE_STYLES = {"PyTorch bf16 - fp32": (BLACK, 3, 0.25), "ours - PyTorch, bf16": (BLUE, 1.2, 1),
                     "ours - PyTorch, fp32": (GREEN, 1.2, 1)}


def parse_options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for run in RUNS:
        p.add_argument("--" + run.replace("_", "-"), required=True, metavar="LOG")
    p.add_argument("--out", default="compare", help="files to write, without .md and .svg")
    return p.parse_args()


def read_losses(a):
    """run -> loss of each step; step 1 is the first"""
    losses = {run: dict(read_log(getattr(a, run))[0]) for run in RUNS}
    steps = losses[RUNS[0]].keys()
    for run in RUNS:
        wrong = sorted(steps ^ losses[run].keys())
        wrong += [step for step, loss in losses[run].items() if not math.isfinite(loss)]
        if wrong or not steps or max(steps) < FIRST:
            raise SystemExit(f"{getattr(a, run)}: expected a finite loss for the same steps as in "
                             f"{getattr(a, RUNS[0])}, at least {FIRST}; not so at {wrong[:5]}")
    return losses


def differences(losses):
    """name -> (step, |difference|) from step FIRST on"""
    pairs = {"ours - PyTorch, bf16": ("ours_bf16", "torch_bf16"),
             "ours - PyTorch, fp32": ("ours_fp32", "torch_fp32"),
             "PyTorch bf16 - fp32": ("torch_bf16", "torch_fp32")}
    steps = sorted(step for step in losses["ours_bf16"] if step >= FIRST)
    return {name: [(s, abs(losses[a][s] - losses[b][s])) for s in steps] for name, (a, b) in pairs.items()}


def judge(diffs):
    """the bound, and a line for each comparison that ends in ok or FAIL"""
    bound = TIMES * max(d for _, d in diffs["PyTorch bf16 - fp32"])
    lines = []
    for name in list(diffs)[:2]:
        (worst, at), (last, end) = max((d, s) for s, d in diffs[name]), diffs[name][-1][::-1]
        ok = math.isfinite(worst) and worst <= bound and last <= LAST_BOUND
        lines.append(f"{name}: largest {worst:.5f} at step {at} (bound {bound:.5f}), "
                     f"{last:.5f} at step {end} (bound {LAST_BOUND}): {'ok' if ok else 'FAIL'}")
    return bound, lines


def run_name(run):
    return run.replace("torch", "PyTorch").replace("_", " ")


def table(losses, diffs):
    head = ["step", *map(run_name, RUNS),
            *(f"\\|{name}\\|" for name in diffs)]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    difference = {name: dict(points) for name, points in diffs.items()}
    for step in sorted(difference["PyTorch bf16 - fp32"]):
        if step % EVERY == 0 or step == max(losses["ours_bf16"]):
            cells = [f"{losses[run][step]:.4f}" for run in RUNS]
            cells += [f"{difference[name][step]:.5f}" for name in diffs]
            rows.append(f"| {step} | " + " | ".join(cells) + " |")
    return rows


def round_range(low, high):
    """around low and high, five steps of a number with few digits: what axes() marks"""
    size = 10.0 ** math.floor(math.log10(high - low)) / 10
    for step in (m * size * tens for tens in (1, 10, 100) for m in (1, 2, 2.5, 4, 5)):
        bottom = math.floor(low / step) * step
        if bottom + 5 * step >= high:
            return bottom, bottom + 5 * step


def panel(curves, styles, last, title, line=None):
    """a chart of WIDTH x HEIGHT: name -> points; line: the height of a dashed one, and 0 at the bottom"""
    values = [v for points in curves.values() for _, v in points] + ([0, line] if line else [])
    low, high = round_range(min(values), max(values))

    def place(step, value):
        return (LEFT + (WIDTH - LEFT - RIGHT) * step / last,
                TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low))

    parts = axes(low, high, last, place)[:-1]
    parts.append(f'<text x="14" y="{TOP - 12}">{title}</text>')
    for k, (name, style) in enumerate(styles.items()):
        parts.append(polyline(curves[name], place, *style))
        (color, width, opacity), x, y = style, WIDTH - RIGHT - 180, TOP + 42 + 16 * k
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 30}" y2="{y - 4}" stroke="{color}" '
                     f'stroke-width="{width}" stroke-opacity="{opacity}"/>')
        parts.append(f'<text x="{x + 38}" y="{y}">{name}</text>')
    if line:
        (x0, y), (x1, _) = place(0, line), place(last, line)
        parts.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x1}" y2="{y:.1f}" stroke="#000" '
                     'stroke-dasharray="6 4"/>')
    return "\n".join(parts)


def write_picture(path, losses, diffs, bound):
    curves = {run_name(run): sorted(losses[run].items()) for run in RUNS}
    last = max(losses[RUNS[0]])
    top = panel(curves, LOSS_STYLES, last, "loss, nats per token")
    bottom = panel(diffs, DIFFERENCE_STYLES, last, "|difference|, nats per token; dashed: the bound", bound)
    write_svg(path, WIDTH, 2 * HEIGHT, f'{top}\n<g transform="translate(0 {HEIGHT})">\n{bottom}\n</g>')


def main():
    a = parse_options()
    losses = read_losses(a)
    diffs = differences(losses)
    bound, verdict = judge(diffs)
    text = "\n".join(table(losses, diffs)) + "\n\n" + "\n".join(f"- {line}" for line in verdict) + "\n"
    write(a.out + ".md", text)
    write_picture(a.out + ".svg", losses, diffs, bound)
    print(text + f"wrote {a.out}.md and {a.out}.svg")
    raise SystemExit(any(line.endswith("FAIL") for line in verdict))


if __name__ == "__main__":
    main()
